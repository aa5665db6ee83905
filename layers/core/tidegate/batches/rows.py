"""Items that are rows of a CSV or NDJSON file: indexed range by range, read by number."""

from __future__ import annotations

import codecs
import csv
import json
import math
import re
import threading
import time
import zlib
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import accumulate, chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from tidegate.aws.s3 import CHUNK, Bucket, S3Sink
from tidegate.batches.model import BLOCK_ITEMS, GZIP, UTF8, UTF16, RowSource, RowText
from tidegate.common.json_input import read_json
from tidegate.errors import Invalid, NotReady, RecordNotFound, WrongState

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

# --- index
# Rows of a CSV or NDJSON file: finds the rows in a range of bytes, and parses a block of them.

CSV, NDJSON = "csv", "ndjson"
FORMATS = (CSV, NDJSON)
# A block belongs to one runner, which reads it as a whole.
BLOCK_ROWS = BLOCK_ITEMS
LONGEST_ROW = 1024 * 1024
DELIMITERS = (",", ";", "\t", "|")
# In all of these, line ends and quotes are single bytes that are part of no other character. GBK is a part of GB 18030.
_CODECS = {
    UTF8: "utf-8",
    "utf-8-sig": "utf-8",
    "gb18030": "gb18030",
    "gbk": "gb18030",
    "big5": "big5hkscs",
    "shift_jis": "cp932",
    "windows-1252": "cp1252",
}
_MARKS = {b"\xef\xbb\xbf": UTF8, b"\xff\xfe": UTF16, b"\xfe\xff": UTF16, b"\x84\x31\x95\x33": "gb18030"}
_GZIP_MAGIC = b"\x1f\x8b"
_LINE_END = {CSV: re.compile(rb"\r\n|\r|\n"), NDJSON: re.compile(rb"\n")}
_EXTENSIONS = {".csv": CSV, ".ndjson": NDJSON, ".jsonl": NDJSON}


def format_of(file_name: str) -> str | None:
    """Returns the format of rows that a file name shows; None if the name shows no format."""
    name = file_name.lower().removesuffix(".gz")
    return next((row_format for end, row_format in _EXTENSIONS.items() if name.endswith(end)), None)


class _Undecodable(Exception):
    """Raised for a byte that is not in the encoding. Has the line and the column of the byte, from 1.

    Lines count from where reading began.
    """

    def __init__(self, line: int, column: int, encoding: str) -> None:
        super().__init__()
        self.line = line
        self.column = column
        self.encoding = encoding

    def refusal(self, lines_before: int = 0) -> Invalid:
        return Invalid(
            f"line {self.line + lines_before}, column {self.column} is not {self.encoding} text: "
            "give the file's `encoding` in source"
        )


