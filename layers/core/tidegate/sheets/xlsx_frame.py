"""All parts of a workbook except its rows of data: widths, heads, footers, styles and the other parts of the file."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from itertools import zip_longest
from typing import Any, Literal

from openpyxl import Workbook
from openpyxl.styles import Alignment, Border, Font, PatternFill, Side
from openpyxl.worksheet._writer import WorksheetWriter
from openpyxl.worksheet.properties import PageSetupProperties
from openpyxl.worksheet.worksheet import Worksheet

from tidegate.sheets.table import (
    MAX_ROWS,
    TITLE_HEIGHT,
    HeadCell,
    Layout,
    LeafStyle,
    Node,
    Row,
    SheetTable,
    TextRow,
    column_of,
    letters,
    text_height,
)
from tidegate.sheets.values import clean, lines_of, literal, width_of, write_exact
from tidegate.sheets.xlsx_cells import (
    BOOLEAN_FORMAT,
    FORMATS,
    MEASURED_WIDTH,
    NUMERIC,
    Column,
    Total,
    blank_cell,
    placed,
    shown_text,
    text_cell,
)

# --- widths
# Column widths: from the template, or measured. The heads and the first rows decide the heights of texts and the
# orientation of the page; all rows and the totals decide how wide the columns of a sheet are.

# Excel's default.
DEFAULT_WIDTH = 8.43
WIDEST = float(MEASURED_WIDTH)
# Excel refuses wider columns.
_MOST_DIGITS = 255.0
_PADDING = 2
_TALLEST = 409.0
# Extra characters of formatted numbers.
_TYPE_WIDTHS = {"date": 10, "datetime": 19}
# Characters of a number format that show nothing themselves: conditions, escapes and marks.
_NOT_SHOWN = re.compile(r'\[[^\]]*\]|[_*\\].|[#?,"@]|;.*', re.DOTALL)


def is_measured(table: SheetTable) -> bool:
    return table.auto_width is not False


def column_widths(table: SheetTable, layout: Layout, sample: Sequence[Row]) -> list[float]:
    """Returns the width of each column, row heads first, in digits of the default font. 0 means Excel's default."""
    measured = is_measured(table)
    given = _digits(table.default_width) if table.default_width else None
    heads = [given or (_row_head_width(table, level) if measured else 0.0) for level in range(layout.row_head_width)]
    columns = [
        _digits(leaf.style.width)
        if leaf.style.width
        else given or (_measured(leaf, _values(leaf, sample)) if measured else 0.0)
        for leaf in layout.columns
    ]
    return [*heads, *columns]


def with_heights(layout: Layout, widths: Sequence[float]) -> Layout:
    """Returns the layout with the heights that the texts above and below the data need at these widths."""
    room = sum(width or DEFAULT_WIDTH for width in widths) or DEFAULT_WIDTH
    footer = layout.footer and _fitted(layout.footer, room)
    return replace(layout, texts=tuple(_fitted(line, room) for line in layout.texts), footer=footer)


def _fitted(line: TextRow, room: float) -> TextRow:
    if line.kind == "title":
        # The font of the title is twice as large.
        return replace(line, height=min(_TALLEST, TITLE_HEIGHT * lines_of(line.text, room / 2)))
    return replace(line, height=min(_TALLEST, text_height(lines_of(line.text, room))))


def _values(leaf: Node, sample: Sequence[Row]) -> Sequence[object]:
    """Returns what the cells of a column show, to measure the column's width. A labelled link shows its label."""
    values, style = column_of(sample, leaf.name), leaf.style
    if not style.label and not style.label_key:
        return values
    labels = column_of(sample, style.label_key) if style.label_key else [style.label] * len(values)
    return [value and (label or value) for value, label in zip(values, labels, strict=True)]


def _measured(leaf: Node, values: Sequence[object]) -> float:
    widest = max((width_of(shown_text(value)) for value in values), default=0)
    return max(_needed(leaf.style, widest), min(WIDEST, max(DEFAULT_WIDTH, width_of(leaf.title) + _PADDING)))


def _needed(style: LeafStyle, widest: int) -> float:
    """Returns the width that a column needs. `widest`: the width of its widest text before formatting."""
    if not widest:
        return 0.0
    literal = width_of(_NOT_SHOWN.sub("", style.format)) if style.format else 0
    if style.type in _TYPE_WIDTHS:
        return float(max(_TYPE_WIDTHS[style.type], literal) + _PADDING)
    if style.type == "percent":
        widest += 4
    elif style.type == "currency" or (style.format and style.type in NUMERIC):
        # Separators of thousands, two decimals or what the format adds.
        widest += widest // 3 + max(3, literal)
    return min(WIDEST, float(widest + _PADDING))


