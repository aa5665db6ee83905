"""Parts of a sequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def slices(rows: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The rows in order, `size` at a time."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
