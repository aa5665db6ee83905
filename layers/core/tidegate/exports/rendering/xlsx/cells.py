"""The cells of one column as worksheet XML, a block of rows at a time.

Within a block, a column nearly always has a single type and a few blanks. Then all cells have the same markup around
their texts, and Python code runs once per column, not once per cell. Other columns are written cell by cell, with a
cache for texts, which tend to repeat.

Texts are passed on as UTF-8 with one character per byte (`wire`): such strings are joined and encoded several times
faster than Chinese ones, and most of a row is ASCII markup.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import msgspec

from tidegate.exports.rendering.formula_guard import NUMBER
from tidegate.exports.rendering.xlsx.typed_cells import NUMERIC, TEXTUAL, TYPED
from tidegate.exports.rendering.xlsx.xml_text import MAX_CELL_UNITS, is_cut, text_element
from tidegate.exports.source_json import Digits, digits_of, nested_text

_BIGGEST_INT = 10**15
_BIGGEST_FLOAT = 9.99999999999999e307
_SURELY_FITS = MAX_CELL_UNITS // 2
# Numbers of at most this many characters have at most 15 digits, which Excel keeps.
_SURELY_EXACT = 15
_SEP = "`"
_CACHED_CELLS = 4096
NUMBERS = {int, float, Digits}
_EXACT = Context(prec=60)
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Column:
    key: str
    style: int
    kind: str | None = None
    summed: bool = False
    # Its width in characters if its texts wrap, else 0.
    wrapped: float = 0.0
    # The style of its booleans, which need their own number format.
    boolean_style: int | None = None


@dataclass(frozen=True, slots=True)
class Cells:
    """Texts, as `wire` makes them, and the markup before and after each; cells at the indexes `blanks` are blank."""

    before: str
    texts: list[str]
    after: str
    blanks: list[int]


class ColumnWriter:
    def __init__(self, column: Column) -> None:
        self.key, self._style, self._kind = column.key, column.style, column.kind
        self.blank = blank_cell(column.style)
        self._text = (f'<c s="{column.style}" t="inlineStr"><is><t>', "</t></is></c>")
        self._number = (f'<c s="{column.style}"><v>', "</v></c>")
        of_booleans = column.style if column.boolean_style is None else column.boolean_style
        self._bools = {value: f'<c s="{of_booleans}" t="b"><v>{value:d}</v></c>' for value in (True, False)}
        self._typed_style = of_booleans if column.kind == "boolean" else column.style
        self._cache = _CellCache(self)
        self._was_text = False
        self.sum = Decimal(0) if column.summed else None
        # How many texts were too long for a cell.
        self.cut = 0

    def cells(self, values: list[Any]) -> Cells:
        if self.sum is not None:
            for value in values:
                self.sum = _EXACT.add(self.sum, _amount(value, self._kind))
        if self._was_text:
            # A column of text most likely stays one: try that first.
            try:
                texts = _plain_texts(values)
            except TypeError:
                texts = None
            if texts is not None:
                return Cells(self._text[0], texts, self._text[1], [])
            self._was_text = False
        types = set(map(type, values))
        blanks = list[int]()
        present = values
        if type(None) in types:
            types.discard(type(None))
            blanks = [index for index, value in enumerate(values) if value is None]
            if not types:
                return Cells("", [self.blank] * len(values), "", [])
        if types == {str}:
            if self._kind is None or self._kind == "string":
                if blanks:
                    present = [value or "" for value in values]
                texts = _plain_texts(present)
                if texts is not None:
                    self._was_text = not blanks
                    return Cells(self._text[0], texts, self._text[1], blanks)
            return Cells("", list(map(self._cache.__getitem__, values)), "", [])
        if types <= NUMBERS and self._kind in NUMERIC:
            if blanks:
                present = [0 if value is None else value for value in values]
            numbers = _exact_numbers(present, types)
            if numbers is not None:
                return Cells(self._number[0], numbers, self._number[1], blanks)
        return Cells("", [wire(self.cell(value)) for value in values], "", [])

    def cell(self, value: object) -> str:
        if value is None:
            return self.blank
        if self._kind in TYPED:
            typed = TYPED[self._kind](value, self._typed_style)
            if typed is not None:
                return typed
        if isinstance(value, str):
            return self._text_cell(value)
        if isinstance(value, bool):
            return self._bools[value]
        if isinstance(value, int | float | Digits):
            text = number_text(value)
            if self._kind not in TEXTUAL and _is_exact(value):
                return f"{self._number[0]}{text}{self._number[1]}"
            return text_cell(text, self._style)
        return self._text_cell(nested_text(value))

    def _text_cell(self, text: str) -> str:
        if len(text) > _SURELY_FITS and is_cut(text):
            self.cut += 1
        return text_cell(text, self._style)


class _CellCache(dict[str | None, str]):
    """Cells by text. Numbers are not cached: 1, 1.0 and True are the same key but different cells."""

    def __init__(self, writer: ColumnWriter) -> None:
        self._writer = writer

    def __missing__(self, value: str | None) -> str:
        cell = wire(self._writer.cell(value))
        if value is None or len(value) < _SURELY_FITS:
            if len(self) >= _CACHED_CELLS:
                self.clear()
            self[value] = cell
        return cell


def wire(text: str) -> str:
    """The UTF-8 bytes of the text, each as the character with that code."""
    return text if text.isascii() else text.encode().decode("latin-1")


def blank_cell(style: int) -> str:
    return f'<c s="{style}"/>'


def text_cell(text: str, style: int) -> str:
    return f'<c s="{style}" t="inlineStr"><is>{text_element(text)}</is></c>'


def number_text(value: float | Digits) -> str:
    """The number as its source wrote it; NaN and infinities by the names that JavaScript uses."""
    if isinstance(value, Digits):
        return digits_of(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return str(value)


def number_texts(values: list[Any], types: set[type]) -> list[str] | None:
    """`number_text` of all values at once; None if some need to be converted one by one."""
    try:
        encoded = _encode(values)
    except OverflowError:
        return None
    # msgspec formats exponents and small numbers differently, and writes null for NaN.
    if float in types and any(mark in encoded for mark in (b"e", b"n", b"0.0000")):
        return None
    return encoded.decode()[1:-1].split(",")


def _amount(value: object, kind: str | None) -> Decimal:
    """The summand of a value for the total of its column; 0 if it is not a number. Untyped texts are no numbers."""
    if isinstance(value, str):
        text, divisor = value.strip(), 1
        if kind == "percent" and text.endswith("%"):
            text, divisor = text[:-1].strip(), 100
        return _decimal(text) / divisor if kind is not None and NUMBER.fullmatch(text) else Decimal(0)
    if isinstance(value, bool) or not isinstance(value, int | float | Digits):
        return Decimal(0)
    return _decimal(number_text(value))


def _decimal(text: str) -> Decimal:
    """0 for what a double cannot hold, such as 1e999999: computing with it takes long or fails."""
    number = float(text)
    return Decimal(text) if number and math.isfinite(number) else Decimal(0)


def _plain_texts(values: list[str]) -> list[str] | None:
    """The values, escaped and as `wire` makes them; None if one of them needs other markup."""
    body = _SEP.join(values)
    if not body.isprintable() or "_x" in body:
        return None
    if len(body) > _SURELY_FITS and max(map(len, values)) > _SURELY_FITS:
        return None
    if f" {_SEP}" in body or f"{_SEP} " in body or body[:1] == " " or body[-1:] == " ":
        return None
    escaped = wire(body).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    if escaped is body:
        return values
    texts = escaped.split(_SEP)
    return texts if len(texts) == len(values) else None


def _exact_numbers(values: list[Any], types: set[type]) -> list[str] | None:
    """The texts of the numbers; None if Excel cannot hold one of them exactly."""
    texts = number_texts(values, types) or list(map(number_text, values))
    if types == {int}:
        return texts if max(map(len, texts)) <= _SURELY_EXACT else None
    joined = ",".join(texts)
    if "N" in joined or "I" in joined or "e+3" in joined:
        return None
    if types == {float}:
        return texts
    if "e" in joined or "E" in joined:
        return None
    if max(map(len, texts)) <= _SURELY_EXACT:
        return texts
    # A decimal that equals the repr of its float is exact.
    return texts if int not in types and list(map(repr, map(float, texts))) == texts else None


def _is_exact(value: float | Digits) -> bool:
    """Whether Excel, which stores numbers as floats, keeps all digits."""
    if isinstance(value, int):
        return abs(value) < _BIGGEST_INT
    number = float(digits_of(value)) if isinstance(value, Digits) else value
    if not abs(number) < _BIGGEST_FLOAT:
        return False
    return not isinstance(value, Digits) or Decimal(repr(number)) == Decimal(digits_of(value))
