"""A workbook whose rows are rendered by several workers; see `joined_files`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal

from tidegate.aws.part_plan import Piece
from tidegate.exports.rendering.columns import Row
from tidegate.exports.rendering.fragments import Measure, packed_piece, total
from tidegate.exports.rendering.header_tree import HeadCell
from tidegate.exports.rendering.joined_files import Made, SheetRows, Sums, ZipPieces
from tidegate.exports.rendering.parquet_writer import Group
from tidegate.exports.rendering.table import GAP_ROWS, SheetTable
from tidegate.exports.rendering.xlsx.frame import Frame, SheetInfo, TableFrame
from tidegate.exports.rendering.xlsx.rows import RowWriter
from tidegate.exports.rendering.xlsx.sheet_names import SheetNames
from tidegate.exports.rendering.xlsx.sheet_parts import (
    filter_range,
    footer_row,
    merge,
    page_breaks,
    sheet_end,
    sheet_info,
    totals_row,
)
from tidegate.exports.rendering.xlsx.writer import MEASURED_TABLES, SHEET_ROWS, TableRows, laid_out


class BookTable:
    """Renders the rows of one table as worksheet XML."""

    refused = 0

    def __init__(self, table: SheetTable, frame: TableFrame, capacity: int | None) -> None:
        self.table, self.frame, self.layout = table, frame, frame.layout
        # Rows of data per sheet; None if all tables share a sheet.
        self.capacity = capacity
        self._writer = RowWriter(frame.columns, frame.row_height)
        self.groups: list[Group] = []

    def end(self) -> bytes:
        """Returns buffered output; rows are not buffered."""
        return b""

    def text(self, rows: Sequence[Row]) -> bytes:
        return self._writer.xml(rows)

    @property
    def cut(self) -> int:
        return self._writer.cut

    @property
    def sums(self) -> list[Decimal | None]:
        return self._writer.sums


class JoinedBook:
    packed = True
    ending = "xlsx"

    def __init__(
        self,
        sources: Sequence[TableRows],
        samples: Sequence[Sequence[Row]],
        multi_type: str = "page",
        sheet_rows: int = SHEET_ROWS,
    ) -> None:
        together = multi_type == "page"
        few = len(sources) <= MEASURED_TABLES
        laid = [
            laid_out(source.table, source.keys, sample if few else ())
            for source, sample in zip(sources, samples, strict=True)
        ]
        layouts = [(source.table, layout) for source, (layout, _) in zip(sources, laid, strict=True)]
        self._frame = Frame(layouts, [widths for _, widths in laid], together=together)
        self._sheet_rows = sheet_rows
        # Tables below each other have to fit on one sheet: their positions are not known before all rows are.
        self._shared = together and len(sources) > 1
        self.tables = [
            BookTable(source.table, frame, None if self._shared else self._room(frame))
            for source, frame in zip(sources, self._frame.tables, strict=True)
        ]

    def _room(self, frame: TableFrame) -> int:
        return self._sheet_rows - (frame.layout.data_top - 1) - frame.layout.end_rows

    def unfit(self, made: Made) -> str:
        """Why the tables do not fit below each other on one sheet; empty if they do."""
        row = 0
        for number, (table, sheets) in enumerate(zip(self.tables, made, strict=True) if self._shared else ()):
            row += GAP_ROWS if number else 0
            rows = total(sheet.measure for sheet in sheets).rows
            row += table.layout.data_top - 1 + max(1, rows) + table.layout.end_rows
            if row > self._sheet_rows:
                return f"the tables need more than the {self._sheet_rows} rows of a sheet"
            row -= 0 if rows else 1
        return ""

    def pieces(self, made: Made, sums: Sums, _groups: Sequence[Group] = ()) -> Iterator[Piece]:
        """The pieces of the workbook. All sizes are known, so the local headers of the zip contain them."""
        archive, names, infos = ZipPieces(), SheetNames(), list[SheetInfo]()
        for first, head, rows, tail in self._sheets(made, sums, names, infos):
            measure = total([head[1], *(each for _, each in rows), tail[1]])
            name = f"xl/worksheets/sheet{first}.xml"
            yield from archive.entry(name, measure, iter([head[0], *(piece for piece, _ in rows), tail[0]]))
        for name, chunks in self._frame.parts(infos):
            data, measure = packed_piece(b"".join(chunks), last=True)
            yield from archive.entry(name, measure, iter([data]))
        yield archive.end()

    def _sheets(
        self, made: Made, sums: Sums, names: SheetNames, infos: list[SheetInfo]
    ) -> Iterator[tuple[int, tuple[bytes, Measure], list[tuple[Piece, Measure]], tuple[bytes, Measure]]]:
        """For each sheet: its number, the XML before the rows, the rows, the XML after them."""
        if self._shared:
            info, head, rows, tail = self._one_sheet(made, sums, names)
            infos.append(info)
            yield 1, head, rows, tail
            return
        for index, (table, sheets, own_sums) in enumerate(zip(self.tables, made, sums, strict=True)):
            count = max(1, len(sheets))
            for number, sheet in enumerate(sheets or [SheetRows([])], 1):
                last, only = number == count, count == 1
                info, head, tail = self._edges(index, table, sheet.measure.rows, own_sums, names, last=last, only=only)
                infos.append(info)
                yield len(infos), head, list(sheet.fragments), tail

    def _edges(
        self,
        index: int,
        table: BookTable,
        rows: int,
        sums: Sequence[Decimal | None],
        names: SheetNames,
        *,
        last: bool,
        only: bool,
    ) -> tuple[SheetInfo, tuple[bytes, Measure], tuple[bytes, Measure]]:
        layout, (before, after) = table.layout, self._frame.edges(index)
        merges = [merge(cell, 0) for cell in layout.top_merges]
        data_end = layout.data_top - 1 + rows
        ending, row = (
            _ending(table, sums, data_end, merges, (layout.data_top, data_end) if only else None)
            if last
            else (
                "",
                data_end,
            )
        )
        filtered = filter_range(table.table, layout, data_end)
        info = sheet_info(names.take(table.table.title), layout, row, layout.width, alone=True, filtered=filtered)
        head = packed_piece(f"{before}<sheetData>{self._frame.head_xml(index)}".encode())
        tail = packed_piece((ending + sheet_end(merges, filtered, after)).encode(), last=True)
        return info, head, tail

    def _one_sheet(
        self, made: Made, sums: Sums, names: SheetNames
    ) -> tuple[SheetInfo, tuple[bytes, Measure], list[tuple[Piece, Measure]], tuple[bytes, Measure]]:
        before, after = self._frame.edges(0)
        row, merges, text = 0, list[str](), f"{before}<sheetData>"
        rows, head, starts = list[tuple[Piece, Measure]](), None, list[int]()
        for number, (table, sheets, own_sums) in enumerate(zip(self.tables, made, sums, strict=True)):
            if number:
                text += "<row/>" * GAP_ROWS
                row += GAP_ROWS
                starts.append(row)
            layout = table.layout
            merges += [merge(cell, row) for cell in layout.top_merges]
            piece = packed_piece((text + self._frame.head_xml(number)).encode())
            if head is None:
                head = piece
            else:
                rows.append(piece)
            rows += [fragment for sheet in sheets for fragment in sheet.fragments]
            top = row + layout.data_top
            row = top - 1 + total(sheet.measure for sheet in sheets).rows
            text, row = _ending(table, own_sums, row, merges, (top, row))
        ending = sheet_end(merges, "", after, page_breaks(starts, row))
        tail = packed_piece((text + ending).encode(), last=True)
        width = max(table.layout.width for table in self.tables)
        info = sheet_info(names.take(""), self.tables[0].layout, row, width, alone=False)
        assert head is not None, "a book has at least one table"
        return info, head, rows, tail


def _ending(
    table: BookTable,
    sums: Sequence[Decimal | None],
    row: int,
    merges: list[str],
    data_rows: tuple[int, int] | None,
) -> tuple[str, int]:
    """The XML of the rows below the data, and the number of the last row."""
    ending, layout = "", table.layout
    if layout.has_totals:
        ending += totals_row(table.frame, sums, data_rows)
        row += 1
    if layout.footer:
        row += 1
        ending += footer_row(table.frame)
        if layout.width > 1:
            merges.append(merge(HeadCell("", row, 1, 1, layout.width), 0))
    return ending, row
