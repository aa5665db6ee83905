"""One MiniStack with AUTH=true for all end-to-end tests: a deployment takes seconds, and projects isolate tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.deployed import Deployed, DeployedProject, deployed_at


@pytest.fixture(scope="session")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    with deployed_at(tmp_path_factory.mktemp("cloud")) as cloud:
        yield cloud


@pytest.fixture
def project(deployed: Deployed) -> DeployedProject:
    return deployed.project()
