"""Writes the part of Thrift's compact protocol that the metadata of a Parquet file needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12
_TRUE, _FALSE = 1, 2


@dataclass(frozen=True, slots=True)
class Listed:
    """A list; all its elements are of one type."""

    kind: int
    items: Sequence[Value]


@dataclass(frozen=True, slots=True)
class Long:
    """A 64-bit integer; a plain int is written as 32-bit."""

    value: int


Struct = Mapping[int, "Value"]
Value = bool | int | Long | str | Listed | Struct


def written(struct: Struct) -> bytes:
    """Encodes a struct, given as its fields by id."""
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
    return LIST if isinstance(value, Listed) else STRUCT


def _body(value: Value) -> bytes:
    if isinstance(value, int):
        return varint(value << 1 ^ value >> 63)
    if isinstance(value, Long):
        return varint(value.value << 1 ^ value.value >> 63)
    if isinstance(value, str):
        data = value.encode(errors="replace")
        return varint(len(data)) + data
    if isinstance(value, Listed):
        count = len(value.items)
        head = bytes([count << 4 | value.kind]) if count < 15 else bytes([0xF0 | value.kind]) + varint(count)
        return head + b"".join(map(_body, value.items))
    return written(value)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