def _is_followed(table: SheetTable, style: LeafStyle) -> bool:
    """Whether a column is widened for its numbers.

    Programs round numbers without a format to the column's width, so such numbers need no wider column.
    """
    formatted = style.type in NUMERIC - {None} or (style.format and style.type is None)
    return bool(is_measured(table) and (formatted or style.total) and not (style.width or table.default_width))


def grown(frame: TableFrame, widest: Sequence[int], sums: Sequence[Total | None] = ()) -> list[float]:
    """Returns the column widths that a table needs on a sheet.

    `widest`: the width of each column's widest text on the sheet. `sums`: the totals, if they are on this sheet.
    """
    heads = frame.layout.row_head_width
    widths = list(frame.widths)
    if sums:
        # Totals are bold.
        shown = (0 if total is None else len(total.as_number or total.as_text) + 1 for total in sums)
        widest = [max(pair) for pair in zip_longest(widest, shown, fillvalue=0)]
    for at, (leaf, column, text) in enumerate(zip(frame.layout.columns, frame.columns, widest, strict=False)):
        if column.measured:
            widths[heads + at] = max(widths[heads + at], _needed(leaf.style, text))
    return widths


def cols_xml(tables: Sequence[Sequence[float]]) -> str:
    """Returns the `<cols>` element of a sheet. `tables`: the column widths of each table on the sheet.

    Each column gets the greatest of its widths.
    """
    widths = [max(column) for column in zip_longest(*tables, fillvalue=0.0)]
    cols = "".join(
        f'<col min="{col}" max="{col}" width="{width:g}" customWidth="1"/>'
        for col, width in enumerate(widths, 1)
        if width
    )
    return f"<cols>{cols}</cols>" if cols else ""


def _row_head_width(table: SheetTable, level: int) -> float:
    nodes = table.template.rows
    for _ in range(level):
        nodes = tuple(child for node in nodes for child in node.children)
    return min(WIDEST, max([DEFAULT_WIDTH, *(width_of(node.title) + _PADDING for node in nodes)]))


def _digits(points: float) -> float:
    """Converts points to Excel's unit of column widths: digits of its default font.

    A column is 7 pixels wide for each digit, plus 5 pixels of padding.
    """
    return min(_MOST_DIGITS, max(0.5, (points * 4 / 3 - 5) / 7))


# --- frame
# The styled frame of a workbook, made by openpyxl: styles, heads, widths, print set-up.
#
# Rows are streamed into it later. The heads are taken from the saved frame as XML, and get the row numbers that follow
# the rows above them.

_THIN = Border(*(Side(style="thin"),) * 4)
_HEAD_FILL = PatternFill("solid", start_color="FFDFDFDF")
_NUMBERING = re.compile(r'(<row|<c) r="([A-Z]*)(\d+)"(?: spans="[^"]*")?')
_LINK_COLOR = "0563C1"
_TALLEST_FROZEN = 250.0
# Columns up to this total width, in characters, are legible on a portrait page.
_PORTRAIT_WIDTH = 110.0
_DIMENSION = re.compile(r"<dimension [^>]*/>")
_ROW = re.compile(r"<row.*?</row>", re.DOTALL)
# openpyxl writes these in another order than Excel, which validators of Office documents refuse.
_FONT = re.compile(r"<font>(.*?)</font>", re.DOTALL)
_FONT_PARTS = "b i strike condense extend outline shadow u vertAlign sz color name family charset scheme"
_FONT_ORDER = {name: at for at, name in enumerate(_FONT_PARTS.split())}
_TIMES = re.compile(r"<dcterms:(created|modified)[^>]*>[^<]*</dcterms:\1>")


@dataclass(frozen=True, slots=True)
class TableFrame:
    """The layout of one table and the numbers of its cell styles."""

    layout: Layout
    columns: tuple[Column, ...]
    row_height: float | None
    head_style: int
    footer_style: int
    total_styles: tuple[int, ...]
    # Widths of the columns of row heads and of data, measured by the heads and the first rows; 0: Excel's default.
    widths: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SheetInfo:
    name: str
    last_row: int
    last_col: int
    title_rows: tuple[int, int] | None = None
    title_cols: int = 0
    filtered: str = ""


