"""Cells and rows of a sheet: the hot loop of Excel exports."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from functools import partial, reduce
from typing import Any

from tidegate.sheets.table import Row, column_of, columns_of, letters
from tidegate.sheets.values import (
    AMOUNT,
    LONGEST_KNOWN,
    MAX_CELL_UNITS,
    NUMBER,
    NUMBERS,
    Digits,
    clean,
    digits_of,
    escape,
    is_cut,
    is_printable,
    lines_of,
    moment_of,
    nested_text,
    number_text,
    number_texts,
    text_element,
    truth_of,
)

# --- typed cells
# Cells of columns with a type in the template. A function returns None for a value that is not of its type.
#
# The text of a cell begins with the closing quote of its reference, `" s="1"><v>5</v></c>`: what precedes it,
# `<c r="B7`, differs within a column only in the row number.

_BIGGEST = 9.99999999999999e307
# Excel has no smaller numbers.
_SMALLEST = 2.3e-308
# Excel counts days from here. Its year 1900 has a 29 February, so dates before 1 March 1900 are written as text.
_DAY_ZERO = datetime(1899, 12, 30)  # noqa: DTZ001 - Excel has no time zones
_FIRST_DAY = datetime(1900, 3, 1)  # noqa: DTZ001
# Where workbooks of old Macs count from.
_MAC_ZERO = datetime(1904, 1, 1)  # noqa: DTZ001
_LINK_STARTS = ("http://", "https://", "mailto:", "ftp://")
# The longest text within a formula.
_LONGEST_LITERAL = 255

TypedCell = Callable[[object, int], str | None]


def _number(value: object, style: int) -> str | None:
    if not isinstance(value, str):
        return None
    text = value.strip()
    return _value(text.lstrip("+"), style) if _is_exact_number(text) else None


def _percent(value: object, style: int) -> str | None:
    """Returns the cell of a share such as 0.125 or "12.5%"."""
    text = value.strip() if isinstance(value, str) else ""
    number = text[:-1].strip()
    if text.endswith("%") and _is_exact_number(number):
        # A zero is not written out: "0e-999999%" would have a million digits.
        return _value(f"{Decimal(number) / 100:f}" if float(number) else "0", style)
    return _number(value, style)


def _date(value: object, style: int) -> str | None:
    moment = moment_of(value)
    return _value(str((moment - _DAY_ZERO).days), style) if moment and moment >= _FIRST_DAY else None


def _datetime(value: object, style: int, zero: datetime = _DAY_ZERO, first: datetime = _FIRST_DAY) -> str | None:
    """Returns the cell of a date and time as written. A zone offset is dropped, because Excel has no time zones."""
    moment = moment_of(value)
    if moment is None or moment < first:
        return None
    whole, part = divmod(moment - zero, timedelta(days=1))
    fraction = f"{part / timedelta(days=1):.11f}".rstrip("0").removeprefix("0").rstrip(".") if part else ""
    return _value(f"{whole}{fraction}", style)


def _boolean(value: object, style: int) -> str | None:
    truth = truth_of(value)
    return None if truth is None else f'" s="{style}" t="b"><v>{truth:d}</v></c>'


def _link(value: object, style: int, label: str = "") -> str | None:
    """Returns a cell with a HYPERLINK formula. None if the value is not an address, or is too long for a formula.

    Excel's list of hyperlinks is not used: it needs row numbers, and holds at most 65,530 links.
    """
    if not isinstance(value, str):
        return None
    text = clean(value.strip())
    if not text.lower().startswith(_LINK_STARTS) or len(text.encode("utf-16-le")) // 2 > _LONGEST_LITERAL:
        return None
    shown = cut_units(clean(label).strip(), _LONGEST_LITERAL)
    literals = ",".join(f'"{escape(each.replace(chr(34), chr(34) * 2))}"' for each in (text, shown) if each)
    return f'" s="{style}" t="str"><f>HYPERLINK({literals})</f><v>{escape(shown or text)}</v></c>'


def cut_units(text: str, units: int) -> str:
    """Returns the text cut to a number of UTF-16 units; most emoji count as two."""
    return text.encode("utf-16-le")[: units * 2].decode("utf-16-le", "ignore")


class LabelledLink(str):
    """The address of a link. Its cell shows the text `label`."""

    label = ""


def labelled(address: object, label: object) -> object:
    if not isinstance(address, str) or label is None:
        return address
    link = LabelledLink(address)
    link.label = label if isinstance(label, str) else shown_text(label)
    return link


def _value(text: str, style: int) -> str:
    return f'" s="{style}"><v>{text}</v></c>'


def _is_exact_number(text: str) -> bool:
    digits = sum(map(str.isdigit, text.lower().partition("e")[0]))
    if digits > 15 or not NUMBER.fullmatch(text):
        return False
    size = abs(float(text))
    return _SMALLEST < size < _BIGGEST or (size == 0 and not re.search("[1-9]", text.lower().partition("e")[0]))


# The type of dates in a filled workbook that counts days from 1904.
MAC_DATETIME = "datetime 1904"
TYPED: dict[str | None, TypedCell] = {
    "number": _number,
    "integer": _number,
    "decimal": _number,
    "currency": _number,
    "percent": _percent,
    "date": _date,
    "datetime": _datetime,
    MAC_DATETIME: partial(_datetime, zero=_MAC_ZERO, first=_MAC_ZERO),
    "boolean": _boolean,
}
NUMERIC = frozenset({None, "number", "integer", "decimal", "currency", "percent"})
# Types of columns in which a number is written as text: as a number, Excel would show something else.
TEXTUAL = frozenset({"string", "date", "datetime", MAC_DATETIME})
# The number format of a type if the template has none.
FORMATS = {
    "string": "@",
    "currency": "#,##0.00",
    "percent": "0.00%",
    "date": "yyyy-mm-dd",
    "datetime": "yyyy-mm-dd hh:mm:ss",
}
# The format of boolean cells in any column. Excel shows TRUE in every format; LibreOffice shows 1 in a number format,
# and recognises this one as its boolean format.
BOOLEAN_FORMAT = '"TRUE";"TRUE";"FALSE"'


# --- cells
# The cells of one column as worksheet XML, a block of rows at a time.
#
# Within a block, a column nearly always has a single type and a few blanks. Then all cells have the same markup around
# their texts, and Python code runs once per column, not once per cell. Other columns are written cell by cell, with a
# cache for texts, which tend to repeat.
#
# Texts are passed on as UTF-8 with one character per byte (`wire`): such strings are joined and encoded several times
# faster than Chinese ones, and most of a row is ASCII markup.

_BIGGEST_INT = 10**15
_BIGGEST_FLOAT = 9.99999999999999e307
_SURELY_FITS = MAX_CELL_UNITS // 2
# Numbers of at most this many characters have at most 15 digits, which Excel keeps.
_SURELY_EXACT = 15
_SEP = "`"
_CACHED_CELLS = 4096
# The range of doubles spans 632 decimal places, so sums are exact, whatever the order of their numbers.
_EXACT = Context(prec=700)
# Shorter texts without an exponent are certainly within the range of a double.
_SURELY_FINITE = 300
_WITHOUT_DIGITS = dict.fromkeys(map(ord, "0123456789.+-"))
_COUNTABLE = re.compile(rf"{AMOUNT.pattern}|\d{{1,4}}:\d\d(?::\d\d(?:\.\d+)?)?", re.ASCII)
# Excel shows no more digits.
_SHOWN_DIGITS = 15
_LONGEST_NUMBER = 40
# A column is not made wider for its texts.
MEASURED_WIDTH = 60
_LONGEST_SHOWN = 200


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
    # Whether it is made wide enough for its numbers. In other columns, programs round numbers to the width.
    measured: bool = False
    # What its links show: a text, or what the row has under this key.
    label: str | None = None
    label_key: str | None = None


@dataclass(frozen=True, slots=True)
class Cells:
    """Cells of one column: their texts, as `wire` makes them, and the markup before and after each text.

    The cells at the indexes `blanks` are blank.
    """

    before: str
    texts: list[str]
    after: str
    blanks: list[int]


@dataclass(frozen=True, slots=True)
class Total:
    """The exact sum of a column."""

    amount: Decimal = Decimal(0)
    # Whether a formula over the cells would give another sum, such as when a summed number is kept as text.
    fixed: bool = False
    # How many values are not in the sum because they are not numbers.
    left_out: int = 0

    def __add__(self, other: Total) -> Total:
        amount = _EXACT.add(self.amount, other.amount)
        return Total(amount, self.fixed or other.fixed, self.left_out + other.left_out)

    def as_data(self) -> list[Any]:
        return [str(self.amount), self.fixed, self.left_out]

    @classmethod
    def from_data(cls, data: Any) -> Total:
        # Records of an export that began before a deployment may have the amount alone.
        amount, fixed, left_out = (data, False, 0) if isinstance(data, str) else data
        return cls(Decimal(amount), fixed, left_out)

    @property
    def as_number(self) -> str | None:
        """The total as the text of a number cell.

        None if such a cell cannot hold the number or cannot show all its digits.
        """
        if not abs(self.amount) < _BIGGEST_FLOAT:
            return None
        if self.fixed and len(_EXACT.normalize(self.amount).as_tuple().digits) > _SHOWN_DIGITS:
            return None
        text = str(self.amount)
        return text if len(text) <= _LONGEST_NUMBER else repr(float(self.amount))

    @property
    def as_text(self) -> str:
        text = str(self.amount)
        return text if len(text) <= _LONGEST_NUMBER else str(_EXACT.normalize(self.amount))


class ColumnWriter:
    def __init__(self, column: Column) -> None:
        self.key, self._style, self._kind = column.key, column.style, column.kind
        self.blank = blank_cell(column.style)
        self._text = (f'" s="{column.style}" t="inlineStr"><is><t>', "</t></is></c>")
        self._number = (f'" s="{column.style}"><v>', "</v></c>")
        of_booleans = column.style if column.boolean_style is None else column.boolean_style
        self._bools = {value: f'" s="{of_booleans}" t="b"><v>{value:d}</v></c>' for value in (True, False)}
        self._label = column.label or ""
        self._typed_style = of_booleans if column.kind == "boolean" else column.style
        self._cache = _CellCache(self)
        self._was_text = False
        # A formula over dates, booleans or texts would add other numbers than those of the source.
        self.total = Total(fixed=column.kind not in NUMERIC) if column.summed else None
        # How many texts were too long for a cell.
        self.cut = 0
        # Whether a number is a text in the file, as far as `look_for_number_texts` was called.
        self.has_number_texts = False
        # The width of the widest text so far, as far as it matters.
        self.widest = 0
        self._most = MEASURED_WIDTH if column.measured else 0

    def cells(self, values: list[Any]) -> Cells:
        made = self._cells(values)
        if self.widest < self._most:
            self._measure(values, made)
        if self.total is not None:
            self.total += self._total_of(values, made)
        return made

    @property
    def may_be_number(self) -> bool:
        return self._kind not in TEXTUAL

    @property
    def is_to_count(self) -> bool:
        """Whether numbers of the column are meant to be added: false for a column of texts."""
        return self._kind != "string"

    def look_for_number_texts(self, values: list[Any], made: Cells) -> None:
        if self.has_number_texts or not self.is_to_count or made.before == self._number[0]:
            return
        # A source that sends numbers as texts, as PHP does, does so in all rows: a few rows show it.
        few = values[:: 1 + len(values) // 64 * 20] if self._kind is None else ()
        self.has_number_texts = any(type(value) is str and is_countable(value) for value in few)
        if not self.has_number_texts and not made.before:
            self.has_number_texts = any(
                ' t="' in cell and value is not None and is_countable(shown_text(value))
                for value, cell in zip(values, made.texts, strict=True)
                if self._kind is not None or type(value) is not str
            )

    def _measure(self, values: list[Any], made: Cells) -> None:
        """Updates `widest`.

        Plain texts are not measured: a number that does not fit shows as ###, a text is only cut off.
        """
        if made.before == self._number[0]:
            longest = max(map(len, made.texts))
        elif made.before == self._text[0] or self._kind is None:
            return
        else:
            longest = max(len(value) for value in map(shown_text, values))
        self.widest = max(self.widest, longest)

    def _total_of(self, values: list[Any], made: Cells) -> Total:
        if made.before == self._number[0]:
            return Total(reduce(_EXACT.add, map(Decimal, made.texts)))
        all_text = made.before == self._text[0]
        if all_text and (amounts := _plain_amounts(values)):
            return Total(reduce(_EXACT.add, amounts), fixed=True)
        amount, fixed, left_out = Decimal(0), False, 0
        for value, cell in zip(values, made.texts, strict=True):
            if value is None or (isinstance(value, str) and not value.strip()):
                continue
            summand = _amount(value, self._kind)
            if summand is None:
                left_out += 1
                # LibreOffice would count a boolean.
                fixed = fixed or isinstance(value, bool)
            else:
                amount = _EXACT.add(amount, summand)
                fixed = fixed or all_text or ' t="' in cell
        return Total(amount, fixed, left_out)

    def _cells(self, values: list[Any]) -> Cells:
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
        if self._kind == "link":
            typed = _link(value, self._style, value.label if isinstance(value, LabelledLink) else self._label)
            if typed is not None:
                return typed
        elif self._kind in TYPED:
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


def shown_text(value: object) -> str:
    """Returns the text of a cell, for measuring its width. A long text is cut, because no column gets that wide."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value[:_LONGEST_SHOWN]
    return number_text(value) if type(value) in NUMBERS else nested_text(value)[:_LONGEST_SHOWN]  # type: ignore[arg-type]


