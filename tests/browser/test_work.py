"""Exports, batches and the queue in the console."""

from __future__ import annotations

import hashlib
import re
from io import BytesIO
from pathlib import Path

import openpyxl
from playwright.sync_api import Browser, expect
from pytest_httpserver import HTTPServer

from tests.support.batches.receiver import receiver
from tests.support.console import Console, console
from tests.support.deployed import Deployed, DeployedProject

HEADS = "Staff by team"


def test_excel_export_matches_its_preview(desk: Console) -> None:
    desk.go("exports/new")
    sheet = desk.page.locator(".sheet tbody")
    expect(sheet.locator("td[colspan='3']")).to_have_text("Person")
    expect(sheet.locator("td[rowspan='3']")).to_have_text("Remark")
    desk.page.get_by_role("button", name="Export", exact=True).click()

    expect(desk.page.locator(".page-head .badge")).to_have_text("Completed")
    with desk.page.expect_download() as started:
        desk.page.get_by_role("button", name="Download").click()

    book = openpyxl.load_workbook(BytesIO(Path(started.value.path()).read_bytes())).active
    assert book is not None
    assert {"A1:F1", "A2:C2", "B3:C3", "F2:F4"} <= {str(area) for area in book.merged_cells.ranges}
    assert (book["A1"].value, book["A2"].value, book["F2"].value, book["A5"].value) == (
        HEADS,
        "Person",
        "Remark",
        "Ada",
    )


def test_preview_follows_typing_and_reports_errors(desk: Console) -> None:
    desk.go("exports/new")
    desk.page.get_by_text("As JSON").click()
    template = desk.page.locator("textarea[name=template]")

    template.fill('{"name": "Who", "age": "How old"}')
    expect(desk.page.locator(".sheet-head")).to_have_text(["Who", "How old"])
    template.fill('[{"children": []}]')
    expect(desk.page.locator(".preview")).to_contain_text("template[0]")
    template.fill("[")
    expect(desk.page.locator(".preview")).to_contain_text("Not JSON")
    desk.page.get_by_role("button", name="Export", exact=True).click()
    expect(desk.page.locator("[data-field=template] .field-error")).to_contain_text("Not JSON")


def test_failed_export_shows_reason_is_retried_and_deleted(
    desk: Console, project: DeployedProject, httpserver: HTTPServer
) -> None:
    httpserver.expect_request("/rows").respond_with_data("nothing here", status=404)
    hook = httpserver.url_for("/hook")
    httpserver.expect_request("/hook").respond_with_data("ok")
    body = {"name": "No such source", "source_url": httpserver.url_for("/rows"), "callback": hook}
    assert project.http("POST", "/v1/task", json=body).status == 202
    desk.go("exports")
    row = desk.page.locator("tr", has_text="No such source")

    expect(row).to_contain_text("404")
    row.get_by_role("button", name="Retry").click()
    expect(desk.page.locator(".toast")).to_contain_text("Queued again")
    expect(row.get_by_role("button", name="Retry")).to_be_visible()
    row.get_by_role("button", name="Delete").click()
    desk.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(row).to_have_count(0)

    desk.go("callbacks")
    told = desk.page.locator("tbody tr", has_text=hook).first
    expect(told).to_contain_text("Delivered")
    told.get_by_role("button", name="Redeliver").click()
    expect(desk.page.locator(".toast", has_text="Sent once more")).to_be_visible()


