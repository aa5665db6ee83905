"""Fragments: rows rendered and compressed by one worker, which can be joined with other fragments unchanged.

A fragment is raw deflate from a fresh compressor, ended by a full flush: it ends on a byte boundary and has no
references to earlier data. Any number of fragments followed by one final piece are a valid deflate stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from zlib import DEFLATED

from isal import isal_zlib

from tidegate.exports.rendering.xlsx.zip_stream import LEVEL, WINDOW

# A fragment is closed at 8 MiB and sent once 5 MiB follow it, so that no fragment is too small to be copied as a part.
CLOSED_BYTES = 8 * 1024 * 1024
BEHIND_BYTES = 5 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Measure:
    """The numbers that archive headers need: `size` and `crc` are those of the uncompressed text."""

    size: int = 0
    crc: int = 0
    packed: int = 0
    rows: int = 0

    def __add__(self, other: Measure) -> Measure:
        crc = isal_zlib.crc32_combine(self.crc, other.crc, other.size)
        return Measure(self.size + other.size, crc, self.packed + other.packed, self.rows + other.rows)


def total(measures: Iterable[Measure]) -> Measure:
    return sum(measures, Measure())


def packed_piece(text: bytes, *, last: bool = False) -> tuple[bytes, Measure]:
    """Compresses a small piece as a fragment; the last one ends the stream."""
    packer = isal_zlib.compressobj(LEVEL, DEFLATED, -WINDOW)
    data = packer.compress(text) + packer.flush(isal_zlib.Z_FINISH if last else isal_zlib.Z_FULL_FLUSH)
    return data, Measure(len(text), isal_zlib.crc32(text), len(data))


class FragmentWriter:
    """Compresses text and passes fragments to `send`; with `packed=False` the text is not compressed."""

    def __init__(self, send: Callable[[bytearray, Measure], None], *, packed: bool) -> None:
        self._send = send
        self._packed = packed
        self._closed: tuple[bytearray, Measure] | None = None
        self._begin()

    def _begin(self) -> None:
        self._packer = isal_zlib.compressobj(LEVEL, DEFLATED, -WINDOW) if self._packed else None
        self._data = bytearray()
        self._size = self._crc = self._rows = 0

    def add(self, text: bytes, rows: int) -> None:
        if self._packer is not None:
            self._crc = isal_zlib.crc32(text, self._crc)
            data = self._packer.compress(text)
        else:
            data = text
        self._size += len(text)
        self._rows += rows
        self._data += data
        if self._closed and len(self._data) >= BEHIND_BYTES:
            self._send(*self._closed)
            self._closed = None
        if len(self._data) >= CLOSED_BYTES:
            self._closed = self._ended()

    def end(self) -> None:
        """Sends the rest as one fragment."""
        if self._size:
            data, measure = self._ended()
            if self._closed:
                closed, before = self._closed
                self._closed = None
                closed += data
                data, measure = closed, before + measure
            self._send(data, measure)
        elif self._closed:
            self._send(*self._closed)
        self._closed = None

    def _ended(self) -> tuple[bytearray, Measure]:
        if self._packer is not None:
            self._data += self._packer.flush(isal_zlib.Z_FULL_FLUSH)
        data, measure = self._data, Measure(self._size, self._crc, len(self._data), self._rows)
        self._begin()
        return data, measure
