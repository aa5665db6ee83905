"""The API reference in a browser: all operations, and forms that call the API."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.support.console import Console, console
from tests.support.deployed import Deployed, DeployedProject
from tidegate.web.console.bundle import programs
from tidegate_client.cli import build_parser


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


def test_getting_started_shows_one_language_and_fills_in_the_key(
    docs: Console, deployed: Deployed, project: DeployedProject
) -> None:
    docs.page.evaluate("key => sessionStorage.setItem('tidegate.key', key)", project.key)
    docs.page.goto(f"{deployed.api_url}/start")
    expect(docs.page.locator("pre").first).to_contain_text(f"TIDEGATE_API_URL={deployed.api_url}")
    assert project.key not in docs.page.locator("main").inner_text()
    expect(docs.page.locator("pre[data-way=curl]")).to_have_count(5)

    docs.page.get_by_role("tab", name="PHP").click()
    expect(docs.page.locator("pre[data-way=php]")).to_have_count(5)
    expect(docs.page.get_by_text("php start.php")).to_be_visible()
    docs.page.reload()
    expect(docs.page.locator("pre[data-way=php]")).to_have_count(5)
    docs.page.get_by_role("button", name="中文").click()
    expect(docs.page.get_by_role("heading", name="快速上手")).to_be_visible()
    docs.page.get_by_role("button", name="English").click()
    assert docs.complaints == []


def test_request_is_shown_in_the_chosen_language(docs: Console) -> None:
    for name in ("post-/v1/files", "get-/v1/files/{file_id}"):
        docs.page.locator(f'[id="{name}"] summary').click()
    docs.page.locator('[id="post-/v1/files"]').get_by_role("tab", name="Go").click()
    for name, word in (("post-/v1/files", "strings.NewReader"), ("get-/v1/files/{file_id}", "nil)")):
        expect(docs.page.locator(f'[id="{name}"] pre[data-way=go]')).to_contain_text(word)
    docs.page.locator('[id="post-/v1/files"]').get_by_role("tab", name="curl").click()


def test_fields_that_must_be_given_stand_first(docs: Console) -> None:
    docs.page.locator('[id="post-/v1/batches"] summary').click()
    fields = docs.page.locator('[id="post-/v1/batches"] .docs-words > div:nth-of-type(2) .docs-field > .mono')
    required = ["docs-required" in str(field.get_attribute("class")) for field in fields.all()]
    assert any(required)
    assert required == sorted(required, reverse=True)


def test_slash_searches_and_a_link_opens_its_operation(docs: Console, deployed: Deployed) -> None:
    docs.page.keyboard.press("/")
    docs.page.keyboard.type("redrive")
    expect(docs.page.locator(".docs-op")).to_have_count(2)
    docs.page.goto(f"{deployed.api_url}/docs#post-/v1/batches")
    docs.page.reload()
    expect(docs.page.locator('[id="post-/v1/batches"] .docs-samples')).to_be_visible()


@pytest.mark.parametrize("width", [1440, 390])
def test_code_is_never_cut_covered_or_broken_inside_a_word(docs: Console, deployed: Deployed, width: int) -> None:
    docs.page.set_viewport_size({"width": width, "height": 844})
    docs.page.goto(f"{deployed.api_url}/start")
    cut = """() => {
      const covered = (word, pre) => {
        const [a, b] = [word, pre.nextElementSibling].map((each) => each.getBoundingClientRect());
        return a.right > b.left && a.bottom > b.top && a.top < b.bottom;
      };
      const bad = (word, pre) => word.getClientRects().length > 1 || covered(word, pre);
      return [...document.querySelectorAll("pre")].filter((pre) => pre.scrollWidth > pre.clientWidth
        || [...pre.querySelectorAll(".docs-word")].some((word) => bad(word, pre))).map((pre) => pre.textContent);
    }"""
    tabs = docs.page.get_by_role("tab")
    expect(tabs).to_have_count(7)
    for tab in tabs.all():
        tab.click()
        assert docs.page.evaluate(cut) == [], tab.inner_text()
    docs.page.goto(f"{deployed.api_url}/docs#post-/v1/batches")
    docs.page.reload()
    docs.page.locator(".docs-samples pre").first.wait_for()
    assert docs.page.evaluate(cut) == []


def test_code_is_copied_as_it_is(docs: Console, deployed: Deployed) -> None:
    docs.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    docs.page.set_viewport_size({"width": 390, "height": 844})
    docs.page.goto(f"{deployed.api_url}/start")
    docs.page.get_by_role("tab", name="Java").click()
    shown = docs.page.locator("pre[data-way=java]").first
    assert shown.text_content() == programs()["java"][0]
    docs.page.locator(".docs-code", has=shown).get_by_role("button", name="Copy").first.click()
    expect(docs.page.get_by_role("button", name="Copied")).to_be_visible()
    assert docs.page.evaluate("navigator.clipboard.readText()") == programs()["java"][0]


def test_admin_commands_of_the_start_page_keep_a_login_of_their_own(docs: Console, deployed: Deployed) -> None:
    docs.page.goto(f"{deployed.api_url}/start")
    shown = docs.page.locator("pre", has_text="project create").text_content() or ""
    commands = [shlex.split(line, comments=True) for line in shown.splitlines() if line.startswith("tidegate ")]
    assert commands[0] == ["tidegate", "login", "--profile", "admin", "--api-url", deployed.api_url]
    assert {build_parser().parse_args(command[1:]).profile for command in commands} == {"admin"}


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("path", ["start", "docs#post-/v1/task"])
def test_pages_fit_their_screen(docs: Console, deployed: Deployed, path: str, width: int) -> None:
    docs.page.set_viewport_size({"width": width, "height": 800})
    docs.page.goto(f"{deployed.api_url}/{path}")
    docs.page.reload()
    docs.page.locator("pre").first.wait_for()
    assert docs.page.evaluate("document.documentElement.scrollWidth") <= width
