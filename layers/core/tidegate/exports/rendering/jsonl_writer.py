"""Writes rows as JSON lines: one object per line, with its own keys and its numbers as the source sent them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tidegate.exports.rendering.blocks import RowBlocks
from tidegate.exports.rendering.columns import Row
from tidegate.exports.source_json import write_exact


def jsonl_lines(rows: Sequence[Row]) -> bytes:
    return b"".join([write_exact(row) + b"\n" for row in rows])


def jsonl_chunks(rows: Iterable[Row] | RowBlocks) -> Iterator[bytes]:
    for block in RowBlocks.of(rows):
        yield jsonl_lines(block)