def test_batch_is_created_started_stopped_and_resumed(desk: Console, project: DeployedProject) -> None:
    with receiver() as business:
        made = project.http("POST", "/v1/biz", json={"name": "Ledger", "process_url": business.url})
        assert made.status == 201, made.body
        desk.go("batches")
        desk.page.get_by_role("button", name="New batch").first.click()
        box = desk.page.get_by_role("dialog")
        box.locator("input[name=name]").fill("Recalculate")
        box.locator("input[name=total]").fill("100000")
        box.locator("input[name=rate]").fill("20")
        box.get_by_role("button", name="Create").click()
        status = desk.page.locator(".page-head .badge")

        expect(desk.page.locator("[data-key=outcomes]")).to_contain_text("The batch has not started yet")
        desk.page.get_by_role("button", name="Dry run").click()
        tried = desk.page.get_by_role("dialog")
        expect(tried.locator("tbody tr")).to_have_count(3)
        expect(tried.locator("tbody tr").first).to_contain_text('"result":"ok"')
        tried.get_by_role("button", name="Close").click()
        desk.page.get_by_role("button", name="Start").click()
        expect(status).to_have_text("Running")
        expect(desk.page.locator(".progress .nowrap")).not_to_have_text("0 / 100,000")
        desk.page.get_by_role("button", name="Change").click()
        desk.page.get_by_role("dialog").locator("input[name=rate]").fill("30")
        desk.page.get_by_role("dialog").get_by_role("button", name="Save").click()
        expect(desk.page.locator(".figures li", has_text="Rate")).to_contain_text("30/s")
        desk.page.get_by_role("button", name="Stop").click()
        expect(status).to_have_text("Stopped")
        desk.page.get_by_role("button", name="Start").click()
        expect(status).to_have_text("Running")
        desk.page.get_by_role("button", name="Stop").click()
        expect(status).to_have_text("Stopped")


def test_rows_of_a_file_are_the_items_of_a_batch(desk: Console, project: DeployedProject) -> None:
    rows = b'{"account": "a"}\n{"account": "b"}\n'
    file_id = desk.deployed.store(project, "/accounts.ndjson", rows, hashlib.sha256(rows).hexdigest())
    with receiver() as business:
        made = project.http("POST", "/v1/biz", json={"name": "Ledger", "process_url": business.url})
        assert made.status == 201, made.body
        desk.go("batches")
        desk.page.get_by_role("button", name="New batch").first.click()
        box = desk.page.get_by_role("dialog")
        box.locator("input[name=name]").fill("Accounts")
        box.locator("select[name=file]").select_option(label="/accounts.ndjson")
        box.get_by_text("More", exact=True).click()
        box.locator("input[name=runners]").fill("2")
        box.locator("textarea[name=pause_windows]").fill("not a time")
        box.get_by_role("button", name="Create").click()
        expect(box.locator("[data-field=pause_windows] .field-error")).to_contain_text("22:00-06:00")
        box.locator("textarea[name=pause_windows]").fill("3:00-3:05")
        box.get_by_role("button", name="Create").click()

        expect(desk.page.locator("[data-key=details]")).to_contain_text("03:00–03:05 UTC")
        batch = project.http("GET", "/v1/batches").json()["items"][0]
        assert batch["source"]["file_id"] == file_id
        assert batch["runners"] == 2


def test_two_tables_become_two_sheets_of_one_workbook(desk: Console) -> None:
    page = desk.page
    desk.go("exports/new")
    page.get_by_role("button", name="Add another table").click()
    expect(page.locator("textarea[name=source_data]")).to_have_value("")
    page.locator("textarea[name=source_data]").fill('[{"city": "Oslo"}]')
    page.locator("input[name=title]").fill("Cities")
    page.locator("select[name=multi_type]").select_option("tab")
    page.get_by_role("button", name="Table 1").click()
    expect(page.locator("input[name=title]")).to_have_value(HEADS)
    page.get_by_role("button", name="Export", exact=True).click()

    expect(page.locator(".page-head .badge")).to_have_text("Completed")
    with page.expect_download() as started:
        page.get_by_role("button", name="Download").click()
    book = openpyxl.load_workbook(BytesIO(Path(started.value.path()).read_bytes()))
    first, second = book.worksheets
    assert (first["A1"].value, second["A1"].value, second["A3"].value) == (HEADS, "Cities", "Oslo")


