"""Tables into a workbook: heads, rows and footers flow into sheet XML and the zip as they come."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from openpyxl.utils import get_column_letter

from tidegate.domain.columns import ROW_HEAD, Row
from tidegate.domain.header_tree import HeadCell
from tidegate.domain.table import GAP_ROWS, Layout, Table, lay_out
from tidegate.errors import BadTable
from tidegate.rendering.blocks import RowBlocks
from tidegate.rendering.later import Chunk
from tidegate.rendering.row_heads import gather
from tidegate.rendering.sheet_names import SheetNames
from tidegate.rendering.xlsx_cells import blank_cell, text_cell
from tidegate.rendering.xlsx_frame import Frame, SheetInfo, TableFrame
from tidegate.rendering.xlsx_rows import RowWriter
from tidegate.rendering.zip_stream import Entry, zip_stream

SHEET_ROWS = 1_048_576


@dataclass(frozen=True, slots=True)
class TableRows:
    """A table with its rows; `keys` are theirs, in the order in which they were first seen."""

    table: Table
    keys: Sequence[str]
    rows: Iterable[Row] | RowBlocks


def xlsx_chunks(
    tables: Sequence[TableRows], *, multi_type: str = "page", sheet_rows: int = SHEET_ROWS
) -> Iterator[Chunk]:
    """The workbook's bytes. `page` puts tables under each other, `tab` gives each its sheet."""
    return zip_stream(_Book(tables, multi_type == "page", sheet_rows).entries())


class _Book:
    def __init__(self, tables: Sequence[TableRows], together: bool, sheet_rows: int) -> None:
        laid_out = [(each.table, lay_out(each.table, _columns(each))) for each in tables]
        self._frame = Frame(laid_out, together=together)
        self._streams = deque(
            _TableStream(index, each, frame, sheet_rows)
            for index, (each, frame) in enumerate(zip(tables, self._frame.tables, strict=True))
        )
        self._together, self._sheet_rows = together, sheet_rows
        self._names = SheetNames()
        self._sheets: list[SheetInfo] = []

    def entries(self) -> Iterator[Entry]:
        while self._streams:
            yield f"xl/worksheets/sheet{len(self._sheets) + 1}.xml", self._sheet()
        yield from self._frame.parts(self._sheets)

    def _sheet(self) -> Iterator[bytes]:
        first = self._streams[0]
        before, after = self._frame.edges(0 if self._together else first.index)
        yield f"{before}<sheetData>".encode()
        row, last_col, merges, done = 0, 1, list[str](), 0
        while self._streams and (not done or (self._together and self._streams[0].fits_below(row))):
            stream = self._streams[0]
            if done:
                yield b"<row/>" * GAP_ROWS
                row += GAP_ROWS
            for xml, height in stream.flow(row, merges):
                row += height
                yield xml.encode()
            last_col = max(last_col, stream.layout.width)
            done += 1
            if stream.more():
                break
            self._streams.popleft()
        listed = f'<mergeCells count="{len(merges)}">{"".join(merges)}</mergeCells>' if merges else ""
        yield f"</sheetData>{listed}{after}".encode()
        self._sheets.append(self._info(first, row, last_col, alone=done == 1))

    def _info(self, first: _TableStream, row: int, last_col: int, *, alone: bool) -> SheetInfo:
        name = self._names.take("" if self._together and not alone else first.title)
        layout = first.layout
        # Heads repeat on every printed page, which is right only where the sheet has no other table's heads.
        titles = (layout.head_top, layout.data_top - 1) if alone and layout.head_rows else None
        return SheetInfo(name, max(row, 1), last_col, titles, layout.row_head_width if alone else 0)


class _TableStream:
    """One table's heads, rows and footer, resumable on a further sheet."""

    def __init__(self, index: int, source: TableRows, frame: TableFrame, sheet_rows: int) -> None:
        self.index, self.title = index, source.table.title
        self.layout: Layout = frame.layout
        self._frame, self._sheet_rows = frame, sheet_rows
        self._writer = RowWriter(frame.columns, frame.row_height)
        self._row_heads: list[HeadCell] = []
        self._heads: Iterator[str] | None = None
        rows = source.rows
        self._needs = self.layout.data_top + (1 if self.layout.footer else 0)
        if source.table.template.rows:
            room = sheet_rows - self._needs + 1
            gathered = gather(source.table.template.rows, rows, top=self.layout.data_top, most=room)
            rows, self._row_heads = gathered.rows, gathered.heads
            self._heads = self._row_head_cells(gathered.count)
            self._needs += gathered.count - 1
        if self._needs > sheet_rows:
            raise BadTable(f"the table needs {self._needs} rows on one sheet; Excel holds {sheet_rows}")
        self._rows = RowBlocks.of(rows)

    def more(self) -> bool:
        return self._rows.more()

    def fits_below(self, row: int) -> bool:
        return row + GAP_ROWS + self._needs <= self._sheet_rows

    def flow(self, above: int, merges: list[str]) -> Iterator[tuple[str, int]]:
        """Pieces of XML with the rows each adds, until the rows or the sheet end."""
        layout, footer = self.layout, self.layout.footer
        yield self._frame.head_xml, layout.data_top - 1
        merges += [_merge(cell, above) for cell in [*layout.top_merges, *self._row_heads] if cell.merged]
        row = above + layout.data_top - 1
        last = self._sheet_rows - (1 if footer else 0)
        while block := self._rows.take(last - row):
            row += len(block)
            heads = [next(self._heads) for _ in block] if self._heads else None
            yield self._writer.xml(block, heads), len(block)
        if footer and not self.more():
            style = self._frame.footer_style
            cells = text_cell(footer.text, style) + blank_cell(style) * (layout.width - 1)
            yield f'<row ht="{footer.height:g}" customHeight="1">{cells}</row>', 1
            if layout.width > 1:
                merges.append(_merge(HeadCell("", row + 1, 1, 1, layout.width), 0))

    def _row_head_cells(self, count: int) -> Iterator[str]:
        titles = {(cell.row, cell.col): cell.title for cell in self._row_heads}
        style, width = self._frame.head_style, self.layout.row_head_width
        for row in range(self.layout.data_top, self.layout.data_top + count):
            cells = ((row, col) for col in range(1, width + 1))
            yield "".join(text_cell(titles[at], style) if at in titles else blank_cell(style) for at in cells)


def _columns(source: TableRows) -> Sequence[str]:
    return [key for key in source.keys if key != ROW_HEAD] if source.table.template.rows else source.keys


def _merge(cell: HeadCell, above: int) -> str:
    top, bottom = cell.row + above, cell.row + above + cell.height - 1
    first, last = get_column_letter(cell.col), get_column_letter(cell.col + cell.width - 1)
    return f'<mergeCell ref="{first}{top}:{last}{bottom}"/>'
