"""Whichever AWS call or invocation fails, in whichever mode: nothing accepted is lost, and everything ends."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from tests.faults.conditions import ALL_CONDITIONS, CONDITIONS, Conditions
from tests.faults.modes import CRASHES, HARSH, LATE
from tests.faults.scenarios import ALL
from tests.faults.sweep import POINTS, READ_EVERY, Outcome, Scenario, play, report, sweep

# `make faults-all` runs all modes at all points. `make test` runs two ways to crash of each scenario, two other modes
# and a stall, each at one point.
_MODES = tuple(filter(None, os.environ.get("SWEEP_MODES", "").split(","))) or HARSH
_SAMPLED = 2


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.name)
def test_scenario_survives_faults_at_single_calls(scenario: Scenario) -> None:
    calls = play(scenario, read_every=READ_EVERY)
    modes = (*_some(CRASHES, scenario), *_some(_MODES, scenario))
    outcomes = {mode: sweep(scenario, mode, min(POINTS, 1), counted=calls) for mode in modes}

    assert calls.made
    _all_survived(scenario, outcomes)


def _some(modes: Sequence[str], scenario: Scenario) -> Sequence[str]:
    """Each scenario runs other modes, so that the sample has all of them."""
    if POINTS == 0 or "SWEEP_MODES" in os.environ:
        return modes
    first = ALL.index(scenario) * _SAMPLED
    return tuple(modes[(first + turn) % len(modes)] for turn in range(_SAMPLED))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [one for one in ALL if one.works_alone], ids=lambda scenario: scenario.name)
def test_scenario_survives_functions_that_stall(scenario: Scenario) -> None:
    outcome = sweep(scenario, LATE, min(POINTS, 1))

    assert outcome.points > 0
    _all_survived(scenario, {LATE: outcome})


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.name)
@pytest.mark.parametrize("conditions", [*(CONDITIONS if POINTS == 0 else ()), "storm"])
def test_scenario_survives_lasting_conditions(scenario: Scenario, conditions: str) -> None:
    chosen: Conditions = CONDITIONS.get(conditions, ALL_CONDITIONS)
    play(scenario, conditions=chosen)


def _all_survived(scenario: Scenario, outcomes: dict[str, Outcome]) -> None:
    print(report([(scenario.name, mode, outcome) for mode, outcome in outcomes.items()]))
    faults = [fault for outcome in outcomes.values() for fault in outcome.faults]
    assert not faults, "\n".join(faults)