@dataclass(frozen=True, slots=True)
class RangeIndex:
    """The records that begin in one range of a file.

    `first` is the offset of the first record. `starts` has the offset of each block of rows and, as its last entry, the
    end of the last record, where the first record of the next range begins.
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


def index_range(
    chunks: Iterable[bytes], form: RowText, first: int, until: int, lines_before: Callable[[], int] = lambda: 0
) -> RangeIndex:
    """Returns the index of the records that begin at `first` or later and before `until`.

    Keeps only one row in memory at a time. `chunks` are the file's bytes from `first` on. They are read up to the end
    of the last of these records. `lines_before` counts the lines before `first`, for the message of a refusal.
    """
    starts, rows, end = array("Q"), 0, first
    columns: tuple[str, ...] = ()
    wants_header = form.format == CSV and first == 0
    try:
        for at, record in _records(chunks, form, first) if first < until else ():
            if record is not None and wants_header:
                columns, wants_header = _header(record), False
            elif record is not None:
                if rows % BLOCK_ROWS == 0:
                    starts.append(end)
                rows += 1
            end = at
            if end >= until and not wants_header:
                break
    except _Undecodable as error:
        raise error.refusal(lines_before()) from None
    starts.append(end)
    return RangeIndex(first, rows, starts, columns)


def csv_records(chunks: Iterable[bytes]) -> Iterator[list[str]]:
    """Yields the values of each row of a CSV text in UTF-8. Raises Invalid if a row cannot be read."""
    try:
        yield from (values for _, values in _records(chunks, RowText(CSV)) if values is not None)
    except _Undecodable as error:
        raise error.refusal() from None


def line_start(chunks: Iterable[bytes], row_format: str, at: int) -> int:
    """Returns the offset of the first line that begins at `at` or later. `chunks` are the bytes from `at - 1` on.

    A record begins at that offset too, unless the line is inside quotes.
    """
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


def count_lines(chunks: Iterable[bytes], row_format: str) -> int:
    """Returns the number of lines in the bytes. The bytes must end with a line end."""
    count, ended_by_return = 0, False
    for chunk in chunks:
        count += sum(1 for _ in _LINE_END[row_format].finditer(chunk))
        # A CR LF that is split between two chunks was counted twice.
        count -= row_format == CSV and ended_by_return and chunk[:1] == b"\n"
        ended_by_return = chunk.endswith(b"\r")
    return count


def parse_block(form: RowText, columns: tuple[str, ...], data: bytes, first: int) -> list[Any]:
    """Returns the rows of one block, which begins at `first`.

    The rows of a CSV file are objects with the names of its header. The rows of an NDJSON file are the values of its
    lines.
    """
    records = (record for _, record in _records([data], form, first) if record is not None)
    return [_json(record) if form.format == NDJSON else _row(columns, record) for record in records]


def first_rows(chunks: Iterable[bytes], form: RowText, start: int, count: int) -> list[Any]:
    """Returns up to `count` rows from number `start` on. Keeps no other rows in memory."""
    return _first(chunks, form, start, count)[1]


def _first(chunks: Iterable[bytes], form: RowText, start: int, count: int) -> tuple[tuple[str, ...], list[Any]]:
    """Returns (columns, rows)."""
    records = (record for _, record in _records(chunks, form) if record is not None)
    try:
        if form.format == NDJSON:
            return (), [_json(record) for record in islice(records, start, start + count)]
        columns = _header(next(records, ()))
        return columns, [_row(columns, values) for values in islice(records, start, start + count)]
    except _Undecodable as error:
        raise error.refusal() from None


def _header(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the names of the columns. Raises Invalid if two columns have the same name."""
    columns, places = tuple(names), dict[str, int]()
    for place, name in enumerate(columns):
        if (first := places.setdefault(name, place)) < place:
            said = f"names the column {name!r} twice" if name else "has two columns without a name"
            where = f"columns {first + 1} and {place + 1}"
            raise Invalid(f"the header row (line 1, {where}) {said}: give every column its own name")
    return columns


def _row(columns: tuple[str, ...], values: list[str]) -> dict[str, Any]:
    row: dict[str, Any] = dict(zip(columns, values, strict=False))
    return row | ({"_more": values[len(columns) :]} if len(values) > len(columns) else {})


def _json(line: str) -> Any:
    try:
        return read_json(line, exact=True)
    except ValueError:
        # A bad line must not end the batch: the business gets its text and may abandon it.
        return line.rstrip("\r\n")


def _records(chunks: Iterable[bytes], form: RowText, first: int = 0) -> Iterator[tuple[int, Any]]:
    """Yields (end offset, content) of each record. The content of a blank record is None. The chunks begin at `first`.

    Counting and parsing both use this reader, because two readers that treat quotes differently would lose rows.
    """
    reader = _RecordReader(chunks, form, first)
    return reader.read_csv() if form.format == CSV else reader.read_lines()


class _RecordReader:
    """Reads the records of a file: decodes line by line, and counts the bytes of each record."""

    def __init__(self, chunks: Iterable[bytes], form: RowText, first: int) -> None:
        self._chunks = chunks
        self._form = form
        self._codec = _CODECS[form.encoding]
        self._position = first
        self._at_file_start = first == 0
        self._line = 0
        self._record = 0
        self._blank = True

    def read_csv(self) -> Iterator[tuple[int, list[str] | None]]:
        csv.field_size_limit(LONGEST_ROW)
        lines = self._decoded(_lines(self._chunks, _split_universal, b""))
        try:
            for values in csv.reader(lines, delimiter=self._form.delimiter):
                yield self._position, values if values and not self._blank else None
                self._record, self._blank = 0, True
        except csv.Error as error:
            raise Invalid(f"the row that ends near byte {self._position} cannot be read as CSV: {error}") from error

    def read_lines(self) -> Iterator[tuple[int, str | None]]:
        for line in self._decoded(_lines(self._chunks, lambda data: data.split(b"\n"), b"\n")):
            yield self._position, None if self._blank else line
            self._record, self._blank = 0, True

    def _decoded(self, lines: Iterable[bytes]) -> Iterator[str]:
        spaces = b" \r\n\x0b\x0c" if self._form.delimiter == "\t" else None
        for line in lines:
            self._line += 1
            self._position += len(line)
            self._record += len(line)
            _check_row_length(self._record)
            self._blank = self._blank and not line.strip(spaces)
            try:
                text = line.decode(self._codec)
            except UnicodeDecodeError as error:
                column = len(line[: error.start].decode(self._codec)) + 1
                raise _Undecodable(self._line, column, self._form.encoding) from None
            yield text.removeprefix("\ufeff") if self._at_file_start else text
            self._at_file_start = False