def is_countable(text: str) -> bool:
    """Whether people would expect this text in a sum: an amount, or hours such as 08:30."""
    return bool(_COUNTABLE.fullmatch(text.strip()))


class _CellCache(dict[str | None, str]):
    """A cache of cells by text. Numbers are not cached: 1, 1.0 and True are the same key but different cells."""

    def __init__(self, writer: ColumnWriter) -> None:
        self._writer = writer

    def __missing__(self, value: str | None) -> str:
        cell = wire(self._writer.cell(value))
        if value is None or len(value) <= LONGEST_KNOWN:
            if len(self) >= _CACHED_CELLS:
                self.clear()
            self[value] = cell
        return cell


def wire(text: str) -> str:
    """Returns the UTF-8 bytes of the text as a string: each byte as the character with that code."""
    return text if text.isascii() else text.encode().decode("latin-1")


def blank_cell(style: int) -> str:
    return f'" s="{style}"/>'


def text_cell(text: str, style: int) -> str:
    return f'" s="{style}" t="inlineStr"><is>{text_element(text)}</is></c>'


def placed(cells: Iterable[str], row: int, first: int = 1) -> str:
    """Returns the cells of a row with their references, from column number `first` on."""
    return "".join(f'<c r="{letters(column)}{row}{cell}' for column, cell in enumerate(cells, first))


