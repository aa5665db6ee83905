"""Runners that die, freeze or run twice: no item is lost, and only the last second is repeated."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.batches.lab import Killed, Lab
from tests.support.batches.receiver import Receiver, receiver
from tests.support.moto.cloud import MotoCloud
from tests.support.patience import Background, idle_clock, until
from tidegate.batches import SliceTiming
from tidegate.batches.model import FINISHED, Batch, BatchProgress
from tidegate.batches.slice import BUSY, ENDED
from tidegate.batches.store import BatchStore
from tidegate.errors import LeaseLost

RATE = 300
LEASE = 3.0


@pytest.fixture(scope="module")
def business() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


@pytest.fixture
def lab(cloud: MotoCloud, business: Receiver) -> Lab:
    business.forget()
    return Lab(cloud.app.table, business.url, SliceTiming(lease_seconds=LEASE))


def wait_for_position(reached: int, lab: Lab, batch: Batch) -> None:
    deadline = idle_clock() + 20
    while lab.now(batch)[1].position < reached:
        assert idle_clock() < deadline
        time.sleep(0.05)


def continue_run(lab: Lab, batch: Batch) -> str:
    """Repeats, as the machine does, while the lease of a dead runner is valid."""
    while (outcome := lab.run(batch)) == BUSY:
        time.sleep(0.1)
    return outcome


def test_killed_runner_repeats_at_most_its_last_second(lab: Lab, business: Receiver) -> None:
    batch = lab.batch(1000, rate=RATE)
    first, dead = lab.mortal()
    ends: list[BaseException] = []

    def run_and_die() -> None:
        try:
            first.run(batch)
        except Killed as error:
            ends.append(error)

    running = Background(run_and_die)
    wait_for_position(500, lab, batch)
    time.sleep(0.5)
    dead.set()
    running.join(5)
    assert ends
    killed_with = Counter(index for _, index, _ in business.calls())
    assert continue_run(lab, batch) == ENDED
    counted = Counter(index for _, index, _ in business.calls())
    ended, progress = lab.now(batch)
    assert (ended.status, progress.position) == (FINISHED, 1000)
    assert sorted(counted) == list(range(1000))
    repeated = [index for index, times in counted.items() if times > 1]
    assert max(killed_with.values()) == 1
    # The last second, and the time of the save that did not happen.
    assert len(repeated) <= RATE * 1.25


class Stalled(BatchStore):
    """A runner whose writes hang, as in a frozen process."""

    def __init__(self, lab: Lab) -> None:
        super().__init__(lab.table)
        self.frozen, self.thawed = threading.Event(), threading.Event()
        self.refused: list[LeaseLost] = []

    def save(
        self, batch: Batch, fence: int, progress: BatchProgress, lease_until: float | None = None, runner: int = 0
    ) -> None:
        if self.frozen.is_set():
            self.thawed.wait(20)
        try:
            super().save(batch, fence, progress, lease_until, runner)
        except LeaseLost as error:
            self.refused.append(error)
            raise


def test_fenced_runner_cannot_write_or_call(lab: Lab, business: Receiver) -> None:
    batch = lab.batch(1500, rate=RATE)
    stalled = Stalled(lab)
    outcomes: list[str] = []
    first_lab, second_lab = replace(lab, url=business.url + "?first"), replace(lab, url=business.url + "?second")
    first = Background(lambda: outcomes.append(first_lab.slice(batch, store=stalled)))
    wait_for_position(100, lab, batch)
    stalled.frozen.set()
    second = Background(lambda: outcomes.append(continue_run(second_lab, batch)))
    until(lambda: business.moments("/process?second"))
    stalled.thawed.set()
    first.join(15)
    second.join(30)
    assert outcomes == [BUSY, ENDED]
    assert stalled.refused
    assert sorted({index for _, index, _ in business.calls()}) == list(range(1500))
    assert lab.now(batch)[1].position == 1500
    # The first runner stopped calling when its lease expired, before the second one took over.
    assert max(business.moments("/process?first")) < min(business.moments("/process?second"))
    assert len(business.moments("/process?second")) <= 1500 - 100


def test_second_function_is_busy_while_lease_is_valid(lab: Lab, business: Receiver) -> None:
    batch = lab.batch(450, rate=RATE)
    running = Background(lambda: lab.run(batch))
    until(business.calls)
    assert lab.slice(batch) == BUSY
    running.join(10)
    assert lab.slice(batch) == ENDED


def test_slice_that_outlasts_its_lease_keeps_it(lab: Lab, business: Receiver) -> None:
    """The slice lasts three leases: no other function may take over meanwhile, and one processes everything."""
    batch = lab.batch(90, rate=10)
    outcomes: list[str] = []
    first, other = replace(lab, url=business.url + "?kept"), replace(lab, url=business.url + "?other")
    # One slice: after its end, a second one of the same function could be quicker than the other one.
    running = Background(lambda: outcomes.append(first.slice(batch)))
    wait_for_position(1, lab, batch)
    while running.is_alive():
        other.slice(batch)
        time.sleep(0.2)
    assert outcomes == [ENDED]
    assert len(business.moments("/process?kept")) == 90
    assert business.moments("/process?other") == []