def _split_universal(data: bytes) -> list[bytes]:
    """Returns lines with their ends (LF, CR LF or CR). The last entry is the rest, whose line may continue."""
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


# Bytes of small objects that are joined to one part of an upload. CSV halves them, and S3 wants at least 5 MiB.
_GROUP_BYTES, _PORTION_READERS = 16 * 1024 * 1024, 16
# The API answers within 29 s.
_ASSEMBLE_SECONDS = 15.0


def _grouped(portions: Iterable[tuple[str, int]]) -> Iterator[list[str]]:
    names, size = list[str](), 0
    for name, length in portions:
        names.append(name)
        size += length
        if size >= _GROUP_BYTES:
            yield names
            names, size = [], 0
    if names:
        yield names


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

    def sized(self, prefix: str, after: str = "") -> Iterator[tuple[str, int]]:
        """Yields (key, size) of the objects, in order."""
        begin: Any = {"StartAfter": after} if after else {}
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket.name, Prefix=prefix, **begin)
        for page in pages:
            yield from ((entry["Key"], entry["Size"]) for entry in page.get("Contents", []))

    def keys(self, prefix: str) -> Iterator[str]:
        return (key for key, _ in self.sized(prefix))

    def assemble(
        self,
        key: str,
        portions: Sequence[tuple[str, int]],
        head: bytes,
        convert: Callable[[bytes], bytes],
        content_type: str,
    ) -> None:
        """Joins many small objects, each of them converted, to one object that begins with `head`.

        Holds one part of the upload in memory. Raises NotReady when its time is up. Parts that were uploaded stay, and
        the next call continues after them. Two calls at the same time upload the same bytes.
        """
        until, groups = time.monotonic() + _ASSEMBLE_SECONDS, list(_grouped(portions))
        if len(groups) <= 1:
            names = [name for name, _ in portions]
            self._client.put_object(
                Bucket=self._bucket.name, Key=key, Body=head + self._joined(names, convert), ContentType=content_type
            )
            return
        place: Any = {"Bucket": self._bucket.name, "Key": key}
        begun = self._client.list_multipart_uploads(Bucket=self._bucket.name, Prefix=key).get("Uploads", [])
        upload = next((one["UploadId"] for one in begun if one["Key"] == key), None)
        if upload is None:
            upload = self._client.create_multipart_upload(**place, ContentType=content_type)["UploadId"]
        try:
            pages = self._client.get_paginator("list_parts").paginate(**place, UploadId=upload)
            sent = {part["PartNumber"]: part["ETag"] for page in pages for part in page.get("Parts", [])}
            missing = [number for number in range(1, len(groups) + 1) if number not in sent]
            for number in missing:
                if time.monotonic() > until and number != missing[0]:
                    why = f"{len(sent)} of {len(groups)} parts of the report are ready: ask again"
                    raise NotReady(why, retry_after=1)
                body = (head if number == 1 else b"") + self._joined(groups[number - 1], convert)
                sent[number] = self._client.upload_part(**place, UploadId=upload, PartNumber=number, Body=body)["ETag"]
            parts: Any = [{"PartNumber": number, "ETag": sent[number]} for number in sorted(sent)]
            self._client.complete_multipart_upload(**place, UploadId=upload, MultipartUpload={"Parts": parts})
        except self._client.exceptions.NoSuchUpload:
            # Another call has completed it.
            if self.size(key) is None:
                raise NotReady("the report is being assembled by another call: ask again", retry_after=1) from None

    def _joined(self, names: Sequence[str], convert: Callable[[bytes], bytes]) -> bytes:
        with ThreadPoolExecutor(_PORTION_READERS, thread_name_prefix="portions") as pool:
            return b"".join(pool.map(lambda name: convert(b"".join(self.chunks(name))), names))

    def lines(self, key: str) -> Iterator[bytes]:
        pending = b""
        for chunk in self.chunks(key):
            *whole, pending = (pending + chunk).split(b"\n")
            yield from whole
        if pending:
            yield pending

    def stream(self, key: str, portions: Iterable[bytes], content_type: str) -> None:
        """Uploads the portions as they come. Holds at most one part of the upload in memory."""
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