def _plain_amounts(texts: list[str]) -> list[Decimal] | None:
    """Returns the texts of a column as numbers, with a few calls. None if a text may not be a plain decimal."""
    try:
        if "".join(texts).translate(_WITHOUT_DIGITS) or max(map(len, texts)) > _SURELY_FINITE:
            return None
        return list(map(Decimal, texts))
    except (TypeError, InvalidOperation):
        return None


def _amount(value: object, kind: str | None) -> Decimal | None:
    """Returns what a value adds to the total of its column; None if the value is not a number."""
    if isinstance(value, str):
        text, places = value.strip(), 0
        if kind == "percent" and text.endswith("%"):
            text, places = text[:-1].strip(), -2
        amount = _decimal(text) if NUMBER.fullmatch(text) else None
        return _EXACT.scaleb(amount, places) if amount and places else amount
    if isinstance(value, bool) or not isinstance(value, int | float | Digits):
        return None
    return _decimal(number_text(value))


def _decimal(text: str) -> Decimal | None:
    """Returns the number. None if a double cannot hold it, because computing with 1e999999 takes long or fails."""
    if len(text) > _SURELY_FINITE or "e" in text or "E" in text or "N" in text or "I" in text:
        number = float(text)
        if not number:
            return Decimal(0)
        if not math.isfinite(number):
            return None
    return Decimal(text)


