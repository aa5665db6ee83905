"""Items that are rows of a file in the library: found by number, read a block ahead."""

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
# A runner makes the index of so few ranges by the way.
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

    def first_rows(self, project_id: str, source: RowSource, count: int) -> list[Any]:
        """Read from the file's beginning, without its index."""
        return first_rows(self._objects.chunks(self._object_of(project_id, source.signature)), source.format, count)

    def of_object(self, key: str) -> Rows:
        """The lines of an NDJSON object of our own."""
        return self._open(key, f"{key}.rows/", NDJSON)

    def _open(self, key: str, prefix: str, form: str) -> Rows:
        """The one that was opened last is kept: the next slice of its batch is likely to come to this process."""
        name = f"{key} {form}"
        with self._lock:
            if self._last and self._last[0] == name:
                return self._last[1]
        rows = Rows(self._objects, key, FileIndex(self._objects, key, prefix, form, range_bytes=self.range_bytes))
        with self._lock:
            self._last = (name, rows)
        return rows


class Rows:
    """Workers ask in nearly ascending order: the block that comes next is read before it is needed."""

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
        """How many functions are to make the index of a large file, each some of its ranges."""
        ranges = self.index.ranges
        return 0 if ranges <= _FEW_RANGES else min(_MOST_INDEXERS, math.ceil(ranges / _RANGES_EACH))

    def know(self, count: int) -> tuple[int, bool]:
        """Makes as many rows known, if there are as many: (rows that are known, whether these are all)."""
        while (known := self.index.known)[0] < count and not known[1]:
            self.index.advance()
        return known

    def look_ahead(self, count: int) -> tuple[int, bool]:
        """What is known now. The next range is looked for meanwhile, and made if so many rows are needed."""
        make = self.indexers == 0 or self.index.known[0] < count
        with self._lock:
            done, self._advance = self._advance, None
            if done is not None and not done.done():
                self._advance = done
            elif not self.index.known[1]:
                self._advance = self._indexer.submit(self.index.advance, make=make)
        if done is not None and done.done():
            done.result()
        return self.index.known

    def row(self, index: int, ahead: int = 1) -> Any:
        """`ahead`: how many blocks after the one in use the next one is."""
        number, place = self.index.place(index)
        following = index + ahead * BLOCK_ROWS
        with self._lock:
            wanted = self._block(number, place // BLOCK_ROWS)
            if following < self.index.known[0]:
                next_number, next_place = self.index.place(following)
                self._block(next_number, next_place // BLOCK_ROWS)
        try:
            rows = wanted.result()
        except Exception:
            # Read ahead, and perhaps while the function was frozen between two slices: once more, for this row.
            rows = self._read(number, place // BLOCK_ROWS)
            with self._lock:
                self._blocks.pop((number, place // BLOCK_ROWS), None)
        return rows[place % BLOCK_ROWS]

    def _block(self, number: int, block: int) -> Future[list[Any]]:
        here = (number, block)
        if here not in self._blocks:
            self._blocks[here] = self._reader.submit(self._read, number, block)
            while len(self._blocks) > _BLOCKS_KEPT:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(here)
        return self._blocks[here]

    def _read(self, number: int, block: int) -> list[Any]:
        span = self.index.range_index(number).span(block)
        return parse_block(self.index.format, self.index.columns, self._objects.span(self._key, *span))