class Frame:
    """A workbook without its rows of data. `widths` has the column widths of each table; 0: Excel's default."""

    def __init__(
        self, tables: Sequence[tuple[SheetTable, Layout]], widths: Sequence[Sequence[float]], *, together: bool
    ) -> None:
        self._book = Workbook()
        self._book.remove(self._book.worksheets[0])
        self._book.properties.creator = "Tidegate"
        alone = not together or len(tables) == 1
        shared = [max(column) for column in zip_longest(*widths, fillvalue=0.0)] if together else None
        self.tables = [
            self._draft(
                table,
                layout,
                alone=alone,
                portrait=len(tables) > 1 and _is_narrow(shared or table_widths),
                widths=shared or table_widths,
            )
            for (table, layout), table_widths in zip(tables, widths, strict=True)
        ]

    @cached_property
    def _sheets_xml(self) -> list[str]:
        """The XML of the draft sheets. Made on first use: a worker that renders only rows does not need it."""
        return [_sheet_xml(sheet) for sheet in self._book.worksheets]

    def head_xml(self, index: int, above: int = 0) -> str:
        """Returns the rows above the data of one table as XML.

        `above`: how many rows of the sheet are above the table.
        """
        rows = _ROW.findall(self._sheets_xml[index])[: self.tables[index].layout.data_top - 1]
        return _NUMBERING.sub(lambda at: f'{at[1]} r="{at[2]}{int(at[3]) + above}"', "".join(rows))

    def edges(self, index: int) -> tuple[str, str]:
        """Returns (XML before a sheet's columns, XML after its merged cells)."""
        before, _, rest = self._sheets_xml[index].partition("<sheetData")
        _, _, after = rest.partition("</sheetData>")
        return _DIMENSION.sub("", before), after

    def parts(self, sheets: Sequence[SheetInfo]) -> Iterator[tuple[str, list[bytes]]]:
        """Yields (name, content) of all parts of the workbook except the sheets. Call it last: it drops the drafts."""
        for draft in self._book.worksheets:
            self._book.remove(draft)
        for info in sheets:
            sheet = self._book.create_sheet(info.name)
            sheet.print_area = f"A1:{letters(info.last_col)}{info.last_row}"
            if info.title_rows:
                sheet.print_title_rows = "{}:{}".format(*info.title_rows)
            if info.filtered:
                sheet.auto_filter.ref = info.filtered
            if info.title_cols:
                sheet.print_title_cols = f"A:{letters(info.title_cols)}"
        for name, text in self._saved():
            if not name.startswith("xl/worksheets/"):
                yield name, [text.encode()]

    def _saved(self) -> list[tuple[str, str]]:
        out = io.BytesIO()
        self._book.save(out)
        with zipfile.ZipFile(out) as archive:
            # No time of creation, so that equal rows give equal bytes.
            parts = [(name, _TIMES.sub("", archive.read(name).decode())) for name in archive.namelist()]
        return [(name, _FONT.sub(_ordered_font, text) if name == "xl/styles.xml" else text) for name, text in parts]

    def _draft(
        self, table: SheetTable, layout: Layout, *, alone: bool, portrait: bool, widths: Sequence[float]
    ) -> TableFrame:
        sheet = self._book.create_sheet()
        if alone and layout.head_rows and _is_frozen(table, layout):
            sheet.freeze_panes = sheet.cell(layout.data_top, layout.row_head_width + 1)
        sheet.page_setup.paperSize = sheet.PAPERSIZE_A4
        sheet.page_setup.orientation = "portrait" if portrait else "landscape"
        sheet.oddFooter.center.text = "&P / &N"
        sheet.page_setup.fitToHeight = False
        sheet.sheet_properties.pageSetUpPr = PageSetupProperties(fitToPage=True)
        return _Draft(sheet, table, layout, widths).frame()


def _ordered_font(match: re.Match[str]) -> str:
    parts = re.findall(r"<(\w+)([^>]*)/>", match[1])
    ordered = sorted(parts, key=lambda part: _FONT_ORDER[part[0]])
    return f"<font>{''.join(f'<{name}{given}/>' for name, given in ordered)}</font>"


