"""The total below a column is the exact sum of its numbers, and stays so in a program that recalculates the sheet."""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidegate.sheets.files import Output, render
from tidegate.sheets.rows import BLOCK_ROWS
from tidegate.sheets.table import Notes, SheetTable, parse_template
from tidegate.sheets.values import Digits
from tidegate.sheets.xlsx import TableRows, xlsx_chunks
from tidegate.sheets.xlsx_cells import Column, RowWriter, Total


def table_of(values: list[Any], kind: str | None = None) -> TableRows:
    style = {"total": True, **({"type": kind} if kind else {})}
    template = parse_template([{"name": "id"}, {"name": "amount", "style": style}])
    return TableRows(SheetTable(template), ["id", "amount"], [{"id": "x", "amount": value} for value in values])


def made(values: list[Any], kind: str | None = None, **more: Any) -> tuple[bytes, list[str]]:
    notes = Notes()
    return b"".join(xlsx_chunks([table_of(values, kind)], notes=notes, **more)), notes.warnings()


def last_cell(data: bytes, sheet: int = -1) -> Any:
    return list(openpyxl.load_workbook(io.BytesIO(data)).worksheets[sheet].values)[-1][1]


def total_of(values: list[Any], kind: str | None = None) -> Any:
    return last_cell(made(values, kind)[0])


@pytest.mark.parametrize(
    ("kind", "values", "total"),
    [
        (None, ["12.50", "7.50", None, "", " 1 "], 21),
        (None, ["12.50", 7.5, Digits("1.00")], 21),
        (None, [*["0.10"] * 300, *[1] * 300], 330),
        ("string", ["1", "2"], 3),
        # More than 15 digits are kept as text, in the cells and in the total.
        (None, [Digits("12345678901234567.00"), Digits("101021.60")], "12345678901335588.60"),
        ("number", ["12345678901234567.00", "101021.60"], "12345678901335588.60"),
        (None, [12345678901234567, -12345678901234560], 7),
        # Excel holds numbers below 1E+308.
        (None, [Digits("1E+308"), Digits("1e308")], "2E+308"),
        (None, [Digits("9e307"), 9e307], "1.8E+308"),
        ("number", ["1E+308", "-1e308", 5], 5),
        # As cells, these are not what was summed.
        ("boolean", [1, 1], 2),
        ("number", [True, 5], 5),
    ],
)
def test_total_over_cells_that_are_no_numbers_is_a_value(kind: str | None, values: list[Any], total: Any) -> None:
    assert total_of(values, kind) == total


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (None, [1, 2.5, Digits("3.10"), None]),
        ("number", ["1", "2.50", "n/a", ""]),
        ("currency", ["1", 2]),
        ("percent", ["10%", 0.5]),
    ],
)
def test_total_over_cells_that_are_numbers_is_a_formula(kind: str | None, values: list[Any]) -> None:
    assert total_of(values, kind) == f"=SUBTOTAL(109,B2:B{len(values) + 1})"


@pytest.mark.parametrize(
    ("values", "warnings"),
    [
        (["1.50", None, "", "  ", 3], []),
        (["1.50", "n/a"], ["the total of amount leaves out 1 value that is not a number"]),
        (["1,234.50", "-", [1], True, 2], ["the total of amount leaves out 4 values that are not numbers"]),
        ([float("nan"), Digits("1e999"), "1e999", 2], ["the total of amount leaves out 3 values that are not numbers"]),
        (["x"] * 600, ["the total of amount leaves out 600 values that are not numbers"]),
    ],
)
def test_value_that_is_not_in_the_total_is_a_warning(values: list[Any], warnings: list[str]) -> None:
    assert made(values)[1] == warnings


def test_total_over_several_sheets_is_exact_on_the_last() -> None:
    data, warnings = made(["12345678901234567.5", "?", *["0.5"] * 30], sheet_rows=12)
    assert len(openpyxl.load_workbook(io.BytesIO(data)).worksheets) == 4
    assert last_cell(data) == "12345678901234582.5"
    assert warnings == ["the total of amount leaves out 1 value that is not a number"]


