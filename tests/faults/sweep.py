"""The sweep: a scenario is run once to count its AWS calls, then again for each call or invocation that goes wrong."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tests.faults.dying import Calls, Died, dying
from tests.faults.late import SHORT, Nap
from tests.faults.modes import BEFORE
from tests.faults.weather import CALM, Weather
from tests.faults.world import World
from tests.support.moto.cloud import MotoCloud

# `make test` takes some of the crash points, spread over the scenario; `make faults-all` (SWEEP_POINTS=0) all of them.
POINTS = int(os.environ.get("SWEEP_POINTS", "2"))
# How long late functions sleep is random; the seed makes it repeatable.
SEED = os.environ.get("SWEEP_SEED", "tide")


@dataclass(frozen=True)
class Scenario:
    """`run` plays the callers and the systems around, and raises AssertionError if a promise was broken.

    `only` names the functions that die; without it, all of them do. Not `works_alone`: callers wait for all of it, and
    those repeat what is late.
    """

    name: str
    run: Callable[[World], None]
    only: tuple[str, ...] = ()
    works_alone: bool = True


@dataclass(frozen=True)
class Outcome:
    points: int
    faults: tuple[str, ...]

    @property
    def row(self) -> str:
        return f"{self.points} points, {self.points - len(self.faults)} survived"


def play(
    scenario: Scenario,
    at: int | None = None,
    mode: str = BEFORE,
    repeat: random.Random | None = None,
    nap: Nap = SHORT,
    weather: Weather = CALM,
) -> Calls:
    """Returns the calls made. An AssertionError names the call that went wrong."""
    with MotoCloud(machines_run=True) as cloud, dying(cloud, at, mode, repeat, scenario.only, nap, weather) as calls:
        try:
            scenario.run(World(cloud, calls))
        except (Exception, Died) as error:
            raise AssertionError(f"{calls.happened}: {type(error).__name__}: {error}"[:1500]) from error
        return calls


def sweep(scenario: Scenario, mode: str, most: int = POINTS, counted: Calls | None = None) -> Outcome:
    """`counted` is a run in which nothing went wrong, where there was one."""
    calls = counted or play(scenario, None, mode)
    total = len(calls.made)
    points = _sample(calls.points(mode), most)
    faults: list[str] = []
    for at in points:
        try:
            play(scenario, at, mode, nap=nap_at(at, total))
        except AssertionError as error:
            faults.append(f"{scenario.name}, point {at}: {error}")
    return Outcome(len(points), tuple(faults))


def nap_at(at: int, total: int) -> Nap:
    """How long a function sleeps that stalls at this call."""
    return Nap.drawn(random.Random(f"{SEED}{at}"), total)


def _sample(points: Sequence[int], most: int) -> list[int]:
    """All points, or the middles of `most` equal ranges of them."""
    total = len(points)
    if most == 0 or total <= most:
        return list(points)
    return [points[(2 * part + 1) * total // (2 * most)] for part in range(most)]


def report(rows: Iterable[tuple[str, str, Outcome]]) -> str:
    return "\n".join(f"{name:<24} {mode:<12} {outcome.row}" for name, mode, outcome in rows)
