"""The index of a file's rows, made range by range: a batch starts when the first range is known, whatever the size.

Each range of bytes has an index object of its own, so several functions make them side by side and a new one goes on
where another died. Whether a line begins a record is known only from what is before it, because a CSV may hold line
ends within quotes. So a range is indexed as if it did, and counts only if the range before it ends exactly there;
otherwise it is indexed again, from the right place.
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
from tidegate.errors import Invalid

RANGE_BYTES = 32 * 1024 * 1024
# A record that goes on past its range is read on in portions of this size.
_READ_ON = 256 * 1024
# The list of known ranges is stored after so many new ones.
_LIST_EVERY = 8
_INDEXES_KEPT = 8


class FileIndex:
    """Knows the ranges from the first one on, as far as each follows on the one before. Safe for several threads."""

    def __init__(self, objects: RowBucket, key: str, prefix: str, form: str, *, range_bytes: int = RANGE_BYTES) -> None:
        """The file at `key`; what is found out about it is kept under `prefix`."""
        self.format = form
        self._objects = objects
        self._key = key
        self._prefix = prefix
        self._range_bytes = range_bytes
        self._size = objects.size(key) or 0
        self._lock = threading.Lock()
        self._advancing = threading.Lock()
        self._indexes: OrderedDict[int, RangeIndex] = OrderedDict()
        # Of each known range: the rows before it, and where its first record begins; then the same for what follows.
        self._rows_before = array("Q", [0])
        self._firsts = array("Q", [0])
        self._listed = 0
        self.columns: tuple[str, ...] = ()
        self._read_list()

    @property
    def ranges(self) -> int:
        return -(-self._size // self._range_bytes)

    @property
    def known(self) -> tuple[int, bool]:
        """(rows that are known, whether these are all)."""
        with self._lock:
            return self._rows_before[-1], len(self._firsts) > self.ranges

    def advance(self, *, make: bool = True) -> None:
        """Makes one more range known: as stored, or by indexing it here if `make`."""
        with self._advancing:
            number, first = len(self._firsts) - 1, self._firsts[-1]
            if number >= self.ranges:
                return
            found = self._stored(number)
            if found is None and not make:
                return
            if found is None or found.first != first:
                found = self._make(number, first)
            self._add(found)
            if number + 1 - self._listed >= _LIST_EVERY or number + 1 == self.ranges:
                self._write_list()

    def make_ranges(self, first: int, step: int, goes_on: Callable[[], bool]) -> bool:
        """Indexes every `step`th range from number `first` on that is not stored yet. False if it was told to end."""
        for number in range(first, self.ranges, step):
            if not goes_on():
                return False
            if self._objects.size(self._name(number)) is None:
                self._guess(number)
        return True

    def place(self, row: int) -> tuple[int, int]:
        """(number of the range, row within it) of a known row."""
        with self._lock:
            number = bisect_right(self._rows_before, row) - 1
            return number, row - self._rows_before[number]

    def range_index(self, number: int) -> RangeIndex:
        """Of a known range."""
        with self._lock:
            if number in self._indexes:
                self._indexes.move_to_end(number)
                return self._indexes[number]
            first = self._firsts[number]
        found = self._stored(number)
        if found is None or found.first != first:
            found = self._make(number, first)
        self._keep(number, found)
        return found

    def _add(self, found: RangeIndex) -> None:
        with self._lock:
            self.columns = self.columns or found.columns
            number = len(self._firsts) - 1
            self._rows_before.append(self._rows_before[-1] + found.rows)
            self._firsts.append(found.end)
        self._keep(number, found)

    def _keep(self, number: int, found: RangeIndex) -> None:
        with self._lock:
            self._indexes[number] = found
            while len(self._indexes) > _INDEXES_KEPT:
                self._indexes.popitem(last=False)

    def _guess(self, number: int) -> None:
        at = number * self._range_bytes
        first = line_start(self._bytes(at - 1, self._end(number)), self.format, at) if number else 0
        try:
            self._make(number, first)
        except Invalid:
            if number == 0:
                raise
            # The guess was wrong, or the row is: whoever knows where the range begins finds out.

    def _make(self, number: int, first: int) -> RangeIndex:
        until = self._end(number)
        made = index_range(self._bytes(first, until), self.format, first, until)
        self._objects.put(self._name(number), made.to_bytes())
        return made

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

    def _stored(self, number: int) -> RangeIndex | None:
        data = self._objects.get(self._name(number))
        return None if data is None else RangeIndex.from_bytes(data)

    def _name(self, number: int) -> str:
        # Ranges of another size are another index.
        return f"{self._prefix}{self._range_bytes}-{number:07d}"

    @property
    def _list_name(self) -> str:
        return f"{self._prefix}{self._range_bytes}-list"

    def _write_list(self) -> None:
        """So that a new runner knows all of them by one read."""
        with self._lock:
            head = json.dumps({"columns": self.columns}, ensure_ascii=False).encode()
            packed = self._rows_before.tobytes() + self._firsts.tobytes()
            self._listed = len(self._firsts) - 1
        self._objects.put(self._list_name, head + b"\n" + packed)

    def _read_list(self) -> None:
        data = self._objects.get(self._list_name)
        if data is None:
            return
        line, _, packed = data.partition(b"\n")
        numbers = array("Q")
        numbers.frombytes(packed)
        half = len(numbers) // 2
        self._rows_before, self._firsts = numbers[:half], numbers[half:]
        self._listed = half - 1
        self.columns = tuple(json.loads(line)["columns"])
