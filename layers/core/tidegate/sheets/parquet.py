"""Parquet files, row group by row group."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from decimal import Context, Decimal
from itertools import chain
from math import isinf
from typing import Any
from zlib import DEFLATED

from isal import isal_zlib

from tidegate.sheets.rows import RowBlocks, TableWriter
from tidegate.sheets.table import (
    MOST_PLACES,
    ROW_HEAD,
    LeafStyle,
    Notes,
    Row,
    SheetTable,
    column_of,
    leaves,
    masked_name,
)
from tidegate.sheets.values import NUMBER, NUMBERS, moment_of, nested_text, number_text, truth_of

# --- thrift
# Writes the part of Thrift's compact protocol that the metadata of a Parquet file needs.

I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12
_TRUE, _FALSE = 1, 2


@dataclass(frozen=True, slots=True)
class ThriftList:
    """A Thrift list. All its items have the same type."""

    kind: int
    items: Sequence[Value]


@dataclass(frozen=True, slots=True)
class Long:
    """An integer that is written with 64 bits. A plain int is written with 32 bits."""

    value: int


Struct = Mapping[int, "Value"]
Value = bool | int | Long | str | ThriftList | Struct


def encoded_struct(struct: Struct) -> bytes:
    """Returns a struct in Thrift's compact encoding. `struct` maps the id of each field to its value."""
    out, before = bytearray(), 0
    for number in sorted(struct):
        value = struct[number]
        out.append((number - before) << 4 | _kind(value))
        before = number
        if not isinstance(value, bool):
            out += _body(value)
    return bytes(out) + b"\0"


def _kind(value: Value) -> int:
    if isinstance(value, bool):
        return _TRUE if value else _FALSE
    if isinstance(value, int):
        return I32
    if isinstance(value, Long):
        return I64
    if isinstance(value, str):
        return BINARY
    return LIST if isinstance(value, ThriftList) else STRUCT


def _body(value: Value) -> bytes:
    if isinstance(value, int):
        return varint(value << 1 ^ value >> 63)
    if isinstance(value, Long):
        return varint(value.value << 1 ^ value.value >> 63)
    if isinstance(value, str):
        data = value.encode(errors="replace")
        return varint(len(data)) + data
    if isinstance(value, ThriftList):
        count = len(value.items)
        head = bytes([count << 4 | value.kind]) if count < 15 else bytes([0xF0 | value.kind]) + varint(count)
        return head + b"".join(map(_body, value.items))
    return encoded_struct(value)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# --- parquet columns
# Columns of a Parquet file: their types, and the encoding of their values.
#
# The template gives the type of a column; without one it is text, which loses nothing. Decimals become doubles only if
# the template makes the column a number; `decimal` and `integer` keep every digit.

BOOLEAN, INT32, INT64, DOUBLE, BYTE_ARRAY, FIXED_BYTES = 0, 1, 2, 5, 6, 7
_LONGEST = 2**63
# A decimal is a whole number of 16 bytes, which hold 38 digits, and a number of decimal places.
_DECIMAL_BYTES, _DECIMAL_DIGITS = 16, 38
_EXACT = Context(prec=100)
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - the wall time as written, without a zone
_DAY_ZERO = date(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)


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


def _written(value: object) -> str:
    """Returns the text of a value that is, or may be, a number; empty for other values."""
    return value.strip() if isinstance(value, str) else number_text(value) if type(value) in NUMBERS else ""  # type: ignore[arg-type]


def _number(value: object) -> float | None:
    text = _written(value)
    if text in ("NaN", "Infinity", "-Infinity"):
        return float(text)
    number = float(text) if NUMBER.fullmatch(text) else None
    # A number that no double can hold, such as 1e400, is not infinite.
    return None if number is None or isinf(number) else number


def _exact(value: object, scale: int) -> int | None:
    """Returns the value times 10 to the power of `scale`; None if that is not a whole number of at most 38 digits."""
    text = _written(value)
    if not NUMBER.fullmatch(text):
        return None
    number = Decimal(text)
    # Do not compute with a huge exponent: the digits would fill the memory.
    if number and not -_DECIMAL_DIGITS - MOST_PLACES <= number.adjusted() < _DECIMAL_DIGITS:
        return None
    scaled = _EXACT.scaleb(number, scale) if number else Decimal(0)
    whole = int(scaled)
    return whole if whole == scaled and abs(whole) < 10**_DECIMAL_DIGITS else None