# The object that is stored after the last part of a listing.
LISTING_END = "end.json"


class ListedParts(RowBucket):
    """Reads the parts of a listing (`batches/listing.py`) like one object. The key of that object is the folder."""

    def __init__(self, objects: RowBucket, folder: str) -> None:
        """Raises WrongState if not all parts are stored yet."""
        super().__init__(objects._client, objects._bucket)
        self._folder = folder
        found = self.get(folder + LISTING_END)
        if found is None:
            raise WrongState("the objects are listed when the batch has been started: they are not listed yet")
        self._ends = array("Q", accumulate(json.loads(found)["sizes"]))

    def size(self, key: str) -> int | None:
        return super().size(key) if key != self._folder else self._ends[-1] if self._ends else 0

    def span(self, key: str, start: int, end: int) -> bytes:
        return b"".join(self.stream_span(key, start, end)) if end > start else b""

    def stream_span(self, _: str, start: int, end: int) -> Iterator[bytes]:
        number, at = bisect_right(self._ends, start), start
        while at < end:
            begin = self._ends[number - 1] if number else 0
            until = min(end, self._ends[number])
            if at < until:
                yield from super().stream_span(f"{self._folder}{number:07d}.ndjson", at - begin, until - begin)
            number, at = number + 1, until


# --- file index
# The index of a file's rows, built range by range, so that a batch can start when the first range is indexed.
#
# Each range of bytes has an index object of its own: several functions can index ranges in parallel, and another
# function can continue after a crash. In a CSV file, a line inside quotes does not begin a record, and only the bytes
# before it show that. So a range is indexed on the guess that its first line begins a record. The index is valid if the
# range before ends exactly there; otherwise the range is indexed again from the right offset.

RANGE_BYTES = 32 * 1024 * 1024
# A record that extends beyond its range is read in portions of this size.
_READ_ON = 256 * 1024
# The list of indexed ranges is stored after this many new ones.
_LIST_EVERY = 8
_INDEXES_KEPT = 8


class FileIndex:
    """The row index of a file. Has all ranges from the first one up to the last that was added. Thread-safe."""

    def __init__(
        self, objects: RowBucket, key: str, prefix: str, form: RowText, *, range_bytes: int = RANGE_BYTES
    ) -> None:
        """`key`: the file. `prefix`: where its index is stored. Raises RecordNotFound if there is no such file."""
        self.form = form
        self._objects = objects
        self._key = key
        self._prefix = prefix
        self._range_bytes = range_bytes
        self._size = _size_of(objects, key)
        self._lock = threading.Lock()
        self._advancing = threading.Lock()
        self._indexes: OrderedDict[int, RangeIndex] = OrderedDict()
        # For each indexed range, and for the one after them: the rows before it and the offset of its first record.
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
        """Adds the next range.

        Reads its index from S3 if it is stored there; otherwise indexes the range if `build` is true.
        """
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
        """Indexes every `step`th range from number `first` on, except ranges whose index is stored.

        Returns False if it had to stop early.
        """
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
        """Returns the row index of a range that `advance` has added."""
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
        first = line_start(self._bytes(at - 1, self._end(number)), self.form.format, at) if number else 0
        try:
            self._build(number, first)
        except Invalid:
            if number == 0:
                raise
            # Either the guess or the file is wrong. That shows when the range is indexed from its true first record.

    def _build(self, number: int, first: int) -> RangeIndex:
        until = self._end(number)
        built = index_range(self._bytes(first, until), self.form, first, until, lambda: self._lines_before(first))
        self._objects.put(self._object_key(number), built.to_bytes())
        return built

    def _lines_before(self, offset: int) -> int:
        return count_lines(self._objects.stream_span(self._key, 0, offset), self.form.format) if offset else 0

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

