"""Filled templates, read back by openpyxl and calamine."""

from __future__ import annotations

import io
import re
import zipfile
from datetime import datetime
from typing import Any

import pytest
import xlsxwriter
from openpyxl import Workbook
from openpyxl.cell.rich_text import CellRichText, TextBlock
from openpyxl.cell.text import InlineFont
from openpyxl.chart import BarChart, Reference
from openpyxl.comments import Comment
from openpyxl.formatting.rule import FormulaRule
from openpyxl.styles import Border, Font, PatternFill, Side
from openpyxl.workbook.defined_name import DefinedName
from openpyxl.worksheet.datavalidation import DataValidation
from openpyxl.worksheet.table import Table

from tests.support.exports.fill import (
    calamine_cells,
    cells,
    filled,
    names_of,
    opened,
    part,
    saved,
    sheet_of,
    tables_of,
    with_part,
)
from tidegate.errors import BadTable
from tidegate.sheets.files import Output, render
from tidegate.sheets.fill import Filling, filled_chunks, unfilled, values_of
from tidegate.sheets.fill_template import FillTemplate
from tidegate.sheets.table import SheetTable
from tidegate.sheets.values import read_exact
from tidegate.sheets.xlsx import TableRows

ORDERS = [{"id": 1, "name": "Apples", "amount": 10.5}, {"id": 2, "name": "Pears & plums", "amount": 20}]
INVOICE = {
    "A1": "Invoice {number} for {customer}",
    "B1": "{number}",
    "A3": "No",
    "B3": "What",
    "C3": "Amount",
    "A4": "{.id}",
    "B4": "{.name}",
    "C4": "{.amount}",
    "A5": "Total",
    "C5": "=SUM(C4:C4)",
    "A7": "Signed: {customer}",
}


# --- values, rows and what is below them


def test_values_and_rows_take_their_places() -> None:
    data = filled(sheet_of(INVOICE), ORDERS, values={"number": 7, "customer": "<ACME>"})

    assert cells(data) == [
        ["Invoice 7 for <ACME>", 7],
        [],
        ["No", "What", "Amount"],
        [1, "Apples", 10.5],
        [2, "Pears & plums", 20],
        ["Total", None, "=SUM(C4:C5)"],
        [],
        ["Signed: <ACME>"],
    ]
    assert calamine_cells(data)[3:5] == [[1.0, "Apples", 10.5], [2.0, "Pears & plums", 20.0]]


def test_empty_list_keeps_its_row_blank() -> None:
    def bordered(sheet: Any) -> None:
        sheet["C4"].border = Border(bottom=Side(style="thin"))
        sheet["D4"] = "=C4*2"
        sheet["E4"] = "pieces of {.name}"

    data = filled(sheet_of(INVOICE, bordered), [], values={"number": 7, "customer": "A"})

    assert cells(data)[3:5] == [[], ["Total", None, "=SUM(C4:C4)"]]
    assert opened(data)["Report"]["C4"].border.bottom.style == "thin"


def test_missing_values_and_columns_are_blank_and_warned_of() -> None:
    template = FillTemplate(sheet_of({"A1": "{who} and {when}", "A2": "{.id}", "B2": "{.nmae}"}))
    tables = tables_of(ORDERS)
    filling = Filling(template, values_of({"when": "now"}, [each.table for each in tables]))

    assert cells(b"".join(filled_chunks(filling, tables)))[0] == [" and now"]
    assert unfilled(filling, tables) == [
        "fill: nothing was given for {who}, {.nmae}, so these cells are empty",
    ]


def test_table_without_a_row_in_the_template_is_warned_of() -> None:
    template = FillTemplate(sheet_of({"A1": "{.id}"}))
    tables = tables_of(ORDERS, ORDERS)

    warning = "fill: the template repeats no row for table 2, so its rows are not in the file"
    assert unfilled(Filling(template, {}), tables) == [warning]


def test_header_footer_title_and_summary_are_values() -> None:
    table = SheetTable(title="Sales", summary="all", header={"Station": "North", "rate": 3}, footer={"Sum": "9"})

    assert values_of({"rate": 5}, [table]) == {
        "rate": 5,
        "Station": "North",
        "Sum": "9",
        "title": "Sales",
        "summary": "all",
    }


