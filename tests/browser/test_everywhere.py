"""Features of every page: search, ids to copy, errors with request ids, unknown URLs."""

from __future__ import annotations

import re

from playwright.sync_api import expect
from pytest_httpserver import HTTPServer

from tests.support.console import Console
from tests.support.deployed import DeployedProject


def test_slash_finds_a_record_by_its_name_and_opens_it(desk: Console, project: DeployedProject) -> None:
    made = project.http("POST", "/v1/task", json={"name": "Winter figures", "source_data": [{"a": 1}]})
    assert made.status == 202
    desk.page.locator("h1").wait_for()
    desk.page.keyboard.press("/")
    desk.page.keyboard.type("winter fig")
    expect(desk.page.locator(".find-results li").first).to_contain_text("Winter figures")
    desk.page.keyboard.press("Enter")
    expect(desk.page.get_by_role("heading", name="Winter figures", level=1)).to_be_visible()

    desk.page.keyboard.press("Control+k")
    desk.page.keyboard.type(made.json()["task_id"])
    expect(desk.page.locator(".find-results li").first).to_contain_text("Winter figures")
    desk.page.keyboard.press("Escape")
    expect(desk.page.locator(".palette")).to_have_count(0)


def test_unknown_page_says_so(desk: Console) -> None:
    desk.go("no-such-page/at-all")
    expect(desk.page.get_by_role("heading", name="No such page")).to_be_visible()
    expect(desk.page.locator(".state")).to_contain_text("#/no-such-page/at-all")


def test_malformed_id_in_url_is_a_missing_record(desk: Console) -> None:
    desk.go("exports/%E0%A4%A")

    expect(desk.page.locator(".state.bad")).to_be_visible()
    expect(desk.page.locator(".state.bad").get_by_role("link", name="Exports")).to_be_visible()
    assert desk.complaints == []


def test_error_shows_its_request_id(desk: Console) -> None:
    desk.go("exports/exp-does-not-exist")
    shown = desk.page.locator(".state.bad")
    expect(shown).to_contain_text("request id")
    expect(shown.locator(".copy")).to_have_attribute("title", re.compile(r"[0-9a-f-]{20,}"))


def test_columns_are_nested_by_dragging_and_samples_come_from_the_source(desk: Console, httpserver: HTTPServer) -> None:
    page = desk.page
    rows = [{"city": "Oslo", "north": 3, "south": 4}]
    answer = {"status": 200, "msg": "", "data": {"data": rows, "total": 1}}
    httpserver.expect_request("/rows").respond_with_json(answer)
    desk.go("exports/new")
    page.locator("textarea[name=source_data]").fill("")
    page.locator("input[name=source_url]").fill(httpserver.url_for("/rows"))
    page.get_by_role("button", name="Pull sample rows").click()
    expect(page.locator(".sheet-head")).to_have_text(["city", "north", "south"])
    expect(page.locator(".sheet-cell").first).to_have_text("Oslo")

    page.get_by_role("button", name="Move south").drag_to(page.locator(".column-row").nth(1))
    expect(page.locator(".sheet-head")).to_have_text(["city", "Group", "north", "south"])
    page.get_by_label("Type of north").select_option("currency")
    page.locator("input[name=name]").fill("By city")
    page.get_by_role("button", name="Export", exact=True).click()
    expect(page.locator(".page-head .badge")).to_have_text("Completed")


def test_business_is_registered_and_failed_item_is_listed(
    desk: Console, project: DeployedProject, httpserver: HTTPServer
) -> None:
    page = desk.page
    httpserver.expect_request("/item").respond_with_json({"result": "abandon", "msg": "not for us"})
    desk.go("businesses")
    page.get_by_role("button", name="Register a business").first.click()
    box = page.get_by_role("dialog")
    box.locator("input[name=name]").fill("Tolls")
    box.locator("input[name=process_url]").fill(httpserver.url_for("/item"))
    box.get_by_role("button", name="Save").click()
    expect(page.locator("tbody tr", has_text="Tolls")).to_be_visible()
    desk.go("batches")
    page.get_by_role("button", name="New batch").first.click()
    box = page.get_by_role("dialog")
    box.locator("input[name=name]").fill("Three")
    box.locator("input[name=total]").fill("3")
    box.locator("select[name=on_item_failure]").select_option("skip")
    box.get_by_role("button", name="Create").click()
    page.get_by_role("button", name="Start").click()
    expect(page.locator("[data-key=outcomes] tbody tr")).to_have_count(3)
    expect(page.locator("[data-key=outcomes] tbody tr").first).to_contain_text("not for us")