# The most bytes that a compressed file may unpack to: a function stores them in a minute or two.
MOST_UNPACKED = 5 * 1024**3
# How much of its file is checked before a new batch is stored; the runner checks the rest.
_HEAD_BYTES, _ROWS_CHECKED = 4096, 20
_BLOCKS_KEPT = 8
# The rows of larger blocks are read one by one. Parsed, a block takes several times as much memory.
_LARGEST_BLOCK = 16 * 1024 * 1024
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
        self._last: tuple[tuple[str, RowText], Rows] | None = None

    def inspect(self, project_id: str, source: RowSource, delimiter: str | None) -> RowSource:
        """Returns the source with the compression and the encoding that the first bytes of its file show.

        Raises Invalid if the header or the first rows of the file cannot be read. Also raises Invalid if no delimiter
        is given and the delimiter of the file is probably not a comma.
        """
        raw = self._chunks(project_id, source)
        head = next(raw, b"")
        source = replace(source, compression=GZIP if head.startswith(_GZIP_MAGIC) else source.compression)
        text = unpacked(chain([head], raw)) if source.compression else chain([head], raw)
        start = b""
        while len(start) < _HEAD_BYTES and (portion := next(text, b"")):
            start += portion
        marked = next((encoding for mark, encoding in _MARKS.items() if start.startswith(mark)), source.encoding)
        source = replace(source, encoding=marked)
        rows = chain([start], text)
        columns, _ = _first(transcoded(rows) if source.encoding == UTF16 else rows, source.text, 0, _ROWS_CHECKED)
        if delimiter is None and len(columns) == 1 and (others := [one for one in DELIMITERS if one in columns[0]]):
            raise Invalid(
                f"the header row (line 1) has one column, {columns[0][:100]!r}: give the `delimiter` in source, "
                f"{others[0]!r} if it is that, or ',' if the name is meant so"
            )
        return source

    def rows(self, project_id: str, source: RowSource) -> Rows:
        """Returns the rows of a file in the library, readable by number.

        Stores the text of a compressed or UTF-16 file first.
        """
        form, key = source.text, self._object_of(project_id, source.signature or "")
        prefix = f"rows/{project_id}/{source.signature}.{form.format}-{source.encoding}-{ord(form.delimiter)}/"
        text = key if source.is_plain else f"{prefix}text"
        return self._cached(text, form) or self._open(self._stored(project_id, source, text), prefix, form)

    def first_rows(self, project_id: str, source: RowSource, start: int, count: int) -> list[Any]:
        """Returns up to `count` rows from number `start` on. Reads the file from its beginning, without its index."""
        return first_rows(self._text(project_id, source), source.text, start, count)

    def of_object(self, key: str) -> Rows:
        """Returns the lines of an NDJSON object that Tidegate wrote."""
        form = RowText(NDJSON)
        return self._cached(key, form) or self._open(key, f"{key}.rows/", form)

    def of_listing(self, folder: str) -> Rows:
        """Returns the lines of the listing whose parts are in this folder.

        Raises WrongState if the listing is not complete.
        """
        form = RowText(NDJSON)
        return self._cached(folder, form) or self._open(
            folder, f"{folder}rows/", form, ListedParts(self._objects, folder)
        )

    def _chunks(self, project_id: str, source: RowSource) -> Iterator[bytes]:
        key = self._object_of(project_id, source.signature or "")
        _size_of(self._objects, key)
        return iter(self._objects.chunks(key))

    def _text(self, project_id: str, source: RowSource) -> Iterator[bytes]:
        chunks = self._chunks(project_id, source)
        chunks = unpacked(chunks) if source.compression else chunks
        return transcoded(chunks) if source.encoding == UTF16 else chunks

    def _stored(self, project_id: str, source: RowSource, key: str) -> str:
        """Stores the text of a compressed or UTF-16 file at `key`, unless it is stored. Returns `key`."""
        if not source.is_plain and self._objects.size(key) is None:
            self._objects.stream(key, self._text(project_id, source), "text/plain")
        return key

    def _cached(self, key: str, form: RowText) -> Rows | None:
        """Returns the rows if this file was opened last; else None.

        The next slice of a batch probably runs in the same process, and reads the same file.
        """
        with self._lock:
            return self._last[1] if self._last and self._last[0] == (key, form) else None

    def _open(self, key: str, prefix: str, form: RowText, objects: RowBucket | None = None) -> Rows:
        objects = objects or self._objects
        rows = Rows(objects, key, FileIndex(objects, key, prefix, form, range_bytes=self.range_bytes))
        with self._lock:
            self._last = ((key, form), rows)
        return rows


