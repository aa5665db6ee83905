"""Formulas and ranges of a template when row 5 is repeated."""

from __future__ import annotations

import pytest

from tidegate.sheets.fill_refs import (
    Block,
    Formulas,
    MovingRow,
    RowMap,
    column_number,
    copied,
    moved_area,
    moved_areas,
    moved_cell,
)
from tidegate.sheets.table import letters

ROWS = RowMap([Block("", 5, 5)], {"": 100})
FORMULAS = Formulas({"report": ROWS})


@pytest.mark.parametrize(
    ("written", "moved"),
    [
        ("SUM(B5:B5)", "SUM(B5:B104)"),
        ("SUM($B$5:$B$5)", "SUM($B$5:$B$104)"),
        ("SUM(B4:B6)", "SUM(B4:B105)"),
        ("SUM(B5)", "SUM(B5:B104)"),
        ("sum( B5 )", "sum( B5:B104 )"),
        ('SUMIF(A5,">1",B5)', 'SUMIF(A5:A104,">1",B5:B104)'),
        ("SUM(B5*2)", "SUM(B5*2)"),
        ("SUMPRODUCT(B5*C5)", "SUMPRODUCT(B5:B104*C5:C104)"),
        ("SUMPRODUCT((MONTH(A5)=1)*B5,C5)", "SUMPRODUCT((MONTH(A5:A104)=1)*B5:B104,C5:C104)"),
        # Files have the names of newer functions with a prefix.
        ('_xlfn.MAXIFS(B5,A5,"x")', '_xlfn.MAXIFS(B5:B104,A5:A104,"x")'),
        ("_xlfn.STDEV.S(B5)+_xlfn.VAR.P(B5)", "_xlfn.STDEV.S(B5:B104)+_xlfn.VAR.P(B5:B104)"),
        ("_xlfn.RANK.EQ(9,B5)+RANK.AVG(9,B5)", "_xlfn.RANK.EQ(9,B5:B104)+RANK.AVG(9,B5:B104)"),
        ("_xlfn._xlws.SORT(B5)", "_xlfn._xlws.SORT(B5:B104)"),
        ("COUNTA(_xlfn.UNIQUE(A5))", "COUNTA(_xlfn.UNIQUE(A5:A104))"),
        ('_xlfn.TEXTJOIN(",",TRUE,A5)', '_xlfn.TEXTJOIN(",",TRUE,A5:A104)'),
        ("_xlfn.XLOOKUP(9,A5,B5)", "_xlfn.XLOOKUP(9,A5:A104,B5:B104)"),
        ("LOOKUP(9,A5,B5)", "LOOKUP(9,A5:A104,B5:B104)"),
        ("PERCENTILE(B5,0.9)+QUARTILE.INC(B5,1)", "PERCENTILE(B5:B104,0.9)+QUARTILE.INC(B5:B104,1)"),
        ("INDEX(B5,3)+VLOOKUP(9,A5,1)", "INDEX(B5:B104,3)+VLOOKUP(9,A5:A104,1)"),
        ("ROWS(B5)+FREQUENCY(B5,C5)", "ROWS(B5:B104)+FREQUENCY(B5:B104,C5:C104)"),
        ("CORREL(B5,C5)+SUMX2MY2(B5,C5)", "CORREL(B5:B104,C5:C104)+SUMX2MY2(B5:B104,C5:C104)"),
        ("NPV(0.1,B5)+IRR(B5)", "NPV(0.1,B5:B104)+IRR(B5:B104)"),
        ("ROUND(B5,2)+TEXT(B5,2)", "ROUND(B5,2)+TEXT(B5,2)"),
        ("B5*2", "B5*2"),
        ("B6+B4", "B105+B4"),
        ("Report!B6", "Report!B105"),
        ("'report'!B6:C9", "'report'!B105:C108"),
        ("Other!B6", "Other!B6"),
        ("LOG10(B6)", "LOG10(B105)"),
        ('"B6"&B6', '"B6"&B105'),
        ('"say ""B6"""&B6', '"say ""B6"""&B105'),
        ("Table1[B6]+Table1[[#This Row],[B6]]", "Table1[B6]+Table1[[#This Row],[B6]]"),
        ("B:B", "B:B"),
        ("6:8", "105:107"),
        ("$5:$5", "$5:$104"),
        ("MAX(B6,TAXB6,B6.x)", "MAX(B105,TAXB6,B6.x)"),
        ("SUM({1,2,3})", "SUM({1,2,3})"),
        ("A1:A1048576", "A1:A1048576"),
        ("Sheet1:Sheet3!B6", "Sheet1:Sheet3!B6"),
    ],
)
def test_formula_outside_the_list_follows_its_cells(written: str, moved: str) -> None:
    assert FORMULAS.text(written, "Report") == moved


