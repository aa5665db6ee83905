"""Cells of columns with a type in the template. A function returns None for a value that is not of its type."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal

from tidegate.exports.rendering.formula_guard import NUMBER
from tidegate.exports.rendering.xlsx.xml_text import clean, escape

_BIGGEST = 9.99999999999999e307
# Excel has no smaller numbers.
_SMALLEST = 2.3e-308
# Excel counts days from here. Its year 1900 has a 29 February, so dates before 1 March 1900 are written as text.
_DAY_ZERO = datetime(1899, 12, 30)  # noqa: DTZ001 - Excel has no time zones
_FIRST_DAY = datetime(1900, 3, 1)  # noqa: DTZ001
_SECOND = timedelta(seconds=1)
_TRUE, _FALSE = frozenset({"true", "1", "yes"}), frozenset({"false", "0", "no"})
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
    """Accepts 0.125 and "12.5%"."""
    text = value.strip() if isinstance(value, str) else ""
    number = text[:-1].strip()
    if text.endswith("%") and _is_exact_number(number):
        # A zero is not written out: "0e-999999%" would have a million digits.
        return _value(f"{Decimal(number) / 100:f}" if float(number) else "0", style)
    return _number(value, style)


def _date(value: object, style: int) -> str | None:
    moment = _moment(value)
    return _value(str((moment - _DAY_ZERO).days), style) if moment else None


def _datetime(value: object, style: int) -> str | None:
    """The wall time as written: Excel has no time zones, so the offset is dropped."""
    moment = _moment(value)
    if moment is None:
        return None
    whole, part = divmod(moment - _DAY_ZERO, timedelta(days=1))
    fraction = f"{part / timedelta(days=1):.11f}".rstrip("0").removeprefix("0").rstrip(".") if part else ""
    return _value(f"{whole}{fraction}", style)


def _moment(value: object) -> datetime | None:
    if not isinstance(value, str):
        return None
    text = value.strip()
    try:
        # Digits alone may be a number, not a date.
        moment = datetime.fromisoformat(text) if len(text) >= 10 and text[4:5] in "-/" else None
    except ValueError:
        try:
            moment = datetime.combine(date.fromisoformat(text.replace("/", "-")), datetime.min.time())
        except ValueError:
            return None
    if moment is None:
        return None
    moment = moment.replace(tzinfo=None)
    return moment if moment >= _FIRST_DAY else None


def _boolean(value: object, style: int) -> str | None:
    text = str(value).strip().lower() if isinstance(value, str | int) else ""
    if text in _TRUE or text in _FALSE:
        return f'<c s="{style}" t="b"><v>{text in _TRUE:d}</v></c>'
    return None


def _link(value: object, style: int) -> str | None:
    """A HYPERLINK formula: a hyperlink list needs row numbers, and Excel accepts only 65,530 entries."""
    if not isinstance(value, str):
        return None
    text = clean(value.strip())
    if not text.lower().startswith(_LINK_STARTS) or len(text.encode("utf-16-le")) // 2 > _LONGEST_LITERAL:
        return None
    literal = escape(text.replace('"', '""'))
    return f'<c s="{style}" t="str"><f>HYPERLINK("{literal}")</f><v>{escape(text)}</v></c>'


def _value(text: str, style: int) -> str:
    return f'<c s="{style}"><v>{text}</v></c>'


def _is_exact_number(text: str) -> bool:
    digits = sum(map(str.isdigit, text.lower().partition("e")[0]))
    if digits > 15 or not NUMBER.fullmatch(text):
        return False
    size = abs(float(text))
    return _SMALLEST < size < _BIGGEST or (size == 0 and not re.search("[1-9]", text.lower().partition("e")[0]))


TYPED: dict[str | None, TypedCell] = {
    "number": _number,
    "currency": _number,
    "percent": _percent,
    "date": _date,
    "datetime": _datetime,
    "boolean": _boolean,
    "link": _link,
}
NUMERIC = frozenset({None, "number", "currency", "percent"})
# Types of columns in which a number is written as text: as a number, Excel would show something else.
TEXTUAL = frozenset({"string", "date", "datetime"})
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
