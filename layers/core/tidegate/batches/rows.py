"""Items that are rows of a CSV or NDJSON file: indexed range by range, read by number."""

from __future__ import annotations

import csv
import json
import math
import re
import threading
from array import array
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from tidegate.aws.s3 import CHUNK, Bucket, S3Sink
from tidegate.batches.model import BLOCK_ITEMS, RowSource
from tidegate.common.json_input import read_json
from tidegate.errors import Invalid, RecordNotFound

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

# --- index
# Rows of a CSV or NDJSON file: finds the rows in a range of bytes, and parses a block of them.

CSV, NDJSON = "csv", "ndjson"
FORMATS = (CSV, NDJSON)
# A block belongs to one runner, which reads it as a whole.
BLOCK_ROWS = BLOCK_ITEMS
LONGEST_ROW = 1024 * 1024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LINE_END = {CSV: re.compile(rb"\r\n|\r|\n"), NDJSON: re.compile(rb"\n")}
_EXTENSIONS = {".csv": CSV, ".ndjson": NDJSON, ".jsonl": NDJSON}


def format_of(file_name: str) -> str | None:
    return next((row_format for end, row_format in _EXTENSIONS.items() if file_name.lower().endswith(end)), None)


@dataclass(frozen=True, slots=True)
class RangeIndex:
    """The records that begin in one range of a file.

    `first` is the offset of the first record. `starts` has the offset of each block of rows, and at last the end of
    the last record, where the first record of the next range begins.
    """

    first: int
    rows: int
    starts: array[int]
    # The header of a CSV file, in its first range.
    columns: tuple[str, ...] = ()

    @property
    def end(self) -> int:
        return self.starts[-1]

    def span(self, block: int) -> tuple[int, int]:
        return self.starts[block], self.starts[block + 1]

    def to_bytes(self) -> bytes:
        head = json.dumps({"first": self.first, "rows": self.rows, "columns": self.columns}, ensure_ascii=False)
        return head.encode() + b"\n" + self.starts.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> RangeIndex:
        line, _, packed = data.partition(b"\n")
        head = json.loads(line)
        starts = array("Q")
        starts.frombytes(packed)
        return cls(head["first"], head["rows"], starts, tuple(head["columns"]))


def index_range(chunks: Iterable[bytes], row_format: str, first: int, until: int) -> RangeIndex:
    """Returns the index of the records that begin at `first` or later and before `until`. Holds one row at a time.

    `chunks` are the file's bytes from `first` on. They are read up to the end of the last of these records.
    """
    starts, rows, end = array("Q"), 0, first
    columns: tuple[str, ...] = ()
    wants_header = row_format == CSV and first == 0
    if first < until:
        for at, record in _records(chunks, row_format, first):
            if record is not None and wants_header:
                columns, wants_header = _header(record), False
            elif record is not None:
                if rows % BLOCK_ROWS == 0:
                    starts.append(end)
                rows += 1
            end = at
            if end >= until and not wants_header:
                break
    starts.append(end)
    return RangeIndex(first, rows, starts, columns)


def line_start(chunks: Iterable[bytes], row_format: str, at: int) -> int:
    """Returns the offset of the first line that begins at `at` or later; `chunks` are the bytes from `at - 1` on.
    A record begins there too, unless the line is inside quotes."""
    position = at - 1
    after_return = False
    for chunk in chunks:
        if after_return:
            return position + 1 if chunk[:1] == b"\n" else position
        found = _LINE_END[row_format].search(chunk)
        if found and found.end() == len(chunk) and found[0] == b"\r":
            after_return = True
        elif found:
            return position + found.end()
        position += len(chunk)
    return position


def parse_block(row_format: str, columns: tuple[str, ...], data: bytes) -> list[Any]:
    """Returns the rows of one block: objects with the names of the CSV header, or the values of the NDJSON lines."""
    records = (record for _, record in _records([data], row_format, first=None) if record is not None)
    return [_json(record) if row_format == NDJSON else _row(columns, record) for record in records]


def first_rows(chunks: Iterable[bytes], row_format: str, start: int, count: int) -> list[Any]:
    """Returns up to `count` rows from number `start` on. Holds no other rows."""
    records = (record for _, record in _records(chunks, row_format) if record is not None)
    if row_format == NDJSON:
        return [_json(record) for record in islice(records, start, start + count)]
    columns = _header(next(records, ()))
    return [_row(columns, values) for values in islice(records, start, start + count)]


def _header(names: Iterable[str]) -> tuple[str, ...]:
    """Columns without a name are allowed: spreadsheets write some after the last one."""
    columns = tuple(names)
    if twice := [name for name, count in Counter(columns).items() if name and count > 1]:
        raise Invalid(f"the header row names the column {twice[0]!r} twice: give every column its own name")
    return columns


def _row(columns: tuple[str, ...], values: list[str]) -> dict[str, Any]:
    row: dict[str, Any] = dict(zip(columns, values, strict=False))
    return row | ({"_more": values[len(columns) :]} if len(values) > len(columns) else {})


def _json(record: bytes) -> Any:
    try:
        return read_json(record.removeprefix(_BYTE_ORDER_MARK), exact=True)
    except ValueError:
        # A bad line must not end the batch: the business gets its text and may abandon it.
        return record.decode("utf-8", "replace").rstrip("\r\n")