def test_export_file_has_the_chosen_format(desk: Console) -> None:
    page = desk.page
    desk.go("exports/new")
    page.locator("select[name=type]").select_option("csv")
    page.locator("details", has_text="CSV delimiter").locator("summary").click()
    page.locator("select[name=delimiter]").select_option("tab")
    page.locator("select[name=csv_header]").select_option("titles")
    page.locator("select[name=line_end]").select_option("crlf")
    page.locator("select[name=encoding]").select_option("utf-8")
    page.get_by_role("button", name="Export", exact=True).click()

    expect(page.locator(".page-head .badge")).to_have_text("Completed")
    with page.expect_download() as started:
        page.get_by_role("button", name="Download").click()
    lines = Path(started.value.path()).read_bytes().split(b"\r\n")
    assert lines[0].split(b"\t")[-1] == b"Remark"
    assert lines[1].split(b"\t")[:2] == [b"Ada", b"36"]


def test_typed_rows_keep_their_digits(desk: Console) -> None:
    """JavaScript would round the id, and drop the zeros."""
    page = desk.page
    desk.go("exports/new")
    page.get_by_text("As JSON").click()
    page.locator("textarea[name=template]").fill("")
    page.locator("textarea[name=source_data]").fill('[{"id": 12345678901234567, "price": 100.00, "n": 7}]')
    expect(page.locator(".sheet tbody tr").last).to_have_text(re.compile("12345678901234567100.007"))
    page.locator("select[name=type]").select_option("csv")
    page.get_by_role("button", name="Export", exact=True).click()

    expect(page.locator(".page-head .badge")).to_have_text("Completed")
    with page.expect_download() as started:
        page.get_by_role("button", name="Download").click()
    assert Path(started.value.path()).read_text("utf-8-sig").splitlines()[1] == "12345678901234567,100.00,7"


def test_stored_file_is_checked_by_a_manual_request(desk: Console, project: DeployedProject) -> None:
    desk.deployed.store(project, "/a.bin", b"a", hashlib.sha256(b"a").hexdigest())
    page = desk.page
    desk.go("queue")
    page.get_by_role("button", name="New request").click()
    box = page.get_by_role("dialog")
    expect(box.locator("input[name=source_url]")).to_be_hidden()
    box.get_by_role("button", name="Create").click()
    expect(box.locator("[data-field=file_id] .field-error")).to_contain_text("needed")
    box.locator("select[name=file_id]").select_option(label="/a.bin")
    box.get_by_role("button", name="Create").click()

    expect(page.locator(".page-head .badge")).to_have_text("Completed")
    expect(page.locator("[data-key=details]")).to_contain_text("Check")


def test_queued_request_shows_wait_reason_and_is_cancelled(
    browser: Browser, deployed: Deployed, project: DeployedProject
) -> None:
    with console(browser, deployed) as opened:
        opened.sign_in(deployed.admin_key)
        opened.page.locator("#project select").select_option(project.id)
        opened.go("queue")
        lane = opened.page.locator(".card", has_text="Without cookie")
        lane.get_by_role("button", name="Pause").click()
        expect(lane.locator(".badge")).to_have_text("Paused")
        wanted = {"biz_id": 1, "app_id": 1, "file_path": "/in/a.bin", "source_url": "https://example.com/a.bin"}
        assert project.http("POST", "/v1/files", json=wanted).status == 202
        row = opened.page.locator("tbody tr", has_text="a.bin")
        expect(row).to_contain_text("Its channel is paused")

        row.get_by_role("button", name="Cancel").click()

        expect(row.locator(".badge")).to_have_text("Cancelled")
        lane.get_by_role("button", name="Resume").click()
        expect(lane.locator(".badge")).to_have_count(0)
        lane.get_by_role("button", name="Capacity").click()
        opened.page.get_by_role("dialog").locator("input").fill("7")
        opened.page.get_by_role("dialog").get_by_role("button", name="Save").click()
        expect(lane).to_contain_text("0 / 7")
