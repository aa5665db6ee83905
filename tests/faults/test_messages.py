"""Every SQS message is delivered twice and out of order, and every task of a state machine runs twice."""

from __future__ import annotations

import random

import pytest

from tests.faults.scenarios import ALL
from tests.faults.sweep import Scenario, play


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.name)
def test_outcome_is_the_same_if_everything_is_delivered_twice(scenario: Scenario) -> None:
    play(scenario, repeat=random.Random(scenario.name))
