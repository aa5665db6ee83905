"""Rows of a CSV or NDJSON file by their number: where each block of rows starts, found in one pass."""

from __future__ import annotations

import csv
import io
import json
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tidegate.common.json_input import read_json
from tidegate.errors import Invalid

CSV, NDJSON = "csv", "ndjson"
FORMATS = (CSV, NDJSON)
BLOCK_ROWS = 1000
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
    records = _records(chunks, quoted=form == CSV)
    if form == CSV:
        end, header = next(records, (0, b""))
        columns = tuple(_fields(header.decode("utf-8-sig")))
    for at, record in records:
        if rows % BLOCK_ROWS == 0:
            starts.append(at - len(record))
        rows += 1
        end = at
    starts.append(end)
    return RowIndex(form, rows, starts, columns)


def parse_block(index: RowIndex, data: bytes) -> list[Any]:
    """The rows of one block: an object each, by the header of the CSV or as the NDJSON has it."""
    if index.format == NDJSON:
        return [_json(record) for _, record in _records([data], quoted=False)]
    lines = csv.reader(io.StringIO(data.decode("utf-8", "replace"), newline=""))
    return [_row(index.columns, values) for values in lines if values]


def _row(columns: tuple[str, ...], values: list[str]) -> dict[str, Any]:
    row: dict[str, Any] = dict(zip(columns, values, strict=False))
    return row | ({"_more": values[len(columns) :]} if len(values) > len(columns) else {})


def _json(record: bytes) -> Any:
    try:
        return read_json(record, exact=True)
    except ValueError:
        # One bad line must not end the batch: the business sees what is there and may abandon it.
        return record.decode("utf-8", "replace").rstrip("\r\n")


def _fields(line: str) -> list[str]:
    return next(csv.reader(io.StringIO(line, newline="")), [])


def _records(chunks: Iterable[bytes], *, quoted: bool) -> Iterator[tuple[int, bytes]]:
    """(where it ends, the bytes) of each record that is not blank. In CSV a line break may stand within quotes."""
    position, pending, open_record = 0, b"", b""
    for chunk in chunks:
        lines = (pending + chunk).split(b"\n")
        pending = lines.pop()
        for line in lines:
            position += len(line) + 1
            open_record += line + b"\n"
            if quoted and open_record.count(b'"') % 2:
                _refuse_endless(open_record)
                continue
            if open_record.strip():
                yield position, open_record
            open_record = b""
        _refuse_endless(pending)
    last = open_record + pending
    if last.strip():
        yield position + len(pending), last


def _refuse_endless(record: bytes) -> None:
    if len(record) > LONGEST_ROW:
        raise Invalid(f"a row is longer than {LONGEST_ROW} bytes")
