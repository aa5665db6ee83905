"""Options that several commands share."""

from __future__ import annotations

import argparse
from typing import Any

from tidegate_client.cli.context import given


def rate(text: str) -> int:
    """Parses bytes a second, as in 500K or 10M."""
    from tidegate_client.agent.rate_limit import parse_rate

    try:
        return parse_rate(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def add_politeness(parser: argparse.ArgumentParser) -> None:
    """Adds the options that limit how fast a source is read."""
    parser.add_argument("--connections", type=int, metavar="N", help="connections to the source for one file")
    parser.add_argument("--bytes-per-s", type=int, metavar="N", help="bytes a second for one file")
    parser.add_argument("--delay-s", type=float, metavar="SECONDS", help="pause between two requests to the source")
    parser.add_argument(
        "--host-downloads", type=int, metavar="N", help="downloads of the project from this host at a time"
    )


def politeness(args: argparse.Namespace) -> dict[str, Any]:
    """The field `politeness` for the given options; empty if there are none."""
    asked = given(args, "connections", "bytes_per_s", "delay_s", "host_downloads")
    return {"politeness": asked} if asked else {}
