"""Zip and gzip streams, written without going back."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from zlib import DEFLATED

from isal import isal_zlib

from tidegate.common.sequences import Chunk, Later

# --- zip records
# Headers and directory of a zip. Sizes are known when headers are written, so there are no data descriptors.
#
# Excel refuses a sheet of more than 4 GB if its local header and the directory state different versions; here both are
# made from one entry.

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


# --- zip stream
# A zip archive written as a stream; only the header of each entry is filled in after its content.
#
# `zipfile` can write to a stream too, but not with ISA-L, which is much faster.

LEVEL = 1
WINDOW = 15

Entry = tuple[str, Iterable[Chunk]]


def zip_stream(entries: Iterable[Entry], *, stored: bool = False) -> Iterator[Chunk]:
    """The bytes of a zip; the chunks of an entry are read only when they are written.

    With `stored`, entries are not compressed; they may be archives with headers that are filled in later.
    """
    written: list[tuple[ZipEntry, int]] = []
    offset = 0
    for name, chunks in entries:
        header = Later()
        yield header
        content = _Stored(chunks) if stored else _Deflated(chunks)
        yield from content
        entry = ZipEntry(name, content.crc, content.size, content.packed, content.method)
        header.fill(local_header(entry))
        written.append((entry, offset))
        offset += len(header) + entry.packed
    yield directory(written, offset)


class _Deflated:
    method = DEFLATED

    def __init__(self, chunks: Iterable[Chunk]) -> None:
        self._chunks = chunks
        self.crc = self.size = self.packed = 0

    def __iter__(self) -> Iterator[Chunk]:
        """A `Later` becomes a piece of its own: the pieces around it do not refer to its bytes."""
        packer, late = isal_zlib.compressobj(LEVEL, DEFLATED, -WINDOW), list[tuple[Later, Later]]()
        # The checksum and size of the bytes up to each `Later`, and after the last.
        pieces = [(0, 0)]
        for chunk in self._chunks:
            if isinstance(chunk, Later):
                if pieces[-1][1]:
                    yield (data := packer.flush(isal_zlib.Z_FULL_FLUSH))
                    self.packed += len(data)
                packer = isal_zlib.compressobj(LEVEL, DEFLATED, -WINDOW)
                late.append((chunk, packed := Later()))
                pieces.append((0, 0))
                yield packed
                continue
            crc, size = pieces[-1]
            pieces[-1] = isal_zlib.crc32(chunk, crc), size + len(chunk)
            data = packer.compress(chunk)
            if data:
                self.packed += len(data)
                yield data
        data = packer.flush()
        self.packed += len(data)
        yield data
        self.crc, self.size = pieces[0]
        for (chunk, packed), (crc, size) in zip(late, pieces[1:], strict=True):
            packer = isal_zlib.compressobj(LEVEL, DEFLATED, -WINDOW)
            packed.fill(packer.compress(chunk) + packer.flush(isal_zlib.Z_FULL_FLUSH))
            self.packed += len(packed)
            for part, length in ((isal_zlib.crc32(chunk), len(chunk)), (crc, size)):
                self.crc = isal_zlib.crc32_combine(self.crc, part, length)
                self.size += length


class _Stored:
    method = STORED

    def __init__(self, chunks: Iterable[Chunk]) -> None:
        self._chunks = chunks
        self.crc = self.size = self.packed = 0

    def __iter__(self) -> Iterator[Chunk]:
        pieces = list[Later | tuple[int, int]]()
        for chunk in self._chunks:
            pieces.append(chunk if isinstance(chunk, Later) else (isal_zlib.crc32(chunk), len(chunk)))
            yield chunk
        for piece in pieces:
            crc, length = (isal_zlib.crc32(piece), len(piece)) if isinstance(piece, Later) else piece
            self.crc = isal_zlib.crc32_combine(self.crc, crc, length)
            self.size += length
        self.packed = self.size


# --- gzip stream
# A gzip file of a single member, written as a stream.

# No name and no time, so that equal rows give equal bytes. The operating system is "unknown".
HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"


def trailer(crc: int, size: int) -> bytes:
    return struct.pack("<2I", crc, size & 0xFFFFFFFF)


def gzip_stream(chunks: Iterable[bytes]) -> Iterator[bytes]:
    yield HEADER
    packer = isal_zlib.compressobj(LEVEL, DEFLATED, -WINDOW)
    crc = size = 0
    for chunk in chunks:
        crc = isal_zlib.crc32(chunk, crc)
        size += len(chunk)
        data = packer.compress(chunk)
        if data:
            yield data
    yield packer.flush() + trailer(crc, size)