def test_escaped_braces_and_braces_of_no_placeholder_are_text() -> None:
    template = sheet_of({"A1": "\\{name} {name}", "A2": '{"a": 1} {} {a,b}', "A3": "\\{.id\\}", "A4": "{1,2}"})

    assert cells(filled(template, values={"name": "x"})) == [["{name} x"], ['{"a": 1} {} {a,b}'], ["{.id}"], ["{1,2}"]]


def test_column_may_be_named_by_its_title() -> None:
    template = sheet_of({"A1": "{.金额}", "B1": "{.id}"})

    assert cells(filled(template, ORDERS, columns={"id": "No", "amount": "金额"})) == [[10.5, 1], [20, 2]]


# --- types


def test_cell_that_is_only_a_placeholder_keeps_the_type() -> None:
    formats = {"A1": "yyyy-mm-dd", "B1": "#,##0.00", "C1": "0.0%", "D1": "@", "E1": "General", "F1": "General"}
    rows = read_exact(
        b'[{"a": "2026-11-18", "b": "1234.50", "c": "12.5%", "d": 42, "e": "0012", "f": true},'
        b'{"a": "no date", "b": 12345678901234567890, "c": 0.25, "d": "x", "e": 100.00, "f": null}]'
    )

    def formatted(sheet: Any) -> None:
        for cell, code in formats.items():
            sheet[cell].number_format = code

    data = filled(sheet_of({place: f"{{.{place[0].lower()}}}" for place in formats}, formatted), rows)

    assert cells(data) == [
        [datetime(2026, 11, 18), 1234.5, 0.125, "42", "0012", True],
        ["no date", "12345678901234567890", 0.25, "x", 100],
    ]
    assert '<c r="E2" s="0"><v>100.00</v></c>' in part(data, "xl/worksheets/sheet1.xml")
    assert [opened(data)["Report"][place].number_format for place in ("A2", "B2")] == ["yyyy-mm-dd", "#,##0.00"]


def test_text_is_put_together_from_several_placeholders() -> None:
    template = sheet_of({"A1": "{.name}: {.amount} ({unit})"})

    assert cells(filled(template, ORDERS, values={"unit": "EUR"})) == [
        ["Apples: 10.5 (EUR)"],
        ["Pears & plums: 20 (EUR)"],
    ]


def test_placeholder_split_over_rich_text_keeps_fonts() -> None:
    def rich(sheet: Any) -> None:
        bold = InlineFont(b=True)
        sheet["A1"] = CellRichText("Dear {cust", TextBlock(bold, "omer}"), TextBlock(bold, " and {.na"), "me}!")

    data = filled(sheet_of({}, rich), ORDERS, values={"customer": "ACME"})

    assert cells(data) == [["Dear ACME and Apples!"], ["Dear ACME and Pears & plums!"]]
    assert part(data, "xl/worksheets/sheet1.xml").count("<b") == 4


def test_inline_strings_and_cells_without_positions_are_found() -> None:
    def inline(_: str) -> str:
        return (
            '<?xml version="1.0"?><x:worksheet xmlns:x="http://schemas.openxmlformats.org/spreadsheetml/2006/main">'
            '<x:sheetData><x:row><x:c t="inlineStr"><x:is><x:t>{who}</x:t></x:is></x:c></x:row>'
            '<!-- <x:row> --><x:row><x:c t="inlineStr"><x:is><x:t><![CDATA[{.id}]]></x:t></x:is></x:c></x:row>'
            "</x:sheetData></x:worksheet>"
        )

    template = with_part(sheet_of({}), "xl/worksheets/sheet1.xml", inline)

    assert cells(filled(template, ORDERS, values={"who": "me"})) == [["me"], [1], [2]]


def test_part_in_utf16_is_read() -> None:
    def utf16(text: str) -> bytes:
        return text.replace("<worksheet", '<?xml version="1.0" encoding="UTF-16"?><worksheet', 1).encode("utf-16")

    template = with_part(sheet_of({"A1": "{.id}"}), "xl/worksheets/sheet1.xml", utf16)

    assert cells(filled(template, ORDERS)) == [[1], [2]]


