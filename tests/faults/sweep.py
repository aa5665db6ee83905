"""The crash sweep: a scenario is run once to count its AWS calls, then again for each call going wrong."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.faults.dying import BEFORE, Died, dying
from tests.faults.late import SHORT, Nap
from tests.faults.world import World
from tests.support.moto_cloud import MotoCloud

# `make test` takes some of the crash points, spread over the scenario; `make faults-all` (SWEEP_POINTS=0) all of them.
POINTS = int(os.environ.get("SWEEP_POINTS", "2"))
# The naps of late functions are drawn by lot; another seed draws others.
SEED = os.environ.get("SWEEP_SEED", "tide")


@dataclass(frozen=True)
class Scenario:
    """`run` does what callers and the world do, and raises AssertionError if a promise was broken.

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
        return f"{self.points} crash points, {self.points - len(self.faults)} survived"


def play(
    scenario: Scenario, at: int | None = None, mode: str = BEFORE, repeat: random.Random | None = None, nap: Nap = SHORT
) -> list[str]:
    """Answers the calls made; the name of the one that went wrong is in any AssertionError."""
    with MotoCloud(machines_run=True) as cloud, dying(cloud, at, mode, repeat, scenario.only, nap) as calls:
        try:
            scenario.run(World(cloud, calls))
        except (Exception, Died) as error:
            raise AssertionError(f"{calls.happened}: {type(error).__name__}: {error}"[:1500]) from error
        return calls.made


def sweep(scenario: Scenario, mode: str, most: int = POINTS, counted: int = 0) -> Outcome:
    """`counted` is the number of its calls, where it is known."""
    total = counted or len(play(scenario, None, mode))
    points = _sample(total, most)
    faults = []
    for at in points:
        try:
            play(scenario, at, mode, nap=Nap.drawn(random.Random(f"{SEED}{at}"), total))
        except AssertionError as error:
            faults.append(f"call {at} of {total}: {error}")
    return Outcome(len(points), tuple(faults))


def _sample(total: int, most: int) -> list[int]:
    """All of them, or the middles of `most` equal stretches."""
    if most == 0 or total <= most:
        return list(range(1, total + 1))
    return [1 + (2 * stretch + 1) * total // (2 * most) for stretch in range(most)]


def report(rows: Iterable[tuple[str, str, Outcome]]) -> str:
    return "\n".join(f"{name:<24} {mode:<10} {outcome.row}" for name, mode, outcome in rows)
