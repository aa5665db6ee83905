"""Columns with a type in the template, read by libraries that share no code with the writer."""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
from datetime import date, datetime
from pathlib import Path
from typing import Any

import openpyxl
import pytest
import python_calamine

from tidegate.errors import BadTable
from tidegate.sheets.table import CELL_TYPES, SheetTable, parse_template
from tidegate.sheets.values import read_exact
from tidegate.sheets.xlsx import TableRows, xlsx_chunks

ROWS: list[dict[str, Any]] = [
    {
        "string": 7,
        "number": "12.50",
        "integer": "42",
        "decimal": "0.10",
        "date": "2026-11-16",
        "datetime": "2026-11-16T10:30:00+08:00",
        "currency": 1234.5,
        "percent": "12.5%",
        "boolean": "yes",
        "link": "https://example.com/?a=1&b=2",
    },
    dict.fromkeys(CELL_TYPES),
    {
        "string": "007",
        "number": "n/a",
        "integer": "n/a",
        "decimal": "n/a",
        "date": "soon",
        "datetime": 20261116,
        "currency": "x",
        "percent": 0.5,
        "boolean": 0,
        "link": "=1+1",
    },
]


def workbook() -> bytes:
    template = parse_template([{"name": kind, "title": kind, "style": {"type": kind}} for kind in CELL_TYPES])
    return b"".join(xlsx_chunks([TableRows(SheetTable(template), list(CELL_TYPES), ROWS)]))


def open_sheet(data: bytes, *, data_only: bool = False) -> Any:
    return openpyxl.load_workbook(io.BytesIO(data), data_only=data_only).active


def test_openpyxl_reads_each_type() -> None:
    sheet = open_sheet(workbook(), data_only=True)
    rows = [dict(zip(CELL_TYPES, row, strict=True)) for row in list(sheet.values)[1:]]
    assert rows[0] == {
        "string": "7",
        "number": 12.5,
        "integer": 42,
        "decimal": 0.1,
        "date": datetime(2026, 11, 16),
        "datetime": datetime(2026, 11, 16, 10, 30),
        "currency": 1234.5,
        "percent": 0.125,
        "boolean": True,
        "link": "https://example.com/?a=1&b=2",
    }
    assert set(rows[1].values()) == {None}
    odd = {"date": "soon", "datetime": "20261116", "currency": "x", "percent": 0.5, "boolean": False, "link": "=1+1"}
    assert rows[2] == {"string": "007", **dict.fromkeys(("number", "integer", "decimal"), "n/a"), **odd}
    formats = [cell.number_format for cell in sheet[2]]
    boolean = '"TRUE";"TRUE";"FALSE"'
    numbers, times = ["General"] * 3, ["yyyy-mm-dd", "yyyy-mm-dd hh:mm:ss"]
    assert formats == ["@", *numbers, *times, "#,##0.00", "0.00%", boolean, "General"]


def test_calamine_reads_each_type() -> None:
    sheet = python_calamine.CalamineWorkbook.from_filelike(io.BytesIO(workbook())).get_sheet_by_index(0)
    first = dict(zip(CELL_TYPES, sheet.to_python()[1], strict=True))
    assert first["date"] == date(2026, 11, 16)
    assert first["datetime"] == datetime(2026, 11, 16, 10, 30)
    assert (first["boolean"], first["link"]) == (True, "https://example.com/?a=1&b=2")


