"""Drives the console with a headless Chromium, as a person would, against the deployed stack."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect, sync_playwright

from tests.support.deployed import Deployed, DeployedProject
from tidegate_client.agent.daemon import Agent, AgentOptions
from tidegate_client.client import Client

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
# Milliseconds that a view may take on a busy machine.
PATIENCE = 45_000
expect.set_options(timeout=PATIENCE)
STILL = "() => !document.getAnimations().some((one) => one instanceof CSSTransition)"
# Measures in the page itself: from the click on the button to figures on the screen.
_WATCH = """() => {
  const began = performance.now();
  window.painted = new Promise((done) => new MutationObserver(() => {
    if (document.querySelector(".tiles")) requestAnimationFrame(() => done(performance.now() - began));
  }).observe(document.body, { childList: true, subtree: true }));
}"""
# Method and path of every API call that a page has made in these tests.
API_CALLS: set[tuple[str, str]] = set()


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # As root in a container, Chromium cannot create its sandbox.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class Console:
    """One tab. `complaints` holds the page's JavaScript errors and the browser's error messages."""

    def __init__(self, page: Page, deployed: Deployed) -> None:
        self.page = page
        self.deployed = deployed
        self.complaints: list[str] = []
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._on_message)
        page.on("request", self._on_request)

    def _on_message(self, message: ConsoleMessage) -> None:
        if message.type == "error" and "status of" not in message.text:
            self.complaints.append(message.text)

    def _on_request(self, request: Request) -> None:
        if request.resource_type == "fetch" and request.url.startswith(self.deployed.api_url):
            API_CALLS.add((request.method, request.url[len(self.deployed.api_url) :].partition("?")[0]))

    def open(self, route: str = "") -> None:
        self.page.goto(f"{self.deployed.api_url}/{f'#/{route}' if route else ''}")

    def sign_in(self, key: str) -> None:
        self.open()
        self.page.locator("input[name=key]").fill(key)
        self.page.locator("form button[type=submit]").click()
        self.page.locator(".frame").wait_for()

    def go(self, route: str) -> None:
        self.page.evaluate("route => { location.hash = `#/${route}`; }", route)


@contextmanager
def console(browser: Browser, deployed: Deployed, *, width: int = 1440, language: str = "en-GB") -> Iterator[Console]:
    """Opens one tab in a new browser context."""
    context = new_context(browser, width=width, language=language)
    try:
        with tab(context, deployed) as opened:
            yield opened
    finally:
        context.close()


def new_context(browser: Browser, *, width: int = 1440, language: str = "en-GB") -> BrowserContext:
    size = {"width": width, "height": 900 if width > 500 else 844}
    return browser.new_context(viewport=size, locale=language, accept_downloads=True)  # type: ignore[arg-type]


@contextmanager
def tab(context: BrowserContext, deployed: Deployed) -> Iterator[Console]:
    """Opens a tab without the stored settings of earlier ones. Closes every tab of the context at the end."""
    page = context.new_page()
    stored = {"origin": "/".join(deployed.api_url.split("/")[:3]), "storageTypes": "local_storage"}
    context.new_cdp_session(page).send("Storage.clearDataForOrigin", stored)
    opened = Console(page, deployed)
    try:
        yield opened
        assert opened.complaints == []
    finally:
        for each in context.pages:
            each.close()


def first_paint(opened: Console, key: str) -> float:
    """Signs in and out. Returns the milliseconds from signing in to figures on the screen."""
    opened.open()
    opened.page.locator("input[name=key]").fill(key)
    opened.page.evaluate(_WATCH)
    opened.page.locator("form button[type=submit]").click()
    took: float = opened.page.evaluate("window.painted")
    opened.page.get_by_role("button", name="Sign out").click()
    opened.page.locator("input[name=key]").wait_for()
    return took


def fits(opened: Console, areas: list[str], width: int) -> None:
    """Fails if, in light or dark, a page is wider than the screen or axe finds a serious problem."""
    for scheme in ("light", "dark"):
        opened.page.emulate_media(color_scheme=scheme)
        for area in areas:
            opened.go(area)
            expect(opened.page.locator("h1")).to_be_visible()
            expect(opened.page.locator(".skeleton")).to_have_count(0)
            # During the change of theme, colours have the contrast of neither theme.
            opened.page.wait_for_function(STILL)
            assert opened.page.evaluate("document.documentElement.scrollWidth") <= width, area
            serious = [fault for fault in violations(opened.page) if fault["impact"] in ("serious", "critical")]
            assert serious == [], (area, scheme, [(f["id"], f["nodes"][0]["html"]) for f in serious])


def violations(page: Page) -> list[dict[str, Any]]:
    """Runs axe on the current page. Returns its violations."""
    # The script has half a megabyte, so it is loaded once for each document, not for each run.
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(Axe().axe_script)
    found: list[dict[str, Any]] = page.evaluate(
        "options => axe.run(options).then((results) => results.violations)", {"resultTypes": ["violations"]}
    )
    return found


@contextmanager
def agents(project: DeployedProject, home: Path, *names: str) -> Iterator[None]:
    """Runs host agents, each with its own root folder under `home`."""
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(_agent(project, home, name))
        yield


@contextmanager
def _agent(project: DeployedProject, home: Path, name: str) -> Iterator[None]:
    root, state = home / name, home / f"{name}.state"
    root.mkdir()
    client = Client(project.cloud.api_url, project.agent_key(name))
    running = Agent(client, AgentOptions(name, root, state, wait=2, report_every=0.5, drain_seconds=2))
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        running.stop()
        running.stop()
        thread.join(10)
