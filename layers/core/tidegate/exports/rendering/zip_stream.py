"""A zip container written front to back: sizes follow the data, so nothing is buffered or sought.

`zipfile` can write to a stream too, but not through ISA-L, which is what makes deflate cheap here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from zlib import DEFLATED

from isal import isal_zlib

_LEVEL = 1
_WINDOW = 15
_SIZES_FOLLOW_UTF8_NAME = 0x0808
_MAX32 = 0xFFFFFFFF
_MAX16 = 0xFFFF
# 1980-01-01: the container holds no clock, so equal rows make equal bytes.
_DATE = 0x21


@dataclass(frozen=True, slots=True)
class _Entry:
    name: bytes
    crc: int
    packed: int
    size: int
    offset: int

    @property
    def big(self) -> bool:
        return self.packed >= _MAX32 or self.size >= _MAX32


Entry = tuple[str, Iterable[bytes]]


def zip_stream(entries: Iterable[Entry]) -> Iterator[bytes]:
    """The bytes of a zip; each entry's chunks are pulled only as they are written."""
    written: list[_Entry] = []
    offset = 0
    for name, chunks in entries:
        start, path = offset, name.encode()
        header = _local_header(path)
        offset += len(header)
        yield header
        packer = isal_zlib.compressobj(_LEVEL, DEFLATED, -_WINDOW)
        crc = size = packed = 0
        for chunk in chunks:
            crc = isal_zlib.crc32(chunk, crc)
            size += len(chunk)
            data = packer.compress(chunk)
            if data:
                packed += len(data)
                yield data
        data = packer.flush()
        packed += len(data)
        entry = _Entry(path, crc, packed, size, start)
        yield data + _descriptor(entry)
        offset += packed + (24 if entry.big else 16)
        written.append(entry)
    yield _directory(written, offset)


def _local_header(path: bytes) -> bytes:
    fields = (20, _SIZES_FOLLOW_UTF8_NAME, DEFLATED, 0, _DATE, 0, 0, 0, len(path), 0)
    return struct.pack("<4s5H3I2H", b"PK\x03\x04", *fields) + path


def _descriptor(entry: _Entry) -> bytes:
    return struct.pack("<4sI2Q" if entry.big else "<4s3I", b"PK\x07\x08", entry.crc, entry.packed, entry.size)


def _directory(entries: list[_Entry], start: int) -> bytes:
    records = b"".join(map(_central_record, entries))
    end, count = start + len(records), len(entries)
    tail = b""
    if count >= _MAX16 or end >= _MAX32:
        tail = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, len(records), start)
        tail += struct.pack("<4sIQI", b"PK\x06\x07", 0, end, 1)
    short_count = min(count, _MAX16)
    sizes = min(len(records), _MAX32), min(start, _MAX32)
    return records + tail + struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, short_count, short_count, *sizes, 0)


def _central_record(entry: _Entry) -> bytes:
    far = entry.offset >= _MAX32
    extra = b""
    if entry.big:
        extra += struct.pack("<2Q", entry.size, entry.packed)
    if far:
        extra += struct.pack("<Q", entry.offset)
    if extra:
        extra = struct.pack("<2H", 1, len(extra)) + extra
    needs = 45 if extra else 20
    packed, size = (_MAX32, _MAX32) if entry.big else (entry.packed, entry.size)
    offset = _MAX32 if far else entry.offset
    fields = (needs, needs, _SIZES_FOLLOW_UTF8_NAME, DEFLATED, 0, _DATE, entry.crc, packed, size)
    head = struct.pack("<4s6H3I", b"PK\x01\x02", *fields)
    return head + struct.pack("<5H2I", len(entry.name), len(extra), 0, 0, 0, 0, offset) + entry.name + extra
