"""The file opens without a repair prompt in readers that share no code with the writer."""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import openpyxl
import pytest
import python_calamine

from tests.support.exports.samples import SEED_TABLE, mixed_rows, seed_rows
from tidegate.sheets.table import SheetTable, keys_of, parse_template
from tidegate.sheets.xlsx import TableRows, xlsx_chunks

ROWS = 1500
Grid = list[list[str]]


def by_openpyxl(path: Path) -> Grid:
    book = openpyxl.load_workbook(path, read_only=True)
    return [["" if cell is None else str(cell) for cell in row] for row in book.worksheets[0].values]


def by_calamine(path: Path) -> Grid:
    rows = python_calamine.CalamineWorkbook.from_path(str(path)).get_sheet_by_index(0).to_python()
    return [[str(int(c)) if isinstance(c, float) and c.is_integer() else str(c) for c in row] for row in rows]


def by_libreoffice(path: Path) -> Grid:
    command = ["soffice", f"-env:UserInstallation=file://{path.parent}/profile", "--headless"]
    command += ["--convert-to", "csv:Text - txt - csv (StarCalc):44,34,76", "--outdir", str(path.parent), str(path)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return list(csv.reader(io.StringIO(path.with_suffix(".csv").read_text())))


READERS = [by_openpyxl, by_calamine, *([by_libreoffice] if shutil.which("soffice") else [])]


@pytest.fixture(scope="module")
def workbook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("xlsx") / "mixed.xlsx"
    seed = TableRows(SEED_TABLE, keys_of(seed_rows()), seed_rows())
    mixed = TableRows(SheetTable(title="订单"), keys_of(mixed_rows(1)), mixed_rows(ROWS))
    path.write_bytes(b"".join(xlsx_chunks([mixed, seed])))
    return path


@pytest.mark.parametrize("read", READERS, ids=lambda reader: reader.__name__)
def test_all_readers_see_every_cell(workbook: Path, read: Callable[[Path], Grid]) -> None:
    grid = read(workbook)

    expected = [[str(value) for value in row.values()] for row in mixed_rows(ROWS)]
    numbers = {0, 5, 6, 7}
    cells = [row[:10] for row in grid[2 : 2 + ROWS]]
    assert [[c for i, c in enumerate(row) if i not in numbers] for row in cells] == [
        [c for i, c in enumerate(row) if i not in numbers] for row in expected
    ]
    for i in numbers:
        assert [float(row[i]) for row in cells] == [float(row[i]) for row in expected]
    assert grid[0][0] == "订单"
    assert ["".join(row[:1]) for row in grid[2 + ROWS : 6 + ROWS]] == ["", "", "", "员工信息表"]
    assert grid[-1][0].startswith("负责人：linvanda")


def test_frame_needs_no_lxml(tmp_path: Path) -> None:
    """The Lambda layer has no lxml, which the tests use; openpyxl then writes XML in another way."""
    path = tmp_path / "plain.xlsx"
    code = (
        "import sys, pathlib; from tests.support.exports.samples import SEED_TABLE, seed_rows;"
        "from tidegate.sheets.xlsx import TableRows, xlsx_chunks;"
        "pathlib.Path(sys.argv[1]).write_bytes(b''.join(xlsx_chunks([TableRows(SEED_TABLE, [], seed_rows())])))"
    )
    env = os.environ | {"OPENPYXL_LXML": "False", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, env=env)

    with_lxml = tmp_path / "lxml.xlsx"
    with_lxml.write_bytes(b"".join(xlsx_chunks([TableRows(SEED_TABLE, [], seed_rows())])))
    assert by_calamine(path) == by_calamine(with_lxml)
    merged = [openpyxl.load_workbook(each).worksheets[0].merged_cells.ranges for each in (path, with_lxml)]
    assert {str(m) for m in merged[0]} == {str(m) for m in merged[1]}


def shown_by_libreoffice(path: Path) -> Grid:
    """Returns the cells as LibreOffice shows them, not only as they are stored."""
    command = ["soffice", f"-env:UserInstallation=file://{path.parent}/profile", "--headless"]
    command += ["--convert-to", "html", "--outdir", str(path.parent), str(path)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    text = path.with_suffix(".html").read_text(encoding="utf-8")
    rows = re.findall(r"<tr.*?</tr>", text, re.DOTALL)
    return [[re.sub(r"<[^>]*>", "", cell).strip() for cell in re.findall(r"<td.*?</td>", row)] for row in rows]


@pytest.mark.parametrize(
    "read", [*READERS, *([shown_by_libreoffice] if shutil.which("soffice") else [])], ids=lambda reader: reader.__name__
)
def test_booleans_are_booleans_in_every_reader(tmp_path: Path, read: Callable[[Path], Grid]) -> None:
    first = {"plain": True, "mixed": True, "number": False, "typed": "yes"}
    second = {"plain": False, "mixed": "text", "number": 2.5, "typed": False}
    kinds = {"number": {"type": "number", "format": "0.0"}, "typed": {"type": "boolean"}}
    template = parse_template([{"name": name, "title": name, "style": kinds.get(name, {})} for name in first])
    untyped = TableRows(SheetTable(), list(first), [first | {"typed": True}, second])
    typed = TableRows(SheetTable(template=template), list(first), [first, second])
    path = tmp_path / "booleans.xlsx"
    path.write_bytes(b"".join(xlsx_chunks([untyped, typed])))
    found = [[cell.upper() for cell in row] for row in read(path) if row[:1] and row[0].upper() in ("TRUE", "FALSE")]
    assert found == [["TRUE", "TRUE", "FALSE", "TRUE"], ["FALSE", "TEXT", "2.5", "FALSE"]] * 2
