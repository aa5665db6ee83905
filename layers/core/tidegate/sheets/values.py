"""Values of cells: exact digits, text for XML, the width of text, and the guard against formulas."""

from __future__ import annotations

import json
import math
import re
from datetime import datetime
from functools import cache
from typing import Any
from unicodedata import east_asian_width

import msgspec

# --- source json
# JSON from sources, read fast and without losing digits.
#
# Integers may have any length. A decimal is kept as the text that its source sent, in a `Digits`: as a float, 100.00
# would become 100.0 and 12345678901234567.89 another number.

# Raw JSON, which msgspec writes back unchanged.
Digits = msgspec.Raw
_decoder = msgspec.json.Decoder(float_hook=Digits)
_encoder = msgspec.json.Encoder(enc_hook=str)


def read_exact(text: str | bytes) -> Any:
    """Returns the parsed JSON, with decimals as `Digits`.

    Raises ValueError if the text is not JSON, or is nested too deep. msgspec refuses some input that sources do send
    (NaN, a byte-order mark, UTF-16, lone surrogates). The slower `json` reads such input.
    """
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    except RecursionError as error:
        raise ValueError("it is nested too deep: use fewer levels") from error
    try:
        return json.loads(text, parse_float=Digits)
    except RecursionError as error:
        raise ValueError("it is nested too deep: use fewer levels") from error


def write_exact(value: Any) -> bytes:
    """Returns JSON that `read_exact` reads back unchanged, except that lone surrogates become `?`."""
    try:
        return _encoder.encode(value)
    except (UnicodeEncodeError, OverflowError):
        return _encoder.encode(_writable(value))


def _writable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if type(value) is int:
        # msgspec writes integers of at most 64 bits.
        return Digits(str(value))
    if isinstance(value, dict):
        return {_writable(str(key)): _writable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_writable(inner) for inner in value]
    return value


def digits_of(value: Digits) -> str:
    return bytes(value).decode()


def nested_text(value: object) -> str:
    """Returns the text of a cell whose value is an object or a list."""
    try:
        return json.dumps(value, ensure_ascii=False, default=_without_digits)
    except _HasDigits:
        return msgspec.json.format(write_exact(value), indent=0).decode()


def plain(value: Any) -> Any:
    """Returns the value with floats in place of `Digits`. Meant for values that are not written to cells."""
    if isinstance(value, Digits):
        return float(digits_of(value))
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return value


class _HasDigits(Exception):
    pass


def _without_digits(value: object) -> str:
    if isinstance(value, Digits):
        raise _HasDigits
    return str(value)


# --- number texts
# Numbers as their source wrote them.

NUMBERS = {int, float, Digits}
_encode = msgspec.json.Encoder().encode


