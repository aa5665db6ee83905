"""Pages of single records with all their content, as an admin sees them."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser
from pytest_httpserver import HTTPServer

from tests.browser.gallery import Shown, seeded
from tests.support.console import console, fits
from tests.support.deployed import Deployed

RECORDS = [
    "job",
    "task",
    "host",
    "subscription",
    "export",
    "failed-export",
    "export-schedule",
    "batch",
    "batch-schedule",
    "request",
    "project",
]


@pytest.fixture(scope="module")
def shown(deployed: Deployed) -> Shown:
    """Creates the records once. Their sources and receivers may be gone when the pages are opened."""
    with HTTPServer(threaded=True) as server:
        return seeded(deployed, deployed.project(), server, hosts=24)


@pytest.mark.parametrize(("width", "language"), [(390, "en-GB"), (1440, "zh-CN")])
def test_records_fit_the_screen_and_axe_finds_nothing_serious(
    browser: Browser, deployed: Deployed, shown: Shown, width: int, language: str
) -> None:
    """In light and dark."""
    pages = shown.pages()
    with console(browser, deployed, width=width, language=language) as opened:
        opened.sign_in(deployed.admin_key)
        opened.page.locator("#project select").select_option(shown.project)
        fits(opened, [pages[name] for name in RECORDS], width)
