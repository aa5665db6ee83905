"""Fixtures for every kind of test."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.support.moto.cloud import MotoCloud, Project


def pytest_collection_finish() -> None:
    """Looks for garbage less often, and not among what lives as long as the process: a tenth of the time went there."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


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