def _size_of(objects: RowBucket, key: str) -> int:
    """Returns an object's size.

    Raises RecordNotFound if the object is missing, because a batch would take it for an empty file and end.
    """
    size = objects.size(key)
    if size is None:
        raise RecordNotFound(
            "the rows cannot be read, because their file is no longer in the library: create a batch with another file"
        )
    return size


def unpacked(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the unpacked bytes of a gzip file with one or more members.

    Raises Invalid if the file is not gzip, or unpacks to too many bytes.
    """
    size, unpacker = 0, zlib.decompressobj(wbits=31)
    for chunk in chunks:
        data = chunk
        while data:
            if unpacker.eof:
                # Another member, or zeros after the last one.
                data = data.lstrip(b"\0")
                if not data:
                    break
                unpacker = zlib.decompressobj(wbits=31)
            try:
                portion = unpacker.decompress(data, CHUNK)
            except zlib.error as error:
                raise Invalid(f"the file cannot be read as gzip: {error}") from error
            data = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
            size += len(portion)
            if size > MOST_UNPACKED:
                raise Invalid(f"the file unpacks to more than {MOST_UNPACKED:,} bytes: upload it unpacked")
            yield portion
    if not unpacker.eof:
        raise Invalid("the file cannot be read as gzip: its end is missing")


def transcoded(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yields UTF-16 text as UTF-8. Text without a byte order mark is read as little-endian."""
    decoder = codecs.getincrementaldecoder("utf-16")()
    lines, last = 0, ""
    for chunk in chain(chunks, [None]):
        try:
            text = decoder.decode(chunk or b"", chunk is None)
        except UnicodeDecodeError as error:
            text = last + error.object[: error.start].decode(error.encoding).removeprefix("\ufeff")
            lines += text.count("\n")
            raise _Undecodable(lines + 1, len(text.rpartition("\n")[2]) + 1, UTF16).refusal() from None
        lines += text.count("\n")
        last = text.rpartition("\n")[2] if "\n" in text else last + text
        yield text.encode()


class _LongRows(NamedTuple):
    """A block with very long rows.

    Each row is read only when it is needed: a thousand of them would fill the memory.
    """

    read: Callable[[int], Any]


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
        self._blocks: OrderedDict[tuple[int, int], Future[list[Any] | _LongRows]] = OrderedDict()

    @property
    def indexers(self) -> int:
        """How many functions are to index a large file. Each of them indexes some of its ranges. 0 for a small file."""
        ranges = self.index.ranges
        return 0 if ranges <= _FEW_RANGES else min(_MOST_INDEXERS, math.ceil(ranges / _RANGES_EACH))

    def ensure_indexed(self, count: int) -> tuple[int, bool]:
        """Indexes rows until `count` are indexed or no more follow. Returns (rows indexed, whether these are all)."""
        while (indexed := self.index.indexed)[0] < count and not indexed[1]:
            self.index.advance()
        return indexed

    def look_ahead(self, count: int) -> tuple[int, bool]:
        """Returns `index.indexed`, and adds the next range in the background.

        Indexes that range itself if there are no other functions for it, or if fewer than `count` rows are indexed.
        """
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
        return rows.read(place % BLOCK_ROWS) if isinstance(rows, _LongRows) else rows[place % BLOCK_ROWS]

    def _block(self, number: int, block: int) -> Future[list[Any] | _LongRows]:
        block_key = (number, block)
        if block_key not in self._blocks:
            self._blocks[block_key] = self._reader.submit(self._read, number, block)
            while len(self._blocks) > _BLOCKS_KEPT:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(block_key)
        return self._blocks[block_key]

    def _read(self, number: int, block: int) -> list[Any] | _LongRows:
        start, end = self.index.range_index(number).span(block)
        if end - start <= _LARGEST_BLOCK:
            return self._parsed(start, end)
        ends = array("Q", [start])
        records = _records(self._objects.stream_span(self._key, start, end), self.index.form, start)
        ends.extend(at for at, record in records if record is not None)
        return _LongRows(lambda place: self._parsed(ends[place], ends[place + 1])[0])

    def _parsed(self, start: int, end: int) -> list[Any]:
        return parse_block(self.index.form, self.index.columns, self._objects.span(self._key, start, end), start)
