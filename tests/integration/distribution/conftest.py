from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fleet import Fleet
from tests.support.moto.cloud import MotoCloud
from tidegate import app as composition


@pytest.fixture(scope="module")
def cloud() -> Iterator[MotoCloud]:
    """One for the tests of a module: each has a project of its own, and projects share nothing."""
    with MotoCloud() as made:
        yield made


@pytest.fixture
def fleet(cloud: MotoCloud) -> Fleet:
    # A new process, as it were: nothing that an earlier test remembered or replaced is left.
    composition.install(composition.App(clock=cloud.clock))
    made = Fleet(cloud)
    made.to_window_start()
    return made
