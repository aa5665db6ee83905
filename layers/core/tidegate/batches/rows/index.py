"""Rows of a CSV or NDJSON file by their number: where each block of rows starts, found in one pass."""

from __future__ import annotations

import csv
import json
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
_EXTENSIONS = {".csv": CSV, ".ndjson": NDJSON, ".jsonl": NDJSON}


def format_of(file_name: str) -> str | None:
    return next((form for end, form in _EXTENSIONS.items() if file_name.lower().endswith(end)), None)


@dataclass(frozen=True, slots=True)
class RowIndex:
    """`starts` holds the byte at which each block begins; its last entry is the file's end."""

    format: str
    rows: int
    starts: array[int]
    columns: tuple[str, ...] = ()

    def span(self, block: int) -> tuple[int, int]:
        return self.starts[block], self.starts[block + 1]

    def to_bytes(self) -> bytes:
        head = json.dumps({"format": self.format, "rows": self.rows, "columns": self.columns}, ensure_ascii=False)
        return head.encode() + b"\n" + self.starts.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> RowIndex:
        line, _, packed = data.partition(b"\n")
        head = json.loads(line)
        starts = array("Q")
        starts.frombytes(packed)
        return cls(head["format"], head["rows"], starts, tuple(head["columns"]))


def index_rows(chunks: Iterable[bytes], form: str) -> RowIndex:
    """One pass, holding one row and eight bytes for each thousand."""
    starts, rows, end = array("Q"), 0, 0
    columns: tuple[str, ...] = ()
    records = _records(chunks, form)
    if form == CSV:
        end, header = next(records, (0, []))
        columns = tuple(header)
    for at, _ in records:
        if rows % BLOCK_ROWS == 0:
            starts.append(end)
        rows += 1
        end = at
    starts.append(end)
    return RowIndex(form, rows, starts, columns)


def parse_block(index: RowIndex, data: bytes) -> list[Any]:
    """The rows of one block: an object each, by the header of the CSV or as the NDJSON has it."""
    records = _records([data], index.format)
    if index.format == NDJSON:
        return [_json(record) for _, record in records]
    return [_row(index.columns, values) for _, values in records]


def first_rows(chunks: Iterable[bytes], form: str, count: int) -> list[Any]:
    records = _records(chunks, form)
    if form == NDJSON:
        return [_json(record) for _, record in islice(records, count)]
    _, columns = next(records, (0, []))
    return [_row(tuple(columns), values) for _, values in islice(records, count)]


def _row(columns: tuple[str, ...], values: list[str]) -> dict[str, Any]:
    row: dict[str, Any] = dict(zip(columns, values, strict=False))
    return row | ({"_more": values[len(columns) :]} if len(values) > len(columns) else {})


def _json(record: bytes) -> Any:
    try:
        return read_json(record, exact=True)
    except ValueError:
        # One bad line must not end the batch: the business sees what is there and may abandon it.
        return record.decode("utf-8", "replace").rstrip("\r\n")


def _records(chunks: Iterable[bytes], form: str) -> Iterator[tuple[int, Any]]:
    """(where it ends, what it holds) of each record that is not blank.

    Rows are counted and parsed by this one reader: two readers that disagree about a quote would lose rows.
    """
    return _CsvRecords(chunks).read() if form == CSV else _json_lines(chunks)


def _json_lines(chunks: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    position = 0
    for line in _lines(chunks, lambda data: data.split(b"\n"), b"\n"):
        position += len(line)
        if line.strip():
            yield position, line


class _CsvRecords:
    """Lets `csv.reader` take as many lines as its record needs, and counts their bytes."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = chunks
        self._position = 0
        self._record = 0
        self._blank = True

    def read(self) -> Iterator[tuple[int, list[str]]]:
        csv.field_size_limit(LONGEST_ROW)
        try:
            for values in csv.reader(self._decoded()):
                if values and not self._blank:
                    yield self._position, values
                self._record, self._blank = 0, True
        except csv.Error as error:
            raise Invalid(f"the row that ends near byte {self._position} cannot be read as CSV: {error}") from error

    def _decoded(self) -> Iterator[str]:
        for line in _lines(self._chunks, _split_universal, b""):
            text = line
            if self._position == 0:
                text = line.removeprefix(b"\xef\xbb\xbf")
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
