"""Fixtures for every kind of test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.moto.cloud import MotoCloud, Project


@pytest.fixture
def cloud() -> Iterator[MotoCloud]:
    """The stack on moto; started executions are recorded and do not run."""
    with MotoCloud() as made:
        yield made


@pytest.fixture
def running_cloud() -> Iterator[MotoCloud]:
    """The stack on moto; started executions run in threads, their waits move the clock."""
    with MotoCloud(machines_run=True) as made:
        yield made


@pytest.fixture
def project(cloud: MotoCloud) -> Project:
    return cloud.project()
