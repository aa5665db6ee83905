"""CSV formula injection: text that a spreadsheet would run gets a leading apostrophe."""

from __future__ import annotations

import re

NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
STARTERS = frozenset("=+-@\t\r")


def guard(text: str) -> str:
    """`text`, safe to open in a spreadsheet; a number such as -12.5 stays a number."""
    if text[:1] in STARTERS and text and not NUMBER.fullmatch(text):
        return f"'{text}"
    return text
