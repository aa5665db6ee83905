"""The width of text on a screen, in digits of the default font: Chinese characters and emoji take two."""

from __future__ import annotations

from unicodedata import east_asian_width


def width_of(text: str) -> int:
    """The width of its longest line."""
    if text.isascii() and "\n" not in text:
        return len(text)
    return max(map(_line_width, text.split("\n")))


def lines_of(text: str, width: float) -> int:
    """How many lines the text takes at this width."""
    return sum(max(1, -(-_line_width(line) // max(1, int(width)))) for line in text.split("\n"))


def _line_width(line: str) -> int:
    return len(line) if line.isascii() else sum(2 if east_asian_width(char) in "WF" else 1 for char in line)
