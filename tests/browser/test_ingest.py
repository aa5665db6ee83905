"""A subscription from its preview to its files, and the log of its requests."""

from __future__ import annotations

from playwright.sync_api import expect
from pytest_httpserver import HTTPServer

from tests.support.console import Console


def test_source_is_previewed_saved_and_scanned_with_a_log(desk: Console, httpserver: HTTPServer) -> None:
    page = desk.page
    listing = '<a href="one.iso">one.iso</a> <a href="notes.txt">notes.txt</a>'
    httpserver.expect_request("/pub/").respond_with_data(listing, content_type="text/html")
    httpserver.expect_request("/pub/one.iso").respond_with_data(b"iso" * 100)
    desk.go("ingest/new")
    page.locator("input[name=name]").fill("Images")
    page.locator("input[name=source_url]").fill(httpserver.url_for("/pub/"))
    page.locator("textarea[name=include]").fill("*.iso")
    page.locator("select[name=schedule]").select_option("rate(1 hour)")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("1 of 2 files would be fetched")).to_be_visible()
    page.get_by_role("button", name="Save").click()

    expect(page.get_by_role("heading", name="Images", level=1)).to_be_visible()
    expect(page.locator("[data-key=when] time")).to_contain_text("in 59 min")
    page.get_by_role("button", name="Scan now").click()
    ingested = page.locator("[data-key=requests] tbody tr", has_text="Completed").first
    expect(ingested).to_be_visible()
    ingested.get_by_role("link").first.click()
    expect(page.locator("[data-key=log] li").first).to_contain_text("attempt 1")
    desk.go("ingest")
    expect(page.locator("tbody tr", has_text="Images")).to_contain_text("every hour")
    desk.go("files")
    expect(page.locator("tbody tr", has_text="one.iso")).to_be_visible()


def test_all_requests_of_a_filter_are_retried_together(desk: Console, httpserver: HTTPServer) -> None:
    httpserver.expect_request("/gone.bin").respond_with_data("no", status=404)
    for number in range(2):
        wanted = {
            "biz_id": 1,
            "app_id": 1,
            "file_path": f"/gone/{number}",
            "source_url": httpserver.url_for("/gone.bin"),
        }
        made = desk.deployed.http(
            "POST", "/v1/files", json=wanted, key=desk.page.evaluate("sessionStorage['tidegate.key']")
        )
        assert made.status == 202, made.body
    desk.go("queue?status=failed")
    expect(desk.page.locator("tbody tr")).to_have_count(2)
    desk.page.get_by_role("button", name="Retry all failed").click()
    expect(desk.page.locator(".toast", has_text="2 changed")).to_be_visible()
