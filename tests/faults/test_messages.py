"""Every SQS message comes twice and out of order, every task of a machine is run twice: the outcome is the same."""

from __future__ import annotations

import random

import pytest

from tests.faults.scenarios import ALL
from tests.faults.sweep import Scenario, play


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.name)
def test_everything_delivered_twice(scenario: Scenario) -> None:
    play(scenario, repeat=random.Random(scenario.name))
