"""Items that are rows of a file in the library, read by number, with the next block read ahead."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tidegate.batches.model import RowSource
from tidegate.batches.rows.file_index import RANGE_BYTES, FileIndex
from tidegate.batches.rows.index import BLOCK_ROWS, NDJSON, first_rows, parse_block
from tidegate.batches.rows.objects import RowBucket

_BLOCKS_KEPT = 8
# Up to this many ranges are indexed by the runners themselves.
_FEW_RANGES = 8
_RANGES_EACH = 32
_MOST_INDEXERS = 16


class RowFiles:
    def __init__(
        self, objects: RowBucket, object_of: Callable[[str, str], str], *, range_bytes: int = RANGE_BYTES
    ) -> None:
        self._objects = objects
        self._object_of = object_of
        self.range_bytes = range_bytes
        self._lock = threading.Lock()
        self._last: tuple[str, Rows] | None = None

    def rows(self, project_id: str, source: RowSource) -> Rows:
        prefix = f"rows/{project_id}/{source.signature}.{source.format}/"
        return self._open(self._object_of(project_id, source.signature), prefix, source.format)

    def first_rows(self, project_id: str, source: RowSource, start: int, count: int) -> list[Any]:
        """Returns up to `count` rows from number `start` on. Reads the file from its beginning, without its index."""
        chunks = self._objects.chunks(self._object_of(project_id, source.signature))
        return first_rows(chunks, source.format, start, count)

    def of_object(self, key: str) -> Rows:
        """Returns the lines of an NDJSON object that Tidegate wrote."""
        return self._open(key, f"{key}.rows/", NDJSON)

    def _open(self, key: str, prefix: str, row_format: str) -> Rows:
        """Caches the last file: the next slice of its batch probably runs in this process."""
        name = f"{key} {row_format}"
        with self._lock:
            if self._last and self._last[0] == name:
                return self._last[1]
        rows = Rows(self._objects, key, FileIndex(self._objects, key, prefix, row_format, range_bytes=self.range_bytes))
        with self._lock:
            self._last = (name, rows)
        return rows


class Rows:
    """The rows of one file. Workers read them in nearly ascending order, so the next block is read ahead."""

    def __init__(self, objects: RowBucket, key: str, index: FileIndex) -> None:
        self.index = index
        self._objects = objects
        self._key = key
        self._lock = threading.Lock()
        self._reader = ThreadPoolExecutor(2, thread_name_prefix="rows")
        self._indexer = ThreadPoolExecutor(1, thread_name_prefix="row-index")
        self._advance: Future[None] | None = None
        self._blocks: OrderedDict[tuple[int, int], Future[list[Any]]] = OrderedDict()

    @property
    def indexers(self) -> int:
        """How many functions are to index a large file, each some of its ranges; 0 for a small one."""
        ranges = self.index.ranges
        return 0 if ranges <= _FEW_RANGES else min(_MOST_INDEXERS, math.ceil(ranges / _RANGES_EACH))

    def ensure_indexed(self, count: int) -> tuple[int, bool]:
        """Indexes at least `count` rows, if there are as many. Returns (rows indexed, whether these are all)."""
        while (indexed := self.index.indexed)[0] < count and not indexed[1]:
            self.index.advance()
        return indexed

    def look_ahead(self, count: int) -> tuple[int, bool]:
        """Returns `index.indexed` and adds the next range in the background; builds it if `count` rows need it."""
        build = self.indexers == 0 or self.index.indexed[0] < count
        with self._lock:
            last, self._advance = self._advance, None
            if last is not None and not last.done():
                self._advance = last
            elif not self.index.indexed[1]:
                self._advance = self._indexer.submit(self.index.advance, build=build)
        if last is not None and last.done():
            # Raises the error of the last range.
            last.result()
        return self.index.indexed

    def row(self, index: int, ahead: int = 1) -> Any:
        """Returns one row. The block that is `ahead` blocks further on is read in the background."""
        number, place = self.index.locate(index)
        following = index + ahead * BLOCK_ROWS
        with self._lock:
            wanted = self._block(number, place // BLOCK_ROWS)
            if following < self.index.indexed[0]:
                next_number, next_place = self.index.locate(following)
                self._block(next_number, next_place // BLOCK_ROWS)
        try:
            rows = wanted.result()
        except Exception:
            # It was read ahead, perhaps while the function was frozen between two slices: read it again.
            rows = self._read(number, place // BLOCK_ROWS)
            with self._lock:
                self._blocks.pop((number, place // BLOCK_ROWS), None)
        return rows[place % BLOCK_ROWS]

    def _block(self, number: int, block: int) -> Future[list[Any]]:
        block_key = (number, block)
        if block_key not in self._blocks:
            self._blocks[block_key] = self._reader.submit(self._read, number, block)
            while len(self._blocks) > _BLOCKS_KEPT:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(block_key)
        return self._blocks[block_key]

    def _read(self, number: int, block: int) -> list[Any]:
        span = self.index.range_index(number).span(block)
        return parse_block(self.index.format, self.index.columns, self._objects.span(self._key, *span))
