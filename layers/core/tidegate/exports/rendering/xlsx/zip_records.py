"""Headers and directory of a zip. Sizes are known when headers are written, so there are no data descriptors.

Excel refuses a sheet of more than 4 GB if its local header and the directory state different versions; here both are
made from one entry.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from zlib import DEFLATED

STORED = 0
_UTF8_NAME = 0x0800
_MAX32 = 0xFFFFFFFF
_MAX16 = 0xFFFF
# 1980-01-01: a fixed date, so that equal rows give equal bytes.
_DATE = 0x21


@dataclass(frozen=True, slots=True)
class ZipEntry:
    name: str
    crc: int
    size: int
    packed: int
    method: int = DEFLATED

    @property
    def big(self) -> bool:
        return self.packed >= _MAX32 or self.size >= _MAX32


def local_header(entry: ZipEntry) -> bytes:
    name = entry.name.encode()
    extra = struct.pack("<2H2Q", 1, 16, entry.size, entry.packed) if entry.big else b""
    sizes = (_MAX32, _MAX32) if entry.big else (entry.packed, entry.size)
    version = 45 if entry.big else 20
    fields = (version, _UTF8_NAME, entry.method, 0, _DATE, entry.crc, *sizes, len(name), len(extra))
    return struct.pack("<4s5H3I2H", b"PK\x03\x04", *fields) + name + extra


def directory(entries: Sequence[tuple[ZipEntry, int]], start: int) -> bytes:
    """The directory of the archive, at offset `start`; entries are given with their offsets."""
    records = b"".join(_central_record(entry, offset) for entry, offset in entries)
    end, count = start + len(records), len(entries)
    tail = b""
    if count >= _MAX16 or end >= _MAX32:
        tail = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, len(records), start)
        tail += struct.pack("<4sIQI", b"PK\x06\x07", 0, end, 1)
    short_count = min(count, _MAX16)
    sizes = min(len(records), _MAX32), min(start, _MAX32)
    return records + tail + struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, short_count, short_count, *sizes, 0)


def _central_record(entry: ZipEntry, offset: int) -> bytes:
    name, far = entry.name.encode(), offset >= _MAX32
    extra = b""
    if entry.big:
        extra += struct.pack("<2Q", entry.size, entry.packed)
    if far:
        extra += struct.pack("<Q", offset)
    if extra:
        extra = struct.pack("<2H", 1, len(extra)) + extra
    # The version depends on the size of the entry only, not on its offset, to equal that of the local header.
    needs = 45 if entry.big else 20
    packed, size = (_MAX32, _MAX32) if entry.big else (entry.packed, entry.size)
    fields = (45 if extra else 20, needs, _UTF8_NAME, entry.method, 0, _DATE, entry.crc, packed, size)
    head = struct.pack("<4s6H3I", b"PK\x01\x02", *fields)
    return head + struct.pack("<5H2I", len(name), len(extra), 0, 0, 0, 0, min(offset, _MAX32)) + name + extra
