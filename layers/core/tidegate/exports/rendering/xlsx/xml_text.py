"""Text for the XML of a worksheet."""

from __future__ import annotations

import re

MAX_CELL_UNITS = 32_767
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]")
# Excel reads _x0041_ as an escaped character, so literal text of that shape has its underscore escaped.
_ESCAPE_LOOKALIKE = re.compile(r"_(?=x[0-9A-Fa-f]{4}_)")


def clean(text: str) -> str:
    """Removes characters that XML does not allow, and cuts the text to the length of a cell (in UTF-16 units)."""
    text = _FORBIDDEN.sub("", text)
    if "\r" in text:
        # XML parsers normalise line breaks; openpyxl, which writes the heads, escapes them.
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if len(text) > MAX_CELL_UNITS // 2:
        text = text.encode("utf-16-le")[: MAX_CELL_UNITS * 2].decode("utf-16-le", "ignore")
    return text


def is_cut(text: str) -> bool:
    """Whether `clean` cuts the text."""
    return len(_FORBIDDEN.sub("", text).encode("utf-16-le")) // 2 > MAX_CELL_UNITS


def literal(text: str) -> str:
    return _ESCAPE_LOOKALIKE.sub("_x005F_", text)


def escape(text: str) -> str:
    return literal(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def text_element(text: str) -> str:
    """The `<t>` element of a cell; leading and trailing spaces and line breaks need `xml:space`."""
    text = clean(text)
    keep = text[:1].isspace() or text[-1:].isspace() or "\n" in text
    return f'<t xml:space="preserve">{escape(text)}</t>' if keep else f"<t>{escape(text)}</t>"
