"""Excel workbooks, streamed sheet by sheet."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tidegate.common.sequences import Chunk, Later
from tidegate.errors import BadTable
from tidegate.sheets.rows import RowBlocks, gather
from tidegate.sheets.table import GAP_ROWS, ROW_HEAD, HeadCell, Layout, Notes, Row, SheetTable, lay_out
from tidegate.sheets.values import clean
from tidegate.sheets.xlsx_cells import RowWriter, blank_cell, cut_units, placed, text_cell
from tidegate.sheets.xlsx_frame import (
    EqualRuns,
    Frame,
    SheetInfo,
    cols_xml,
    column_widths,
    end_rows,
    filter_range,
    grown,
    merge,
    merged_cells,
    page_breaks,
    sheet_end,
    sheet_info,
    with_heights,
)
from tidegate.sheets.zip import Entry, zip_stream

# --- sheet names
# Sheet names that Excel accepts: unique, at most 31 UTF-16 units, without some characters.

_FORBIDDEN = re.compile(r"[\[\]:*?/\\\n\r\t]")
_LONGEST = 31


def check_sheet_names(tables: Sequence[SheetTable], *, together: bool) -> None:
    """Raises BadTable if Excel would refuse a caller's sheet name, or if two sheets would get the same name."""
    wanted = [clean(table.sheet_name or ("" if together else table.title)).casefold() for table in tables]
    for table in tables:
        name = table.sheet_name
        if not name:
            continue
        if len(name.encode("utf-16-le")) // 2 > _LONGEST:
            raise BadTable(f"the name of a sheet has at most {_LONGEST} characters: {name[:60]}")
        if _FORBIDDEN.search(name) or name != clean(name).strip(" '") or name.casefold() == "history":
            raise BadTable(
                f"Excel takes no sheet named {name!r}: leave out [ ] : * ? / \\, line breaks, and spaces and "
                "apostrophes at the ends; History is its own"
            )
        if wanted.count(name.casefold()) > 1:
            raise BadTable(f"two sheets would be named {name}: names must differ, also but for upper and lower case")


def sheet_name(title: str, taken: set[str]) -> str:
    """Returns a name for the next sheet, and adds it to `taken`. `taken` has the names so far, in lower case."""
    base = cut_units(_FORBIDDEN.sub(" ", clean(title)).strip(" '"), _LONGEST).strip(" '") or f"Sheet{len(taken) + 1}"
    name, again = base, 2
    while name.casefold() in taken or name.casefold() == "history":
        suffix = f" {again}"
        name, again = cut_units(base, _LONGEST - len(suffix)) + suffix, again + 1
    taken.add(name.casefold())
    return name


# --- writer
# Writes tables as a workbook, streamed: heads, rows and footers become sheet XML and zip entries as they arrive.

SHEET_ROWS = 1_048_576
MEASURED_TABLES = 8


@dataclass(frozen=True, slots=True)
class TableRows:
    """A table, its rows, and the keys of the rows in the order of their first occurrence."""

    table: SheetTable
    keys: Sequence[str]
    rows: Iterable[Row] | RowBlocks
    # How many rows there are; a filled template has to know it before the rows come.
    count: int = 0


def xlsx_chunks(
    tables: Sequence[TableRows], *, multi_type: str = "page", sheet_rows: int = SHEET_ROWS, notes: Notes | None = None
) -> Iterator[Chunk]:
    """Yields the bytes of the workbook.

    `multi_type`: "page" writes all tables below each other on one sheet; "tab" writes a sheet for each table.
    """
    return zip_stream(_Book(tables, multi_type == "page", sheet_rows, notes or Notes()))


def laid_out(table: SheetTable, keys: Sequence[str], sample: Sequence[Row]) -> tuple[Layout, list[float]]:
    """Returns (layout, column widths) of a table. Widths are measured with `sample`, its first rows."""
    columns = [key for key in keys if key != ROW_HEAD] if table.template.rows else keys
    layout = lay_out(table, columns)
    widths = column_widths(table, layout, sample)
    return with_heights(layout, widths), widths


