from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import time_machine
from openpyxl.cell.cell import MergedCell

from tests.support.exports.samples import SEED_TABLE, leaf, seed_rows
from tidegate.errors import BadTable
from tidegate.sheets.table import SheetTable, flat_rows, keys_of, parse_template
from tidegate.sheets.xlsx import TableRows, xlsx_chunks

Render = Callable[..., Any]

SEED_MERGES = """
A1:L1 A2:L2 A3:L3 A4:C8 D4:I4 D5:D8 E5:I5 E6:E8 F6:F8 G6:I6 G7:G8 H7:I7 J4:L4 J5:J8 K5:L5 K6:K8 L6:L8
A9:A14 B9:C10 B11:C14 A15:A22 B15:C17 B18:B22 C18:C19 C20:C22 A23:L23
"""


def source(table: SheetTable, rows: list[dict[str, Any]]) -> TableRows:
    return TableRows(table, keys_of(rows), rows)


def merges(sheet: Any) -> set[str]:
    return {str(merged) for merged in sheet.merged_cells.ranges}


def test_documented_example_has_its_layout(render: Render) -> None:
    sheet = render(source(SEED_TABLE, seed_rows())).active

    assert merges(sheet) == set(SEED_MERGES.split())
    at: dict[str, Any] = {
        "A1": "员工信息表",
        "D4": "人员",
        "D5": "姓名",
        "H7": "室外",
        "I8": "空中",
        "K5": "小区",
        "L6": "楼盘",
    }
    at |= {"A9": "云研发", "B11": "后端", "A15": "线下", "B18": "智能设备", "C20": "大屏", "D9": "张三", "E22": 32}
    assert {ref: sheet[ref].value for ref in at} == at
    assert sheet["A23"].value == "负责人：linvanda        签名：        "
    assert [sheet.row_dimensions[row].height for row in (1, 2, 3, 23)] == [36, 42, 28, 28]


def test_documented_example_has_its_styles(render: Render) -> None:
    sheet = render(source(SEED_TABLE, seed_rows())).active

    title, head, corner, data, footer = (sheet[ref] for ref in ("A1", "G7", "A4", "L22", "A23"))
    assert (title.font.size, title.font.bold, title.alignment.horizontal) == (22, True, "center")
    assert title.border.left.style is None
    assert sheet["A2"].alignment.wrap_text
    assert (head.font.bold, head.fill.start_color.rgb, head.alignment.horizontal) == (True, "FFDFDFDF", "center")
    assert corner.fill.start_color.rgb == "FFDFDFDF"
    assert sheet["A3"].alignment.horizontal == footer.alignment.horizontal == "right"
    for row in sheet.iter_rows(min_row=2, max_row=22):
        cells = [cell for cell in row if not isinstance(cell, MergedCell)]
        assert {side.style for cell in cells for side in (cell.border.left, cell.border.top)} <= {"thin"}
    assert data.border.right.style == data.border.bottom.style == "thin"
    assert footer.border.top.style is None


def test_sheet_has_its_print_setup(render: Render) -> None:
    sheet = render(source(SEED_TABLE, seed_rows())).active
    assert (int(sheet.page_setup.paperSize), sheet.page_setup.orientation) == (9, "landscape")
    assert (sheet.print_title_rows, sheet.print_title_cols) == ("$4:$8", "$A:$C")
    assert sheet.print_area.endswith("$A$1:$L$23")

    several = render(source(SEED_TABLE, seed_rows()), source(SheetTable(), [{"a": 1}])).active
    assert several.page_setup.orientation == "portrait"
    assert several.page_setup.fitToHeight == 0
    assert (several.print_title_rows, several.oddFooter.center.text) == (None, "&P / &N")


def test_several_wide_tables_are_printed_in_landscape(render: Render) -> None:
    wide, narrow = {f"a rather long name {n}": n for n in range(9)}, {"a": 1}
    both = render(source(SheetTable(), [narrow]), source(SheetTable(), [wide])).active
    assert both.page_setup.orientation == "landscape"
    tabs = render(source(SheetTable(), [narrow]), source(SheetTable(), [wide]), multi_type="tab")
    assert [sheet.page_setup.orientation for sheet in tabs] == ["portrait", "landscape"]
    assert [sheet.print_title_rows for sheet in tabs] == ["$1:$1", "$1:$1"]


def test_tables_too_large_for_one_page_start_a_page_each(render: Render) -> None:
    long, short = source(SheetTable(), [{"a": 1}] * 40), source(SheetTable(), [{"b": 1}] * 3)
    assert [page_break.id for page_break in render(long, short, short).active.row_breaks.brk] == [44, 51]
    assert render(short, short).active.row_breaks.brk == []


def test_without_template_keys_are_columns_and_nothing_is_merged(render: Render) -> None:
    sheet = render(source(SheetTable(title="T", footer={"k": "v"}), [{"only": 1}])).active

    assert merges(sheet) == set()
    assert [row[0] for row in sheet.values] == ["T", "only", 1, "k：v"]


