"""Rows of a CSV or NDJSON file: finds the rows in a range of bytes, and parses a block of them."""

from __future__ import annotations

import csv
import json
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tidegate.batches.run.share import BLOCK_ITEMS
from tidegate.common.json_input import read_json
from tidegate.errors import Invalid

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