# --- lists


def test_several_lists_on_one_sheet_and_on_several_sheets() -> None:
    book = Workbook()
    one, two = book.active, book.create_sheet("Two")
    assert one is not None
    one["A1"], one["A2"], one["B2"] = "{orders.id}", "=SUM(A1:A1)", "=SUM(A4:A4)"
    one["A4"], one["A5"] = "{2.id}", "=SUM(A4:A4)+SUM(Two!A3:A3)"
    two["A3"], two["A4"] = "{refunds.id}", "=SUM(A3:A3)"

    data = filled(saved(book), ORDERS, [{"id": 5}] * 3, [], titles=["orders", "", "refunds"])

    assert cells(data, "Sheet") == [
        [1],
        [2],
        ["=SUM(A1:A2)", "=SUM(A5:A7)"],
        [],
        [5],
        [5],
        [5],
        ["=SUM(A5:A7)+SUM(Two!A3:A3)"],
    ]
    assert cells(data, "Two") == [[], [], [], ["=SUM(A3:A3)"]]


def test_list_may_take_several_rows_of_the_template() -> None:
    def merged(sheet: Any) -> None:
        sheet.merge_cells("A2:A3")

    template = sheet_of({"A1": "top", "A2": "{.id}", "B2": "{.name}", "B3": "=A2", "A4": "=SUM(A2:A3)"}, merged)
    data = filled(template, ORDERS)

    assert cells(data) == [["top"], [1, "Apples"], [None, "=A2"], [2, "Pears & plums"], [None, "=A4"], ["=SUM(A2:A5)"]]
    assert {str(each) for each in opened(data)["Report"].merged_cells.ranges} == {"A2:A3", "A4:A5"}


def test_merged_cells_of_the_repeated_row_are_repeated() -> None:
    def merged(sheet: Any) -> None:
        for area in ("A1:D1", "B4:C4", "A7:C8", "E3:E5"):
            sheet.merge_cells(area)

    sheet = opened(filled(sheet_of(INVOICE, merged), [*ORDERS, *ORDERS]))["Report"]

    assert {str(each) for each in sheet.merged_cells.ranges} == {
        "A1:D1", "B4:C4", "B5:C5", "B6:C6", "B7:C7", "A10:C11", "E3:E8",
    }  # fmt: skip


def test_two_lists_in_one_row_are_refused() -> None:
    with pytest.raises(BadTable, match=r"row 1 of Report has placeholders of two lists, \{a\.…\} and \{b\.…\}"):
        FillTemplate(sheet_of({"A1": "{a.x}", "B1": "{b.x}"}))


def test_list_at_two_places_is_refused() -> None:
    with pytest.raises(BadTable, match=r"is in row 1 of Report and in row 5 of Report"):
        FillTemplate(sheet_of({"A1": "{.x}", "A5": "{.y}"}))


def test_unknown_list_is_refused_with_those_that_exist() -> None:
    with pytest.raises(BadTable, match=r"no table 'order': use one of .*\{orders\.…\}"):
        filled(sheet_of({"A1": "{order.id}"}), ORDERS, titles=["orders"])


def test_two_names_of_one_table_are_refused() -> None:
    with pytest.raises(BadTable, match=r"are the same table"):
        filled(sheet_of({"A1": "{.id}", "A3": "{1.id}"}), ORDERS)


def test_more_rows_than_a_sheet_has_are_refused() -> None:
    template = FillTemplate(sheet_of({"A1": "{.id}", "A9": "end"}))
    table = TableRows(SheetTable(), ["id"], [], 1_048_570)

    with pytest.raises(BadTable, match=r"needs 1048578 rows, but a sheet has 1048576.*rows_per_file"):
        b"".join(filled_chunks(Filling(template, {}), [table]))