class _Draft:
    """A sheet with the heads of one table, and below them a sample cell of each data style."""

    def __init__(self, sheet: Worksheet, table: SheetTable, layout: Layout, widths: Sequence[float]) -> None:
        self._sheet, self._table, self._layout, self._widths = sheet, table, layout, tuple(widths)
        for row, line in enumerate(layout.texts, 1):
            sheet.row_dimensions[row].height = line.height
            for col in range(1, layout.width + 1):
                self._text_style(row, col, line.kind, line.align)
            self._write(row, 1, line.text)
        for row in range(layout.head_top, layout.data_top):
            if table.default_height:
                sheet.row_dimensions[row].height = table.default_height
            for col in range(1, layout.width + 1):
                self._head_style(row, col)
        for cell in layout.head:
            self._write(cell.row, cell.col, cell.title)
        row = layout.data_top
        self._columns = tuple(
            Column(
                leaf.name,
                self._data_style(row, col, leaf.style),
                leaf.style.type,
                leaf.style.total,
                (widths[layout.row_head_width + col - 1] or DEFAULT_WIDTH) if leaf.style.wrap else 0.0,
                self._data_style(row + 4, col, replace(leaf.style, format=_boolean_format(leaf.style))),
                measured=_is_followed(table, leaf.style),
                label=leaf.style.label,
                label_key=leaf.style.label_key,
            )
            for col, leaf in enumerate(layout.columns, 1)
        )
        self._head = self._head_style(row + 1, 1)
        self._footer = self._text_style(row + 2, 1, "footer", layout.footer.align if layout.footer else "right")
        self._totals = tuple(
            self._data_style(row + 3, col, replace(leaf.style, bold=True)) for col, leaf in enumerate(layout.columns, 1)
        )

    def frame(self) -> TableFrame:
        height = self._table.default_height
        styles = self._head, self._footer, self._totals
        return TableFrame(self._layout, self._columns, height, *styles, self._widths)

    def _write(self, row: int, col: int, text: str) -> None:
        if not text:
            return
        cell = self._sheet.cell(row, col, literal(clean(text)))
        # openpyxl takes text with a leading "=" for a formula.
        cell.data_type = "s"

    def _text_style(self, row: int, col: int, kind: str, align: str) -> int:
        cell = self._sheet.cell(row, col)
        cell.alignment = Alignment(horizontal=align, vertical="center", wrap_text=True)
        if kind == "title":
            cell.font = _font(size=22, bold=True)
        elif kind != "footer":
            cell.border = _THIN
        return int(cell.style_id)

    def _head_style(self, row: int, col: int) -> int:
        cell = self._sheet.cell(row, col)
        cell.font, cell.fill, cell.border = _font(bold=True), _HEAD_FILL, _THIN
        cell.alignment = Alignment(horizontal="center", vertical="center")
        return int(cell.style_id)

    def _data_style(self, row: int, col: int, style: LeafStyle) -> int:
        cell = self._sheet.cell(row, col)
        cell.border = _THIN
        cell.alignment = Alignment(horizontal=style.align, vertical="center", wrap_text=style.wrap or None)
        if style.color or style.bold or style.type == "link":
            color = style.color or (_LINK_COLOR if style.type == "link" else None)
            cell.font = _font(bold=style.bold, color=f"FF{color}" if color else None, link=style.type == "link")
        if style.bg_color:
            cell.fill = PatternFill("solid", start_color=f"FF{style.bg_color}")
        number_format = style.format or FORMATS.get(style.type or "")
        if number_format:
            cell.number_format = number_format
        return int(cell.style_id)


def _sheet_xml(sheet: Worksheet) -> str:
    """Returns the XML of one sheet. Saving the whole workbook would take five times as long."""
    writer = WorksheetWriter(sheet, io.BytesIO())
    writer.write()
    return writer.read().decode()


def _font(size: int = 11, *, bold: bool, color: str | None = None, link: bool = False) -> Font:
    """Returns a font with the name of the workbook's default font; without a name, programs choose another font."""
    underline: Literal["single"] | None = "single" if link else None
    return Font(name="Calibri", family=2, size=size, bold=bold, color=color, underline=underline)


def _boolean_format(style: LeafStyle) -> str:
    """Returns the number format for booleans.

    The caller's format is used only in a boolean column. Formats of other columns would show 1 and 0.
    """
    return (style.format if style.type == "boolean" else None) or BOOLEAN_FORMAT


def _is_frozen(table: SheetTable, layout: Layout) -> bool:
    """Whether the heads stay visible when scrolling. By default they do, unless they would fill the window."""
    return layout.top_height <= _TALLEST_FROZEN if table.freeze is None else table.freeze


def _is_narrow(widths: Sequence[float]) -> bool:
    return sum(width or DEFAULT_WIDTH for width in widths) <= _PORTRAIT_WIDTH


