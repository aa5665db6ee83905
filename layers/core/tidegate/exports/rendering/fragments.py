"""Fragments: rows rendered and packed by one worker, so that they can be joined with others' as they are.

A fragment is raw deflate from a fresh compressor, ended by a full flush: it ends at a byte and looks back at
nothing. Any number of them, and one piece at the end that says so, are one deflate stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from zlib import DEFLATED

from isal import isal_zlib

from tidegate.exports.rendering.xlsx.zip_stream import LEVEL, WINDOW

# A fragment is closed at this size and sent when so much more lies behind it, so that none is too small to copy.
CLOSED_BYTES = 8 * 1024 * 1024
BEHIND_BYTES = 5 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Measure:
    """What has to be known of bytes to write about them: `size` and `crc` are those of the text, before packing."""

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
    """A small piece as a fragment of its own; the last one ends the stream."""
    packer = isal_zlib.compressobj(LEVEL, DEFLATED, -WINDOW)
    data = packer.compress(text) + packer.flush(isal_zlib.Z_FINISH if last else isal_zlib.Z_FULL_FLUSH)
    return data, Measure(len(text), isal_zlib.crc32(text), len(data))


class FragmentWriter:
    """Packs what it is given and hands fragments to `send`; `packed=False` leaves the text as it is."""

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
        """Everything that is held goes as one."""
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