def _records(chunks: Iterable[bytes], row_format: str, first: int | None = 0) -> Iterator[tuple[int, Any]]:
    """Yields (end offset, content) of each record; the content of a blank one is None. The chunks begin at `first`.

    Counting and parsing both use this reader: two readers that treat quotes differently would lose rows.
    """
    return _CsvRecords(chunks, first).read() if row_format == CSV else _json_lines(chunks, first or 0)


def _json_lines(chunks: Iterable[bytes], position: int) -> Iterator[tuple[int, bytes | None]]:
    for line in _lines(chunks, lambda data: data.split(b"\n"), b"\n"):
        position += len(line)
        yield position, line if line.strip() else None


class _CsvRecords:
    """Feeds `csv.reader` line by line and counts the bytes of each record."""

    def __init__(self, chunks: Iterable[bytes], first: int | None) -> None:
        self._chunks = chunks
        self._position = first or 0
        self._at_file_start = first == 0
        self._record = 0
        self._blank = True

    def read(self) -> Iterator[tuple[int, list[str] | None]]:
        csv.field_size_limit(LONGEST_ROW)
        try:
            for values in csv.reader(self._decoded()):
                yield self._position, values if values and not self._blank else None
                self._record, self._blank = 0, True
        except csv.Error as error:
            raise Invalid(f"the row that ends near byte {self._position} cannot be read as CSV: {error}") from error

    def _decoded(self) -> Iterator[str]:
        for line in _lines(self._chunks, _split_universal, b""):
            text = line.removeprefix(_BYTE_ORDER_MARK) if self._at_file_start else line
            self._at_file_start = False
            self._position += len(line)
            self._record += len(line)
            _check_row_length(self._record)
            self._blank = self._blank and not line.strip()
            # Replacing invalid UTF-8 changes no ASCII byte, so quotes and commas stay in place.
            yield text.decode("utf-8", "replace")


def _split_universal(data: bytes) -> list[bytes]:
    """Returns lines with their ends (LF, CR LF or CR); the last entry is the rest, which has no end yet."""
    lines = data.splitlines(keepends=True)
    if lines and lines[-1].endswith(b"\n"):
        return [*lines, b""]
    # A CR at the end may be the first half of a CR LF.
    return lines or [b""]


def _lines(chunks: Iterable[bytes], split: Callable[[bytes], list[bytes]], end: bytes) -> Iterator[bytes]:
    pending = b""
    for chunk in chunks:
        *whole, pending = split(pending + chunk)
        for line in whole:
            yield line + end
        _check_row_length(len(pending))
    if pending:
        yield pending


def _check_row_length(length: int) -> None:
    if length > LONGEST_ROW:
        raise Invalid(f"a row is longer than {LONGEST_ROW} bytes; is a closing quote missing?")


# --- objects
# Objects of batches in the bucket: files with rows, their indexes, outcomes.


class RowBucket:
    def __init__(self, client: S3Client, bucket: Bucket) -> None:
        self._client = client
        self._bucket = bucket

    def chunks(self, key: str) -> Iterator[bytes]:
        return self._bucket.read(key)[1]

    def span(self, key: str, start: int, end: int) -> bytes:
        if end <= start:
            return b""
        answer = self._client.get_object(Bucket=self._bucket.name, Key=key, Range=f"bytes={start}-{end - 1}")
        return answer["Body"].read()

    def stream_span(self, key: str, start: int, end: int) -> Iterator[bytes]:
        answer = self._client.get_object(Bucket=self._bucket.name, Key=key, Range=f"bytes={start}-{end - 1}")
        return answer["Body"].iter_chunks(CHUNK)

    def get(self, key: str) -> bytes | None:
        try:
            return b"".join(self.chunks(key))
        except RecordNotFound:
            return None

    def put(self, key: str, data: bytes) -> None:
        self._client.put_object(Bucket=self._bucket.name, Key=key, Body=data)

    def size(self, key: str) -> int | None:
        found = self._bucket.head(key)
        return found.size if found else None

    def keys(self, prefix: str) -> Iterator[str]:
        for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket.name, Prefix=prefix):
            yield from (entry["Key"] for entry in page.get("Contents", []))

    def lines(self, key: str) -> Iterator[bytes]:
        pending = b""
        for chunk in self.chunks(key):
            *whole, pending = (pending + chunk).split(b"\n")
            yield from whole
        if pending:
            yield pending

    def stream(self, key: str, portions: Iterable[bytes], content_type: str) -> None:
        """Uploads the portions as they come, with no more memory than one part of the upload."""
        sink = S3Sink(self._client, self._bucket.name, key, content_type)
        try:
            for portion in portions:
                sink.write(portion)
            sink.close()
        except BaseException:
            sink.abort()
            raise

    def link(self, key: str, seconds: int, file_name: str) -> str:
        return self._bucket.presign_get(key, seconds, disposition=f'attachment; filename="{file_name}"')


# --- file index
# The index of a file's rows, built range by range, so that a batch can start when the first range is indexed.
#
# Each range of bytes has an index object of its own: several functions can index ranges in parallel, and another
# function
# can continue after a crash. In a CSV file, a line inside quotes does not begin a record, and only the bytes before it
# show that. So a range is indexed on the guess that its first line begins a record. The index is valid if the range
# before ends exactly there; otherwise the range is indexed again from the right offset.

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


# --- files
# Items that are rows of a file in the library, read by number, with the next block read ahead.

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