def test_files_of_one_table_have_totals_and_share_a_warning() -> None:
    import zipfile

    source, notes = table_of(["1.50", "x", "2.50", "y"]), Notes()
    data = b"".join(render(Output("excel", rows_per_file=2), [source], 4, notes))
    archive = zipfile.ZipFile(io.BytesIO(data))
    assert [last_cell(archive.read(name)) for name in archive.namelist()] == [1.5, 2.5]
    assert notes.warnings() == ["the total of amount leaves out 2 values that are not numbers"]


NUMBERS = st.one_of(
    st.integers(-(10**20), 10**20),
    st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**18), max_value=10**18).map(str),
    st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**9), max_value=10**9).map(
        lambda number: Digits(str(number))
    ),
    st.sampled_from(["1e300", Digits("1e-300"), "+5", ".5", "5.", "0.00", "-0", None, "", " 7 "]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(NUMBERS, max_size=40), st.integers(1, 40), st.sampled_from([None, "number", "string"]))
def test_any_numbers_in_any_blocks_have_the_exact_sum(values: list[Any], block: int, kind: str | None) -> None:
    rows = [{"a": value} for value in values]
    writers = [RowWriter([Column("a", 1, kind, summed=True)]) for _ in range(2)]
    for start in range(0, len(rows), block):
        writers[0].xml(rows[start : start + block], 1)
    for start in range(0, len(rows), BLOCK_ROWS):
        writers[1].xml(rows[start : start + BLOCK_ROWS], 1)
    with localcontext(prec=1000):
        texts = (bytes(each).decode() if isinstance(each, Digits) else str(each) for each in values if each)
        expected = sum(map(Decimal, texts), Decimal(0))
    (total,), (other,) = writers[0].sums, writers[1].sums
    assert total == other
    assert total is not None
    assert total.amount == expected
    assert Total.from_data(total.as_data()) == total


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(NUMBERS, st.booleans(), st.text(max_size=5), st.floats()), max_size=30), st.integers(0, 30))
@example([0, 2.225073858507e-311], 0)
@example([1.5, 2.225073858507e-311], 1)
def test_parts_of_a_column_add_up_to_the_whole(values: list[Any], cut: int) -> None:
    def total(part: list[Any]) -> Total:
        writer = RowWriter([Column("a", 1, summed=True)])
        for value in part:
            writer.xml([{"a": value}], 1)
        assert writer.sums[0] is not None
        return writer.sums[0]

    whole = RowWriter([Column("a", 1, summed=True)])
    if values:
        whole.xml([{"a": value} for value in values], 1)
    assert total(values[:cut]) + total(values[cut:]) == whole.sums[0]


RECALCULATED: list[tuple[str | None, list[Any], str]] = [
    (None, ["12.50", "7.55"], "20.05"),
    (None, [Digits("12345678901234567.00"), Digits("101021.60")], "12345678901335588.60"),
    ("number", ["12345678901234567", "-12345678901234560"], "7"),
    (None, [1, 2.5], "3.5"),
    (None, [True, 2.5], "2.5"),
    ("date", ["2026-11-16", None], "1899-12-30"),
    (None, [Digits("9e307"), Digits("9e307")], "1.8E+308"),
]


@pytest.mark.skipif(not shutil.which("soffice"), reason="LibreOffice is not installed")
def test_libreoffice_recalculates_to_the_same_totals(tmp_path: Path) -> None:
    keys = [f"c{number}" for number in range(len(RECALCULATED))]
    styles = [{"total": True, **({"type": kind} if kind else {})} for kind, _, _ in RECALCULATED]
    columns = [{"name": key, "style": style} for key, style in zip(keys, styles, strict=True)]
    rows = [dict(zip(keys, [values[at] for _, values, _ in RECALCULATED], strict=True)) for at in range(2)]
    path = tmp_path / "sheet.xlsx"
    path.write_bytes(b"".join(xlsx_chunks([TableRows(SheetTable(parse_template(columns)), keys, rows)])))
    command = ["soffice", f"-env:UserInstallation=file://{tmp_path}/profile", "--headless", "--convert-to"]
    command += ["csv:Text - txt - csv (StarCalc):44,34,76", "--outdir", str(tmp_path), str(path)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    shown = list(csv.reader(io.StringIO(path.with_suffix(".csv").read_text())))
    assert shown[-1] == [total for _, _, total in RECALCULATED]
