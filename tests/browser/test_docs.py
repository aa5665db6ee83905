"""The API reference in a browser: all operations, and forms that call the API."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.support.console import Console, console
from tests.support.deployed import Deployed, DeployedProject


@pytest.fixture
def docs(browser: Browser, deployed: Deployed) -> Iterator[Console]:
    with console(browser, deployed) as opened:
        opened.page.goto(f"{deployed.api_url}/docs")
        opened.page.locator(".docs-op").first.wait_for()
        yield opened


def test_docs_show_every_route_and_filter_by_word(docs: Console, deployed: Deployed) -> None:
    paths = deployed.http("GET", "/openapi.json").json()["paths"]
    routes = docs.page.locator(".docs-op:not(.docs-webhook)")

    expect(routes).to_have_count(sum(len(methods) for methods in paths.values()))
    docs.page.locator("input[type=search]").fill("/v1/files")
    expect(routes).to_have_count(sum(len(methods) for path, methods in paths.items() if "/v1/files" in path))
    assert docs.complaints == []


def test_form_calls_the_api_with_the_typed_key(docs: Console, project: DeployedProject) -> None:
    route = docs.page.locator('[id="post-/v1/files"]')
    route.locator("summary").click()
    route.get_by_role("button", name="Send").click()
    expect(route.locator("[aria-live] pre")).to_contain_text('"unauthenticated"')

    docs.page.locator("input[type=password]").fill(project.key)
    route.get_by_label("Body").fill('{"biz_id": 1, "app_id": 1, "file_path": "/from/the/docs"}')
    route.get_by_role("button", name="Send").click()
    expect(route.locator("[aria-live] pre")).to_contain_text('"upload_url"')

    listed = docs.page.locator('[id="get-/v1/files"]')
    listed.locator("summary").click()
    listed.get_by_label("limit").fill("1")
    listed.get_by_role("button", name="Send").click()
    expect(listed.locator("[aria-live] pre")).to_contain_text("/from/the/docs")
    assert docs.complaints == []


def test_shown_example_can_be_sent_unchanged(docs: Console, project: DeployedProject) -> None:
    docs.page.locator("input[type=password]").fill(project.key)
    route = docs.page.locator('[id="post-/v1/files"]')
    route.locator("summary").click()
    expect(route.get_by_label("Body")).to_have_value(re.compile("/releases/release.tar"))
    expect(route.locator(".docs-example").first).to_contain_text('"upload_url"')

    route.get_by_role("button", name="Send").click()

    expect(route.locator("[aria-live] h3")).to_contain_text("201")
    assert docs.complaints == []


def test_groups_are_in_tour_order_with_webhooks_last(docs: Console) -> None:
    names = docs.page.locator(".docs-group h2").all_inner_texts()
    assert names.index("Projects") < names.index("Files") < names.index("Exports") < names.index("Operations")
    assert names[-1].startswith("What you implement")
    page = docs.page.locator('[id="get-source.page"]')
    page.locator("summary").click()
    expect(page.locator(".docs-example")).to_contain_text('"total": 2')
    expect(page.get_by_role("button", name="Send")).to_have_count(0)


def test_getting_started_shows_the_url_of_the_stack(docs: Console, deployed: Deployed) -> None:
    docs.page.goto(f"{deployed.api_url}/start")
    first = docs.page.locator("pre[data-way=curl]").first
    expect(first).to_have_text(f"curl -s {deployed.api_url}/healthz")
    told = subprocess.run(first.inner_text(), shell=True, capture_output=True, text=True, check=True)
    assert '"ok"' in told.stdout
    assert docs.complaints == []
