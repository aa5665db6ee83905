"""Filled templates, read back by openpyxl and calamine."""

from __future__ import annotations

import io
import re
import tracemalloc
import zipfile
from datetime import date, datetime
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
from openpyxl.utils.datetime import CALENDAR_MAC_1904
from openpyxl.workbook.defined_name import DefinedName
from openpyxl.worksheet.datavalidation import DataValidation
from openpyxl.worksheet.formula import ArrayFormula
from openpyxl.worksheet.table import Table

from tests.support.exports.fill import (
    calamine_cells,
    cells,
    dashboard,
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
from tidegate.sheets.table import Notes, SheetTable
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


def test_value_longer_than_a_cell_is_cut_and_warned_of() -> None:
    template, tables = FillTemplate(sheet_of({"A1": "{a}", "B1": "{b}, {a}", "C1": "{b}"})), tables_of([])
    filling = Filling(template, {"a": "x" * 32_767, "b": "y"})

    assert [len(cell) for cell in cells(b"".join(filled_chunks(filling, tables)))[0]] == [32_767, 32_767, 1]
    assert unfilled(filling, tables) == ["1 cell was cut: an Excel cell has at most 32,767 characters"]


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


def test_dates_count_from_1904_in_a_workbook_that_does() -> None:
    """As Excel for Mac made them; in others, 1900 is the first year."""

    def formatted(sheet: Any) -> None:
        sheet.parent.epoch = CALENDAR_MAC_1904
        sheet["A1"].number_format, sheet["B1"].number_format = "yyyy-mm-dd", "yyyy-mm-dd hh:mm"

    data = filled(
        sheet_of({"A1": "{.day}", "B1": "{.at}"}, formatted),
        [{"day": "2026-11-18", "at": "2026-11-18 06:00"}, {"day": "1903-12-31", "at": "1904-01-02T12:00"}],
    )

    assert cells(data) == [
        [datetime(2026, 11, 18), datetime(2026, 11, 18, 6)],
        ["1903-12-31", datetime(1904, 1, 2, 12)],
    ]
    assert calamine_cells(data)[0] == [date(2026, 11, 18), datetime(2026, 11, 18, 6)]


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


def test_text_of_several_fonts_is_cut_to_the_length_of_a_cell() -> None:
    def rich(sheet: Any) -> None:
        sheet["A1"] = CellRichText("a: {.a} ", TextBlock(InlineFont(b=True), "b: {.b}"), " {.c}")

    rows, notes = [{"a": "x" * 20_000, "b": "\U0001f600" * 9_000, "c": "end"}, {"a": "x", "b": "y", "c": "z"}], Notes()
    tables = tables_of(rows)
    data = b"".join(filled_chunks(Filling(FillTemplate(sheet_of({}, rich)), {}), tables, notes))

    first, second = (row[0] for row in cells(data))
    assert second == "a: x b: y z"
    assert first == "a: " + "x" * 20_000 + " b: " + "\U0001f600" * 6380
    assert 32_766 <= len(first.encode("utf-16-le")) // 2 <= 32_767
    assert notes.cut_cells == 1


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


def test_rows_of_a_list_are_not_held_in_memory() -> None:
    def merged(sheet: Any) -> None:
        sheet.merge_cells("B4:C4")

    template = sheet_of({"A4": "{.id}", "B4": "no. {.id}", "D4": "=A4*2", "D5": "=SUM(D4)"}, merged)
    filling = Filling(FillTemplate(template), {})

    source = TableRows(SheetTable(), ["id"], ({"id": number} for number in range(45_000)), 45_000)
    tracemalloc.start()
    size = sum(map(len, filled_chunks(filling, [source])))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert size > 1_000_000
    # The rows, or their merged cells, would take more.
    assert peak < 4_000_000


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


def designed_by_xlsxwriter() -> bytes:
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
    return target.getvalue()


def test_templates_of_xlsxwriter_keep_images_sparklines_and_rules() -> None:
    data = filled(designed_by_xlsxwriter(), ORDERS * 4)

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


def test_rules_and_texts_of_every_sheet_follow_the_list() -> None:
    data = filled(dashboard(), ORDERS * 2)

    own, other = (part(data, f"xl/worksheets/sheet{number}.xml") for number in (1, 2))
    assert '<cfvo type="formula" val="$A$7"/>' in own
    assert "<formula1>Data!$A$2:$A$5</formula1>" in other
    assert "<formula>Data!$A$7&gt;1</formula>" in other
    assert "<xm:f>Data!B2:B5</xm:f><xm:sqref>B1</xm:sqref>" in other
    assert 'textlink="$A$6"' in part(data, "xl/drawings/drawing1.xml")
    assert 'textlink="Data!$A$6"' in part(data, "xl/drawings/drawing2.xml")


def test_sparkline_of_the_repeated_row_is_repeated() -> None:
    xml = part(filled(dashboard(), ORDERS * 2), "xl/worksheets/sheet1.xml")

    assert re.findall("<x14:sparkline><xm:f>(.*?)</xm:f><xm:sqref>(.*?)</xm:sqref></x14:sparkline>", xml) == [
        (f"Data!A{row}:B{row}", f"D{row}") for row in range(2, 6)
    ]


def test_more_repeated_sparklines_than_a_sheet_bears_are_refused() -> None:
    def twice(text: str) -> str:
        return re.sub("(<x14:sparkline>.*</x14:sparkline>)", r"\1\1", text)

    def fill(template: bytes, rows: int) -> None:
        table = TableRows(SheetTable(), ["id"], [], rows)
        b"".join(filled_chunks(Filling(FillTemplate(template), {}), [table]))

    fill(dashboard(), 50_000)
    for template, rows in ((dashboard(), 50_001), (with_part(dashboard(), "xl/worksheets/sheet1.xml", twice), 25_001)):
        with pytest.raises(BadTable, match="more than 50000 sparklines"):
            fill(template, rows)


def test_empty_rows_down_to_the_last_of_a_sheet_are_dropped() -> None:
    """LibreOffice writes them."""

    def rows(text: str) -> str:
        last = '<row r="1048575" ht="12.8"/><row r="1048576" ht="12.8"><c r="A1048576" s="0"/></row>'
        return text.replace("</sheetData>", f"{last}</sheetData>")

    data = filled(with_part(sheet_of(INVOICE), "xl/worksheets/sheet1.xml", rows), ORDERS * 2)

    xml = part(data, "xl/worksheets/sheet1.xml")
    assert [int(row) for row in re.findall(r'<row r="(\d+)"', xml)] == [1, 3, 4, 5, 6, 7, 8, 10]


def test_placeholder_in_the_head_of_a_table_is_refused() -> None:
    def tabular(sheet: Any) -> None:
        sheet.add_table(Table(displayName="Orders", ref="A3:C4"))

    with pytest.raises(BadTable, match="row 3 of Report is the head of the table Orders"):
        FillTemplate(sheet_of({**INVOICE, "C3": "Amount in {unit}"}, tabular))


def test_array_formula_computes_over_the_whole_list() -> None:
    def array(sheet: Any) -> None:
        sheet["C5"] = ArrayFormula("C5", '=SUM((B4="Apples")*C4)')

    sheet = opened(filled(sheet_of(INVOICE, array), ORDERS * 2))["Report"]

    assert (sheet["C8"].value.ref, sheet["C8"].value.text) == ("C8", '=SUM((B4:B7="Apples")*C4:C7)')


# --- numbers that formulas leave out

LEFT_OUT = (
    "fill: formulas leave out numbers of {} that are text: they came as text, have more than 15 digits, have other "
    "characters beside them, or are in a cell for dates. In a cell with a number format, 1.50 becomes a number, "
    "1,234.50 not"
)


def warned(cells: dict[str, Any], rows: bytes, change: Any = lambda sheet: None) -> list[str]:
    tables, notes = tables_of(read_exact(rows)), Notes()
    b"".join(filled_chunks(Filling(FillTemplate(sheet_of(cells, change)), {}), tables, notes))
    return notes.warnings()


def named(sheet: Any) -> None:
    sheet.parent.defined_names["amounts"] = DefinedName("amounts", attr_text="Report!$B$4:$B$4")


@pytest.mark.parametrize(
    ("formula", "rows", "is_left_out"),
    [
        # As PHP sends decimals.
        ("=SUM(B4:B4)", b'[{"id": "1", "n": "12.50"}, {"id": "2", "n": "-3"}]', True),
        ("=SUM(B4:B4)", b'[{"id": "1", "n": null}, {"id": "2", "n": "12.50"}, {"id": "3", "n": ""}]', True),
        ("=SUM(B4:B4)", b'[{"id": "1", "n": "1,234.50"}]', True),
        ("=SUM(B4:B4)", b'[{"id": "1", "n": 12.50}]', False),
        ("=SUM(B4:B4)", b'[{"id": "1", "n": 12345678901335588.60}]', True),
        ("=SUM(B4:B4)", b'[{"id": "1", "n": 1}, {"id": "2", "n": "2"}]', True),
        ("=SUM(B4:B4)", b'[{"id": "1", "n": "2026-11-18"}, {"id": "2", "n": "n/a"}]', False),
        ("=SUM(B:B)", b'[{"id": "one", "n": "12.50"}]', True),
        ("=SUM(4:4)", b'[{"id": "one", "n": "12.50"}]', True),
        ("=SUM(amounts)", b'[{"id": "one", "n": "12.50"}]', True),
        # In Excel, `*` makes numbers of texts, and the others do not read any.
        ("=SUMPRODUCT(B4*1)", b'[{"id": "1", "n": 12.50}]', False),
        ("=COUNTA(B4)&VLOOKUP(1,A4:B4,2)", b'[{"id": "1", "n": "12.50"}]', False),
        ("=SUM(C4:C4)", b'[{"id": "1", "n": "12.50"}]', False),
        ("text", b'[{"id": "1", "n": "12.50"}]', False),
    ],
)
def test_numbers_that_formulas_leave_out_are_warned_of(formula: str, rows: bytes, is_left_out: bool) -> None:
    given = {"A4": "{.id}", "B4": "{.n}", "C4": "=B4*2", "B5": formula}
    change = named if "amounts" in formula else lambda _: None

    assert warned(given, rows, change) == ([LEFT_OUT.format("{.n}")] if is_left_out else [])


def test_texts_in_number_formats_are_added_unless_too_long() -> None:
    def formatted(sheet: Any) -> None:
        sheet["B4"].number_format = "0.00"

    given = {"B4": "{.n}", "B5": "=SUM(B4)"}

    assert warned(given, b'[{"n": "12.50"}, {"n": "n/a"}]', formatted) == []
    # Of PHP's number_format.
    for text in (b"12345678901335588.60", b"1,234.50", b"-5.00 %", b"$5"):
        assert warned(given, b'[{"n": "1.50"}, {"n": "%s"}]' % text, formatted) == [LEFT_OUT.format("{.n}")]


@pytest.mark.parametrize(
    ("text", "value", "code", "is_left_out"),
    [
        ("{.n} ", b"12.5", "General", True),
        ("${.n}", b"12.5", "0.00", True),
        (CellRichText("{.n}", TextBlock(InlineFont(b=True), " %")), b"12.5", "General", True),
        ("{.n} kg", b"12.5", "General", False),
        ("No. {.n}", b"12", "General", False),
        ("{.n} ", b"12.5", "@", True),
        ("{.n}", b"12.5", "@", False),
        ("{.n}", b"0.5", "[h]:mm", True),
        ("{.n}", b'"08:30"', "[h]:mm", True),
        ("{.n}", b'"108:30:05"', "General", True),
        ("{.n}", b'"2026-11-18"', "yyyy-mm-dd", False),
        ("{.n}", b'"2026-11-18 08:30"', "General", False),
    ],
)
def test_number_beside_other_text_or_in_a_date_cell_is_warned_of(
    text: Any, value: bytes, code: str, is_left_out: bool
) -> None:
    def formatted(sheet: Any) -> None:
        sheet["B4"], sheet["B4"].number_format = text, code

    warnings = warned({"A4": "{.id}", "B5": "=SUM(B4)"}, b'[{"id": 1, "n": %s}]' % value, formatted)

    assert warnings == ([LEFT_OUT.format("{.n}")] if is_left_out else [])


@pytest.mark.parametrize(
    ("cells", "value", "is_left_out"),
    [
        ({"B3": "=SUM(B1:B2)"}, "12.50", True),
        ({"B3": "=MAX(B1, 0)"}, "1,234.50", True),
        ({"B3": "=SUM(B:B)+SUM(1:2)"}, "12.50", True),
        ({"B1": "{fee} ", "B3": "=SUM(B1:B2)"}, 12.5, True),
        ({"B3": "=SUM(B1:B2)"}, 12345678901234567, True),
        ({"B3": "=SUM(B1:B2)"}, 12.5, False),
        ({"B3": "=SUM(B1:B2)"}, "n/a", False),
        # A text that is computed with becomes a number.
        ({"B3": "=SUM(B1*2)+SUM(B2)+B1"}, "12.50", False),
        ({"B3": '=SUM(A1:A2)+COUNTIF(B1:B2,"x")'}, "12.50", False),
        ({"C1": "{fee}", "C3": "=SUM(C1)", "B3": "=SUM(B1)"}, 5, False),
    ],
)
def test_value_as_text_that_formulas_leave_out_is_warned_of(
    cells: dict[str, Any], value: Any, is_left_out: bool
) -> None:
    template = FillTemplate(sheet_of({"B1": "{fee}", "B2": "{tax}", "A4": "{.id}"} | cells))

    warning = "fill: formulas leave out {fee}, because they are text: send numbers, or give their cells a number format"
    assert unfilled(Filling(template, {"fee": value, "tax": 3}), tables_of(ORDERS)) == [warning] * is_left_out


@pytest.mark.parametrize(
    ("formula", "cells"),
    [
        ("=SUM(B4*C4)", ["B4", "C4"]),
        ("=SUM(-B4)+MAX(1, 2 - C4)", ["B4", "C4"]),
        ("=SUM(B4)*2+B4*C4", []),
        ("=SUMPRODUCT(B4*C4)", []),
        ("=SUM($B$4*2)", []),
        ("=SUM(OFFSET(B4,0,0,COUNTA(B4)))+SUM(B4:INDEX(B:B,ROW(B4)+1))", []),
    ],
)
def test_sum_over_a_computation_with_the_first_row_is_warned_of(formula: str, cells: list[str]) -> None:
    template = sheet_of({"B4": "{.id}", "C4": "{.amount}", "D4": "=SUM(B4*C4)", "C5": formula})

    assert unfilled(Filling(FillTemplate(template), {}), tables_of(ORDERS)) == [
        f"fill: a formula computes with {cell} of Report in the first row of the list only: SUMPRODUCT takes all"
        for cell in cells
    ]


def test_value_as_text_in_a_number_format_is_added() -> None:
    def formatted(sheet: Any) -> None:
        sheet["B1"].number_format, sheet["B2"].number_format = "0.00", "@"

    template = FillTemplate(sheet_of({"B1": "{fee}", "B2": "{code}", "B3": "=SUM(B1:B2)", "A4": "{.id}"}, formatted))

    assert unfilled(Filling(template, {"fee": "12.50", "code": "0012"}), tables_of(ORDERS)) == []


@pytest.mark.parametrize(
    ("cells", "is_mixed"),
    [
        ({"C4": "=SUM(B2)"}, True),
        ({"C4": "=AVERAGE(B$2:B$2)"}, True),
        ({"C4": "=SUM(B1:B2)"}, True),
        ({"C2": "=B2/SUM(B$2:B$2)"}, True),
        ({"C4": "=SUM(B2:B3)"}, False),
        ({"C4": "=SUM(B1:B4)"}, False),
        ({"C2": "=SUM(B2)", "C3": "=SUM(B2:B3)*B2"}, False),
        ({"C4": "=COUNTA(B2)"}, False),
        # Texts are not added.
        ({"C4": "=SUM(B2)", "B3": "of which {.tax}"}, False),
        ({"C4": "=SUM(B2)", "B3": "tax"}, False),
        ({"C4": "=SUM(B2)", "B3": None}, False),
        ({"C4": "=SUM(B2)", "B3": 5}, True),
        ({"C4": "=SUM(B2)", "B3": "=B2*2"}, True),
    ],
)
def test_sum_of_one_of_several_repeated_rows_is_warned_of(cells: dict[str, Any], is_mixed: bool) -> None:
    given = {"A2": "{.id}", "B2": "{.amount}", "A3": "{.name}", "B3": "{.tax}"} | cells
    tables = tables_of([row | {"tax": 1} for row in ORDERS])

    assert unfilled(Filling(FillTemplate(sheet_of(given)), {}), tables) == (
        [
            "fill: formulas compute with row 2 of Report, but their ranges take in column B of row 3, which is "
            "repeated with it: use another"
        ]
        if is_mixed
        else []
    )


def test_chart_over_numbers_as_text_is_warned_of() -> None:
    def chart(sheet: Any) -> None:
        chart = BarChart()
        chart.add_data(Reference(sheet, min_col=2, min_row=4, max_row=4))
        sheet.add_chart(chart, "A9")

    assert warned({"B4": "{.n}"}, b'[{"n": "12.50"}]', chart) == [LEFT_OUT.format("{.n}")]


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
