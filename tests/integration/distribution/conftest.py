from __future__ import annotations

import pytest

from tests.support.fleet import Fleet
from tests.support.moto_cloud import MotoCloud


@pytest.fixture
def fleet(cloud: MotoCloud) -> Fleet:
    made = Fleet(cloud)
    made.to_window_start()
    return made
