"""Values of options that several commands read alike."""

from __future__ import annotations

import argparse


def rate(text: str) -> int:
    """Bytes a second, as in 500K or 10M."""
    from tidegate_client.agent.rate_limit import parse_rate

    try:
        return parse_rate(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
