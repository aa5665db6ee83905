"""Columns of a Parquet file: their types, and the encoding of their values.

The template gives the type of a column; without one it is text, which loses nothing. Decimals become doubles only if
the template makes the column a number.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import chain
from typing import Any

from tidegate.exports.rendering.columns import Row, column_of
from tidegate.exports.rendering.formula_guard import NUMBER
from tidegate.exports.rendering.thrift import Struct, varint
from tidegate.exports.rendering.xlsx.cells import NUMBERS, number_text
from tidegate.exports.source_json import nested_text

BOOLEAN, INT32, INT64, DOUBLE, BYTE_ARRAY = 0, 1, 2, 5, 6
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - the wall time as written, without a zone
_DAY_ZERO = date(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_TRUE, _FALSE = frozenset({"true", "1", "yes"}), frozenset({"false", "0", "no"})


@dataclass(frozen=True, slots=True)
class Kind:
    physical: int
    # Returns None for a value that is not of this type.
    convert: Callable[[object], Any]
    # `ConvertedType` and `LogicalType` of the schema.
    logical: Struct


def _text(value: object) -> bytes:
    if isinstance(value, str):
        return value.encode(errors="replace")
    if type(value) in NUMBERS:
        return number_text(value).encode()  # type: ignore[arg-type]
    return nested_text(value).encode(errors="replace")


def _number(value: object) -> float | None:
    text = value.strip() if isinstance(value, str) else number_text(value) if type(value) in NUMBERS else ""  # type: ignore[arg-type]
    try:
        return float(text) if NUMBER.fullmatch(text) or text in ("NaN", "Infinity", "-Infinity") else None
    except (ValueError, OverflowError):
        return None


def _percent(value: object) -> float | None:
    if isinstance(value, str) and value.strip().endswith("%"):
        number = _number(value.strip()[:-1].strip())
        return None if number is None else number / 100
    return _number(value)


def _moment(value: object) -> datetime | None:
    if not isinstance(value, str) or len(value.strip()) < 10 or value.strip()[4] not in "-/":
        return None
    try:
        return datetime.fromisoformat(value.strip().replace("/", "-")).replace(tzinfo=None)
    except ValueError:
        return None


def _date(value: object) -> int | None:
    moment = _moment(value)
    return None if moment is None else (moment.date() - _DAY_ZERO).days


def _datetime(value: object) -> int | None:
    moment = _moment(value)
    return None if moment is None else (moment - _EPOCH) // _MICROSECOND


def _boolean(value: object) -> bool | None:
    text = str(value).strip().lower() if isinstance(value, str | int) else ""
    return text in _TRUE if text in _TRUE or text in _FALSE else None


TEXT = Kind(BYTE_ARRAY, _text, {6: 0})
_NUMBER = Kind(DOUBLE, _number, {})
KINDS: dict[str | None, Kind] = {
    "number": _NUMBER,
    "currency": _NUMBER,
    "percent": Kind(DOUBLE, _percent, {}),
    "date": Kind(INT32, _date, {6: 6}),
    # TIMESTAMP(isAdjustedToUTC=false, unit=MICROS)
    "datetime": Kind(INT64, _datetime, {10: {8: {1: False, 2: {2: {}}}}}),
    "boolean": Kind(BOOLEAN, _boolean, {}),
}
_FORMATS = {INT32: "i", INT64: "q", DOUBLE: "d"}


class ColumnBytes:
    """The encoded values of one column since the last row group."""

    def __init__(self, key: str, kind: Kind) -> None:
        self.key, self.kind = key, kind
        # How many values were left out because they are not of the column's type.
        self.refused = 0
        self.clear()

    def clear(self) -> None:
        self._data = bytearray()
        # 1 for each row that has a value, else 0.
        self._has_value = bytearray()
        # Booleans, a byte each.
        self._bits = bytearray()

    def add(self, rows: Sequence[Row]) -> int:
        """Adds the column of these rows. Returns how many bytes are buffered."""
        values = column_of(rows, self.key)
        convert = self.kind.convert
        found: list[Any] = [None if value is None else convert(value) for value in values]
        self._has_value += bytes([value is not None for value in found])
        if None in found:
            self.refused += sum(new is None and old is not None for new, old in zip(found, values, strict=True))
            found = [value for value in found if value is not None]
        if self.kind.physical == BYTE_ARRAY:
            lengths = [len(value).to_bytes(4, "little") for value in found]
            self._data += b"".join(chain.from_iterable(zip(lengths, found, strict=True)))
        elif self.kind.physical == BOOLEAN:
            self._bits += bytes(found)
        else:
            self._data += struct.pack(f"<{len(found)}{_FORMATS[self.kind.physical]}", *found)
        return len(self._data) + len(self._has_value) + len(self._bits)

    def page(self) -> bytes:
        """The content of a data page: which rows have a value, then the values."""
        levels = _levels(self._has_value)
        return len(levels).to_bytes(4, "little") + levels + bytes(self._data) + _packed(self._bits)


def _levels(has_value: bytearray) -> bytes:
    """Definition levels in Parquet's RLE/bit-packed hybrid: a single run if all rows are alike."""
    if has_value and (all(has_value) or not any(has_value)):
        return varint(len(has_value) << 1) + has_value[:1]
    return varint(-(-len(has_value) // 8) << 1 | 1) + _packed(has_value)


def _packed(bits: Sequence[int]) -> bytes:
    """Bits packed into bytes, lowest bit first."""
    if not bits:
        return b""
    digits = "".join("1" if bit else "0" for bit in reversed(bits))
    return int(digits, 2).to_bytes(-(-len(bits) // 8), "little")
