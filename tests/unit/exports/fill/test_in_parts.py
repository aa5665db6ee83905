"""A template filled in parts by several writers equals, part by part, one filled by a single writer."""

from __future__ import annotations

import io
import zipfile
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openpyxl.styles import Font

from tests.support.exports.fill import dashboard, sheet_of, tables_of
from tidegate.aws.s3 import StoredPiece
from tidegate.sheets.files import FragmentWriter, Measure
from tidegate.sheets.fill import Filling, can_be_in_parts, filled_chunks, values_of
from tidegate.sheets.fill_template import FillTemplate
from tidegate.sheets.joined import JoinedFill, SheetRows
from tidegate.sheets.xlsx import TableRows


def _merged(sheet: Any) -> None:
    """Two rows a repetition, a merged cell in them, a formula of the row, a running total, a merge below."""
    sheet.merge_cells("A3:A4")
    sheet.merge_cells("A8:C8")
    sheet["D3"] = "=C3*2"
    sheet["E3"] = "=E1+C3"
    sheet["B4"] = "{.note} of {who}"
    sheet["B4"].font = Font(bold=True)


PLAIN = {"A1": "{who}", "A3": "{.id}", "B3": "{.name}", "C3": "{.amount}", "C6": "=SUM(C3:C3)", "A8": "{who}"}
TEMPLATES = {
    "last": sheet_of({"A1": "{who}", "A2": "{.id}", "B2": "{.name}", "C2": "{.amount}", "D2": "=C2*2"}),
    "below": sheet_of(PLAIN),
    "merged": sheet_of(PLAIN, _merged),
    "dashboard": dashboard(),
}


def in_parts(template: bytes, rows: list[Any], cuts: list[int], block: int) -> bytes:
    """The file of several workers, each of which makes its own writers from the order."""
    store, fragments = dict[str, bytes](), list[tuple[StoredPiece, Measure]]()

    def joined() -> JoinedFill:
        tables = [TableRows(each.table, each.keys, ()) for each in tables_of(rows)]
        filling = Filling(FillTemplate(template), values_of({"who": "A & B"}, [each.table for each in tables]))
        assert can_be_in_parts(filling, tables)
        return JoinedFill(filling, tables)

    def keep(data: bytearray, measure: Measure) -> None:
        key = str(len(store))
        store[key] = bytes(data)
        fragments.append((StoredPiece(key, "", len(data)), measure))

    edges = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    for first, past in pairwise(edges):
        worker, writer = joined(), FragmentWriter(keep, packed=True)
        for at in range(first, past, block):
            part = rows[at : min(at + block, past)]
            writer.add(worker.tables[0].text(part, at), len(part))
        writer.end()
    made = [[SheetRows(fragments)] if fragments else []]
    file = joined()
    assert file.unfit(made) == ""
    return b"".join(store[piece.key] if isinstance(piece, StoredPiece) else piece for piece in file.pieces(made, []))


def alone(template: bytes, rows: list[Any]) -> bytes:
    tables = tables_of(rows)
    filling = Filling(FillTemplate(template), values_of({"who": "A & B"}, [each.table for each in tables]))
    return b"".join(filled_chunks(filling, tables))


def assert_equal_parts(joined: bytes, single: bytes) -> None:
    joined_zip, single_zip = (zipfile.ZipFile(io.BytesIO(data)) for data in (joined, single))
    assert joined_zip.testzip() is None
    assert joined_zip.namelist() == single_zip.namelist()
    for name in single_zip.namelist():
        assert joined_zip.read(name) == single_zip.read(name), name


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(sorted(TEMPLATES)),
    count=st.integers(0, 60),
    cuts=st.lists(st.integers(0, 60), max_size=6),
    block=st.integers(1, 20),
)
def test_any_cuts_give_the_file_of_one_writer(kind: str, count: int, cuts: list[int], block: int) -> None:
    rows = [
        {"id": n, "name": f"<{n}>" if n % 7 else None, "amount": n / 4, "note": "é" * (n % 3)} for n in range(count)
    ]
    assert_equal_parts(in_parts(TEMPLATES[kind], rows, cuts, block), alone(TEMPLATES[kind], rows))


@pytest.mark.parametrize(
    ("cells", "fits"),
    [
        ({"A1": "{.id}", "B1": "=A1*2"}, True),
        ({"A1": "{.id}", "A3": "=SUM(A1)"}, True),
        # Formulas of the repeated row that need the number of rows.
        ({"A1": "{.id}", "B1": "=A1/SUM(A$1:A$1)"}, False),
        ({"A1": "{.id}", "B1": "=A1*C5", "C5": 7}, False),
        ({"A1": "no list"}, False),
    ],
)
def test_only_rows_that_need_no_count_are_written_in_parts(cells: dict[str, Any], fits: bool) -> None:
    tables = tables_of([{"id": 1}])
    assert can_be_in_parts(Filling(FillTemplate(sheet_of(cells)), {}), tables) is fits


def test_two_lists_are_in_parts_only_on_sheets_of_their_own() -> None:
    tables = tables_of([{"id": 1}], [{"id": 2}])
    below = sheet_of({"A1": "{1.id}", "A3": "{2.id}"})

    def beside(sheet: Any) -> None:
        sheet.parent.create_sheet("Other")["B2"] = "{2.id}"

    assert not can_be_in_parts(Filling(FillTemplate(below), {}), tables)
    assert can_be_in_parts(Filling(FillTemplate(sheet_of({"A1": "{1.id}"}, beside)), {}), tables)