def test_formula_of_another_sheet_follows_the_list() -> None:
    assert FORMULAS.text("SUM(Report!B5:B5)+B6", "Other") == "SUM(Report!B5:B104)+B6"


def test_single_cell_of_a_chart_means_the_whole_list() -> None:
    assert FORMULAS.text("Report!$B$5", "", whole=True) == "Report!$B$5:$B$104"


@pytest.mark.parametrize(
    ("written", "pieces"),
    [
        ("B5*C5", ["B", MovingRow(5), "*", "C", MovingRow(5)]),
        ("B5*C2", ["B", MovingRow(5), "*", "C", "2"]),
        ("F4+B5", ["F", MovingRow(4), "+", "B", MovingRow(5)]),
        ("C4*B5", ["C", "4", "*", "B", MovingRow(5)]),
        ("SUM(B$5:B5)", ["SUM", "(", "B", "$5", ":B", MovingRow(5), ")"]),
        ("B5/SUM(B$5:B$5)", ["B", MovingRow(5), "/", "SUM", "(", "B", "$5", ":B", "$104", ")"]),
        ("SUM(B5)", ["SUM", "(", "B", MovingRow(5), ")"]),
        ("SUMPRODUCT(B5*B$5)", ["SUMPRODUCT", "(", "B", MovingRow(5), "*", "B", "$5", ":B$104", ")"]),
        ("B5/B7", ["B", MovingRow(5), "/", "B", "106"]),
    ],
)
def test_repeated_formula_refers_to_its_own_repetition(written: str, pieces: list[object]) -> None:
    made = FORMULAS.pieces(written, "Report", 5, column_number("F"))

    assert [piece for piece in made if piece != ""] == pieces


def test_conditional_format_keeps_cells_outside_the_list() -> None:
    assert FORMULAS.text("AND(B5>C2,B5>Other!A1)", "Report", at=5) == "AND(B5>C$2,B5>Other!A$1)"


def test_rows_below_two_lists_move_by_both() -> None:
    rows = RowMap([Block("a", 5, 6), Block("b", 9, 9)], {"a": 10, "b": 0})

    assert [rows.start(row) for row in (4, 5, 6, 7, 9, 10)] == [4, 5, 6, 25, 27, 28]
    assert [rows.end(row) for row in (5, 6, 9)] == [23, 24, 27]


def test_ranges_and_cells_move() -> None:
    assert moved_area("A4:C5", ROWS) == "A4:C104"
    assert moved_area("B5", ROWS) == "B5:B104"
    assert moved_areas("B5 D6:D8 A:A", ROWS) == "B5:B104 D105:D107 A:A"
    assert moved_cell("B6", ROWS) == "B105"
    assert moved_cell("B5", ROWS) == "B5"


def test_shared_formula_is_copied_as_excel_does() -> None:
    assert copied("A1+$B$2*C$3+SUM(D4:E5)", 2, 1) == "B3+$B$2*D$3+SUM(E6:F7)"


@pytest.mark.parametrize("name", ["A", "Z", "AA", "AZ", "ZZ", "AAA", "XFD"])
def test_columns_have_letters_and_numbers(name: str) -> None:
    assert letters(column_number(name)) == name
