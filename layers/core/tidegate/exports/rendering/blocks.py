"""Rows are rendered in blocks: large enough to work at C speed, small enough to forget."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

BLOCK_ROWS = 500
T = TypeVar("T")


def blocks(rows: Iterable[T], size: int = BLOCK_ROWS) -> Iterator[list[T]]:
    source = iter(rows)
    while block := list(islice(source, size)):
        yield block
