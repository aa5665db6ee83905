"""Rows of a CSV or NDJSON file: where the rows of one range of bytes are, and what a block of them holds."""

from __future__ import annotations

import csv
import json
import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tidegate.batches.run.share import BLOCK_ITEMS
from tidegate.common.json_input import read_json
from tidegate.errors import Invalid

CSV, NDJSON = "csv", "ndjson"
FORMATS = (CSV, NDJSON)
# A runner reads whole blocks, and no other runner reads them.
BLOCK_ROWS = BLOCK_ITEMS
LONGEST_ROW = 1024 * 1024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LINE_END = {CSV: re.compile(rb"\r\n|\r|\n"), NDJSON: re.compile(rb"\n")}
_EXTENSIONS = {".csv": CSV, ".ndjson": NDJSON, ".jsonl": NDJSON}


def format_of(file_name: str) -> str | None:
    return next((form for end, form in _EXTENSIONS.items() if file_name.lower().endswith(end)), None)


@dataclass(frozen=True, slots=True)
class RangeIndex:
    """The records that begin in one range of a file.

    `first` is where the first of them begins. `starts` holds where each block of rows begins; its last entry is where
    the last record ends, and the next range's first one begins.
    """

    first: int
    rows: int
    starts: array[int]
    # The header of a CSV, with its first range.
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


def index_range(chunks: Iterable[bytes], form: str, first: int, until: int) -> RangeIndex:
    """Of the records that begin at `first` or later and before `until`, in one pass that holds one row at a time.

    `chunks` are the file's bytes from `first` on; they are read no further than the last of these records.
    """
    starts, rows, end = array("Q"), 0, first
    columns: tuple[str, ...] = ()
    wants_header = form == CSV and first == 0
    if first < until:
        for at, record in _records(chunks, form, first):
            if record is not None and wants_header:
                columns, wants_header = tuple(record), False
            elif record is not None:
                if rows % BLOCK_ROWS == 0:
                    starts.append(end)
                rows += 1
            end = at
            if end >= until and not wants_header:
                break
    starts.append(end)
    return RangeIndex(first, rows, starts, columns)


def line_start(chunks: Iterable[bytes], form: str, at: int) -> int:
    """Where the first line begins at `at` or later; `chunks` are the bytes from `at - 1` on. A record begins there too,
    unless it is within quotes."""
    position = at - 1
    after_return = False
    for chunk in chunks:
        if after_return:
            return position + 1 if chunk[:1] == b"\n" else position
        found = _LINE_END[form].search(chunk)
        if found and found.end() == len(chunk) and found[0] == b"\r":
            after_return = True
        elif found:
            return position + found.end()
        position += len(chunk)
    return position


def parse_block(form: str, columns: tuple[str, ...], data: bytes) -> list[Any]:
    """The rows of one block: an object each, by the header of the CSV or as the NDJSON has it."""
    records = (record for _, record in _records([data], form, first=None) if record is not None)
    return [_json(record) if form == NDJSON else _row(columns, record) for record in records]


def first_rows(chunks: Iterable[bytes], form: str, count: int) -> list[Any]:
    records = (record for _, record in _records(chunks, form) if record is not None)
    if form == NDJSON:
        return [_json(record) for record in islice(records, count)]
    columns = tuple(next(records, ()))
    return [_row(columns, values) for values in islice(records, count)]


def _row(columns: tuple[str, ...], values: list[str]) -> dict[str, Any]:
    row: dict[str, Any] = dict(zip(columns, values, strict=False))
    return row | ({"_more": values[len(columns) :]} if len(values) > len(columns) else {})


def _json(record: bytes) -> Any:
    try:
        return read_json(record.removeprefix(_BYTE_ORDER_MARK), exact=True)
    except ValueError:
        # One bad line must not end the batch: the business sees what is there and may abandon it.
        return record.decode("utf-8", "replace").rstrip("\r\n")


def _records(chunks: Iterable[bytes], form: str, first: int | None = 0) -> Iterator[tuple[int, Any]]:
    """(where it ends, what it holds) of each record; None for one that is blank. `first` is where the chunks begin.

    Rows are counted and parsed by this one reader: two readers that disagree about a quote would lose rows.
    """
    return _CsvRecords(chunks, first).read() if form == CSV else _json_lines(chunks, first or 0)


def _json_lines(chunks: Iterable[bytes], position: int) -> Iterator[tuple[int, bytes | None]]:
    for line in _lines(chunks, lambda data: data.split(b"\n"), b"\n"):
        position += len(line)
        yield position, line if line.strip() else None


class _CsvRecords:
    """Lets `csv.reader` take as many lines as its record needs, and counts their bytes."""

    def __init__(self, chunks: Iterable[bytes], first: int | None) -> None:
        self._chunks = chunks
        self._position = first or 0
        self._may_have_mark = first == 0
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
            text = line.removeprefix(_BYTE_ORDER_MARK) if self._may_have_mark else line
            self._may_have_mark = False
            self._position += len(line)
            self._record += len(line)
            _refuse_endless(self._record)
            self._blank = self._blank and not line.strip()
            # Replacing what is not UTF-8 keeps every ASCII byte, so quotes and commas stay where they are.
            yield text.decode("utf-8", "replace")


def _split_universal(data: bytes) -> list[bytes]:
    """Lines with their ends (LF, CR LF or CR); the last entry is what has no end yet."""
    lines = data.splitlines(keepends=True)
    if lines and lines[-1].endswith(b"\n"):
        return [*lines, b""]
    # A CR at the very end may be half of a CR LF.
    return lines or [b""]


def _lines(chunks: Iterable[bytes], split: Callable[[bytes], list[bytes]], end: bytes) -> Iterator[bytes]:
    pending = b""
    for chunk in chunks:
        *whole, pending = split(pending + chunk)
        for line in whole:
            yield line + end
        _refuse_endless(len(pending))
    if pending:
        yield pending


def _refuse_endless(length: int) -> None:
    if length > LONGEST_ROW:
        raise Invalid(f"a row is longer than {LONGEST_ROW} bytes; is a closing quote missing?")
