"""CSV formula injection: text that a spreadsheet would run gets an apostrophe before it.

A cell is looked at as the reader may see it, not as it was written: where the list separator is a semicolon, a
spreadsheet splits a line at semicolons and tabs, and takes quotes and line breaks in the middle of a field as they are.
"""

from __future__ import annotations

import re
from functools import cache

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
NUMBER = re.compile(_NUMBER, re.ASCII)
# The full-width forms start a formula as well.
TRIGGERS = "=+-@＝＋－＠"
# Before the first visible character a spreadsheet drops these; U+FEFF opens a file as its byte order mark.
STARTERS = frozenset(TRIGGERS + "\t\r\n\x00\ufeff")
SEPARATORS = ";\t\r\n"


@cache
def _inner(separators: str) -> re.Pattern[str]:
    at = re.escape(separators)
    return re.compile(rf'(?<=[{at}])(["\x00]*)(?=[{re.escape(TRIGGERS)}])(?!{_NUMBER}(?:[{at}"]|\Z))', re.ASCII)


def guard(text: str, separators: str = SEPARATORS) -> str:
    """`text`, safe to open in a spreadsheet that splits at `separators`; a number such as -12.5 stays a number."""
    if not text:
        return text
    if any(separator in text for separator in separators):
        text = _inner(separators).sub(r"\1'", text)
    if text[0] in STARTERS and not NUMBER.fullmatch(text):
        return f"'{text}"
    return text