def test_rows_per_file_fills_several_workbooks() -> None:
    template = FillTemplate(sheet_of({"A1": "{.id}", "A2": "=SUM(A1:A1)"}))
    rows = [{"id": number} for number in range(5)]
    output = Output("excel", rows_per_file=3)
    data = b"".join(render(output, [TableRows(SheetTable(), ["id"], rows, 5)], 5, filling=Filling(template, {})))

    archive = zipfile.ZipFile(io.BytesIO(data))
    assert [cells(archive.read(name)) for name in archive.namelist()] == [
        [[0], [1], [2], ["=SUM(A1:A3)"]],
        [[3], [4], ["=SUM(A1:A2)"]],
    ]


# --- what stays and what grows


def designed(sheet: Any) -> None:
    sheet.parent.defined_names["amounts"] = DefinedName("amounts", attr_text="Report!$C$4:$C$4")
    sheet.parent.defined_names["total"] = DefinedName("total", attr_text="Report!$C$5")
    rule = FormulaRule(formula=["C4>$C$5/2"], fill=PatternFill("solid", bgColor="FFFF00"))  # type: ignore[no-untyped-call]
    sheet.conditional_formatting.add("C4", rule)
    choice = DataValidation(type="list", formula1="$A$7:$A$9")
    choice.add("B4")
    sheet.add_data_validation(choice)
    sheet.print_area = "A1:C7"
    sheet.print_title_rows = "3:3"
    sheet.page_setup.orientation = "landscape"
    sheet.freeze_panes = "A4"
    sheet.row_dimensions[4].height = 31
    sheet.row_dimensions[5].height = 17
    sheet.column_dimensions["B"].width = 40
    sheet["C4"].font = Font(bold=True, color="FF0000")
    sheet["A7"].comment = Comment("a note", "me")
    sheet["A7"].hyperlink = "https://example.com/{x}"
    chart = BarChart()
    chart.add_data(Reference(sheet, min_col=3, min_row=4, max_row=4))
    sheet.add_chart(chart, "A9")


def test_what_is_designed_stays_and_grows_with_the_list() -> None:
    data = filled(sheet_of(INVOICE, designed), ORDERS * 5)
    book = opened(data)
    sheet = book["Report"]

    assert book.defined_names["amounts"].attr_text == "Report!$C$4:$C$13"
    assert book.defined_names["total"].attr_text == "Report!$C$14"
    rules = {str(each.sqref): each.rules[0].formula for each in sheet.conditional_formatting}
    assert rules == {"C4:C13": ["C4>$C$14/2"]}
    validation = sheet.data_validations.dataValidation[0]
    assert (str(validation.sqref), validation.formula1) == ("B4:B13", "$A$16:$A$18")
    assert (sheet.print_area, sheet.print_title_rows) == ("'Report'!$A$1:$C$16", "$3:$3")
    assert (sheet.page_setup.orientation, sheet.freeze_panes) == ("landscape", "A4")
    assert [sheet.row_dimensions[row].height for row in (4, 13, 14)] == [31, 31, 17]
    assert sheet.column_dimensions["B"].width == 40
    assert sheet["C13"].font.b
    assert (sheet["A16"].comment.text, sheet["A16"].hyperlink.target) == ("a note", "https://example.com/{x}")
    chart = sheet._charts[0]
    assert (chart.anchor._from.row, chart.series[0].val.numRef.f) == (17, "'Report'!$C$4:$C$13")
    notes = next(name for name in names_of(data) if name.endswith(".vml"))
    assert re.search(r"<\w+:Row>15</", part(data, notes))


def test_table_and_filter_grow_with_the_list() -> None:
    def tabular(sheet: Any) -> None:
        sheet.add_table(Table(displayName="Orders", ref="A3:C4"))

    data = filled(sheet_of({**INVOICE, "C5": "=SUM(Orders[Amount])"}, tabular), ORDERS * 3)
    sheet = opened(data)["Report"]

    assert sheet.tables["Orders"].ref == sheet.tables["Orders"].autoFilter.ref == "A3:C9"
    assert sheet["C10"].value == "=SUM(Orders[Amount])"


