"""Pages of lists, slices of sequences, and chunks whose bytes are filled in later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """A page of a list, and the cursor of the next page. The cursor is None if nothing follows."""

    items: list[T]
    next_cursor: str | None


def slices(rows: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yields the rows in order, `size` at a time."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


class Later(bytearray):
    """A chunk that is yielded empty and filled before the stream of chunks ends.

    `b"".join(chunks)` needs no special care, because it collects all chunks before it reads their bytes. A sink that
    writes chunks as they come must hold back a `Later` until its `is_filled` is true.
    """

    is_filled = False

    def fill(self, data: bytes) -> None:
        self += data
        self.is_filled = True


Chunk = bytes | Later
