"""Whichever AWS call or invocation goes wrong, in whichever way: nothing accepted is lost, everything ends."""

from __future__ import annotations

import os

import pytest

from tests.faults.modes import CRASHES, HARSH, LATE
from tests.faults.scenarios import ALL
from tests.faults.sweep import POINTS, Outcome, Scenario, play, report, sweep
from tests.faults.weather import STORM, WEATHERS, Weather

# All modes at all points are `make faults-all`. `make test` takes two modes of each scenario, at one point each.
_MODES = tuple(filter(None, os.environ.get("SWEEP_MODES", "").split(","))) or HARSH
_SAMPLED = 2


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.name)
def test_every_crash_point_is_survived(scenario: Scenario) -> None:
    calls = play(scenario)
    outcomes = {mode: sweep(scenario, mode, counted=calls) for mode in CRASHES}
    for mode in _modes_of(scenario):
        outcomes[mode] = sweep(scenario, mode, min(POINTS, 1), counted=calls)

    assert calls.made
    _all_survived(scenario, outcomes)


def _modes_of(scenario: Scenario) -> tuple[str, ...]:
    """Each scenario has its turn of the modes, so that the sample has them all."""
    if POINTS == 0 or "SWEEP_MODES" in os.environ:
        return _MODES
    first = ALL.index(scenario) * _SAMPLED
    return tuple(_MODES[(first + turn) % len(_MODES)] for turn in range(_SAMPLED))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [one for one in ALL if one.works_alone], ids=lambda scenario: scenario.name)
def test_every_function_may_go_on_late(scenario: Scenario) -> None:
    outcome = sweep(scenario, LATE)

    assert outcome.points > 0
    _all_survived(scenario, {LATE: outcome})


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.name)
@pytest.mark.parametrize("weather", [*(WEATHERS if POINTS == 0 else ()), "storm"])
def test_a_run_in_bad_weather_ends_as_on_a_calm_day(scenario: Scenario, weather: str) -> None:
    in_weather: Weather = WEATHERS.get(weather, STORM)
    play(scenario, weather=in_weather)


def _all_survived(scenario: Scenario, outcomes: dict[str, Outcome]) -> None:
    print(report([(scenario.name, mode, outcome) for mode, outcome in outcomes.items()]))
    faults = [fault for outcome in outcomes.values() for fault in outcome.faults]
    assert not faults, "\n".join(faults)
