"""Items that are rows of a file in the library: found by number, read a block ahead."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tidegate.batches.model import RowSource
from tidegate.batches.rows.index import BLOCK_ROWS, NDJSON, RowIndex, first_rows, index_rows, parse_block
from tidegate.batches.rows.objects import RowBucket

_BLOCKS_KEPT = 8


class RowFiles:
    def __init__(self, objects: RowBucket, object_of: Callable[[str, str], str]) -> None:
        self._objects = objects
        self._object_of = object_of

    def index(self, project_id: str, source: RowSource) -> RowIndex:
        """Made once per content; two that make it at once make the same."""
        key = f"rows/{project_id}/{source.signature}.{source.format}"
        stored = self._objects.get(key)
        if stored is not None:
            return RowIndex.from_bytes(stored)
        made = index_rows(self._objects.chunks(self._object_of(project_id, source.signature)), source.format)
        self._objects.put(key, made.to_bytes())
        return made

    def rows(self, project_id: str, source: RowSource, runners: int = 1) -> Rows:
        """With several runners each of them reads every nth block."""
        key = self._object_of(project_id, source.signature)
        return Rows(self._objects, key, self.index(project_id, source), ahead=runners)

    def first_rows(self, project_id: str, source: RowSource, count: int) -> list[Any]:
        """Read from the file's beginning, without its index."""
        return first_rows(self._objects.chunks(self._object_of(project_id, source.signature)), source.format, count)

    def of_object(self, key: str) -> Rows:
        """The lines of an NDJSON object of our own."""
        return Rows(self._objects, key, index_rows(self._objects.chunks(key), NDJSON))


class Rows:
    """Workers ask in nearly ascending order: the block after the one in use is read before it is needed."""

    def __init__(self, objects: RowBucket, key: str, index: RowIndex, *, ahead: int = 1) -> None:
        """`ahead`: how many blocks after the one in use the next one is."""
        self._objects = objects
        self._key = key
        self._index = index
        self._ahead = ahead
        self._lock = threading.Lock()
        self._reader = ThreadPoolExecutor(2, thread_name_prefix="rows")
        self._blocks: OrderedDict[int, Future[list[Any]]] = OrderedDict()

    @property
    def count(self) -> int:
        return self._index.rows

    def row(self, index: int) -> Any:
        block = index // BLOCK_ROWS
        with self._lock:
            wanted = self._block(block)
            if (block + self._ahead) * BLOCK_ROWS < self._index.rows:
                self._block(block + self._ahead)
        try:
            return wanted.result()[index % BLOCK_ROWS]
        except Exception:
            with self._lock:
                self._blocks.pop(block, None)
            raise

    def _block(self, block: int) -> Future[list[Any]]:
        if block not in self._blocks:
            self._blocks[block] = self._reader.submit(self._read, block)
            while len(self._blocks) > _BLOCKS_KEPT:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(block)
        return self._blocks[block]

    def _read(self, block: int) -> list[Any]:
        return parse_block(self._index, self._objects.span(self._key, *self._index.span(block)))
