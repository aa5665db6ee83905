"""Whichever AWS call a function dies or stalls at, before or after it: nothing accepted is lost, everything ends."""

from __future__ import annotations

import pytest

from tests.faults.dying import AFTER, BEFORE, LATE, THROTTLED
from tests.faults.scenarios import ALL
from tests.faults.sweep import Outcome, Scenario, play, report, sweep


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.name)
def test_every_crash_point_is_survived(scenario: Scenario) -> None:
    calls = len(play(scenario))
    outcomes = {mode: sweep(scenario, mode, counted=calls) for mode in (BEFORE, AFTER, THROTTLED)}

    assert calls > 0
    _all_survived(scenario, outcomes)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [one for one in ALL if one.works_alone], ids=lambda scenario: scenario.name)
def test_every_function_may_go_on_late(scenario: Scenario) -> None:
    outcome = sweep(scenario, LATE)

    assert outcome.points > 0
    _all_survived(scenario, {LATE: outcome})


def _all_survived(scenario: Scenario, outcomes: dict[str, Outcome]) -> None:
    print(report([(scenario.name, mode, outcome) for mode, outcome in outcomes.items()]))
    faults = [fault for outcome in outcomes.values() for fault in outcome.faults]
    assert not faults, "\n".join(faults)
