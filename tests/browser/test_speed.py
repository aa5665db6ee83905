"""The overview's first paint with 10,000 records in the table."""

from __future__ import annotations

from playwright.sync_api import Browser

from tests.support.console import console
from tests.support.console_seed import fill
from tests.support.deployed import Deployed

ROUNDS = 4
# From the press of the button to numbers on the screen, in the page's own time.
WATCH = """() => {
  const began = performance.now();
  window.painted = new Promise((done) => new MutationObserver(() => {
    if (document.querySelector(".tiles")) requestAnimationFrame(() => done(performance.now() - began));
  }).observe(document.body, { childList: true, subtree: true }));
}"""


def test_the_overview_paints_within_a_second_after_sign_in_with_10_000_records(
    browser: Browser, deployed: Deployed
) -> None:
    project = deployed.project()
    fill(deployed, project.id, requests=4000, jobs=3000, files=3000)
    times: list[float] = []
    with console(browser, deployed) as opened:
        for _ in range(ROUNDS):
            opened.open()
            opened.page.locator("input[name=key]").fill(project.key)
            opened.page.evaluate(WATCH)
            opened.page.locator("form button[type=submit]").click()
            times.append(opened.page.evaluate("window.painted"))
            opened.page.get_by_role("button", name="Sign out").click()
            opened.page.locator("input[name=key]").wait_for()
    print("first paint, ms:", [round(time) for time in times])
    # The first round meets cold functions, and others use this machine too.
    assert min(times) < 1000
