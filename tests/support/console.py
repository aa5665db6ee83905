"""Drives the console with a headless Chromium, as a person would, against the deployed stack."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect, sync_playwright

from tests.support.deployed import Deployed, DeployedProject
from tidegate_client.agent.daemon import Agent
from tidegate_client.agent.options import AgentOptions
from tidegate_client.client import Client

# As root in a container, Chromium cannot create its sandbox. The second flag: no renderer in advance for the next tab.
FLAGS = ["--no-sandbox", "--disable-features=SpareRendererForSitePerProcess"]
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
# Milliseconds that a view may take on a busy machine.
PATIENCE = 45_000
expect.set_options(timeout=PATIENCE)
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
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
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
        self._listeners: dict[str, Callable[..., None]] = {
            "pageerror": lambda error: self.complaints.append(str(error)),
            "console": self._on_message,
            "request": self._on_request,
        }
        for event, listener in self._listeners.items():
            page.on(event, listener)  # type: ignore[call-overload]

    def sign_out(self) -> None:
        """Leaves the page as if it were new: another test may use it."""
        self.page.unroute_all(behavior="ignoreErrors")
        self.page.emulate_media(color_scheme="light")
        # A document of the same server in which no console runs that could store something.
        self.page.goto(f"{self.deployed.api_url}/healthz")
        self.page.evaluate("() => { sessionStorage.clear(); localStorage.clear(); }")
        for event, listener in self._listeners.items():
            self.page.remove_listener(event, listener)

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
    # Without motion, a page is idle once it is loaded (a pulsing dot alone takes a tenth of a core), and a change of
    # theme is whole at once: in its transition, colours have the contrast of neither theme.
    return browser.new_context(viewport=size, locale=language, reduced_motion="reduce")  # type: ignore[arg-type]


@contextmanager
def tab(context: BrowserContext, deployed: Deployed) -> Iterator[Console]:
    """Opens a tab without the stored settings of earlier ones. Closes it at the end, and every tab opened from it."""
    before = context.pages
    page = context.new_page()
    stored = {"origin": "/".join(deployed.api_url.split("/")[:3]), "storageTypes": "local_storage"}
    context.new_cdp_session(page).send("Storage.clearDataForOrigin", stored)
    opened = Console(page, deployed)
    try:
        yield opened
        assert opened.complaints == []
    finally:
        close_others(context, before)


@contextmanager
def reused(page: Page, deployed: Deployed) -> Iterator[Console]:
    """Opens the console in a page that other tests use as well. Closes the context's other pages at the end."""
    opened = Console(page, deployed)
    yield opened
    complaints = list(opened.complaints)
    close_others(page.context, [page])
    opened.sign_out()
    assert complaints == []


def close_others(context: BrowserContext, kept: list[Page]) -> None:
    for page in context.pages:
        if page not in kept:
            page.close()


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
    """Fails if a page is wider than the screen, or if axe finds a serious problem in light or dark."""
    for area in areas:
        opened.page.emulate_media(color_scheme="light")
        opened.go(area)
        expect(opened.page.locator("h1")).to_be_visible()
        expect(opened.page.locator(".skeleton")).to_have_count(0)
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width, area
        assert serious(opened.page) == [], (area, "light")
        opened.page.emulate_media(color_scheme="dark")
        # The theme changes colours and nothing else.
        assert serious(opened.page, "color-contrast") == [], (area, "dark")


def serious(page: Page, *rules: str) -> list[tuple[str, str]]:
    """Runs axe on the current page, by all of its rules or by these. Returns each serious violation with its HTML."""
    found = violations(page, *rules)
    return [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")]


def violations(page: Page, *rules: str) -> list[dict[str, Any]]:
    # The script has half a megabyte, so it is loaded once for each document, not for each run.
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(Axe().axe_script)
    options = {"resultTypes": ["violations"]} | ({"runOnly": list(rules)} if rules else {})
    found: list[dict[str, Any]] = page.evaluate(
        "options => axe.run(options).then((results) => results.violations)", options
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