def _integer(value: object) -> int | None:
    whole = value if type(value) is int else _exact(value, 0)
    return whole if whole is not None and -_LONGEST <= whole < _LONGEST else None


def _decimal(scale: int) -> Kind:
    def convert(value: object) -> bytes | None:
        whole = _exact(value, scale)
        return None if whole is None else whole.to_bytes(_DECIMAL_BYTES, "big", signed=True)

    # DECIMAL(scale, precision), once for older readers and once for newer ones.
    logical: Struct = {2: _DECIMAL_BYTES, 6: 5, 7: scale, 8: _DECIMAL_DIGITS, 10: {5: {1: scale, 2: _DECIMAL_DIGITS}}}
    return Kind(FIXED_BYTES, convert, logical)


def _percent(value: object) -> float | None:
    if isinstance(value, str) and value.strip().endswith("%"):
        text = value.strip()[:-1].strip()
        # Do not divide a float: 0.7% would become 0.006999999999999999.
        return None if _number(text) is None else float(Decimal(text).scaleb(-2))
    return _number(value)


def _date(value: object) -> int | None:
    moment = moment_of(value)
    return None if moment is None else (moment.date() - _DAY_ZERO).days


def _datetime(value: object) -> int | None:
    moment = moment_of(value)
    return None if moment is None else (moment - _EPOCH) // _MICROSECOND


TEXT = Kind(BYTE_ARRAY, _text, {6: 0})
_NUMBER = Kind(DOUBLE, _number, {})
KINDS: dict[str | None, Kind] = {
    "number": _NUMBER,
    "integer": Kind(INT64, _integer, {}),
    "currency": _NUMBER,
    "percent": Kind(DOUBLE, _percent, {}),
    "date": Kind(INT32, _date, {6: 6}),
    # TIMESTAMP(isAdjustedToUTC=false, unit=MICROS)
    "datetime": Kind(INT64, _datetime, {10: {8: {1: False, 2: {2: {}}}}}),
    "boolean": Kind(BOOLEAN, truth_of, {}),
}
_FORMATS = {INT32: "i", INT64: "q", DOUBLE: "d"}


def kind_of(style: LeafStyle) -> Kind:
    return _decimal(style.scale) if style.type == "decimal" else KINDS.get(style.type, TEXT)


class ColumnBytes:
    """Collects the encoded values of one column for the next row group."""

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
        """Adds the values of these rows in this column. Returns how many bytes are buffered."""
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
        elif self.kind.physical == FIXED_BYTES:
            self._data += b"".join(found)
        elif self.kind.physical == BOOLEAN:
            self._bits += bytes(found)
        else:
            self._data += struct.pack(f"<{len(found)}{_FORMATS[self.kind.physical]}", *found)
        return len(self._data) + len(self._has_value) + len(self._bits)

    def page(self) -> bytes:
        """Returns the content of a data page: first which rows have a value, then the values."""
        levels = _levels(self._has_value)
        return len(levels).to_bytes(4, "little") + levels + bytes(self._data) + _packed(self._bits)