# --- sheet parts
# The parts of a sheet besides its rows of data: totals, footer, merged cells, filter, page breaks.

_LONGEST_IDENTITY = 64
# The most merged cells in the data of a sheet: Excel gets slow with many.
MOST_MERGED = 60_000
# Rows that fit on a portrait A4 page.
PRINTED_ROWS = 45


def totals_row(frame: TableFrame, sums: Sequence[Total | None], row: int, rows: tuple[int, int] | None) -> str:
    """Returns the row of totals as XML. `rows`: the first and last row of the data, if all of it is on this sheet."""
    layout = frame.layout
    cells = [blank_cell(frame.head_style)] * layout.row_head_width
    for at, (total, style) in enumerate(zip(sums, frame.total_styles, strict=True)):
        column = letters(layout.row_head_width + at + 1)
        if total is None:
            cells.append(text_cell(_label(layout), style) if at == 0 else blank_cell(style))
        elif (number := total.as_number) is None:
            cells.append(text_cell(total.as_text, style))
        elif not total.fixed and rows and rows[0] <= rows[1]:
            formula = f"SUBTOTAL(109,{column}{rows[0]}:{column}{rows[1]})"
            cells.append(f'" s="{style}"><f>{formula}</f><v>{number}</v></c>')
        else:
            cells.append(f'" s="{style}"><v>{number}</v></c>')
    return f'<row r="{row}">{placed(cells, row)}</row>'


def _label(layout: Layout) -> str:
    return "Total" if all(leaf.title.isascii() for leaf in layout.columns) else "合计"


def footer_row(frame: TableFrame, row: int) -> str:
    footer, style = frame.layout.footer, frame.footer_style
    if footer is None:
        return ""
    cells = [text_cell(footer.text, style), *[blank_cell(style)] * (frame.layout.width - 1)]
    return f'<row r="{row}" ht="{footer.height:g}" customHeight="1">{placed(cells, row)}</row>'


def end_rows(
    frame: TableFrame, sums: Sequence[Total | None], row: int, merges: list[str], data_rows: tuple[int, int] | None
) -> tuple[str, int]:
    """Returns (XML of the rows below the data, number of the last row). The data ends in row `row`.

    Adds the merged cells of these rows to `merges`.
    """
    ending, layout = "", frame.layout
    if layout.has_totals:
        row += 1
        ending += totals_row(frame, sums, row, data_rows)
    if layout.footer:
        row += 1
        ending += footer_row(frame, row)
        if layout.width > 1:
            merges.append(merge(HeadCell("", row, 1, 1, layout.width), 0))
    return ending, row


def sheet_end(merges: Sequence[str], filtered: str, after: str, breaks: Sequence[int] = ()) -> str:
    """Returns the XML after the rows. `breaks`: the rows after which a new printed page begins."""
    if breaks:
        marks = "".join(f'<brk id="{row}" max="16383" man="1"/>' for row in breaks)
        count = f'count="{len(breaks)}" manualBreakCount="{len(breaks)}"'
        after = after.replace("</worksheet>", f"<rowBreaks {count}>{marks}</rowBreaks></worksheet>")
    listed = f'<mergeCells count="{len(merges)}">{"".join(merges)}</mergeCells>' if merges else ""
    shown = f'<autoFilter ref="{filtered}"/>' if filtered else ""
    return f"</sheetData>{shown}{listed}{after}"


class EqualRuns:
    """Finds runs of equal cells below each other, in a sheet or in a part of a sheet.

    Only columns that the template merges have runs. Where a run in a merged column ends, the runs in merged columns to
    its right end too. Blank cells are not merged.
    """

    def __init__(self, layout: Layout) -> None:
        self._keys = [leaf.name for leaf in layout.columns if leaf.style.merge]
        self._clear()

    def _clear(self) -> None:
        self._rows, self._first, self._last = 0, tuple[str, ...](), tuple[str, ...]()
        self._starts = [0] * len(self._keys)
        # (number of the merged column, first row, last row). Runs that begin at row `_past` or below exceed
        # MOST_MERGED and are not kept: those of a million rows would fill the memory.
        self._runs: list[tuple[int, int, int]] = []
        self._past = MAX_ROWS

    def add(self, rows: Sequence[Row]) -> None:
        if not self._keys:
            return
        for values in zip(*(map(_identity, column_of(rows, key)) for key in self._keys), strict=True):
            for at in range(_agreeing(self._last, values), len(values)):
                self._close(at)
                self._starts[at] = self._rows
            self._first, self._last = self._first or values, values
            self._rows += 1

    def _close(self, at: int) -> None:
        if self._starts[at] < min(self._past, self._rows - 1):
            self._runs.append((at, self._starts[at], self._rows - 1))
            if len(self._runs) == MOST_MERGED:
                self._past = self._rows

    def take_runs(self) -> dict[str, Any]:
        """Returns the runs since the last call.

        The result also has the cells of the first and the last row, by which runs are joined with those before and
        after.
        """
        for at in range(len(self._keys)):
            self._close(at)
        part = {"rows": self._rows, "first": list(self._first), "last": list(self._last), "runs": self._runs}
        self._clear()
        return part


