"""Pages, slices, and bytes whose position is known before their content."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

# --- listing
# A page of a list.

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    items: list[T]
    next_cursor: str | None


# --- slices
# Parts of a sequence.


def slices(rows: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The rows in order, `size` at a time."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


# --- later
# Bytes whose position is known before their content: a header that holds the size of what follows.


class Later(bytearray):
    """A chunk that is yielded empty and filled before the stream of chunks ends.

    `b"".join(chunks)` takes all chunks before it reads their bytes, so it needs no care. A sink that writes chunks as
    they come must hold back a `Later` until `is_filled`.
    """

    is_filled = False

    def fill(self, data: bytes) -> None:
        self += data
        self.is_filled = True


Chunk = bytes | Later
