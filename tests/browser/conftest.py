"""One deployed stack and one Chromium for all tests of the console. Without Chromium there is nothing to collect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.support.console import CHROMIUM, Console, chromium, console
from tests.support.deployed import Deployed, DeployedProject, deployed_at

collect_ignore_glob = [] if CHROMIUM else ["test_*.py"]

LAST = "test_zz_routes.py"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What the pages called is judged only where all tests of the console run."""
    here = Path(__file__).parent
    run = {item.path.name for item in items if item.path.parent == here}
    if run != {path.name for path in here.glob("test_*.py")} or config.option.keyword:
        left_out = [item for item in items if item.path.name == LAST]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    with deployed_at(tmp_path_factory.mktemp("cloud"), CollectWindowSeconds="5", JobTimeoutSeconds="600") as made:
        yield made


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


@pytest.fixture
def project(deployed: Deployed) -> DeployedProject:
    return deployed.project()


@pytest.fixture
def desk(browser: Browser, deployed: Deployed, project: DeployedProject) -> Iterator[Console]:
    """Signed in with a project's key, on a wide screen, in English."""
    with console(browser, deployed) as opened:
        opened.sign_in(project.key)
        yield opened
