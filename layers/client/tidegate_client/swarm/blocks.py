"""Finds blocks of a new file in an older version of it, at any offset.

The library lists the blocks of the new file (`tidegate.files.blocks`): a probe of 16 bytes and half a SHA-256 for each.
Blocks are searched in order. Each is expected right behind the one found before; if it is not there, its probe is
searched around that offset, in a range that grows with the number of blocks missed. So inserted or removed bytes cost a
search of a few times their length. Every block is verified by its digest, so the old file need not be trusted.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tidegate_client.swarm.layout import Layout

BLOCKS_A_PIECE = 16
PROBE_BYTES = 16
DIGEST_BYTES = 16
ENTRY_BYTES = 4 + PROBE_BYTES + DIGEST_BYTES
_NO_PROBE = 0xFFFFFFFF
# Limit of the bytes searched, as a multiple of the new file's size. A normal release needs far less than one.
_SEARCHED_AT_MOST = 8
_MOST_CANDIDATES = 16
_WINDOW = 4 << 20


@dataclass(frozen=True, slots=True)
class BlockList:
    """The block list of a file, as the library made it."""

    layout: Layout
    entries: bytes

    @property
    def size(self) -> int:
        return block_size(self.layout)

    @property
    def count(self) -> int:
        return block_count(self.layout)

    def start(self, block: int) -> int:
        return block * self.size

    def length(self, block: int) -> int:
        return min(self.size, self.layout.size - self.start(block))

    def digest(self, block: int) -> bytes:
        at = block * ENTRY_BYTES
        return self.entries[at + ENTRY_BYTES - DIGEST_BYTES : at + ENTRY_BYTES]

    def probe(self, block: int) -> tuple[int, bytes] | None:
        """The probe's offset in the block, and its bytes; None if the block has none."""
        at = block * ENTRY_BYTES
        offset = int.from_bytes(self.entries[at : at + 4])
        if offset == _NO_PROBE or offset + PROBE_BYTES > self.length(block):
            return None
        return offset, self.entries[at + 4 : at + 4 + PROBE_BYTES]

    def of_piece(self, piece: int) -> range:
        first = piece * BLOCKS_A_PIECE
        return range(first, min(first + BLOCKS_A_PIECE, self.count))

    def is_right(self, block: int, content: bytes) -> bool:
        right_length = len(content) == self.length(block)
        return right_length and hashlib.sha256(content).digest()[:DIGEST_BYTES] == self.digest(block)


def block_size(layout: Layout) -> int:
    return layout.piece_size // BLOCKS_A_PIECE


def block_count(layout: Layout) -> int:
    return -(-layout.size // block_size(layout))


class OldFile:
    """Read by offset and not mapped: if somebody truncates the file, reads are short and there is no SIGBUS."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size

    def read(self, offset: int, length: int) -> bytes:
        if offset < 0 or offset >= self.size:
            return b""
        parts = []
        while length and (part := os.pread(self._descriptor, length, offset)):
            parts.append(part)
            offset, length = offset + len(part), length - len(part)
        return b"".join(parts)


class BlockFinder:
    """`stop` is called before each block; it raises to end the search."""

    def __init__(self, blocks: BlockList, old: OldFile, stop: Callable[[], None] = lambda: None) -> None:
        self._blocks = blocks
        self._old = old
        self._stop = stop
        # Offset in the old file minus offset in the new file, of the block found last.
        self._shift = 0
        self._searchable = _SEARCHED_AT_MOST * max(blocks.layout.size, blocks.size)

    def find(self, wanted: Callable[[int], bool]) -> Iterator[tuple[int, bytes]]:
        """Yields the wanted blocks that the old file has, with their content."""
        missed: list[int] = []
        for block in range(self._blocks.count):
            if not wanted(block):
                continue
            self._stop()
            found = self._expected(block)
            if found is None and _is_turn(len(missed)):
                found = self._search(block, len(missed) + 1)
                if found is not None:
                    yield from self._before(block, missed)
            if found is None:
                missed.append(block)
            else:
                missed.clear()
                yield block, found

    def _expected(self, block: int) -> bytes | None:
        return self._at(block, self._blocks.start(block) + self._shift)

    def _at(self, block: int, offset: int) -> bytes | None:
        content = self._old.read(offset, self._blocks.length(block))
        return content if self._blocks.is_right(block, content) else None

    def _before(self, block: int, missed: list[int]) -> Iterator[tuple[int, bytes]]:
        """Yields missed blocks directly before the one just found, as long as they precede it in the old file too."""
        for earlier in reversed(missed):
            if earlier != block - 1 or (content := self._expected(earlier)) is None:
                return
            yield earlier, content
            block = earlier

    def _search(self, block: int, misses: int) -> bytes | None:
        probe = self._blocks.probe(block)
        if probe is None:
            return None
        expected = self._blocks.start(block) + self._shift + probe[0]
        around = 4 * misses * self._blocks.size
        candidates = 0
        for first, last in ((expected, expected + around), (expected - around, expected + PROBE_BYTES)):
            for at in self._offsets_of(probe[1], first, last):
                candidates += 1
                content = self._at(block, at - probe[0])
                if content is not None:
                    self._shift = at - probe[0] - self._blocks.start(block)
                    return content
                if candidates >= _MOST_CANDIDATES:
                    return None
        return None

    def _offsets_of(self, probe: bytes, first: int, last: int) -> Iterator[int]:
        first, last = max(0, first), min(last, self._old.size)
        while first < last and self._searchable > 0:
            window = self._old.read(first, min(_WINDOW, last - first))
            self._searchable -= len(window)
            at = window.find(probe)
            while at >= 0:
                yield first + at
                at = window.find(probe, at + 1)
            if len(window) < PROBE_BYTES:
                return
            # Windows overlap, so that a probe across their boundary is found.
            first += len(window) - PROBE_BYTES + 1


def _is_turn(missed: int) -> bool:
    """Whether to search for this block of a run of missed ones: the first 8, then 8, 12, 16, 24, 32 and so on.

    So a long stretch of new content costs few searches."""
    low = missed & -missed
    return missed < 8 or missed in (low, 3 * low)