def test_templates_of_xlsxwriter_keep_images_sparklines_and_rules() -> None:
    target = io.BytesIO()
    book = xlsxwriter.Workbook(target)
    sheet = book.add_worksheet("Report")
    for row, texts in enumerate([["h", "x", "y"], ["{.id}", "{.amount}", "{.amount}"], ["sum", "=SUM(B2:B2)"]]):
        for column, text in enumerate(texts):
            sheet.write(row, column, text)
    sheet.insert_image("A6", "dot.png", {"image_data": io.BytesIO(DOT)})
    sheet.add_sparkline("E3", {"range": "Report!B2:B2"})
    sheet.conditional_format("B2:B2", {"type": "data_bar", "data_bar_2010": True})
    sheet.autofilter("A1:C2")
    sheet.set_h_pagebreaks([3])
    sheet.protect("", {"sort": True})
    sheet.unprotect_range("B2", "amounts")
    chart = book.add_chart({"type": "line"})
    chart.add_series({"categories": "=Report!$A$2", "values": "=Report!$B$2:$B$2"})
    sheet.insert_chart("G1", chart)
    book.close()

    data = filled(target.getvalue(), ORDERS * 4)

    xml = part(data, "xl/worksheets/sheet1.xml")
    assert "<xm:f>Report!B2:B9</xm:f>" in xml
    assert "<xm:sqref>E10</xm:sqref>" in xml
    assert "<xm:sqref>B2:B9</xm:sqref>" in xml
    assert '<conditionalFormatting sqref="B2:B9">' in xml
    assert '<autoFilter ref="A1:C9"/>' in xml
    assert '<brk id="10"' in xml
    assert 'sqref="B2:B9" name="amounts"' in xml
    drawing = part(data, "xl/drawings/drawing1.xml")
    assert "<row>12</row>" in drawing
    assert "<row>0</row>" in drawing
    assert "<f>Report!$A$2:$A$9</f>" in part(data, "xl/charts/chart1.xml").replace("c:", "")
    assert "xl/media/image1.png" in names_of(data)
    assert cells(data)[-1][:2] == ["sum", "=SUM(B2:B9)"]


DOT = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415408d763f8cfc000000301010018dd8db0"
    "0000000049454e44ae426082"
)


def test_parts_that_nothing_touches_keep_their_bytes() -> None:
    template = sheet_of(INVOICE, designed)
    before, after = (zipfile.ZipFile(io.BytesIO(each)) for each in (template, filled(template, ORDERS)))

    for name in ("xl/styles.xml", "xl/theme/theme1.xml", "docProps/app.xml"):
        assert before.read(name) == after.read(name)
    assert set(before.namelist()) == set(after.namelist())


def test_cached_results_go_and_are_calculated_when_opened() -> None:
    def cached(text: str) -> str:
        return text.replace("<v></v>", "<v>10.5</v>").replace("<v />", "<v>10.5</v>")

    template = with_part(sheet_of(INVOICE), "xl/worksheets/sheet1.xml", cached)
    data = filled(template, ORDERS)

    assert 'fullCalcOnLoad="1"' in part(data, "xl/workbook.xml")
    assert "10.5</v></c><c" not in part(data, "xl/worksheets/sheet1.xml").partition('r="6"')[2]
    assert "calcChain" not in part(data, "[Content_Types].xml")


def test_shared_formulas_become_formulas_of_their_cells() -> None:
    def shared(text: str) -> str:
        return text.replace("<f>A4*2</f>", '<f t="shared" ref="D3:D5" si="0">A3*2</f>', 1).replace(
            "<f>A5*2</f>", '<f t="shared" si="0"/>'
        )

    template = sheet_of({**INVOICE, "D3": "=A4*2", "D4": "=A5*2", "D5": "=A5*2"})
    sheet = opened(filled(with_part(template, "xl/worksheets/sheet1.xml", shared), ORDERS))["Report"]

    assert [sheet[f"D{row}"].value for row in (3, 4, 5, 6)] == ["=A3*2", "=A4*2", "=A5*2", "=A6*2"]


def test_equal_rows_give_equal_bytes() -> None:
    template = sheet_of(INVOICE)

    assert filled(template, ORDERS) == filled(template, ORDERS)
