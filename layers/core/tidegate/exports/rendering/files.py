"""Renders tables into one file: a workbook, a text file, with or without gzip, or a zip of several files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tidegate.common.later import Chunk
from tidegate.exports.rendering.blocks import RowBlocks
from tidegate.exports.rendering.csv_writer import PLAIN_CSV, CsvOptions, csv_chunks
from tidegate.exports.rendering.gzip_stream import gzip_stream
from tidegate.exports.rendering.header_tree import leaves
from tidegate.exports.rendering.jsonl_writer import jsonl_chunks
from tidegate.exports.rendering.notes import Notes
from tidegate.exports.rendering.parquet_writer import parquet_chunks
from tidegate.exports.rendering.xlsx.writer import TableRows, xlsx_chunks
from tidegate.exports.rendering.xlsx.zip_stream import Entry, zip_stream

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
