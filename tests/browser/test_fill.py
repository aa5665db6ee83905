"""A template of the library in the export form: dropped, mapped, previewed, filled."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from openpyxl.styles import Font, PatternFill
from playwright.sync_api import expect

from tests.support.console import Console
from tests.support.exports.fill import sheet_of

ROWS = [{"sku": "A-1", "total": 12.5}, {"sku": "B-2", "total": 7}]
CELLS = {
    "A1": "Invoice for {customer}",
    "A3": "Article",
    "B3": "Amount",
    "A4": "{.sku}",
    "B4": "{.amount}",
    "A5": "Sum",
    "B5": "=SUM(B4:B4)",
}


def design(sheet: Any) -> None:
    sheet.merge_cells("A1:B1")
    sheet["A1"].font = Font(bold=True)
    sheet["A3"].fill = sheet["B3"].fill = PatternFill("solid", fgColor="FFDDEEFF")


@pytest.fixture
def invoice(desk: Console) -> Console:
    """The form with two rows and a template that was dropped on it."""
    desk.go("exports/new")
    page = desk.page
    page.locator("textarea[name=source_data]").fill(json.dumps(ROWS))
    page.get_by_text("As JSON").click()
    page.locator("textarea[name=template]").fill("")
    content = sheet_of(CELLS, design)
    page.locator("#pick-template").set_input_files({"name": "invoice.xlsx", "mimeType": "", "buffer": content})
    page.locator(".sheet mark", has_text="{customer}").wait_for()
    return desk


def test_dropped_template_is_mapped_previewed_and_filled(invoice: Console) -> None:
    page = invoice.page
    expect(page.locator(".sheet mark")).to_have_text(["{customer}", "{.amount}", "{.amount}"])
    page.get_by_label("{customer}").fill("ACME")
    expect(page.get_by_label("Column for {.sku}")).to_have_value("sku")
    mapped = page.get_by_label("Column for {.amount}")
    mapped.fill("total")
    mapped.blur()

    expect(page.locator(".sheet mark")).to_have_count(0)
    rows = page.locator(".sheet tbody tr")
    expect(rows).to_have_text(["1Invoice for ACME", "2", "3ArticleAmount", "4A-112.5", "5B-27", "6Sumƒ"])
    expect(rows.first.locator("td")).to_have_attribute("colspan", "2")
    page.get_by_role("button", name="Export", exact=True).click()
    expect(page.locator(".page-head .badge")).to_have_text("Completed")
    with page.expect_download() as started:
        page.get_by_role("button", name="Download").click()
    sheet = openpyxl.load_workbook(BytesIO(Path(started.value.path()).read_bytes())).active
    assert sheet is not None
    found = [[cell.value for cell in row] for row in sheet.iter_rows(max_col=2)]
    assert found[0][0] == "Invoice for ACME"
    assert found[3:] == [["A-1", 12.5], ["B-2", 7], ["Sum", "=SUM(B4:B5)"]]


def test_list_without_a_table_and_a_wrong_file_are_told(invoice: Console) -> None:
    page = invoice.page
    other = sheet_of({"A1": "{lines.sku}"})
    page.locator("#pick-template").set_input_files({"name": "other.xlsx", "mimeType": "", "buffer": other})
    expect(page.locator(".fill-list")).to_contain_text("add a table with this title")
    page.get_by_label("Title", exact=True).fill("lines")
    expect(page.locator(".fill-list")).to_contain_text("Columns of table 1")
    expect(page.locator(".sheet tbody tr")).to_have_text(["1A-1", "2B-2"])

    page.locator("#pick-template").set_input_files({"name": "no.xlsx", "mimeType": "", "buffer": b"no workbook"})
    expect(page.locator(".toast", has_text="not an .xlsx file")).to_be_visible()
    expect(page.locator(".fill-list")).to_have_count(0)
    page.locator("select[name=type]").select_option("csv")
    expect(page.locator("select[name=fill]")).to_be_hidden()
