"""The docs in a browser: the whole contract, and forms that call the API where it is."""

from __future__ import annotations

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


def test_every_route_of_the_contract_is_there_and_a_word_narrows_them(docs: Console, deployed: Deployed) -> None:
    paths = deployed.http("GET", "/openapi.json").json()["paths"]
    routes = docs.page.locator(".docs-op")

    expect(routes).to_have_count(sum(len(methods) for methods in paths.values()))
    docs.page.locator("input[type=search]").fill("/v1/files")
    expect(routes).to_have_count(sum(len(methods) for path, methods in paths.items() if "/v1/files" in path))
    assert docs.complaints == []


def test_a_form_calls_the_api_with_the_key_that_was_typed_in(docs: Console, project: DeployedProject) -> None:
    route = docs.page.locator('[id="post-/v1/files"]')
    route.locator("summary").click()
    route.get_by_role("button", name="Send").click()
    expect(route.locator("pre")).to_contain_text('"unauthenticated"')

    docs.page.locator("input[type=password]").fill(project.key)
    route.get_by_label("Body").fill('{"biz_id": 1, "app_id": 1, "file_path": "/from/the/docs"}')
    route.get_by_role("button", name="Send").click()
    expect(route.locator("pre")).to_contain_text('"upload_url"')

    listed = docs.page.locator('[id="get-/v1/files"]')
    listed.locator("summary").click()
    listed.get_by_label("limit").fill("1")
    listed.get_by_role("button", name="Send").click()
    expect(listed.locator("pre")).to_contain_text("/from/the/docs")
    assert docs.complaints == []
