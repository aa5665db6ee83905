"""Values of options that several commands read alike."""

from __future__ import annotations

import argparse
from typing import Any

from tidegate_client.cli.context import given


def rate(text: str) -> int:
    """Bytes a second, as in 500K or 10M."""
    from tidegate_client.agent.rate_limit import parse_rate

    try:
        return parse_rate(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def add_politeness(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--connections", type=int, metavar="N", help="to the source at once, for one file")
    parser.add_argument("--bytes-per-s", type=int, metavar="N", help="of one file")
    parser.add_argument("--delay-s", type=float, metavar="SECONDS", help="between requests to the source")
    parser.add_argument("--host-downloads", type=int, metavar="N", help="of the project from its host at once")


def politeness(args: argparse.Namespace) -> dict[str, Any]:
    """The `politeness` that the options ask for; empty without any."""
    asked = given(args, "connections", "bytes_per_s", "delay_s", "host_downloads")
    return {"politeness": asked} if asked else {}
