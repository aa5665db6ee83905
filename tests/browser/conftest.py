"""A deployed stack and a Chromium for each process. Without Chromium there is nothing to collect.

A run of the whole suite fails if its tests together left out an operation that the console calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from tests.support.console import API_CALLS, CHROMIUM, Console, chromium, new_context, reused, tab
from tests.support.console_routes import never_called
from tests.support.deployed import Deployed, DeployedProject, deployed_at

collect_ignore_glob = [] if CHROMIUM else ["test_*.py"]

_WHOLE_SUITE = pytest.StashKey[bool]()
_NEVER_CALLED = pytest.StashKey[list[str]]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    collected = {item.path.name for item in items if item.path.parent == here}
    option = config.option
    narrowed = option.keyword or option.lf or option.collectonly
    config.stash[_WHOLE_SUITE] = not narrowed and collected == {path.name for path in here.glob("test_*.py")}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Takes over the calls that a process of pytest-xdist has seen."""
    output = getattr(node, "workeroutput", {})
    API_CALLS.update((method, path) for method, path in output.get("console_calls", []))
    if "whole_suite" in output:
        node.config.stash[_WHOLE_SUITE] = output["whole_suite"]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    whole_suite = session.config.stash.get(_WHOLE_SUITE, False)
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["console_calls"] = sorted(API_CALLS)
        session.config.workeroutput["whole_suite"] = whole_suite
    elif whole_suite and exitstatus == pytest.ExitCode.OK and (left_out := never_called(API_CALLS)):
        session.config.stash[_NEVER_CALLED] = left_out
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if left_out := config.stash.get(_NEVER_CALLED, []):
        terminalreporter.section("No test of the console made these calls", red=True)
        terminalreporter.write_line("\n".join(left_out))


@pytest.fixture(scope="session")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    with deployed_at(tmp_path_factory.mktemp("cloud"), CollectWindowSeconds="5") as made:
        yield made


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


@pytest.fixture
def project(deployed: Deployed) -> DeployedProject:
    return deployed.project()


@pytest.fixture(scope="session")
def desk_context(browser: Browser) -> Iterator[BrowserContext]:
    """Shared by the tests of a process: a new context would load and compile the console for each of them."""
    context = new_context(browser)
    yield context
    context.close()


@pytest.fixture(scope="session")
def desk_pages() -> list[Page]:
    """Holds the page of `desk` between two tests: a new one for each would start a process and compile the console."""
    return []


@pytest.fixture
def desk(
    desk_context: BrowserContext, desk_pages: list[Page], deployed: Deployed, project: DeployedProject
) -> Iterator[Console]:
    """Signed in with a project's key, on a wide screen, in English.

    A test that adds listeners, WebSocket routes or CDP settings uses `own_desk`: they would stay in this page.
    """
    # Returned only if it could be reset.
    page = desk_pages.pop() if desk_pages else desk_context.new_page()
    with reused(page, deployed) as opened:
        opened.sign_in(project.key)
        yield opened
    desk_pages.append(page)


@pytest.fixture
def own_desk(desk_context: BrowserContext, deployed: Deployed, project: DeployedProject) -> Iterator[Console]:
    """Like `desk`, in a page that is closed at the end."""
    with tab(desk_context, deployed) as opened:
        opened.sign_in(project.key)
        yield opened
