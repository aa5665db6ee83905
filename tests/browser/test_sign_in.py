"""Signing in, languages, narrow screens, keyboard, and connections of the page."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from playwright.sync_api import Browser, Route, WebSocketRoute, expect

from tests.support.console import Console, console, fits
from tests.support.deployed import Deployed, DeployedProject
from tidegate_client.cli import build_parser

AREAS = [
    "overview",
    "distribution",
    "distribution/new",
    "fleet",
    "files",
    "ingest",
    "ingest/new",
    "exports",
    "exports/new",
    "export-schedules",
    "export-schedules/new",
    "batches",
    "batch-schedules",
    "businesses",
    "queue",
    "callbacks",
    "operate/credentials",
    "operate/audit",
    "operate/archive",
    "nowhere",
]
ADMINS_AREAS = ["operate/projects", "operate/keys", "operate/system"]


def test_button_shows_that_its_action_is_still_running(
    browser: Browser, deployed: Deployed, project: DeployedProject
) -> None:
    with console(browser, deployed) as opened:
        held: list[Route] = []
        opened.page.route("**/v1/me", lambda route: held.append(route))
        opened.page.goto(f"{deployed.api_url}/")
        opened.page.locator("input[name=key]").fill(project.key)
        enter = opened.page.get_by_role("button", name="Sign in")
        enter.click()

        expect(enter).to_have_attribute("aria-busy", "true")
        expect(enter).to_be_disabled()
        opened.page.wait_for_timeout(200)
        held[0].fulfill(status=401, json={"code": "unauthenticated", "status": 401, "detail": "no"})

        expect(enter).not_to_have_attribute("aria-busy", "true")
        expect(enter).to_be_enabled()


def test_sign_in_shows_the_overview_and_keeps_the_key_in_its_tab(desk: Console, project: DeployedProject) -> None:
    expect(desk.page.get_by_role("heading", name="Overview", level=1)).to_be_visible()

    assert project.key not in desk.page.url
    assert desk.page.evaluate("JSON.stringify(localStorage)").count(project.key) == 0
    desk.page.reload()
    expect(desk.page.get_by_role("heading", name="Overview", level=1)).to_be_visible()
    desk.page.get_by_role("button", name="Sign out").click()
    expect(desk.page.locator("input[name=key]")).to_be_visible()
    assert desk.page.evaluate("sessionStorage.length") == 0


def test_wrong_key_is_refused_with_a_reason(browser: Browser, deployed: Deployed) -> None:
    with console(browser, deployed) as opened:
        opened.open()
        opened.page.locator("input[name=key]").fill("tg_wrong")
        opened.page.get_by_role("button", name="Sign in").click()
        expect(opened.page.locator(".form-error")).to_contain_text("key")


def test_link_with_a_ticket_signs_in_once_and_leaves_no_trace(browser: Browser, deployed: Deployed) -> None:
    ticket = deployed.http("POST", "/v1/sign-in-tickets", key=deployed.admin_key).json()["ticket"]
    with console(browser, deployed) as opened:
        opened.page.goto(f"{deployed.api_url}/#ticket={ticket}")
        expect(opened.page.get_by_role("heading", name="Overview", level=1)).to_be_visible()
        assert ticket not in opened.page.url
        opened.page.reload()
        expect(opened.page.get_by_role("heading", name="Overview", level=1)).to_be_visible()
    with console(browser, deployed) as again:
        again.page.goto(f"{deployed.api_url}/#ticket={ticket}")
        expect(again.page.locator(".notice")).to_contain_text("tidegate --profile admin console")


def test_sign_in_page_names_commands_that_give_a_key(browser: Browser, deployed: Deployed) -> None:
    with console(browser, deployed) as opened:
        opened.open()
        opened.page.get_by_text("Where do I get a key?").click()
        commands = [button.removeprefix("tidegate ") for button in opened.page.locator(".copy").all_inner_texts()]
    assert commands[0] == f"login --profile admin --api-url {deployed.api_url}"
    for command in commands:
        build_parser().parse_args(shlex.split(command))


def test_page_opens_without_trailing_slash(browser: Browser, deployed: Deployed) -> None:
    with console(browser, deployed) as opened:
        opened.page.goto(deployed.api_url)
        expect(opened.page.get_by_role("button", name="Sign in")).to_be_visible()


def test_page_polls_without_a_websocket(desk: Console) -> None:
    expect(desk.page.locator("#live")).to_have_text("Live")

    desk.page.route("**/v1/ws-tickets", lambda route: route.abort())
    desk.page.reload()

    expect(desk.page.locator("#live")).to_have_text("Polling")
    expect(desk.page.get_by_role("heading", name="Overview", level=1)).to_be_visible()
    desk.complaints.clear()


def test_language_is_the_browsers_until_switched(browser: Browser, deployed: Deployed) -> None:
    with console(browser, deployed, language="zh-CN") as opened:
        opened.sign_in(deployed.project().key)
        expect(opened.page.get_by_role("heading", name="总览")).to_be_visible()
        assert opened.page.locator("html").get_attribute("lang") == "zh-CN"

        opened.page.get_by_role("button", name="English").click()

        expect(opened.page.get_by_role("heading", name="Overview")).to_be_visible()
        opened.page.reload()
        expect(opened.page.get_by_role("heading", name="Overview")).to_be_visible()


@pytest.mark.parametrize("width", [390, 1440])
def test_every_area_fits_its_screen_and_axe_finds_nothing_serious(
    browser: Browser, deployed: Deployed, width: int
) -> None:
    with console(browser, deployed, width=width) as opened:
        opened.sign_in(deployed.project().key)
        fits(opened, AREAS, width)
    with console(browser, deployed, width=width, language="zh-CN") as opened:
        opened.sign_in(deployed.admin_key)
        fits(opened, [*ADMINS_AREAS, f"operate/projects/{deployed.project().id}"], width)


def test_every_area_is_reachable_by_keyboard(desk: Console) -> None:
    desk.page.reload()
    desk.page.locator("h1").wait_for()
    desk.page.keyboard.press("Tab")
    expect(desk.page.locator(".skip")).to_be_focused()
    links = desk.page.locator(".areas a")
    for _ in range(2):
        desk.page.keyboard.press("Tab")
    expect(links.first).to_be_focused()
    for _ in range(links.count() - 1):
        desk.page.keyboard.press("Tab")
    desk.page.keyboard.press("Enter")
    expect(desk.page.get_by_role("heading", name="Credentials", level=1)).to_be_visible()


def test_page_connects_only_to_its_own_server(browser: Browser, deployed: Deployed) -> None:
    with console(browser, deployed) as opened:
        asked: list[str] = []
        opened.page.on("request", lambda request: asked.append(request.url))
        opened.sign_in(deployed.project().key)
        for area in AREAS:
            opened.go(area)
            expect(opened.page.locator("h1")).to_be_visible()
        origin = re.match(r"https?://[^/]+", deployed.api_url)
        assert origin
        assert [url for url in asked if not url.startswith(origin[0])] == []


def test_connection_closed_for_a_large_frame_is_not_reopened(own_desk: Console) -> None:
    opened: list[str] = []

    def close(socket: WebSocketRoute) -> None:
        opened.append(socket.url)
        socket.close(code=1009, reason="frame too large")

    # Otherwise the page may open its first connection while the previous one is still closing.
    expect(own_desk.page.locator("#live")).to_have_text("Live")
    own_desk.page.route_web_socket(re.compile("ticket="), close)
    own_desk.page.reload()
    expect(own_desk.page.locator("#live")).to_have_text("Polling")
    # After any other close code it reconnects after a second.
    own_desk.page.wait_for_timeout(1500)
    assert len(opened) == 1


@pytest.mark.parametrize(("code", "connections"), [("invalid", 1), ("not_found", 2)], ids=["refused", "unknown"])
def test_console_polls_after_its_watch_was_refused(own_desk: Console, code: str, connections: int) -> None:
    """A connection that the server does not know is opened again; any other refusal leaves the views to poll."""
    opened: list[str] = []

    def refuse(socket: WebSocketRoute) -> None:
        opened.append(socket.url)
        socket.send(json.dumps({"type": "error", "data": {"code": code, "detail": "refused"}}))

    expect(own_desk.page.locator("#live")).to_have_text("Live")
    own_desk.page.route_web_socket(re.compile("ticket="), refuse)
    own_desk.page.reload()
    expect(own_desk.page.locator("#live")).to_have_text("Polling")
    own_desk.page.wait_for_timeout(1800)
    assert len(opened) >= connections
    assert len(opened) == 1 or code == "not_found"
