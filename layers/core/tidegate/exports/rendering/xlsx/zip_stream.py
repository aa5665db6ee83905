"""A zip archive written as a stream; only the header of each entry is filled in after its content.

`zipfile` can write to a stream too, but not with ISA-L, which is much faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from zlib import DEFLATED

from isal import isal_zlib

from tidegate.common.later import Chunk, Later
from tidegate.exports.rendering.xlsx.zip_records import STORED, ZipEntry, directory, local_header

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

    def __iter__(self) -> Iterator[bytes]:
        packer = isal_zlib.compressobj(LEVEL, DEFLATED, -WINDOW)
        for chunk in self._chunks:
            self.crc = isal_zlib.crc32(chunk, self.crc)
            self.size += len(chunk)
            data = packer.compress(chunk)
            if data:
                self.packed += len(data)
                yield data
        data = packer.flush()
        self.packed += len(data)
        yield data


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
