"""A file of one table whose rows several workers render: each renders blocks, one joins what they made.

Workers and joiner build the same frame from the same order and the same first page, so the joined file holds the
same text, byte for byte, as if one had written it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from isal import isal_zlib

from tidegate.aws.part_plan import Piece, Stored
from tidegate.exports.rendering.columns import Row
from tidegate.exports.rendering.csv_writer import CsvOptions, CsvWriter
from tidegate.exports.rendering.files import Output, csv_columns
from tidegate.exports.rendering.fragments import Measure, packed_piece, total
from tidegate.exports.rendering.gzip_stream import HEADER, trailer
from tidegate.exports.rendering.header_tree import HeadCell
from tidegate.exports.rendering.jsonl_writer import jsonl_lines
from tidegate.exports.rendering.xlsx.frame import Frame, SheetInfo
from tidegate.exports.rendering.xlsx.rows import RowWriter
from tidegate.exports.rendering.xlsx.sheet_names import SheetNames
from tidegate.exports.rendering.xlsx.sheet_parts import (
    filter_range,
    footer_row,
    merge,
    sheet_end,
    sheet_info,
    totals_row,
)
from tidegate.exports.rendering.xlsx.writer import SHEET_ROWS, TableRows, laid_out
from tidegate.exports.rendering.xlsx.zip_records import ZipEntry, directory, local_header


@dataclass(frozen=True, slots=True)
class SheetRows:
    """What workers made of the rows of one sheet, in order; a text file is one sheet."""

    fragments: Sequence[tuple[Stored, Measure]]

    @property
    def measure(self) -> Measure:
        return total(measure for _, measure in self.fragments)


class JoinedText:
    """CSV or JSON lines, packed by gzip or not."""

    # Rows on a sheet: a text file has no such limit.
    capacity: int | None = None
    cut = 0

    def __init__(self, output: Output, source: TableRows) -> None:
        self.packed = output.is_packed
        self._csv = CsvWriter(*_csv_arguments(output, source)) if output.type == "csv" else None
        self.sums: list[Decimal | None] = []

    def text(self, rows: Sequence[Row]) -> bytes:
        return self._csv.lines(rows) if self._csv else jsonl_lines(rows)

    def pieces(self, sheets: Sequence[SheetRows], _sums: Sequence[Decimal | None] = ()) -> Iterator[Piece]:
        head = self._csv.head() if self._csv else b""
        if not self.packed:
            yield head
            yield from (piece for sheet in sheets for piece, _ in sheet.fragments)
            return
        first, head_measure = packed_piece(head)
        last, _ = packed_piece(b"", last=True)
        whole = total([head_measure, *(sheet.measure for sheet in sheets)])
        yield HEADER + first
        yield from (piece for sheet in sheets for piece, _ in sheet.fragments)
        yield last + trailer(whole.crc, whole.size)


def _csv_arguments(output: Output, source: TableRows) -> tuple[Sequence[str], CsvOptions, dict[str, str]]:
    keys, titles = csv_columns(source)
    return keys, output.csv, titles


class JoinedBook:
    """An Excel file."""

    packed = True

    def __init__(self, source: TableRows, sample: Sequence[Row], sheet_rows: int = SHEET_ROWS) -> None:
        self._table = source.table
        layout, widths = laid_out(source.table, source.keys, sample)
        self._frame = Frame([(source.table, layout)], [widths], together=True)
        self._own = self._frame.tables[0]
        self._layout = self._own.layout
        self._writer = RowWriter(self._own.columns, self._own.row_height)
        self.capacity: int | None = sheet_rows - (layout.data_top - 1) - layout.end_rows

    def text(self, rows: Sequence[Row]) -> bytes:
        return self._writer.xml(rows).encode()

    @property
    def cut(self) -> int:
        return self._writer.cut

    @property
    def sums(self) -> list[Decimal | None]:
        return self._writer.sums

    def pieces(self, sheets: Sequence[SheetRows], sums: Sequence[Decimal | None]) -> Iterator[Piece]:
        """The workbook; headers come first although they tell of what follows: all of it is known by now."""
        entries: list[tuple[ZipEntry, int]] = []
        offset, infos, names = 0, list[SheetInfo](), SheetNames()
        sheets = sheets or [SheetRows([])]
        for number, sheet in enumerate(sheets, 1):
            info, head, tail = self._edges(sheet.measure.rows, number, len(sheets), names, sums)
            infos.append(info)
            whole = head[1] + sheet.measure + tail[1]
            entry = ZipEntry(f"xl/worksheets/sheet{number}.xml", whole.crc, whole.size, whole.packed)
            header = local_header(entry)
            yield header + head[0]
            yield from (piece for piece, _ in sheet.fragments)
            yield tail[0]
            entries.append((entry, offset))
            offset += len(header) + entry.packed
        for name, chunks in self._frame.parts(infos):
            text = b"".join(chunks)
            data, measure = packed_piece(text, last=True)
            entry = ZipEntry(name, isal_zlib.crc32(text), len(text), measure.packed)
            header = local_header(entry)
            yield header + data
            entries.append((entry, offset))
            offset += len(header) + entry.packed
        yield directory(entries, offset)

    def _edges(
        self, rows: int, number: int, count: int, names: SheetNames, sums: Sequence[Decimal | None]
    ) -> tuple[SheetInfo, tuple[bytes, Measure], tuple[bytes, Measure]]:
        layout, (before, after) = self._layout, self._frame.edges(0)
        merges = [merge(cell, 0) for cell in layout.top_merges if cell.merged]
        data_end = row = layout.data_top - 1 + rows
        ending = ""
        if number == count and layout.has_totals:
            ending += totals_row(self._own, sums, (layout.data_top, data_end) if count == 1 else None)
            row += 1
        if number == count and layout.footer:
            row += 1
            ending += footer_row(self._own)
            if layout.width > 1:
                merges.append(merge(HeadCell("", row, 1, 1, layout.width), 0))
        filtered = filter_range(self._table, layout, data_end)
        info = sheet_info(names.take(self._table.title), layout, row, layout.width, alone=True, filtered=filtered)
        head = packed_piece(f"{before}<sheetData>{self._own.head_xml}".encode())
        tail = packed_piece((ending + sheet_end(merges, filtered, after)).encode(), last=True)
        return info, head, tail


JoinedFile = JoinedText | JoinedBook


def joined_file(output: Output, source: TableRows, sample: Sequence[Row], sheet_rows: int = SHEET_ROWS) -> JoinedFile:
    return JoinedBook(source, sample, sheet_rows) if output.type == "excel" else JoinedText(output, source)
