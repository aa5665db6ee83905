"""Whichever AWS call a function dies or stalls at, before or after it: nothing accepted is lost, everything ends."""

from __future__ import annotations

import pytest

from tests.faults.dying import AFTER, BEFORE, LATE, THROTTLED
from tests.faults.scenarios import ALL
from tests.faults.sweep import Scenario, report, sweep


@pytest.mark.slow
@pytest.mark.parametrize("mode", [BEFORE, AFTER, THROTTLED, LATE])
@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.name)
def test_every_crash_point_is_survived(scenario: Scenario, mode: str) -> None:
    outcome = sweep(scenario, mode)

    print(report([(scenario.name, mode, outcome)]))
    # An upload is nothing but requests, and those are not late but repeated.
    assert outcome.points > 0 or (scenario.name, mode) == ("upload", LATE)
    assert not outcome.faults, "\n".join(outcome.faults)
