"""Guards CSV against formula injection: text that a spreadsheet would run is prefixed with an apostrophe.

A cell is checked as a spreadsheet may read it, not as it was written: if the list separator of its locale is a
semicolon, it splits a line at semicolons and tabs, and takes quotes and line breaks in the middle of a field literally.
"""

from __future__ import annotations

import re
from functools import cache

_NUMBER = r"[+-]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?"
NUMBER = re.compile(_NUMBER, re.ASCII)
# Full-width forms start a formula too.
TRIGGERS = "=+-@＝＋－＠"
# A spreadsheet drops these before the first visible character; U+FEFF is the byte-order mark.
STARTERS = frozenset(TRIGGERS + "\t\r\n\x00\ufeff")
SEPARATORS = ";\t\r\n"


@cache
def _inner(separators: str) -> re.Pattern[str]:
    at = re.escape(separators)
    return re.compile(rf'(?<=[{at}])(["\x00]*)(?=[{re.escape(TRIGGERS)}])(?!{_NUMBER}(?:[{at}"]|\Z))', re.ASCII)


def guard(text: str, separators: str = SEPARATORS) -> str:
    """Returns `text`, safe for a spreadsheet that splits at `separators`; a number such as -12.5 is unchanged."""
    if not text:
        return text
    if any(separator in text for separator in separators):
        text = _inner(separators).sub(r"\1'", text)
    if text[0] in STARTERS and not NUMBER.fullmatch(text):
        return f"'{text}"
    return text