def _levels(has_value: bytearray) -> bytes:
    """Returns the definition levels in Parquet's RLE/bit-packed hybrid.

    They are an RLE run if all rows have a value or none has one; otherwise they are bit-packed.
    """
    if has_value and (all(has_value) or not any(has_value)):
        return varint(len(has_value) << 1) + has_value[:1]
    return varint(-(-len(has_value) // 8) << 1 | 1) + _packed(has_value)


def _packed(bits: Sequence[int]) -> bytes:
    """Returns the bits packed into bytes, lowest bit first."""
    if not bits:
        return b""
    digits = "".join("1" if bit else "0" for bit in reversed(bits))
    return int(digits, 2).to_bytes(-(-len(bits) // 8), "little")


# --- parquet writer
# Writes rows as Parquet: row groups as they fill up, and a footer that describes them.
#
# Row groups are independent, so several workers write them and one writes the footer. Why no library does it: its files
# would have to be split and their footers rewritten, and pyarrow (156 MB) or DuckDB (63 MB) would be loaded only to
# encode plain columns.

MAGIC = b"PAR1"
GROUP_BYTES = 16 * 1024 * 1024
_PLAIN, _RLE, _GZIP, _OPTIONAL, _DATA_PAGE = 0, 3, 2, 1, 0
_LEVEL = 1


@dataclass(frozen=True, slots=True)
class Group:
    """What the footer says about a row group. `columns` has the size of each column before and after compression."""

    rows: int
    columns: list[list[int]]

    @property
    def size(self) -> int:
        return sum(packed for _, packed in self.columns)

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


class ParquetTable(TableWriter):
    """Collects rows into row groups."""

    def __init__(self, table: SheetTable, keys: Sequence[str]) -> None:
        named = leaves(table.template.cols)
        # Masked columns are text.
        kinds = {leaf.name: kind_of(leaf.style) for leaf in named if not leaf.style.mask}
        kinds = {name: kind for name, kind in kinds.items() if masked_name(name) not in table.masks}
        names = list(keys) or [leaf.name for leaf in named]
        self.columns = [ColumnBytes(name, kinds.get(name, TEXT)) for name in names]
        self.groups: list[Group] = []
        self._rows = 0

    @property
    def refused(self) -> int:
        return sum(column.refused for column in self.columns)

    def text(self, rows: Sequence[Row], _first: int = 0) -> bytes:
        """Adds rows. Returns the bytes of a row group if one is full; otherwise no bytes."""
        self._rows += len(rows)
        buffered = sum(column.add(rows) for column in self.columns)
        return self.end() if buffered >= GROUP_BYTES else b""

    def end(self) -> bytes:
        """Returns the buffered rows as a row group. Empty if there are none."""
        if not self._rows or not self.columns:
            return b""
        out, sizes = bytearray(), list[list[int]]()
        for column in self.columns:
            head, data, plain = _page(column.page(), self._rows)
            out += head + data
            sizes.append([len(head) + plain, len(head) + len(data)])
            column.clear()
        self.groups.append(Group(self._rows, sizes))
        self._rows = 0
        return bytes(out)

    def notes(self) -> dict[str, Any]:
        return {"refused": self.refused, "groups": [group.as_data() for group in self.groups]}

    def footer(self, groups: Iterable[Group]) -> bytes:
        """Returns the footer of a file in which these groups follow the magic number, in this order."""
        offset, found, rows = len(MAGIC), list[Struct](), 0
        for group in groups:
            found.append(self._group(group, offset))
            offset += group.size
            rows += group.rows
        schema: list[Struct] = [{4: "schema", 5: len(self.columns)}]
        schema += [
            {1: column.kind.physical, 3: _OPTIONAL, 4: column.key, **column.kind.logical} for column in self.columns
        ]
        data = encoded_struct(
            {
                1: 1,
                2: ThriftList(STRUCT, schema),
                3: Long(rows),
                4: ThriftList(STRUCT, found),
                6: "Tidegate version 1.0",
            }
        )
        return data + len(data).to_bytes(4, "little") + MAGIC

    def _group(self, group: Group, offset: int) -> Struct:
        chunks = list[Struct]()
        for column, (plain, packed) in zip(self.columns, group.columns, strict=True):
            chunks.append(
                {
                    2: Long(offset),
                    3: {
                        1: column.kind.physical,
                        2: ThriftList(I32, [_PLAIN, _RLE]),
                        3: ThriftList(BINARY, [column.key]),
                        4: _GZIP,
                        5: Long(group.rows),
                        6: Long(plain),
                        7: Long(packed),
                        9: Long(offset),
                    },
                }
            )
            offset += packed
        whole = sum(plain for plain, _ in group.columns)
        return {1: ThriftList(STRUCT, chunks), 2: Long(whole), 3: Long(group.rows)}


def _page(content: bytes, rows: int) -> tuple[bytes, bytes, int]:
    packer = isal_zlib.compressobj(_LEVEL, DEFLATED, 31)
    data = packer.compress(content) + packer.flush()
    header = {1: rows, 2: _PLAIN, 3: _RLE, 4: _RLE}
    return encoded_struct({1: _DATA_PAGE, 2: len(content), 3: len(data), 5: header}), data, len(content)


def parquet_chunks(
    table: SheetTable, keys: Sequence[str], rows: Iterable[Row] | RowBlocks, notes: Notes | None = None
) -> Iterator[bytes]:
    writer = ParquetTable(table, [key for key in keys if key != ROW_HEAD] if table.template.rows else keys)
    yield MAGIC
    for block in RowBlocks.from_rows(rows):
        if data := writer.text(block):
            yield data
    yield writer.end()
    yield writer.footer(writer.groups)
    if notes:
        notes.refused_values += writer.refused