def number_text(value: float | Digits) -> str:
    """Returns the number as its source wrote it; NaN and infinities have the names that JavaScript uses."""
    if isinstance(value, Digits):
        return digits_of(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return str(value)


def number_texts(values: list[Any], types: set[type]) -> list[str] | None:
    """Returns the `number_text` of each value, made by one call. None if some values must be converted one by one."""
    try:
        encoded = _encode(values)
    except OverflowError:
        return None
    # msgspec formats exponents and small numbers differently, and writes null for NaN.
    if float in types and any(mark in encoded for mark in (b"e", b"n", b"0.0000")):
        return None
    return encoded.decode()[1:-1].split(",")


# --- typed texts
# Values of typed columns, read from text. None for a value that is not of the type.

_TRUE, _FALSE = frozenset({"true", "1", "yes"}), frozenset({"false", "0", "no"})


def moment_of(value: object) -> datetime | None:
    """Returns the date and time as written, such as 2026-11-18 or 2026/11/18 06:00+08:00, without the zone.

    None if the value is not a date.
    """
    text = value.strip() if isinstance(value, str) else ""
    # Digits alone may be a number, not a date.
    if len(text) < 10 or text[4] not in "-/":
        return None
    try:
        return datetime.fromisoformat(text.replace("/", "-")).replace(tzinfo=None)
    except ValueError:
        return None


def truth_of(value: object) -> bool | None:
    text = str(value).strip().lower() if isinstance(value, str | int) else ""
    return text in _TRUE if text in _TRUE or text in _FALSE else None


# --- formula guard
# Guards CSV against formula injection: text that a spreadsheet would run is prefixed with an apostrophe.
#
# A cell is checked as a spreadsheet may read it, not as it was written: if the list separator of its locale is a
# semicolon, it splits a line at semicolons and tabs, and takes quotes and line breaks in the middle of a field
# literally.

_NUMBER = r"[+-]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?"
NUMBER = re.compile(_NUMBER, re.ASCII)
# Full-width forms start a formula too.
TRIGGERS = "=+-@＝＋－＠"
# A spreadsheet drops these before the first visible character; U+FEFF is the byte-order mark.
STARTERS = frozenset(TRIGGERS + "\t\r\n\x00\ufeff")
SEPARATORS = ";\t\r\n"
# Texts that start like a formula and cannot be one: a sign alone; a number as people write it, such as -1,234.50,
# -12.5 %, -$5 or -1.234,50; a phone number with its country code. The pattern does not backtrack: it takes linear time.
_AMOUNT = r"(?:\d++(?:\.\d*+)?|\.\d++|\d{1,3}(?:,\d{3})++(?:\.\d++)?|\d{1,3}(?:\.\d{3})*+,\d++)(?:[eE][+-]?\d++)?"
AMOUNT = re.compile(rf"[+-]? ?[$€£¥￥]? ?{_AMOUNT} ?%?", re.ASCII)
_PHONE = r"\+(?=(?:[ ().-]*+\d){6})\d++(?:[ .-]*+\(\d++\)|[ .-]++\d++|(?<=\))\d++)*+"
_HARMLESS = rf"(?:[-+＋－]|[+-] ?[$€£¥￥]? ?{_AMOUNT} ?%?|{_PHONE})"
_HARMLESS_TEXT = re.compile(_HARMLESS, re.ASCII)
# The mark before each text of a column that is checked as a whole. A spreadsheet does not split a line at it.
MARK = "\x1e"
_MARKED = re.compile(rf"{MARK}(?=[{re.escape(''.join(sorted(STARTERS)))}])(?!{_HARMLESS}(?:{MARK}|\Z))", re.ASCII)


@cache
def _inner(separators: str, end: str = "") -> re.Pattern[str]:
    """Returns a pattern that finds the formulas that begin after a separator.

    `end`: other characters that end a text.
    """
    at, past = re.escape(separators), re.escape(separators + end)
    return re.compile(rf'(?<=[{at}])(["\x00]*)(?=[{re.escape(TRIGGERS)}])(?!{_HARMLESS}(?:[{past}"]|\Z))', re.ASCII)


def guard(text: str, separators: str = SEPARATORS) -> str:
    """Returns the text with an apostrophe before each part that a spreadsheet would run as a formula.

    The spreadsheet may split lines at `separators`. Text that only looks like a formula is unchanged.
    """
    if not text:
        return text
    if any(separator in text for separator in separators):
        text = _inner(separators).sub(r"\1'", text)
    if text[0] in STARTERS and not _HARMLESS_TEXT.fullmatch(text):
        return f"'{text}"
    return text


def guard_all(marked: str, separators: str = SEPARATORS) -> str:
    """Guards many texts that are joined in one string: a MARK precedes each text, and no text contains a MARK."""
    if any(separator in marked for separator in separators):
        marked = _inner(separators, MARK).sub(r"\1'", marked)
    return _MARKED.sub(f"{MARK}'", marked)


# --- xml text
# Text for the XML of a worksheet.

MAX_CELL_UNITS = 32_767
# Longer texts are not remembered: they rarely repeat, and thousands of them would fill the memory.
LONGEST_KNOWN = 1000
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]")
# Excel reads _x0041_ as an escaped character, so literal text of that shape has its underscore escaped.
_ESCAPE_LOOKALIKE = re.compile(r"_(?=x[0-9A-Fa-f]{4}_)")


def clean(text: str) -> str:
    """Returns the text without characters that XML forbids, cut to the length of a cell (in UTF-16 units)."""
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


def is_printable(text: str) -> bool:
    """Whether the text surely has no character that `clean` removes or replaces.

    In ASCII text, such characters are found by the backslashes that JSON writes for them.
    """
    return (text.isascii() and b"\\" not in _encode(text)) or text.isprintable()


def literal(text: str) -> str:
    return _ESCAPE_LOOKALIKE.sub("_x005F_", text)


def escape(text: str) -> str:
    return literal(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def text_element(text: str) -> str:
    """Returns the `<t>` element of a cell.

    It has `xml:space` if the text has line breaks, or blanks at its start or end.
    """
    text = clean(text)
    keep = text[:1].isspace() or text[-1:].isspace() or "\n" in text
    return f'<t xml:space="preserve">{escape(text)}</t>' if keep else f"<t>{escape(text)}</t>"


# --- text width
# The width of text on a screen, in digits of the default font. Chinese characters and emoji are as wide as two digits.


def width_of(text: str) -> int:
    """Returns the width of the text's longest line, in digits of the default font."""
    if text.isascii() and "\n" not in text:
        return len(text)
    return max(map(_line_width, text.split("\n")))


def lines_of(text: str, width: float) -> int:
    """Returns how many lines the text takes at this width."""
    return sum(max(1, -(-_line_width(line) // max(1, int(width)))) for line in text.split("\n"))


def _line_width(line: str) -> int:
    return len(line) if line.isascii() else sum(2 if east_asian_width(char) in "WF" else 1 for char in line)