class _Book:
    """Yields the entries of the workbook's zip; each sheet starts with the first table that is not finished."""

    def __init__(self, tables: Sequence[TableRows], together: bool, sheet_rows: int, notes: Notes) -> None:
        rows = [RowBlocks.from_rows(each.rows) for each in tables]
        # Measuring keeps the first rows of every table in memory: with many tables, measure only the heads.
        few = len(tables) <= MEASURED_TABLES
        laid = [
            laid_out(each.table, each.keys, blocks.peek() if few else ())
            for each, blocks in zip(tables, rows, strict=True)
        ]
        layouts = [(each.table, layout) for each, (layout, _) in zip(tables, laid, strict=True)]
        self._frame = Frame(layouts, [widths for _, widths in laid], together=together)
        self._streams = deque(
            _TableStream(index, each.table, blocks, self._frame, sheet_rows)
            for index, (each, blocks) in enumerate(zip(tables, rows, strict=True))
        )
        self._together, self._sheet_rows, self._notes = together, sheet_rows, notes
        self._alone = not together or len(tables) == 1
        self._names = set[str]()
        self._sheets: list[SheetInfo] = []

    def __iter__(self) -> Iterator[Entry]:
        while self._streams:
            yield f"xl/worksheets/sheet{len(self._sheets) + 1}.xml", self._sheet()
        yield from self._frame.parts(self._sheets)

    def _sheet(self) -> Iterator[Chunk]:
        first = self._streams[0]
        before, after = self._frame.edges(0 if self._together else first.index)
        # The widths of the columns precede the rows, but are only known after them.
        top, widths = Later(), list[list[float]]()
        yield top
        row, last_col, merges, done, data_end = 0, 1, list[str](), 0, 0
        starts = list[int]()
        while self._streams and (not done or (self._together and self._streams[0].fits_below(row))):
            stream = self._streams[0]
            if done:
                row += GAP_ROWS
                starts.append(row)
            for xml, height in stream.flow(row, merges):
                row += height
                yield xml
            last_col = max(last_col, stream.layout.width)
            widths.append(stream.grown())
            data_end = stream.data_end
            done += 1
            if stream.more():
                break
            self._streams.popleft()
            self._notes.cut_cells += stream.writer.cut_cells
            self._notes.add_totals(stream.layout.columns, stream.writer.sums)
        top.fill(f"{before}{cols_xml(widths)}<sheetData>".encode())
        filtered = filter_range(first.table, first.layout, data_end) if self._alone else ""
        yield sheet_end(merges, filtered, after, page_breaks(starts, row)).encode()
        title = "" if self._together and done > 1 else first.table.title
        name = sheet_name(first.table.sheet_name or title, self._names)
        info = sheet_info(name, first.layout, row, last_col, alone=done == 1, filtered=filtered)
        self._sheets.append(info)


class _TableStream:
    """Writes the heads, rows and footer of one table. The table continues on another sheet when a sheet is full."""

    def __init__(self, index: int, table: SheetTable, rows: RowBlocks, book_frame: Frame, sheet_rows: int) -> None:
        self.index, self.table = index, table
        frame = book_frame.tables[index]
        self.layout: Layout = frame.layout
        self._book_frame, self._frame, self._sheet_rows = book_frame, frame, sheet_rows
        self.writer = RowWriter(frame.columns, frame.row_height, self.layout.row_head_width)
        self._equal = EqualRuns(frame.layout)
        self._row_heads: list[HeadCell] = []
        self._heads: Iterator[str] | None = None
        self._needs = self.layout.data_top + self.layout.reserved_rows
        if table.template.rows:
            room = sheet_rows - self._needs + 1
            gathered = gather(table.template.rows, rows, top=self.layout.data_top, most=room)
            rows, self._row_heads = gathered.rows, gathered.heads
            self._heads = self._row_head_cells(gathered.count)
            self._needs += gathered.count - 1
        if self._needs > sheet_rows:
            raise BadTable(f"the table needs {self._needs} rows on one sheet, but a sheet has {sheet_rows}: split it")
        self._rows = rows
        self._begun = 0
        # The rows above the table on the current sheet.
        self._above = 0
        # The last row of data on the current sheet.
        self.data_end = 0

    def more(self) -> bool:
        return self._rows.more()

    def grown(self) -> list[float]:
        """Returns the column widths that the table's rows on the current sheet need."""
        return grown(self._frame, self.writer.take_widths(), () if self.more() else self.writer.sums)

    def fits_below(self, row: int) -> bool:
        return row + GAP_ROWS + self._needs <= self._sheet_rows

    def flow(self, above: int, merges: list[str]) -> Iterator[tuple[bytes, int]]:
        """Yields (XML, number of rows in it) until the table or the sheet ends."""
        layout = self.layout
        self._begun += 1
        self._above = above
        yield self._book_frame.head_xml(self.index, above).encode(), layout.data_top - 1
        merges += [merge(cell, above) for cell in [*layout.top_merges, *self._row_heads] if cell.merged]
        row = above + layout.data_top - 1
        last = self._sheet_rows - layout.reserved_rows
        while block := self._rows.next_block(last - row):
            heads = [next(self._heads) for _ in block] if self._heads else None
            self._equal.add(block)
            yield self.writer.xml(block, row + 1, heads), len(block)
            row += len(block)
        self.data_end = row
        merges += merged_cells(layout, [self._equal.take_runs()], above + layout.data_top)
        if self.more():
            return
        data_rows = (above + layout.data_top, row) if self._begun == 1 else None
        ending, last = end_rows(self._frame, self.writer.sums, row, merges, data_rows)
        yield ending.encode(), last - row

    def _row_head_cells(self, count: int) -> Iterator[str]:
        titles = {(cell.row, cell.col): cell.title for cell in self._row_heads}
        style, width = self._frame.head_style, self.layout.row_head_width
        for row in range(self.layout.data_top, self.layout.data_top + count):
            cells = ((row, col) for col in range(1, width + 1))
            texts = (text_cell(titles[at], style) if at in titles else blank_cell(style) for at in cells)
            yield placed(texts, self._above + row)
