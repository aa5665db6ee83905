"""Exports, batches and the queue, done by hand in the page."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import openpyxl
from playwright.sync_api import Browser, expect
from pytest_httpserver import HTTPServer

from tests.support.batches.receiver import receiver
from tests.support.console import Console, console
from tests.support.deployed import Deployed, DeployedProject

HEADS = "Staff by team"


def test_an_excel_export_with_nested_heads_is_the_sheet_that_was_previewed(desk: Console) -> None:
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


def test_the_preview_follows_what_is_typed_and_names_what_is_wrong(desk: Console) -> None:
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


def test_a_failed_export_says_why_and_is_tried_again_and_deleted(
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


def test_a_batch_is_made_started_stopped_and_started_again(desk: Console, project: DeployedProject) -> None:
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

        desk.page.get_by_role("button", name="Start").click()
        expect(status).to_have_text("Running")
        expect(desk.page.locator(".progress .nowrap")).not_to_have_text("0 / 100,000")
        desk.page.get_by_role("button", name="Change rate").click()
        desk.page.get_by_role("dialog").locator("input[name=rate]").fill("30")
        desk.page.get_by_role("dialog").get_by_role("button", name="Save").click()
        expect(desk.page.locator(".figures li", has_text="Rate")).to_contain_text("30/s")
        desk.page.get_by_role("button", name="Stop").click()
        expect(status).to_have_text("Stopped")
        desk.page.get_by_role("button", name="Start").click()
        expect(status).to_have_text("Running")
        desk.page.get_by_role("button", name="Stop").click()
        expect(status).to_have_text("Stopped")


def test_a_queued_request_says_why_it_waits_and_is_cancelled(
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
        row = opened.page.locator("tbody tr", has_text="Ingest")
        expect(row).to_contain_text("Its channel is paused")

        row.get_by_role("button", name="Cancel").click()

        expect(row.locator(".badge")).to_have_text("Cancelled")
        lane.get_by_role("button", name="Resume").click()
        expect(lane.locator(".badge")).to_have_count(0)
        lane.get_by_role("button", name="Capacity").click()
        opened.page.get_by_role("dialog").locator("input").fill("7")
        opened.page.get_by_role("dialog").get_by_role("button", name="Save").click()
        expect(lane).to_contain_text("0 / 7")