def _identity(value: object) -> str:
    """Returns a short text that is equal for equal cells; empty for blank ones."""
    if value is None or value == "":
        return ""
    if isinstance(value, str) and len(value) <= _LONGEST_IDENTITY:
        return value
    return sha256(write_exact(value)).hexdigest()


def _agreeing(above: Sequence[str], below: Sequence[str]) -> int:
    """Returns how many of the leading columns have equal cells that are not blank."""
    pairs = zip(above, below, strict=False)
    return next((at for at, (old, new) in enumerate(pairs) if not new or old != new), len(above))


def merged_cells(layout: Layout, parts: Sequence[Mapping[str, Any]], first_row: int) -> list[str]:
    """Returns the XML elements of the merged cells in the data of a sheet.

    `parts`: the results of `take_runs`, in order. `first_row`: the row at which the data begins.
    """
    columns = [at for at, leaf in enumerate(layout.columns, layout.row_head_width + 1) if leaf.style.merge]
    found, offset, last = list[tuple[int, int, int]](), 0, list[str]()
    # By column: the row at which the run began that the last part ended with.
    open_since = [0] * len(columns)
    for part in parts:
        if not part["rows"]:
            continue
        end, same = part["rows"] - 1, _agreeing(last, part["first"]) if last else 0
        begins, ends = [0] * len(columns), [end] * len(columns)
        for at, top, bottom in part["runs"]:
            if top == 0:
                begins[at] = bottom
            if bottom == end:
                ends[at] = top
            if top and bottom < end:
                found.append((at, offset + top, offset + bottom))
        for at in range(len(columns)):
            if at >= same:
                found.append((at, open_since[at], offset - 1))
                open_since[at] = offset
            if begins[at] < end:
                found.append((at, open_since[at], offset + begins[at]))
                open_since[at] = offset + ends[at]
        offset, last = offset + end + 1, part["last"]
    found += [(at, since, offset - 1) for at, since in enumerate(open_since)]
    runs = sorted({run for run in found if run[2] > run[1]}, key=lambda run: (run[1], run[0]))[:MOST_MERGED]
    return [merge(HeadCell("", top + 1, columns[at], bottom - top + 1), first_row - 1) for at, top, bottom in runs]


def filter_range(table: SheetTable, layout: Layout, last_row: int) -> str:
    """Returns the range of the autofilter: the lowest heads and the data. Empty if the table gets no filter.

    A table with merged cells in its data gets no filter, because filters break merged cells.
    """
    if table.autofilter is False or layout.row_head_width or not layout.head_rows or not layout.columns:
        return ""
    if any(leaf.style.merge for leaf in layout.columns):
        return ""
    return f"A{layout.data_top - 1}:{letters(layout.width)}{max(last_row, layout.data_top - 1)}"


def sheet_info(name: str, layout: Layout, row: int, last_col: int, *, alone: bool, filtered: str = "") -> SheetInfo:
    # Repeat the heads on every printed page, unless the sheet has other tables.
    titles = (layout.head_top, layout.data_top - 1) if alone and layout.head_rows else None
    return SheetInfo(name, max(row, 1), last_col, titles, layout.row_head_width if alone else 0, filtered)


def page_breaks(starts: Sequence[int], last_row: int) -> Sequence[int]:
    """Returns the rows after which a printed page begins: before each table, unless all tables fit on one page."""
    return starts if last_row > PRINTED_ROWS else ()


def merge(cell: HeadCell, above: int) -> str:
    top, bottom = cell.row + above, cell.row + above + cell.height - 1
    first, last = letters(cell.col), letters(cell.col + cell.width - 1)
    return f'<mergeCell ref="{first}{top}:{last}{bottom}"/>'
