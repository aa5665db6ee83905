"""What an export asks for, as one stream of bytes: a CSV, a workbook, or a zip of several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tidegate.domain.header_tree import leaves
from tidegate.rendering.blocks import RowBlocks
from tidegate.rendering.csv_writer import PLAIN_CSV, CsvOptions, csv_chunks
from tidegate.rendering.later import Chunk
from tidegate.rendering.xlsx_writer import TableRows, xlsx_chunks
from tidegate.rendering.zip_stream import Entry, zip_stream

CONTENT_TYPES = {
    "csv": "text/csv; charset=utf-8",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "zip": "application/zip",
}
_CSV_GAP = b"\n\n\n"


@dataclass(frozen=True, slots=True)
class Output:
    type: str = "csv"
    multi_type: str = "page"
    rows_per_file: int | None = None
    csv: CsvOptions = PLAIN_CSV


def extension(output: Output, tables: Sequence[TableRows], total: int) -> str:
    if _is_split(output, tables, total) or (output.type == "csv" and output.multi_type == "tab" and len(tables) > 1):
        return "zip"
    return "csv" if output.type == "csv" else "xlsx"


def render(output: Output, tables: Sequence[TableRows], total: int) -> Iterator[Chunk]:
    """The file's bytes; `total` is the number of rows that are going to come."""
    if _is_split(output, tables, total):
        return zip_stream(_split(output, tables[0], total), stored=output.type == "excel")
    if output.type == "excel":
        return xlsx_chunks(tables, multi_type=output.multi_type)
    if extension(output, tables, total) == "zip":
        return zip_stream((f"{number}.csv", _csv(output, table)) for number, table in enumerate(tables, 1))
    return _csv_page(output, tables)


def file_sizes(total: int, rows_per_file: int) -> list[int]:
    """As few files as needed, filled evenly."""
    files = -(-total // rows_per_file)
    each = -(-total // files)
    return [min(each, total - start) for start in range(0, total, each)]


def _is_split(output: Output, tables: Sequence[TableRows], total: int) -> bool:
    """Several tables, or one with row heads, belong together in one file."""
    limit = output.rows_per_file
    return bool(limit and total > limit and len(tables) == 1 and not tables[0].table.template.rows)


def _split(output: Output, source: TableRows, total: int) -> Iterator[Entry]:
    rows = RowBlocks.of(source.rows)
    for number, size in enumerate(file_sizes(total, output.rows_per_file or total), 1):
        part = TableRows(source.table, source.keys, rows.first(size))
        if output.type == "excel":
            yield f"{number}.xlsx", xlsx_chunks([part])
        else:
            yield f"{number}.csv", _csv(output, part)


def _csv(output: Output, source: TableRows) -> Iterator[bytes]:
    titles = {leaf.name: leaf.title for leaf in leaves(source.table.template.cols)}
    return csv_chunks(source.rows, source.keys, output.csv, titles)


def _csv_page(output: Output, tables: Sequence[TableRows]) -> Iterator[bytes]:
    for number, table in enumerate(tables):
        if number:
            yield _CSV_GAP
            output = replace(output, csv=replace(output.csv, bom=False))
        yield from _csv(output, table)
