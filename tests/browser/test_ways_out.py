"""Errors in the console say what is wrong, what to do next, and the request id for operators."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.support.console import Console, console
from tests.support.deployed import Deployed, DeployedProject


@pytest.fixture
def signed_out(browser: Browser, deployed: Deployed) -> Iterator[Console]:
    with console(browser, deployed) as opened:
        opened.open()
        yield opened


def try_key(signed_out: Console, key: str) -> None:
    signed_out.page.locator("input[name=key]").fill(key)
    signed_out.page.get_by_role("button", name="Sign in").click()


def fail(desk: Console, path: str, status: int) -> None:
    def answer(route: Route) -> None:
        headers = {"x-request-id": "req-of-the-failure", "content-type": "application/problem+json"}
        route.fulfill(status=status, headers=headers, body='{"detail": "the store did not answer"}')

    desk.page.route(path, answer)


def test_unknown_key_is_reported(signed_out: Console) -> None:
    try_key(signed_out, "tg_unknown")
    expect(signed_out.page.locator(".form-error")).to_contain_text("This key is not known, has expired or was revoked")
    expect(signed_out.page.locator(".form-error")).to_contain_text(re.compile("request id [0-9a-f-]{20,}"))


def test_invalid_key_text_is_reported_at_the_field(signed_out: Console) -> None:
    try_key(signed_out, "ключ от дома")
    expect(signed_out.page.locator("[data-field=key] .field-error")).to_contain_text("begins with tg_")


def test_agent_key_is_told_which_scope_it_lacks(signed_out: Console, project: DeployedProject) -> None:
    try_key(signed_out, project.agent_key("host-1"))
    expect(signed_out.page.locator(".form-error")).to_contain_text("needs the scope read, but this key has agent")


@pytest.mark.parametrize(
    ("route", "needs"),
    [
        ("exports/new", "may write"),
        ("ingest/sub-1/change", "may write"),
        ("operate/projects", "admin key"),
        ("operate/system", "admin key"),
    ],
)
def test_read_key_is_told_which_key_a_page_needs(
    signed_out: Console, deployed: Deployed, project: DeployedProject, route: str, needs: str
) -> None:
    try_key(signed_out, str(deployed.make_key(project.id, ["read"])["key"]))
    signed_out.page.locator(".frame").wait_for()
    signed_out.go(route)
    expect(signed_out.page.get_by_role("heading", name="Not with this key")).to_be_visible()
    expect(signed_out.page.locator(".state")).to_contain_text(re.compile(f"{needs}.*yours has: read"))
    signed_out.page.get_by_role("button", name="Sign in with another key").click()
    expect(signed_out.page.locator("input[name=key]")).to_be_visible()


@pytest.mark.parametrize("list_page", ["distribution", "files", "ingest", "exports", "batches", "businesses"])
def test_empty_list_tells_a_read_key_to_use_a_writing_one(
    signed_out: Console, deployed: Deployed, project: DeployedProject, list_page: str
) -> None:
    try_key(signed_out, str(deployed.make_key(project.id, ["read"])["key"]))
    signed_out.page.locator(".frame").wait_for()
    signed_out.go(list_page)
    expect(signed_out.page.locator(".state")).to_contain_text("Sign in with a key that may write")


@pytest.mark.parametrize(
    "filtered",
    [
        "distribution?status=Failed",
        "files?path=/no/such/file",
        "fleet?group=no-such-group",
        "exports?name=nothing",
        "batches?status=stopped",
        "queue?status=failed",
        "callbacks?state=dead",
    ],
)
def test_empty_result_of_a_filter_advises_to_change_the_filter(desk: Console, filtered: str) -> None:
    desk.go(filtered)
    expect(desk.page.locator(".state")).to_have_text("Nothing matchesChange or remove a filter.")


@pytest.mark.parametrize(
    ("record", "leads_to"),
    [
        ("exports/exp-1", "Exports"),
        ("distribution/nothing", "Distribution"),
        ("tasks/nothing", "Distribution"),
        ("fleet/nobody", "Fleet"),
        ("batches/bat-1", "Batches"),
        ("ingest/sub-1", "Ingest"),
        ("queue/req-1", "Queue"),
        ("export-schedules/sch-1", "Schedules"),
    ],
)
def test_missing_record_links_to_its_list(desk: Console, record: str, leads_to: str) -> None:
    desk.go(record)
    failed = desk.page.locator(".state.bad")
    expect(failed).to_contain_text("It may have expired, or it belongs to another project.")
    expect(failed.locator(".copy")).to_be_visible()
    failed.get_by_role("link", name=leads_to).click()
    expect(failed).to_have_count(0)
    expect(desk.page.locator("h1")).to_be_visible()


def test_server_error_shows_the_request_id(desk: Console) -> None:
    fail(desk, "**/v1/tasks**", 500)
    desk.go("exports")
    failed = desk.page.locator(".state.bad")
    expect(failed).to_contain_text("the store did not answer")
    expect(failed.locator(".copy")).to_have_attribute("title", re.compile("req-of-the-failure"))

    desk.page.unroute("**/v1/tasks**")
    failed.get_by_role("button", name="Try again").click()
    expect(desk.page.get_by_role("heading", name="Exports", level=1)).to_be_visible()


def test_loaded_data_stays_during_an_outage(desk: Console) -> None:
    expect(desk.page.locator(".tiles")).to_be_visible()
    fail(desk, "**/v1/overview**", 502)
    stale = desk.page.locator("[data-key=stale]")
    expect(stale).to_contain_text("the store did not answer")
    expect(stale.locator(".copy")).to_have_attribute("title", re.compile("req-of-the-failure"))
    expect(desk.page.locator(".tiles")).to_be_visible()

    desk.page.unroute("**/v1/overview**")
    expect(stale).to_have_count(0)


def test_form_survives_a_lost_connection_without_duplicates(desk: Console, project: DeployedProject) -> None:
    desk.go("exports/new")
    desk.page.locator("input[name=name]").fill("Sent twice")

    def lose_the_answer(route: Route) -> None:
        route.fetch()
        route.abort()

    desk.page.route("**/v1/task", lose_the_answer)
    desk.page.get_by_role("button", name="Export", exact=True).click()
    expect(desk.page.locator(".form-error")).to_contain_text("it will not be created twice")
    desk.page.unroute("**/v1/task")
    desk.page.get_by_role("button", name="Export", exact=True).click()
    expect(desk.page.get_by_role("heading", name="Sent twice", level=1)).to_be_visible()
    assert len(project.http("GET", "/v1/tasks").json()["items"]) == 1
    desk.complaints.clear()


def test_revoked_key_signs_out_and_signing_in_returns_to_the_page(
    signed_out: Console, deployed: Deployed, project: DeployedProject
) -> None:
    made = deployed.make_key(project.id, ["read", "write"])
    try_key(signed_out, str(made["key"]))
    signed_out.page.locator(".frame").wait_for()
    signed_out.go("exports")
    expect(signed_out.page.get_by_role("heading", name="Exports", level=1)).to_be_visible()

    assert deployed.http("DELETE", f"/v1/keys/{made['key_id']}", key=deployed.admin_key).status == 204

    expect(signed_out.page.locator(".notice")).to_contain_text("This key is not valid any more")
    try_key(signed_out, project.key)
    expect(signed_out.page.get_by_role("heading", name="Exports", level=1)).to_be_visible()
    # The server closes the WebSocket of a revoked key, and the browser reports that.
    signed_out.complaints.clear()
