"""Helpers to compare exports in ranges with exports of staged pages, on moto, and a source with cursors."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.exports.paged_source import PagedSource
from tests.support.exports.running import ExportWorld


@contextmanager
def staged_only(world: ExportWorld) -> Iterator[None]:
    """Makes every export inside the block stage its pages."""
    exports = world.cloud.app.exports
    most, exports.most_lanes = exports.most_lanes, 0
    yield
    exports.most_lanes = most


def both_ways(world: ExportWorld, **fields: Any) -> tuple[bytes, bytes]:
    """Returns the file of the export in ranges and that of the same export with staged pages."""
    _, joined = world.export(step=100, **fields)
    with staged_only(world):
        _, staged = world.export(step=100, **fields)
    return joined, staged


def by_cursor(source: PagedSource, page: int, size: int) -> Any:
    """A source with cursors, which accepts only the cursor that it returned."""
    cursor = source.requests[-1].args.get("cursor")
    start = int(cursor or 0)
    assert start == page * size, (cursor, page)
    rows = source.rows[start : start + size]
    following = str(start + size) if start + size < len(source.rows) else None
    return {"status": 200, "data": {"data": rows, "next": following, "snapshot": "s1"}}


def read_text(data: bytes) -> bytes:
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