def test_both_row_head_forms_give_the_same_sheet(render: Render) -> None:
    flat = seed_rows()
    grouped: dict[str, list[dict[str, Any]]] = {}
    for row in flat:
        grouped.setdefault(row["_row_head_"], []).append({key: row[key] for key in row if key != "_row_head_"})

    from_flat = render(source(SEED_TABLE, list(reversed(flat))[::-1])).active
    from_grouped = render(source(SEED_TABLE, flat_rows(grouped))).active

    assert list(from_flat.values) == list(from_grouped.values)
    assert merges(from_flat) == merges(from_grouped)


def test_leaf_gets_blank_rows_or_is_extended(render: Render) -> None:
    rows = [row for row in seed_rows() if row["name"] != "李四"]
    rows += [{"_row_head_": "os", "name": f"加{n}"} for n in range(2)]
    sheet = render(source(SEED_TABLE, rows)).active

    assert [sheet.cell(row, 4).value for row in range(9, 12)] == ["张三", None, "王五"]
    assert [sheet.cell(row, 4).value for row in range(15, 21)] == ["周九", "吴十", "郑一", "加0", "加1", "冯二"]
    assert {"A9:A14", "A15:A24", "B15:C19", "B20:B24", "C20:C21", "C22:C24", "A25:L25"} <= merges(sheet)


@pytest.mark.parametrize(("row", "message"), [({"_row_head_": "sales"}, "'sales'"), ({"name": "x"}, "no _row_head_")])
def test_unknown_row_head_is_refused_by_name(render: Render, row: dict[str, Any], message: str) -> None:
    with pytest.raises(BadTable, match=message):
        render(source(SEED_TABLE, [row]))


def test_leaf_styles_reach_the_cells(render: Render) -> None:
    style = {"width": 96, "align": "center", "color": "FF0000", "bg_color": "yellow", "bold": 1, "type": "number"}
    template = parse_template([leaf("金额", "amount", style=style), leaf("号", "no", style={"type": "string"})])
    table = SheetTable(template, default_width=48, default_height=20)
    sheet = render(source(table, [{"amount": "12.50", "no": 7}, {"amount": "n/a", "no": "007"}])).active

    cell = sheet["A2"]
    assert (cell.value, cell.alignment.horizontal, cell.font.bold) == (12.5, "center", True)
    assert (cell.font.color.rgb, cell.fill.start_color.rgb) == ("FFFF0000", "FFFFFF00")
    assert [sheet["A3"].value, sheet["B2"].value, sheet["B3"].value] == ["n/a", "7", "007"]
    assert sheet["B2"].number_format == "@"
    widths = [round(sheet.column_dimensions[col].width, 2) for col in "AB"]
    assert widths == [17.57, 8.43]
    assert sheet.row_dimensions[2].height == 20


def test_page_puts_three_blank_rows_between_tables(render: Render) -> None:
    first = SheetTable(title="一", footer={"签名": "x"})
    sheet = render(source(first, [{"a": 1, "b": 2}]), source(SheetTable(title="二"), [{"c": 3, "d": 4}])).active

    column = [row[0] for row in sheet.values]
    assert column == ["一", "a", 1, "签名：x", None, None, None, "二", "c", 3]
    assert merges(sheet) == {"A1:B1", "A4:B4", "A8:B8"}
    assert sheet.print_area.endswith("$A$1:$B$10")


def test_tab_gives_each_table_a_sheet(render: Render) -> None:
    tables = [source(SheetTable(title=title), [{"a": 1}]) for title in ("销售/日报", "销售/日报", "")]
    book = render(*tables, multi_type="tab")

    assert book.sheetnames == ["销售 日报", "销售 日报 2", "Sheet3"]
    assert all(sheet["A2" if sheet.title != "Sheet3" else "A1"].value == "a" for sheet in book)


def test_new_sheet_past_the_limit_repeats_the_heads(render: Render) -> None:
    table = replace(SEED_TABLE, template=parse_template(None), summary="", header="")
    rows = [{"n": number, "m": "x"} for number in range(20)]
    book = render(source(table, rows), sheet_rows=10)

    sheets = [list(sheet.values) for sheet in book]
    assert [len(sheet) for sheet in sheets] == [9, 9, 9]
    assert all(sheet[0][0] == "员工信息表" and sheet[1] == ("n", "m") for sheet in sheets)
    assert [row[0] for sheet in sheets for row in sheet if isinstance(row[0], int)] == list(range(20))
    assert [str(sheet[-1][0])[:3] for sheet in sheets] == ["6", "13", "负责人"]
    assert "A9:B9" in merges(book.worksheets[2])


def test_rows_that_fill_a_sheet_exactly_need_no_second(render: Render) -> None:
    assert len(render(source(SheetTable(), [{"n": n} for n in range(9)]), sheet_rows=10).sheetnames) == 1


