"""Rows into JSON lines: one object a line, with the keys that it has and its numbers as they were spelt."""

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
