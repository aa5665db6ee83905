"""Blocks of rows to render: large enough for whole-column operations, small enough for the processor's cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from tidegate.exports.rendering.columns import Row

BLOCK_ROWS = 250


class RowBlocks:
    """Takes rows page by page and returns them block by block, in the sizes that the reader has room for."""

    def __init__(self, pages: Iterable[Sequence[Row]]) -> None:
        self._pages = iter(pages)
        self._page: Sequence[Row] = ()
        self._at = 0

    @classmethod
    def of(cls, rows: Iterable[Row] | RowBlocks) -> RowBlocks:
        return rows if isinstance(rows, RowBlocks) else cls(_blocks(rows))

    def more(self) -> bool:
        while self._at >= len(self._page):
            page = next(self._pages, None)
            if page is None:
                return False
            self._page, self._at = page, 0
        return True

    def peek(self) -> Sequence[Row]:
        """The next block, which is not taken."""
        return self._page[self._at : self._at + BLOCK_ROWS] if self.more() else ()

    def take(self, most: int = BLOCK_ROWS) -> Sequence[Row]:
        """Takes the next block, of at most `most` rows; empty at the end."""
        if most <= 0:
            return ()
        block = self.peek()[:most]
        self._at += len(block)
        return block

    def first(self, count: int) -> RowBlocks:
        """Takes the next `count` rows, as blocks."""
        return RowBlocks(self._up_to(count))

    def _up_to(self, count: int) -> Iterator[Sequence[Row]]:
        while block := self.take(count):
            count -= len(block)
            yield block

    def __iter__(self) -> Iterator[Sequence[Row]]:
        while block := self.take():
            yield block


def _blocks(rows: Iterable[Row]) -> Iterator[Sequence[Row]]:
    source = iter(rows)
    while block := list(islice(source, BLOCK_ROWS)):
        yield block
