"""Templates for filled workbooks, and what other programs read from the result."""

from __future__ import annotations

import io
import subprocess
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import openpyxl
import xlsxwriter
from openpyxl import Workbook
from python_calamine import CalamineWorkbook

from tidegate.sheets.fill import Filling, check_lists, filled_chunks, values_of
from tidegate.sheets.fill_template import FillTemplate
from tidegate.sheets.table import SheetTable, keys_of, parse_template
from tidegate.sheets.xlsx import TableRows

Rows = Sequence[Mapping[str, Any]]


def saved(book: Workbook) -> bytes:
    target = io.BytesIO()
    book.save(target)
    return target.getvalue()


def sheet_of(cells: Mapping[str, Any], change: Callable[[Any], object] = lambda sheet: None) -> bytes:
    """A workbook of one sheet, `Report`, with these cells."""
    book = Workbook()
    sheet = book.active
    assert sheet is not None
    sheet.title = "Report"
    for place, value in cells.items():
        sheet[place] = value
    change(sheet)
    return saved(book)


def dashboard() -> bytes:
    """A sheet with a list, and one with what refers to it."""
    target = io.BytesIO()
    book = xlsxwriter.Workbook(target)
    data, dash = book.add_worksheet("Data"), book.add_worksheet("Dash")
    for place, text in {"A2": "{.id}", "B2": "{.amount}", "A3": "=SUM(B2)", "A4": "limit"}.items():
        data.write(place, text)
    data.add_sparkline("D2", {"range": "Data!A2:B2"})
    data.conditional_format("B2", {"type": "2_color_scale", "min_type": "formula", "min_value": "=$A$4"})
    data.insert_textbox("F1", "sum", {"textlink": "=$A$3"})
    dash.data_validation("A1", {"validate": "list", "source": "=Data!$A$2:$A$2"})
    dash.conditional_format("A1", {"type": "formula", "criteria": "=Data!$A$4>1", "format": book.add_format()})
    dash.add_sparkline("B1", {"range": "Data!B2:B2"})
    dash.insert_textbox("C1", "sum", {"textlink": "=Data!$A$3"})
    book.close()
    return target.getvalue()


def tables_of(*lists: Rows, titles: Sequence[str] = (), template: Any = None) -> list[TableRows]:
    tables = []
    for number, rows in enumerate(lists):
        table = SheetTable(parse_template(template), title=titles[number] if number < len(titles) else "")
        tables.append(TableRows(table, keys_of(rows), list(rows), len(rows)))
    return tables


def filled(
    template: bytes,
    *lists: Rows,
    values: Mapping[str, Any] | None = None,
    titles: Sequence[str] = (),
    columns: Any = None,
) -> bytes:
    """The filled template, which three readers that share no code can open."""
    tables = tables_of(*lists or ([],), titles=titles, template=columns)
    read = FillTemplate(template)
    check_lists(read, [each.table.title for each in tables])
    filling = Filling(read, values_of(values, [each.table for each in tables]))
    data = b"".join(filled_chunks(filling, tables))
    assert zipfile.ZipFile(io.BytesIO(data)).testzip() is None
    CalamineWorkbook.from_filelike(io.BytesIO(data))
    return data


def opened(data: bytes) -> Any:
    return openpyxl.load_workbook(io.BytesIO(data))


def cells(data: bytes, sheet: str = "Report") -> list[list[Any]]:
    """The values of a sheet without trailing blanks."""
    return [_stripped(row) for row in opened(data)[sheet].iter_rows(values_only=True)]


def calamine_cells(data: bytes, sheet: str = "Report") -> list[list[Any]]:
    rows = CalamineWorkbook.from_filelike(io.BytesIO(data)).get_sheet_by_name(sheet).to_python(skip_empty_area=False)
    return [_stripped(["" if value is None else value for value in row]) for row in rows]


def _stripped(row: Sequence[Any]) -> list[Any]:
    values = list(row)
    while values and values[-1] in (None, ""):
        values.pop()
    return values


def part(data: bytes, name: str) -> str:
    return zipfile.ZipFile(io.BytesIO(data)).read(name).decode()


def names_of(data: bytes) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(data)).namelist()


def with_part(data: bytes, name: str, change: Callable[[str], str | bytes] | bytes) -> bytes:
    """The file with another part; one that it did not have is added."""
    source, target = zipfile.ZipFile(io.BytesIO(data)), io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for each in source.namelist():
            content: str | bytes = source.read(each)
            if each == name:
                assert isinstance(content, bytes)
                content = change if isinstance(change, bytes) else change(content.decode())
            archive.writestr(each, content)
        if name not in source.namelist():
            assert isinstance(change, bytes)
            archive.writestr(name, change)
    return target.getvalue()


def recalculated(data: bytes, place: Path) -> Any:
    """The workbook as LibreOffice calculates it, with results in place of formulas."""
    source = place / "filled.xlsx"
    source.write_bytes(data)
    command = ["soffice", f"-env:UserInstallation=file://{place}/profile", "--headless", "--convert-to", "xlsx"]
    command += ["--outdir", str(place / "out"), str(source)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return openpyxl.load_workbook(place / "out" / "filled.xlsx", data_only=True)