def _plain_texts(values: list[str]) -> list[str] | None:
    """Returns the values, escaped and as `wire` makes them; None if one of them needs other markup."""
    body = _SEP.join(values)
    # Looking for one character takes a tenth of the time of looking for two.
    if not is_printable(body) or ("_" in body and "_x" in body):
        return None
    if len(body) > _SURELY_FITS and max(map(len, values)) > _SURELY_FITS:
        return None
    if " " in body and (f" {_SEP}" in body or f"{_SEP} " in body or body[0] == " " or body[-1] == " "):
        return None
    escaped = wire(body).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    if escaped is body:
        return values
    texts = escaped.split(_SEP)
    return texts if len(texts) == len(values) else None


def _exact_numbers(values: list[Any], types: set[type]) -> list[str] | None:
    """Returns the texts of the numbers; None if Excel may not hold one of them exactly."""
    texts = number_texts(values, types)
    if types == {float} and texts is not None:
        # They have neither exponents nor NaN.
        return texts
    texts = texts or list(map(number_text, values))
    if types == {int}:
        return texts if max(map(len, texts)) <= _SURELY_EXACT else None
    joined = ",".join(texts)
    # A number may be out of Excel's range: each has to be checked.
    if "N" in joined or "I" in joined or "e+3" in joined or "e-3" in joined:
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
    """Whether Excel keeps all digits of the number. Excel stores numbers as floats."""
    if isinstance(value, int):
        return abs(value) < _BIGGEST_INT
    number = float(digits_of(value)) if isinstance(value, Digits) else value
    if not abs(number) < _BIGGEST_FLOAT or 0 < abs(number) < _SMALLEST:
        return False
    return not isinstance(value, Digits) or Decimal(repr(number)) == Decimal(digits_of(value))


