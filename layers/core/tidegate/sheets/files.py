"""The files of an export in any format, whole or as fragments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from zlib import DEFLATED

from isal import isal_zlib

from tidegate.common.sequences import Chunk
from tidegate.sheets.parquet import parquet_chunks
from tidegate.sheets.rows import RowBlocks
from tidegate.sheets.table import leaves
from tidegate.sheets.text import PLAIN_CSV, CsvOptions, csv_chunks, jsonl_chunks
from tidegate.sheets.xlsx import TableRows, xlsx_chunks
from tidegate.sheets.xlsx_cells import Notes
from tidegate.sheets.zip import LEVEL, WINDOW, Entry, gzip_stream, zip_stream

# --- files
# Renders tables into one file: a workbook, a text file, with or without gzip, or a zip of several files.

ENDINGS = {"csv": "csv", "excel": "xlsx", "jsonl": "jsonl", "parquet": "parquet"}
CONTENT_TYPES = {
    "csv": "text/csv",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "jsonl": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
    "zip": "application/zip",
    "gz": "application/gzip",
}


@dataclass(frozen=True, slots=True)
class Output:
    type: str = "csv"
    multi_type: str = "page"
    rows_per_file: int | None = None
    csv: CsvOptions = PLAIN_CSV
    compression: str | None = None

    @property
    def is_packed(self) -> bool:
        return self.compression == "gzip" and self.type in ("csv", "jsonl")

    @property
    def is_stored(self) -> bool:
        """Whether its files are compressed already, and are stored in a zip without compression."""
        return self.type in ("excel", "parquet")


def extension(output: Output, tables: Sequence[TableRows], total: int) -> str:
    if _is_split(output, tables, total) or (output.type != "excel" and output.multi_type == "tab" and len(tables) > 1):
        return "zip"
    return ENDINGS[output.type] + (".gz" if output.is_packed else "")


def content_type(output: Output, ending: str) -> str:
    if ending == "csv":
        return f"text/csv; charset={output.csv.encoding.removesuffix('-sig')}"
    return CONTENT_TYPES[ending.rpartition(".")[2]]


def render(output: Output, tables: Sequence[TableRows], total: int, notes: Notes | None = None) -> Iterator[Chunk]:
    """The bytes of the file; `total` is the number of rows of all tables."""
    if _is_split(output, tables, total):
        return zip_stream(_split(output, tables[0], total, notes), stored=output.is_stored)
    if output.type == "excel":
        return xlsx_chunks(tables, multi_type=output.multi_type, notes=notes)
    if extension(output, tables, total) == "zip":
        ending = ENDINGS[output.type]
        return zip_stream((f"{number}.{ending}", _text(output, table)) for number, table in enumerate(tables, 1))
    page = _page(output, tables, notes)
    return gzip_stream(page) if output.is_packed else page


def file_sizes(total: int, rows_per_file: int) -> list[int]:
    """The rows of each file: as few files as possible, filled evenly."""
    files = -(-total // rows_per_file)
    each = -(-total // files)
    return [min(each, total - start) for start in range(0, total, each)]


def _is_split(output: Output, tables: Sequence[TableRows], total: int) -> bool:
    """Whether the rows are split into several files: only those of a single table without row heads."""
    limit = output.rows_per_file
    return bool(limit and total > limit and len(tables) == 1 and not tables[0].table.template.rows)


def _split(output: Output, source: TableRows, total: int, notes: Notes | None) -> Iterator[Entry]:
    rows = RowBlocks.of(source.rows)
    for number, size in enumerate(file_sizes(total, output.rows_per_file or total), 1):
        part = TableRows(source.table, source.keys, rows.first(size))
        chunks = xlsx_chunks([part], notes=notes) if output.type == "excel" else _text(output, part, notes)
        yield f"{number}.{ENDINGS[output.type]}", chunks


def csv_columns(source: TableRows) -> tuple[Sequence[str], dict[str, str]]:
    """The keys of the columns of a CSV file, from the template if there are no rows, and their titles."""
    named = leaves(source.table.template.cols)
    return source.keys or [leaf.name for leaf in named], {leaf.name: leaf.title for leaf in named}


def _text(output: Output, source: TableRows, notes: Notes | None = None) -> Iterator[bytes]:
    if output.type == "parquet":
        return parquet_chunks(source.table, source.keys, source.rows, notes)
    if output.type == "jsonl":
        return jsonl_chunks(source.rows)
    keys, titles = csv_columns(source)
    return csv_chunks(source.rows, keys, output.csv, titles)


def _page(output: Output, tables: Sequence[TableRows], notes: Notes | None) -> Iterator[bytes]:
    for number, table in enumerate(tables):
        if number and output.type == "csv":
            yield (output.csv.line_end * 3).encode()
            encoding = output.csv.encoding.removesuffix("-sig")
            output = replace(output, csv=replace(output.csv, bom=False, encoding=encoding))
        yield from _text(output, table, notes)


# --- fragments
# Fragments: rows rendered and compressed by one worker, which can be joined with other fragments unchanged.
#
# A fragment is raw deflate from a fresh compressor, ended by a full flush: it ends on a byte boundary and has no
# references to earlier data. Any number of fragments followed by one final piece are a valid deflate stream.

# A fragment is closed at 8 MiB and sent once 5 MiB follow it, so that no fragment is too small to be copied as a part.
CLOSED_BYTES = 8 * 1024 * 1024
BEHIND_BYTES = 5 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Measure:
    """The numbers that archive headers need: `size` and `crc` are those of the uncompressed text."""

    size: int = 0
    crc: int = 0
    packed: int = 0
    rows: int = 0

    def __add__(self, other: Measure) -> Measure:
        crc = isal_zlib.crc32_combine(self.crc, other.crc, other.size)
        return Measure(self.size + other.size, crc, self.packed + other.packed, self.rows + other.rows)


def total(measures: Iterable[Measure]) -> Measure:
    return sum(measures, Measure())


def packed_piece(text: bytes, *, last: bool = False) -> tuple[bytes, Measure]:
    """Compresses a small piece as a fragment; the last one ends the stream."""
    packer = isal_zlib.compressobj(LEVEL, DEFLATED, -WINDOW)
    data = packer.compress(text) + packer.flush(isal_zlib.Z_FINISH if last else isal_zlib.Z_FULL_FLUSH)
    return data, Measure(len(text), isal_zlib.crc32(text), len(data))


class FragmentWriter:
    """Compresses text and passes fragments to `send`; with `packed=False` the text is not compressed."""

    def __init__(self, send: Callable[[bytearray, Measure], None], *, packed: bool) -> None:
        self._send = send
        self._packed = packed
        self._closed: tuple[bytearray, Measure] | None = None
        self._begin()

    def _begin(self) -> None:
        self._packer = isal_zlib.compressobj(LEVEL, DEFLATED, -WINDOW) if self._packed else None
        self._data = bytearray()
        self._size = self._crc = self._rows = 0

    def add(self, text: bytes, rows: int) -> None:
        if self._packer is not None:
            self._crc = isal_zlib.crc32(text, self._crc)
            data = self._packer.compress(text)
        else:
            data = text
        self._size += len(text)
        self._rows += rows
        self._data += data
        if self._closed and len(self._data) >= BEHIND_BYTES:
            self._send(*self._closed)
            self._closed = None
        if len(self._data) >= CLOSED_BYTES:
            self._closed = self._ended()

    def end(self) -> None:
        """Sends the rest as one fragment."""
        if self._size:
            data, measure = self._ended()
            if self._closed:
                closed, before = self._closed
                self._closed = None
                closed += data
                data, measure = closed, before + measure
            self._send(data, measure)
        elif self._closed:
            self._send(*self._closed)
        self._closed = None

    def _ended(self) -> tuple[bytearray, Measure]:
        if self._packer is not None:
            self._data += self._packer.flush(isal_zlib.Z_FULL_FLUSH)
        data, measure = self._data, Measure(self._size, self._crc, len(self._data), self._rows)
        self._begin()
        return data, measure
