"""One MiniStack with AUTH=true for all end-to-end tests: a deployment takes seconds, and projects isolate tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.deployed import Deployed, DeployedProject, deployed_at

# The files that take longest come first. pytest-xdist would begin with those that have most tests, and its processes
# would not end together.
_LONGEST = (
    *(
        "test_fuzz",
        "test_websocket",
        "test_real_kill",
        "test_bench_sections",
        "test_releases",
        "test_distribution",
        "test_swarm",
        "test_swarm_preheat",
    ),
    *("test_cli", "test_queue_restart", "test_local_cloud", "test_push", "test_watch_crowd", "test_leaves_nothing"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {name: number for number, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


@pytest.fixture(scope="session")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    with deployed_at(tmp_path_factory.mktemp("cloud")) as cloud:
        yield cloud


@pytest.fixture
def project(deployed: Deployed) -> DeployedProject:
    return deployed.project()
