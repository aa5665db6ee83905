"""One batch with several runners: each has its own items, its own lease and its part of the rate."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.batches.lab import Killed, Lab
from tests.support.batches.receiver import Receiver, receiver
from tests.support.batches.world import Business
from tests.support.http_servers import serve
from tests.support.moto.cloud import MotoCloud
from tests.support.patience import Background, until
from tidegate.batches import SliceTiming
from tidegate.batches.model import FINISHED, STOPPED, Batch
from tidegate.batches.slice import BUSY, ENDED
from tidegate.batches.store import BatchStore

LEASE = 3.0


@pytest.fixture(scope="module")
def fast() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


@pytest.fixture
def lab(cloud: MotoCloud, fast: Receiver) -> Lab:
    fast.forget()
    return Lab(cloud.app.table, fast.url, SliceTiming(lease_seconds=LEASE))


@pytest.fixture
def business(lab: Lab) -> Iterator[Business]:
    made = Business()
    with serve(made) as made.port:
        lab.url = made.url("/process")
        yield made


def continue_run(lab: Lab, batch: Batch, runner: int) -> str:
    """Repeats, as the machine does, while the lease of a dead runner is valid."""
    while (outcome := lab.run(batch, runner)) == BUSY:
        time.sleep(0.1)
    return outcome


def all_run(lab: Lab, batch: Batch) -> None:
    threads = [
        Background(lambda runner=runner: continue_run(lab, batch, runner))  # type: ignore[misc]
        for runner in range(batch.runners)
    ]
    for thread in threads:
        thread.join(30)


def answers(result: Callable[[int], dict[str, Any]]) -> Callable[[dict[str, Any]], tuple[int, Any]]:
    return lambda item: (200, result(item["index"]))


def called(business: Business) -> Counter[int]:
    return Counter(call["index"] for call in business.calls())


class RecordingShares(BatchStore):
    """Records the rate of each runner. Shares no limit: the one of the lab is far above it."""

    LIMIT = 1e6

    def __init__(self, lab: Lab) -> None:
        super().__init__(lab.table)
        lab.shared_rate = self.LIMIT
        lab.batches = self
        self.rates: list[tuple[int, float]] = []

    def share_rate(self, batch: Batch, runner: int, wanted_rate: float, limit: float, now: float) -> float:
        self.rates.append((runner, wanted_rate))
        return super().share_rate(batch, runner, wanted_rate, limit, now)

    def of(self, runner: int) -> set[float]:
        return {rate for number, rate in self.rates if number == runner}


def calls_per_second(fast: Receiver) -> float:
    moments = sorted(moment for moment, _, _ in fast.calls())
    return len(moments) / (moments[-1] - moments[0])


def assert_keeps_rate(lab: Lab, fast: Receiver, rate: float, run: Callable[[], None]) -> None:
    """The calls of `run` are never made faster than the rate, and, in one of five rounds, not more slowly than one
    runner makes them on this machine just before and after."""

    def one_runner() -> float:
        fast.forget()
        lab.run(lab.batch(400, rate=rate))
        return calls_per_second(fast)

    rounds: list[tuple[float, float]] = []
    while len(rounds) < 5 and not any(measured >= 0.9 * possible for measured, possible in rounds):
        before = one_runner()
        fast.forget()
        run()
        measured = calls_per_second(fast)
        assert measured <= 1.1 * rate
        rounds.append((measured, min(rate, before, one_runner())))
    assert any(measured >= 0.9 * possible for measured, possible in rounds), rounds


def test_two_runners_call_each_item_once_and_share_rate(lab: Lab, fast: Receiver) -> None:
    shares = RecordingShares(lab)

    def run() -> None:
        shares.rates.clear()
        batch = lab.batch(603, rate=200, runners=2, start_index=3)
        all_run(lab, batch)
        ended, progress = lab.now(batch)
        assert (ended.status, progress.position, progress.first_open) == (FINISHED, 603, 603)
        assert sorted(index for _, index, _ in fast.calls()) == list(range(3, 603))
        # A runner gets the whole rate only after the other one has ended.
        assert {shares.rates[0], shares.rates[1]} <= {(0, 100), (1, 100)}
        assert shares.of(0) | shares.of(1) <= {100, 200}

    assert_keeps_rate(lab, fast, 200, run)


def test_killed_runner_repeats_only_a_second_of_its_items(lab: Lab, fast: Receiver) -> None:
    batch = lab.batch(1200, rate=300, runners=2)
    first = Background(lambda: continue_run(lab, batch, 0))
    mortal, dead = lab.mortal()

    def run_and_die() -> None:
        with pytest.raises(Killed):
            mortal.run(batch, 1)

    second = Background(run_and_die)
    until(lambda: lab.batches.runners(batch)[1].progress.position >= 200)
    dead.set()
    second.join()
    assert continue_run(lab, batch, 1) == ENDED
    first.join(15)
    ended, progress = lab.now(batch)
    assert (ended.status, progress.position) == (FINISHED, 1200)
    counted = Counter(index for _, index, _ in fast.calls())
    assert sorted(counted) == list(range(1200))
    repeated = [index for index, times in counted.items() if times > 1]
    # One second at its half of the rate, and the time of the save that did not happen.
    assert len(repeated) <= 150 * 1.25
    assert all(batch.share(1).owns(index) for index in repeated)


def test_failed_item_of_one_runner_stops_all_until_restart(lab: Lab, business: Business) -> None:
    broken = {350}
    business.answers["/process"] = answers(lambda index: {"result": "error" if index in broken else "ok"})
    batch = lab.batch(400, rate=100, runners=2, retries=1)
    all_run(lab, batch)
    ended, progress = lab.now(batch)
    assert ended.status == STOPPED
    assert "item 350 failed 1 times" in (ended.stop_reason or "")
    assert progress.position < 400
    assert lab.outcomes.by_index() == {350: ("failed", 1)}
    broken.clear()
    all_run(lab, lab.start_again(batch))
    ended, progress = lab.now(batch)
    assert (ended.status, progress.position, progress.errors) == (FINISHED, 400, 0)
    assert lab.outcomes.by_index() == {350: ("recovered", 1)}
    assert {index for index, times in called(business).items() if times > 1} <= {350}


def test_failures_of_all_runners_are_added_up(lab: Lab, business: Business) -> None:
    business.answers["/process"] = answers(lambda index: {"result": "abandon" if index % 100 == 5 else "ok"})
    batch = lab.batch(1000, rate=200, runners=4, max_failed=3)
    all_run(lab, batch)
    ended, progress = lab.now(batch)
    assert ended.status == STOPPED
    assert "max_failed allows 3" in (ended.stop_reason or "")
    # Each runner alone has at most three of the ten.
    assert 3 < progress.errors < 10
    assert len(lab.outcomes.by_index()) == progress.errors


def test_finish_from_the_business_ends_all_runners(lab: Lab, business: Business) -> None:
    business.answers["/process"] = answers(lambda index: {"result": "ok"} | ({"stop": "finish"} if index == 20 else {}))
    batch = lab.batch(100_000, rate=100, runners=2)
    all_run(lab, batch)
    ended, progress = lab.now(batch)
    assert ended.status == FINISHED
    assert 20 < progress.position < 1000


def test_last_runner_gets_the_whole_rate(lab: Lab, fast: Receiver) -> None:
    shares = RecordingShares(lab)

    def run() -> None:
        shares.rates.clear()
        batch = lab.batch(800, rate=200, runners=2)
        # The second runner begins when the first one has ended.
        assert continue_run(lab, batch, 0) == ENDED
        assert lab.now(batch)[0].status != FINISHED
        fast.forget()
        assert continue_run(lab, batch, 1) == ENDED
        assert lab.now(batch)[0].status == FINISHED
        assert (shares.of(0), shares.of(1)) == ({100}, {200})

    assert_keeps_rate(lab, fast, 200, run)


def test_stop_ends_all_runners_with_their_progress(lab: Lab, fast: Receiver) -> None:
    batch = lab.batch(100_000, rate=200, runners=3)
    threads = [Background(lambda r=r: continue_run(lab, batch, r)) for r in range(3)]  # type: ignore[misc]
    until(lambda: lab.now(batch)[1].position >= 100)
    lab.ask_to_stop(batch)
    for thread in threads:
        thread.join(10)
    ended, progress = lab.now(batch)
    assert (ended.status, ended.stop_reason) == (STOPPED, "enough")
    assert progress.position == len(fast.calls())
