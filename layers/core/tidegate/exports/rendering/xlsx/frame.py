"""The styled frame of a workbook, made by openpyxl: styles, heads, widths, print set-up.

Rows are streamed into it later. So the frame is saved once, and its heads are cut out of it as XML
without row numbers: a head then fits wherever the rows above it end.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Literal

from openpyxl import Workbook
from openpyxl.styles import Alignment, Border, Font, PatternFill, Side
from openpyxl.utils import get_column_letter
from openpyxl.worksheet.properties import PageSetupProperties
from openpyxl.worksheet.worksheet import Worksheet

from tidegate.exports.rendering.header_tree import LeafStyle
from tidegate.exports.rendering.table import Layout, SheetTable
from tidegate.exports.rendering.xlsx.cells import Column
from tidegate.exports.rendering.xlsx.typed_cells import BOOLEAN_FORMAT, FORMATS
from tidegate.exports.rendering.xlsx.widths import DEFAULT_WIDTH
from tidegate.exports.rendering.xlsx.xml_text import clean, literal

_THIN = Border(*(Side(style="thin"),) * 4)
_HEAD_FILL = PatternFill("solid", start_color="FFDFDFDF")
_NUMBERING = re.compile(r'(<row|<c) r="[A-Z]*\d+"(?: spans="[^"]*")?')
_LINK_COLOR = "0563C1"
_TALLEST_FROZEN = 250.0
# Columns of this width together are still legible on an upright page, in characters.
_UPRIGHT_WIDTH = 110.0
_DIMENSION = re.compile(r"<dimension [^>]*/>")
_ROW = re.compile(r"<row.*?</row>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TableFrame:
    layout: Layout
    head_xml: str
    columns: tuple[Column, ...]
    row_height: float | None
    head_style: int
    footer_style: int
    total_styles: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SheetInfo:
    name: str
    last_row: int
    last_col: int
    title_rows: tuple[int, int] | None = None
    title_cols: int = 0
    filtered: str = ""


class Frame:
    """`widths` are those of each table's columns, 0 where Excel's own will do."""

    def __init__(
        self, tables: Sequence[tuple[SheetTable, Layout]], widths: Sequence[Sequence[float]], *, together: bool
    ) -> None:
        self._book = Workbook()
        self._book.remove(self._book.worksheets[0])
        self._book.properties.creator = "Tidegate"
        alone = not together or len(tables) == 1
        shared = [max(column) for column in zip_longest(*widths, fillvalue=0.0)] if together else None
        drafts = [
            self._draft(
                table, layout, alone=alone, upright=len(tables) > 1 and _is_narrow(shared or own), widths=shared or own
            )
            for (table, layout), own in zip(tables, widths, strict=True)
        ]
        for sheet, columns in zip(self._book.worksheets, [shared] if shared else widths, strict=False):
            for col, width in enumerate(columns, 1):
                if width:
                    sheet.column_dimensions[get_column_letter(col)].width = width
        xml = [text for name, text in self._saved() if name.startswith("xl/worksheets/")]
        self.tables = [draft(text) for draft, text in zip(drafts, xml, strict=True)]
        self._edges = [_edges(text) for text in xml]

    def edges(self, index: int) -> tuple[str, str]:
        """What comes before a sheet's rows and after its merges."""
        return self._edges[index]

    def parts(self, sheets: Sequence[SheetInfo]) -> Iterator[tuple[str, list[bytes]]]:
        """Every part of the finished workbook but the sheets themselves."""
        for draft in self._book.worksheets:
            self._book.remove(draft)
        for info in sheets:
            sheet = self._book.create_sheet(info.name)
            sheet.print_area = f"A1:{get_column_letter(info.last_col)}{info.last_row}"
            if info.title_rows:
                sheet.print_title_rows = "{}:{}".format(*info.title_rows)
            if info.filtered:
                sheet.auto_filter.ref = info.filtered
            if info.title_cols:
                sheet.print_title_cols = f"A:{get_column_letter(info.title_cols)}"
        for name, text in self._saved():
            if not name.startswith("xl/worksheets/"):
                yield name, [text.encode()]

    def _saved(self) -> list[tuple[str, str]]:
        out = io.BytesIO()
        self._book.save(out)
        with zipfile.ZipFile(out) as archive:
            return [(name, archive.read(name).decode()) for name in archive.namelist()]

    def _draft(
        self, table: SheetTable, layout: Layout, *, alone: bool, upright: bool, widths: Sequence[float]
    ) -> _Draft:
        sheet = self._book.create_sheet()
        if alone and layout.head_rows and _is_frozen(table, layout):
            sheet.freeze_panes = sheet.cell(layout.data_top, layout.row_head_width + 1)
        sheet.page_setup.paperSize = sheet.PAPERSIZE_A4
        sheet.page_setup.orientation = "portrait" if upright else "landscape"
        sheet.oddFooter.center.text = "&P / &N"
        sheet.page_setup.fitToHeight = False
        sheet.sheet_properties.pageSetUpPr = PageSetupProperties(fitToPage=True)
        return _Draft(sheet, table, layout, widths)


class _Draft:
    """A sheet holding one table's heads, and below them one specimen of each data style."""

    def __init__(self, sheet: Worksheet, table: SheetTable, layout: Layout, widths: Sequence[float]) -> None:
        self._sheet, self._table, self._layout = sheet, table, layout
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
            )
            for col, leaf in enumerate(layout.columns, 1)
        )
        self._head = self._head_style(row + 1, 1)
        self._footer = self._text_style(row + 2, 1, "footer", layout.footer.align if layout.footer else "right")
        self._totals = tuple(
            self._data_style(row + 3, col, replace(leaf.style, bold=True)) for col, leaf in enumerate(layout.columns, 1)
        )

    def __call__(self, xml: str) -> TableFrame:
        """The table's frame, once openpyxl has written the sheet as `xml`."""
        rows = _ROW.findall(xml)[: self._layout.data_top - 1]
        head_xml = _NUMBERING.sub(r"\1", "".join(rows))
        height = self._table.default_height
        return TableFrame(self._layout, head_xml, self._columns, height, self._head, self._footer, self._totals)

    def _write(self, row: int, col: int, text: str) -> None:
        if not text:
            return
        cell = self._sheet.cell(row, col, literal(clean(text)))
        # openpyxl took a leading "=" for a formula.
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


def _font(size: int = 11, *, bold: bool, color: str | None = None, link: bool = False) -> Font:
    """Of the workbook's own family: a font without a name is drawn in another."""
    underline: Literal["single"] | None = "single" if link else None
    return Font(name="Calibri", family=2, size=size, bold=bold, color=color, underline=underline)


def _boolean_format(style: LeafStyle) -> str:
    """That of a column of booleans may be the caller's own; a format of numbers would show them as 1 and 0."""
    return (style.format if style.type == "boolean" else None) or BOOLEAN_FORMAT


def _is_frozen(table: SheetTable, layout: Layout) -> bool:
    """Heads that fill the window would leave nothing to scroll."""
    return layout.top_height <= _TALLEST_FROZEN if table.freeze is None else table.freeze


def _is_narrow(widths: Sequence[float]) -> bool:
    return sum(width or DEFAULT_WIDTH for width in widths) <= _UPRIGHT_WIDTH


def _edges(xml: str) -> tuple[str, str]:
    before, _, rest = xml.partition("<sheetData")
    _, _, after = rest.partition("</sheetData>")
    return _DIMENSION.sub("", before), after
