"""The parts of a sheet besides its rows of data: totals, footer, merged cells, filter, page breaks."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from openpyxl.utils import get_column_letter

from tidegate.exports.rendering.header_tree import HeadCell
from tidegate.exports.rendering.table import Layout, SheetTable
from tidegate.exports.rendering.xlsx.cells import blank_cell, text_cell
from tidegate.exports.rendering.xlsx.frame import SheetInfo, TableFrame

# Rows that fit on a portrait A4 page.
PRINTED_ROWS = 45


def totals_row(frame: TableFrame, sums: Sequence[Decimal | None], rows: tuple[int, int] | None) -> str:
    """The row of totals; `rows` are the first and last row of the data if all of it is on this sheet."""
    layout, cells = frame.layout, list[str]()
    for at, (total, style) in enumerate(zip(sums, frame.total_styles, strict=True)):
        column = get_column_letter(layout.row_head_width + at + 1)
        if total is None:
            cells.append(text_cell(_label(layout), style) if at == 0 else blank_cell(style))
        elif rows and rows[0] <= rows[1]:
            formula = f"SUBTOTAL(109,{column}{rows[0]}:{column}{rows[1]})"
            cells.append(f'<c s="{style}"><f>{formula}</f><v>{total}</v></c>')
        else:
            cells.append(f'<c s="{style}"><v>{total}</v></c>')
    return f"<row>{blank_cell(frame.head_style) * layout.row_head_width}{''.join(cells)}</row>"


def _label(layout: Layout) -> str:
    return "Total" if all(leaf.title.isascii() for leaf in layout.columns) else "合计"


def footer_row(frame: TableFrame) -> str:
    footer, style = frame.layout.footer, frame.footer_style
    if footer is None:
        return ""
    cells = text_cell(footer.text, style) + blank_cell(style) * (frame.layout.width - 1)
    return f'<row ht="{footer.height:g}" customHeight="1">{cells}</row>'


def sheet_end(merges: Sequence[str], filtered: str, after: str, breaks: Sequence[int] = ()) -> str:
    """The XML after the rows; `breaks` are the rows after which a new printed page begins."""
    if breaks:
        marks = "".join(f'<brk id="{row}" max="16383" man="1"/>' for row in breaks)
        count = f'count="{len(breaks)}" manualBreakCount="{len(breaks)}"'
        after = after.replace("</worksheet>", f"<rowBreaks {count}>{marks}</rowBreaks></worksheet>")
    listed = f'<mergeCells count="{len(merges)}">{"".join(merges)}</mergeCells>' if merges else ""
    shown = f'<autoFilter ref="{filtered}"/>' if filtered else ""
    return f"</sheetData>{shown}{listed}{after}"


def filter_range(table: SheetTable, layout: Layout, last_row: int) -> str:
    """The range of the autofilter: leaf heads and data. Empty with row heads: a filter would break merged cells."""
    if table.autofilter is False or layout.row_head_width or not layout.head_rows or not layout.columns:
        return ""
    return f"A{layout.data_top - 1}:{get_column_letter(layout.width)}{max(last_row, layout.data_top - 1)}"


def sheet_info(name: str, layout: Layout, row: int, last_col: int, *, alone: bool, filtered: str = "") -> SheetInfo:
    # Repeat the heads on every printed page, unless the sheet has other tables.
    titles = (layout.head_top, layout.data_top - 1) if alone and layout.head_rows else None
    return SheetInfo(name, max(row, 1), last_col, titles, layout.row_head_width if alone else 0, filtered)


def page_breaks(starts: Sequence[int], last_row: int) -> Sequence[int]:
    """Each table begins a printed page, unless all fit on one."""
    return starts if last_row > PRINTED_ROWS else ()


def merge(cell: HeadCell, above: int) -> str:
    top, bottom = cell.row + above, cell.row + above + cell.height - 1
    first, last = get_column_letter(cell.col), get_column_letter(cell.col + cell.width - 1)
    return f'<mergeCell ref="{first}{top}:{last}{bottom}"/>'
