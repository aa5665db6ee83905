"""Unpacks gzip, bzip2 and xz a little at a time, and counts every byte that comes out."""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from typing import IO, Protocol

from tidegate.errors import BadArchive

# The most that one call unpacks. Without a limit, a kilobyte of bzip2 or xz becomes gigabytes before it can be counted.
_MOST_AT_ONCE = 1024 * 1024
_PACKED_READ = 32 * 1024
# xz needs as much memory as its dictionary has: 64 MiB at the highest level, but a file may ask for 4 GiB.
_LZMA_MEMORY = 256 * 1024 * 1024
_LONGEST_MAGIC = 10


class Budget:
    """How many bytes an archive may unpack to."""

    def __init__(self, most: int) -> None:
        self._most = self._left = most

    def spend(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise BadArchive(
                f"the archive unpacks to more than {self._most:,} bytes, so it may be an archive bomb: split it"
            )


class _Decompressor(Protocol):
    """What bz2 and lzma offer, and `_Gzip` for zlib."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Gzip:
    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)


def _decompressor(start: bytes) -> _Decompressor | None:
    """For data that starts with these bytes; None if it is not packed."""
    if start.startswith(b"\x1f\x8b\x08"):
        return _Gzip()
    if start.startswith(b"BZh") and start[4:10] in (b"1AY&SY", b"\x17rE8P\x90"):
        return bz2.BZ2Decompressor()
    if start.startswith((b"\xfd7zXZ", b"\x5d\x00\x00\x80")):
        return lzma.LZMADecompressor(memlimit=_LZMA_MEMORY)
    return None


class Unpacked(io.RawIOBase):
    """The unpacked bytes of a file, which is taken as it is if it is not packed.

    Several packed streams one after the other are one file, as parallel packers write them. What follows the last one
    is ignored.
    """

    def __init__(self, packed: IO[bytes], budget: Budget) -> None:
        self._packed = packed
        self._budget = budget
        # Bytes that were read and not handed on yet.
        self._read_ahead = packed.read(_LONGEST_MAGIC)
        self._decompressor = _decompressor(self._read_ahead)
        self._plain = self._decompressor is None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        most = min(len(buffer), _MOST_AT_ONCE)
        if not most:
            # For zlib, 0 is no limit.
            return 0
        found = self._next_packed(most) if self._plain else self._unpack(most)
        self._budget.spend(len(found))
        buffer[: len(found)] = found
        return len(found)

    def _unpack(self, most: int) -> bytes:
        while self._decompressor is not None:
            if self._decompressor.eof:
                self._next_stream()
                continue
            data = self._next_packed(_PACKED_READ) if self._decompressor.needs_input else b""
            if not data and self._decompressor.needs_input:
                raise EOFError("it ends before its packed data is complete")
            if found := self._decompressor.decompress(data, most):
                return found
        return b""

    def _next_packed(self, most: int) -> bytes:
        ahead, self._read_ahead = self._read_ahead[:most], self._read_ahead[most:]
        return ahead or self._packed.read(most)

    def _next_stream(self) -> None:
        """Goes on with the stream that follows, if there is one. Zeros between streams are allowed."""
        rest = (self._decompressor.unused_data if self._decompressor else b"") + self._read_ahead
        while len(rest := rest.lstrip(b"\0")) < _LONGEST_MAGIC and (more := self._packed.read(_PACKED_READ)):
            rest += more
        self._read_ahead = rest
        self._decompressor = _decompressor(rest)
