"""The index of a file's rows, built range by range, so that a batch can start when the first range is indexed.

Each range of bytes has an index object of its own: several functions can index ranges in parallel, and another function
can continue after a crash. In a CSV file, a line inside quotes does not begin a record, and only the bytes before it
show that. So a range is indexed on the guess that its first line begins a record. The index is valid if the range
before ends exactly there; otherwise the range is indexed again from the right offset.
"""

from __future__ import annotations

import json
import threading
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator

from tidegate.batches.rows.index import RangeIndex, index_range, line_start
from tidegate.batches.rows.objects import RowBucket
from tidegate.errors import Invalid, RecordNotFound

RANGE_BYTES = 32 * 1024 * 1024
# A record that extends beyond its range is read in portions of this size.
_READ_ON = 256 * 1024
# The list of indexed ranges is stored after this many new ones.
_LIST_EVERY = 8
_INDEXES_KEPT = 8


class FileIndex:
    """The valid ranges, from the first one on without a gap. Thread-safe."""

    def __init__(
        self, objects: RowBucket, key: str, prefix: str, row_format: str, *, range_bytes: int = RANGE_BYTES
    ) -> None:
        """Indexes the file at `key`; the index is stored under `prefix`. RecordNotFound if there is no such file."""
        self.format = row_format
        self._objects = objects
        self._key = key
        self._prefix = prefix
        self._range_bytes = range_bytes
        size = objects.size(key)
        if size is None:
            # Must not look like an empty file, with which a batch finishes successfully.
            raise RecordNotFound(
                "the rows cannot be read, because their file is not in the library any more: create a batch of another"
            )
        self._size = size
        self._lock = threading.Lock()
        self._advancing = threading.Lock()
        self._indexes: OrderedDict[int, RangeIndex] = OrderedDict()
        # The rows before each indexed range and the offset of its first record; at last, the same for the next range.
        self._rows_before = array("Q", [0])
        self._firsts = array("Q", [0])
        self._listed = 0
        self.columns: tuple[str, ...] = ()
        self._read_list()

    @property
    def ranges(self) -> int:
        return -(-self._size // self._range_bytes)

    @property
    def indexed(self) -> tuple[int, bool]:
        """(number of rows indexed so far, whether these are all)."""
        with self._lock:
            return self._rows_before[-1], len(self._firsts) > self.ranges

    def advance(self, *, build: bool = True) -> None:
        """Adds the next range: from S3 if it is stored there, else, with `build`, by indexing it."""
        with self._advancing:
            number, first = len(self._firsts) - 1, self._firsts[-1]
            if number >= self.ranges:
                return
            found = self._load(number)
            if found is None and not build:
                return
            if found is None or found.first != first:
                found = self._build(number, first)
            self._add(found)
            if number + 1 - self._listed >= _LIST_EVERY or number + 1 == self.ranges:
                self._write_list()

    def index_ranges(self, first: int, step: int, may_continue: Callable[[], bool]) -> bool:
        """Indexes every `step`th range from number `first` on, unless it is stored. False if it had to stop early."""
        for number in range(first, self.ranges, step):
            if not may_continue():
                return False
            if self._objects.size(self._object_key(number)) is None:
                self._index_from_guess(number)
        return True

    def locate(self, row: int) -> tuple[int, int]:
        """Returns (number of the range, row within it) of an indexed row."""
        with self._lock:
            number = bisect_right(self._rows_before, row) - 1
            return number, row - self._rows_before[number]

    def range_index(self, number: int) -> RangeIndex:
        """Returns the index of a range that was added."""
        with self._lock:
            if number in self._indexes:
                self._indexes.move_to_end(number)
                return self._indexes[number]
            first = self._firsts[number]
        found = self._load(number)
        if found is None or found.first != first:
            found = self._build(number, first)
        self._cache(number, found)
        return found

    def _add(self, found: RangeIndex) -> None:
        with self._lock:
            self.columns = self.columns or found.columns
            number = len(self._firsts) - 1
            self._rows_before.append(self._rows_before[-1] + found.rows)
            self._firsts.append(found.end)
        self._cache(number, found)

    def _cache(self, number: int, found: RangeIndex) -> None:
        with self._lock:
            self._indexes[number] = found
            while len(self._indexes) > _INDEXES_KEPT:
                self._indexes.popitem(last=False)

    def _index_from_guess(self, number: int) -> None:
        at = number * self._range_bytes
        first = line_start(self._bytes(at - 1, self._end(number)), self.format, at) if number else 0
        try:
            self._build(number, first)
        except Invalid:
            if number == 0:
                raise
            # Either the guess or the file is wrong. That shows when the range is indexed from its true first record.

    def _build(self, number: int, first: int) -> RangeIndex:
        until = self._end(number)
        built = index_range(self._bytes(first, until), self.format, first, until)
        self._objects.put(self._object_key(number), built.to_bytes())
        return built

    def _bytes(self, start: int, until: int) -> Iterator[bytes]:
        if start < until:
            yield from self._objects.stream_span(self._key, start, until)
        at = max(start, until)
        while at < self._size:
            portion = self._objects.span(self._key, at, min(at + _READ_ON, self._size))
            yield portion
            at += len(portion)

    def _end(self, number: int) -> int:
        return min((number + 1) * self._range_bytes, self._size)

    def _load(self, number: int) -> RangeIndex | None:
        data = self._objects.get(self._object_key(number))
        return None if data is None else RangeIndex.from_bytes(data)

    def _object_key(self, number: int) -> str:
        # Ranges of another size belong to another index.
        return f"{self._prefix}{self._range_bytes}-{number:07d}"

    @property
    def _list_key(self) -> str:
        return f"{self._prefix}{self._range_bytes}-list"

    def _write_list(self) -> None:
        """Stores the list of ranges, so that a new runner needs only one read."""
        with self._lock:
            head = json.dumps({"columns": self.columns}, ensure_ascii=False).encode()
            packed = self._rows_before.tobytes() + self._firsts.tobytes()
            self._listed = len(self._firsts) - 1
        self._objects.put(self._list_key, head + b"\n" + packed)

    def _read_list(self) -> None:
        data = self._objects.get(self._list_key)
        if data is None:
            return
        line, _, packed = data.partition(b"\n")
        numbers = array("Q")
        numbers.frombytes(packed)
        half = len(numbers) // 2
        self._rows_before, self._firsts = numbers[:half], numbers[half:]
        self._listed = half - 1
        self.columns = tuple(json.loads(line)["columns"])