@pytest.mark.parametrize("office", [office for office in ("soffice",) if shutil.which(office)])
def test_libreoffice_shows_each_type(office: str, tmp_path: Path) -> None:
    path = tmp_path / "typed.xlsx"
    path.write_bytes(workbook())
    command = [office, f"-env:UserInstallation=file://{tmp_path}/profile", "--headless", "--convert-to"]
    command += ["csv:Text - txt - csv (StarCalc):44,34,76,1,,0,false,true", "--outdir", str(tmp_path), str(path)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    first = list(csv.reader(io.StringIO(path.with_suffix(".csv").read_text())))[1]
    assert first == [
        "7",
        "12.5",
        "42",
        "0.1",
        "2026-11-16",
        "2026-11-16 10:30:00",
        "1,234.50",
        "12.50%",
        "TRUE",
        "https://example.com/?a=1&b=2",
    ]


def test_links_show_a_text_or_the_value_of_another_key() -> None:
    template = [
        {"name": "url", "style": {"type": "link", "label": 'Open "it"'}},
        {"name": "to", "style": {"type": "link", "label_key": "name"}},
    ]
    address = "https://x.example/?a=1&b=2"
    rows = [
        {"url": address, "to": address, "name": "Ann & <Bob>"},
        {"url": "no address", "to": None, "name": "hidden"},
        {"url": None, "to": address, "name": None},
        {"url": address, "to": address, "name": 7},
        {"url": address, "to": address, "name": "🎉" * 200},
    ]
    table = SheetTable(parse_template(template))
    data = b"".join(xlsx_chunks([TableRows(table, ["url", "to", "name"], rows)]))

    shown = python_calamine.CalamineWorkbook.from_filelike(io.BytesIO(data)).get_sheet_by_index(0).to_python()
    assert shown[1:] == [
        ['Open "it"', "Ann & <Bob>"],
        ["no address", ""],
        ["", address],
        ['Open "it"', "7"],
        ['Open "it"', "🎉" * 127],
    ]
    sheet = openpyxl.load_workbook(io.BytesIO(data)).active
    assert sheet is not None
    assert sheet["A2"].value == f'=HYPERLINK("{address}","Open ""it""")'
    assert sheet["B4"].value == f'=HYPERLINK("{address}")'
    assert sheet.column_dimensions["A"].width < len(address)


@pytest.mark.parametrize(
    ("style", "why"),
    [
        ({"label": "Open"}, "type link"),
        ({"type": "link", "label": "a", "label_key": "b"}, "give one of them"),
        ({"type": "link", "label": "x" * 256}, "255"),
        ({"type": "link", "label_key": []}, "not text"),
    ],
)
def test_label_that_cannot_be_shown_is_refused(style: dict[str, Any], why: str) -> None:
    with pytest.raises(BadTable, match=why):
        parse_template([{"name": "url", "style": style}])


@pytest.mark.parametrize(
    ("kind", "value", "cell"),
    [
        ("date", "1900-02-28", "<t>1900-02-28</t>"),
        ("date", "1900-03-01", "<v>61</v>"),
        ("date", "2026-11-16 23:59:59", "<v>46342</v>"),
        ("datetime", "2026-11-16 12:00:00", "<v>46342.5</v>"),
        ("datetime", "2026-11-16", "<v>46342</v>"),
        ("datetime", "2026/11/16 12:00:00", "<v>46342.5</v>"),
        ("date", "2026/11/16 23:59", "<v>46342</v>"),
        ("link", "https://x/" + "y" * 300, "<t>https://x/"),
        ("link", 'mailto:a@b?subject="x"', 'HYPERLINK("mailto:a@b?subject=""x""")'),
        ("percent", "7 %", "<v>0.07</v>"),
        ("percent", "0e-999999%", "<v>0</v>"),
        ("percent", "1e-999999%", "<t>1e-999999%</t>"),
        ("percent", "1e-99999999999999999999%", "<t>1e-99999999999999999999%</t>"),
        ("number", "1e-310", "<t>1e-310</t>"),
        ("number", "1e-300", "<v>1e-300</v>"),
        # Excel would take it for 0.
        ("number", read_exact("1e-310"), "<t>1e-310</t>"),
        (None, read_exact("1e-310"), "<t>1e-310</t>"),
        (None, read_exact(f"0.{'0' * 309}1"), "<t>0.000"),
        (None, read_exact("0e-310"), "<v>0e-310</v>"),
        ("number", "0.00", "<v>0.00</v>"),
        ("boolean", "maybe", "<t>maybe</t>"),
        ("boolean", 5, "<v>5</v>"),
    ],
)
def test_value_at_the_limit_of_its_type_makes_this_cell(kind: str | None, value: Any, cell: str) -> None:
    from tidegate.sheets.xlsx_cells import Column, RowWriter

    assert cell in RowWriter([Column("a", 1, kind)]).xml([{"a": value}], 1).decode()


def test_totals_are_below_the_data_and_exact() -> None:
    style = {"total": True, "type": "number", "format": "0.00"}
    template = parse_template([{"name": "id", "title": "编号"}, {"name": "amount", "title": "金额", "style": style}])
    rows = read_exact(b'[{"id":1,"amount":0.10},{"id":2,"amount":0.20},{"id":3,"amount":"0.05"},{"id":4}]')
    data = b"".join(xlsx_chunks([TableRows(SheetTable(template, footer="end"), ["id", "amount"], rows)]))

    sheet = open_sheet(data)
    assert [cell.value for cell in sheet[6]] == ["合计", "=SUBTOTAL(109,B2:B5)"]
    assert [cell.value for cell in open_sheet(data, data_only=True)[6]][1] == 0.35
    assert (sheet.auto_filter.ref, sheet["A7"].value, sheet["B6"].number_format) == ("A1:B5", "end", "0.00")


@pytest.mark.parametrize(
    ("kind", "values", "total"),
    [
        ("percent", ["12.5%", "30 %", 0.5, "0.1"], 1.025),
        ("number", ["1e-99999999999999999999", "1e999999", "1e99999999999999999999", 2], 2),
    ],
)
def test_total_counts_texts_as_their_cells_do(kind: str, values: list[Any], total: float) -> None:
    template = parse_template([{"name": "a", "style": {"type": kind, "total": True}}])
    rows = [{"a": value} for value in values]
    data = b"".join(xlsx_chunks([TableRows(SheetTable(template), ["a"], rows)]))
    assert list(open_sheet(data, data_only=True).values)[-1][0] == total


def test_long_summary_has_room_for_its_lines() -> None:
    table = SheetTable(summary="一二三四五六七八九十" * 20, title="题" * 60)
    data = b"".join(xlsx_chunks([TableRows(table, ["a", "b"], [{"a": 1, "b": 2}])]))
    sheet = open_sheet(data)
    assert sheet.row_dimensions[2].height == 14 * 25 + 14
    assert sheet.row_dimensions[1].height == 409


def test_sheet_names_are_counted_in_utf16_units() -> None:
    from tidegate.sheets.xlsx import sheet_name

    taken = set[str]()
    first, second = sheet_name("🎉" * 31, taken), sheet_name("🎉" * 31, taken)
    assert first == "🎉" * 15
    assert second.endswith(" 2")
    assert max(len(name.encode("utf-16-le")) // 2 for name in (first, second)) <= 31
