from __future__ import annotations

import io
import zipfile
from typing import Any

import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.exports.samples import SEED_TABLE, seed_rows
from tidegate.sheets.files import CsvOptions, Output, extension, file_sizes, render
from tidegate.sheets.table import SheetTable, keys_of
from tidegate.sheets.xlsx import TableRows


def render_file(output: Output, *tables: tuple[SheetTable, list[dict[str, Any]]]) -> tuple[str, bytes]:
    sources = [TableRows(table, keys_of(rows), iter(rows)) for table, rows in tables]
    total = sum(len(rows) for _, rows in tables)
    return extension(output, sources, total), b"".join(render(output, sources, total))


def numbered(count: int) -> list[dict[str, Any]]:
    return [{"n": number, "t": "文"} for number in range(count)]


@given(st.integers(1, 10**7), st.integers(1, 10**6))
def test_files_are_filled_evenly_and_lose_no_row(total: int, limit: int) -> None:
    if total // limit > 10_000:
        limit = total // 10_000 + 1
    sizes = file_sizes(total, limit)
    assert sum(sizes) == total
    assert max(sizes) <= limit
    assert max(sizes) - min(sizes[:-1] or sizes) <= 1
    assert min(sizes) > 0


def test_rows_per_file_splits_a_workbook_with_heads_in_each() -> None:
    table = SheetTable(title="标题", footer={"签名": "x"})
    ending, data = render_file(Output("excel", rows_per_file=100), (table, numbered(250)))

    archive = zipfile.ZipFile(io.BytesIO(data))
    assert (ending, archive.namelist()) == ("zip", ["1.xlsx", "2.xlsx", "3.xlsx"])
    sheets = [
        list(openpyxl.load_workbook(io.BytesIO(archive.read(name))).worksheets[0].values) for name in archive.namelist()
    ]
    assert [len(rows) - 3 for rows in sheets] == [84, 84, 82]
    assert all(rows[:2] == [("标题", None), ("n", "t")] and rows[-1][0] == "签名：x" for rows in sheets)
    assert [row[0] for rows in sheets for row in rows[2:-1]] == list(range(250))


def test_rows_per_file_splits_csv_too() -> None:
    ending, data = render_file(Output("csv", rows_per_file=2), (SheetTable(), numbered(3)))
    archive = zipfile.ZipFile(io.BytesIO(data))
    assert ending == "zip"
    assert [archive.read(name) for name in ("1.csv", "2.csv")] == ["n,t\n0,文\n1,文\n".encode(), "n,t\n2,文\n".encode()]


@pytest.mark.parametrize(
    ("output", "tables"),
    [
        (Output("excel", rows_per_file=100), [(SheetTable(), numbered(100))]),
        (Output("excel", rows_per_file=2), [(SEED_TABLE, seed_rows())]),
        (Output("excel", rows_per_file=2), [(SheetTable(), numbered(3)), (SheetTable(), numbered(3))]),
    ],
)
def test_rows_that_fit_or_belong_together_are_one_file(output: Output, tables: list[Any]) -> None:
    ending, data = render_file(output, *tables)
    assert ending == "xlsx"
    assert openpyxl.load_workbook(io.BytesIO(data)).active


def test_csv_tables_are_below_each_other_or_in_a_zip() -> None:
    tables = [(SheetTable(), [{"a": 1}]), (SheetTable(), [{"b": 2}])]
    assert render_file(Output("csv", csv=CsvOptions(bom=True)), *tables) == ("csv", b"\xef\xbb\xbfa\n1\n\n\n\nb\n2\n")

    ending, data = render_file(Output("csv", multi_type="tab"), *tables)
    assert (ending, zipfile.ZipFile(io.BytesIO(data)).namelist()) == ("zip", ["1.csv", "2.csv"])
