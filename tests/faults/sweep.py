"""The sweep: runs a scenario once to count its AWS calls, then once for each call or invocation that fails."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tests.faults.conditions import NORMAL, Conditions
from tests.faults.injection import Calls, Died, inject_faults
from tests.faults.late import SHORT, Delay
from tests.faults.modes import BEFORE
from tests.faults.reader import AT_THE_END, Reader
from tests.faults.world import World
from tests.support.moto.cloud import MotoCloud

# `make test` runs some points, spread over the scenario; `make faults-all` (SWEEP_POINTS=0) runs all of them.
POINTS = int(os.environ.get("SWEEP_POINTS", "2"))
# In runs without a fault, a caller reads all records after every so many writes; in all runs, at the end.
READ_EVERY = 5 if POINTS else 1
# How long functions stall is random; the seed makes it repeatable.
SEED = os.environ.get("SWEEP_SEED", "tide")


@dataclass(frozen=True)
class Scenario:
    """`run` acts as the callers and other systems, and raises AssertionError if a promise is broken.

    Faults are injected only in the functions named in `only`, or in all if it is empty. `works_alone` is false if
    callers wait for everything that happens: then no function is run late, because callers just retry.
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
    delay: Delay = SHORT,
    conditions: Conditions = NORMAL,
    read_every: int = 0,
) -> Calls:
    """Runs a scenario and returns the calls it made. An AssertionError names the injected fault.

    A caller reads all records at the end, and during the run after every `read_every`-th write."""
    with (
        MotoCloud(machines_run=True) as cloud,
        inject_faults(cloud, at, mode, repeat, scenario.only, delay, conditions) as calls,
    ):
        reader = Reader(cloud, calls)
        if read_every:
            reader.every, calls.after_write = read_every, reader.after_write
        try:
            scenario.run(World(cloud, calls, reader.projects))
            reader.read(AT_THE_END)
            assert not reader.wrong, f"{len(reader.wrong)} reads were wrong: {reader.wrong[:5]}"
        except (Exception, Died) as error:
            raise AssertionError(f"{calls.injected}: {type(error).__name__}: {error}"[:1500]) from error
        return calls


def sweep(scenario: Scenario, mode: str, most: int = POINTS, counted: Calls | None = None) -> Outcome:
    """Runs a scenario at up to `most` points. `counted` is the record of a run without faults, if there was one."""
    calls = counted or play(scenario, None, mode)
    total = len(calls.made)
    points = _sample(calls.points(mode), most)
    faults: list[str] = []
    for at in points:
        try:
            play(scenario, at, mode, delay=delay_at(at, total))
        except AssertionError as error:
            faults.append(f"{scenario.name}, point {at}: {error}")
    return Outcome(len(points), tuple(faults))


def delay_at(at: int, total: int) -> Delay:
    """How long a function stalls at this call."""
    return Delay.chosen_by(random.Random(f"{SEED}{at}"), total)


def _sample(points: Sequence[int], most: int) -> list[int]:
    """All points, or the middle points of `most` equal ranges."""
    total = len(points)
    if most == 0 or total <= most:
        return list(points)
    return [points[(2 * part + 1) * total // (2 * most)] for part in range(most)]


def report(rows: Iterable[tuple[str, str, Outcome]]) -> str:
    return "\n".join(f"{name:<24} {mode:<12} {outcome.row}" for name, mode, outcome in rows)
