"""A gzip file of a single member, written as a stream."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from zlib import DEFLATED

from isal import isal_zlib

from tidegate.exports.rendering.xlsx.zip_stream import LEVEL, WINDOW

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