def test_table_that_does_not_fit_below_starts_a_new_sheet(render: Render) -> None:
    first, second = source(SheetTable(), [{"n": n} for n in range(5)]), source(SheetTable(), [{"m": 1}])
    assert len(render(first, second, sheet_rows=10).sheetnames) == 2


def test_row_head_table_larger_than_a_sheet_is_refused(render: Render) -> None:
    with pytest.raises(BadTable, match="more than 11 rows, which do not fit on one sheet"):
        render(source(SEED_TABLE, seed_rows()), sheet_rows=20)


def test_workbook_without_rows_opens(render: Render) -> None:
    assert list(render(TableRows(SheetTable(), [], [])).active.values) == []
    assert list(render(TableRows(SheetTable(parse_template({"a": "甲"})), [], [])).active.values) == [("甲",)]


def wide(rows: int, at: int, value: Any) -> list[dict[str, Any]]:
    return [{"n": value if row == at else 1, "t": "x"} for row in range(rows)]


@pytest.mark.parametrize(
    ("value", "style", "width"),
    [
        (12345678901234, {"type": "number"}, 16),
        (123456789.25, {"type": "currency"}, 21),
        ("123456789.25", {"type": "currency"}, 21),
        ("123456.75%", {"type": "percent"}, 16),
        (123456789, {"format": '#,##0.00" 元"'}, 21),
        # A number without a format is rounded to the width, and a text is cut at its neighbour.
        (12345678901234, {}, 8.43),
        ("x" * 30, {}, 8.43),
        (123456789.25, {"type": "currency", "width": 100}, 18.33),
    ],
    ids=str,
)
@pytest.mark.parametrize("nulls", [False, True])
def test_column_is_as_wide_as_its_widest_number(
    render: Render, value: Any, style: dict[str, Any], width: float, nulls: bool
) -> None:
    """It is far beyond the rows that are measured first."""
    rows = wide(900, 777, value)
    if nulls:
        rows[778]["n"] = rows[3]["n"] = None
    table = SheetTable(parse_template([leaf("N", "n", style=style), leaf("T", "t")]))
    sheet = render(source(table, rows)).active
    assert sheet.column_dimensions["A"].width == pytest.approx(width, abs=0.01)
    assert sheet.column_dimensions["B"].width == pytest.approx(8.43)


def test_column_is_as_wide_as_its_total(render: Render) -> None:
    table = SheetTable(parse_template([leaf("N", "n", style={"type": "currency", "total": True})]))
    sheet = render(source(table, [{"n": 99_999_999} for _ in range(900)])).active
    # 89,999,999,100.00 in bold.
    assert sheet.column_dimensions["A"].width >= 18


def test_sheet_is_as_wide_as_its_own_rows_need(render: Render) -> None:
    table = SheetTable(parse_template([leaf("N", "n", style={"type": "number"})]))
    book = render(source(table, wide(900, 777, 12345678901234)), sheet_rows=501)
    assert [sheet.column_dimensions["A"].width for sheet in book] == [pytest.approx(8.43), 16]


def test_tables_below_each_other_share_the_widest_columns(render: Render) -> None:
    table = SheetTable(parse_template([leaf("N", "n", style={"type": "number"})]))
    sheet = render(*(source(table, wide(400, 377, number)) for number in (123456789, 12345678901234))).active
    assert sheet.column_dimensions["A"].width == 16


def test_widths_over_excels_limit_are_cut(render: Render) -> None:
    table = SheetTable(parse_template([leaf("N", "n", style={"width": 1400})]), default_width=1400)
    assert render(source(table, [{"n": 1}])).active.column_dimensions["A"].width == 255


def test_no_column_is_measured_without_auto_width(render: Render) -> None:
    template = parse_template([leaf("N", "n", style={"type": "number"})])
    sheet = render(source(SheetTable(template, auto_width=False), wide(300, 277, 12345678901234))).active
    assert not dict(sheet.column_dimensions)


def test_equal_rows_give_equal_bytes() -> None:
    made = []
    for day in (16, 17):
        with time_machine.travel(f"2026-11-{day}"):
            made.append(b"".join(xlsx_chunks([source(SEED_TABLE, seed_rows())])))
    assert made[0] == made[1]


def test_rows_are_as_high_as_their_wrapped_texts(render: Render) -> None:
    leaf = {"title": "Note", "name": "note", "style": {"wrap": True, "width": 105}}
    table = SheetTable(template=parse_template([{"title": "Id", "name": "id"}, leaf]))
    texts = ["short", "x" * 45, "两" * 30, "a\nb\nc", None, "y" * 3000]
    sheet = render(source(table, [{"id": n, "note": text} for n, text in enumerate(texts)])).active
    width = sheet.column_dimensions["B"].width
    assert 18 < width < 22
    assert [sheet.row_dimensions[row].height for row in range(2, 8)] == [None, 45, 60, 45, None, 409]

    with_height = replace(table, default_height=20)
    sheet = render(source(with_height, [{"id": 1, "note": "x" * 45}])).active
    assert sheet.row_dimensions[2].height == 20