_LINE_HEIGHT = 15.0
_TALLEST_ROW = 409.0


class RowWriter:
    """Renders rows as worksheet XML. The cells of all columns are placed in one list, which is joined once.

    `left`: how many columns of row heads precede the columns.
    """

    def __init__(self, columns: Sequence[Column], row_height: float | None = None, left: int = 0) -> None:
        self._columns = [ColumnWriter(column) for column in columns]
        self._keys = [column.key for column in columns]
        self._labels = [(at, column.label_key) for at, column in enumerate(columns) if column.label_key]
        # A given row height takes precedence over the height of wrapped texts.
        self._wrapped = [] if row_height else [(column.key, column.wrapped) for column in columns if column.wrapped]
        self._opened = f'" ht="{row_height:g}" customHeight="1">' if row_height else '">'
        self._starts = [f'<c r="{letters(left + at)}' for at in range(1, len(columns) + 1)]

    @property
    def cut_cells(self) -> int:
        """How many cells were cut to the length that Excel allows."""
        return sum(column.cut for column in self._columns)

    @property
    def sums(self) -> list[Total | None]:
        """The total of each column; None for columns without one."""
        return [column.total for column in self._columns]

    def take_widths(self) -> list[int]:
        """Returns the width of each column's widest text since the last call.

        Calling it after each sheet measures each sheet separately.
        """
        widths = [column.widest for column in self._columns]
        for column in self._columns:
            column.widest = 0
        return widths

    def xml(self, rows: Sequence[Row], first: int, heads: Sequence[str] | None = None) -> bytes:
        """Returns the XML of the rows. The first row is row `first` of its sheet.

        `heads`: for each row, the XML of its heads.
        """
        count = len(rows)
        numbers = number_texts(list(range(first, first + count)), {int}) or []
        columns = columns_of(rows, self._keys)
        for at, key in self._labels:
            columns[at] = list(map(labelled, columns[at], column_of(rows, key)))
        laid = [writer.cells(values) for writer, values in zip(self._columns, columns, strict=True)]
        # A row with empty slots for its number, its heads, and the row number and the text of each cell.
        line = ['<row r="', "", self._opened, "", ""] if heads is not None else ['<row r="', "", self._opened]
        cells_from = len(line)
        for start, cells in zip(self._starts, laid, strict=True):
            line[-1] += start
            line += ["", cells.before, "", cells.after]
        line[-1] += "</row>"
        slots, flat = len(line), line * count
        flat[1::slots] = numbers
        if heads is not None:
            flat[3::slots] = map(wire, heads)
        if self._wrapped:
            markup = line[2].removeprefix(self._opened)
            flat[2::slots] = [opened + markup for opened in self._heights(rows)]
        for at, cells in zip(range(cells_from, slots, 4), laid, strict=True):
            flat[at::slots] = numbers
            flat[at + 2 :: slots] = cells.texts
            if cells.blanks:
                blank = self._columns[(at - cells_from) // 4].blank
                for slot in (index * slots + at for index in cells.blanks):
                    flat[slot + 1 : slot + 4] = blank, "", line[at + 3].removeprefix(cells.after)
        return "".join(flat).encode("latin-1")

    def _heights(self, rows: Sequence[Row]) -> list[str]:
        """Returns the end of each row's start tag.

        It states the height of wrapped texts, because not all programs measure them.
        """
        lines = [1] * len(rows)
        for key, width in self._wrapped:
            needed = (lines_of(value, width) if type(value) is str else 1 for value in column_of(rows, key))
            lines = list(map(max, lines, needed))
        return [self._opened if each == 1 else _high_row(each) for each in lines]


def _high_row(lines: int) -> str:
    return f'" ht="{min(_TALLEST_ROW, _LINE_HEIGHT * lines):g}" customHeight="1">'
