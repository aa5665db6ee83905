"""One batch over several runners: each has its own items, its own lease and its part of the rate."""

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
from tidegate.batches.model import FINISHED, STOPPED, Batch
from tidegate.batches.run.slice import BUSY, ENDED, Pace

LEASE = 3.0


@pytest.fixture(scope="module")
def fast() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


@pytest.fixture
def lab(cloud: MotoCloud, fast: Receiver) -> Lab:
    fast.forget()
    return Lab(cloud.app.table, fast.url, Pace(lease_seconds=LEASE))


@pytest.fixture
def business(lab: Lab) -> Iterator[Business]:
    made = Business()
    with serve(made) as made.port:
        lab.url = made.url("/process")
        yield made


def go_on(lab: Lab, batch: Batch, runner: int) -> str:
    """As the machine does: again while the dead one's lease lasts."""
    while (outcome := lab.run(batch, runner)) == BUSY:
        time.sleep(0.1)
    return outcome


def all_run(lab: Lab, batch: Batch) -> None:
    threads = [
        lab.in_background(lambda runner=runner: go_on(lab, batch, runner))  # type: ignore[misc]
        for runner in range(batch.runners)
    ]
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def answers(result: Callable[[int], dict[str, Any]]) -> Callable[[dict[str, Any]], tuple[int, Any]]:
    return lambda said: (200, result(said["index"]))


def called(business: Business) -> Counter[int]:
    return Counter(call["index"] for call in business.calls())


def test_two_runners_call_each_item_once_and_share_the_rate(lab: Lab, fast: Receiver) -> None:
    batch = lab.batch(603, rate=200, runners=2, start_index=3)
    all_run(lab, batch)
    ended, progress = lab.now(batch)
    assert (ended.status, progress.position, progress.first_open) == (FINISHED, 603, 603)
    calls = fast.calls()
    assert sorted(index for _, index, _ in calls) == list(range(3, 603))
    moments = sorted(moment for moment, _, _ in calls)
    assert len(calls) / (moments[-1] - moments[0]) == pytest.approx(200, rel=0.1)


def test_a_killed_runner_repeats_a_second_of_its_own_items_and_none_of_anothers(lab: Lab, fast: Receiver) -> None:
    batch = lab.batch(1200, rate=300, runners=2)
    first = lab.in_background(lambda: go_on(lab, batch, 0))
    mortal, dead = lab.mortal()

    def run_and_die() -> None:
        with pytest.raises(Killed):
            mortal.run(batch, 1)

    second = lab.in_background(run_and_die)
    time.sleep(2.5)
    dead.set()
    second.join(5)
    assert go_on(lab, batch, 1) == ENDED
    first.join(15)
    ended, progress = lab.now(batch)
    assert (ended.status, progress.position) == (FINISHED, 1200)
    counted = Counter(index for _, index, _ in fast.calls())
    assert sorted(counted) == list(range(1200))
    repeated = [index for index, times in counted.items() if times > 1]
    # Its half of the rate for a second, and the write that would have recorded it.
    assert len(repeated) <= 150 * 1.25
    assert all(batch.share(1).owns(index) for index in repeated)


def test_a_failed_item_of_one_runner_stops_all_and_a_new_start_goes_on(lab: Lab, business: Business) -> None:
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


def test_failures_of_all_runners_count_together(lab: Lab, business: Business) -> None:
    business.answers["/process"] = answers(lambda index: {"result": "abandon" if index % 100 == 5 else "ok"})
    batch = lab.batch(1000, rate=200, runners=4, max_failed=3)
    all_run(lab, batch)
    ended, progress = lab.now(batch)
    assert ended.status == STOPPED
    assert "max_failed allows 3" in (ended.stop_reason or "")
    # Each runner alone meets at most three of the ten.
    assert 3 < progress.errors < 10
    assert len(lab.outcomes.by_index()) == progress.errors


def test_finish_from_the_business_ends_all_runners(lab: Lab, business: Business) -> None:
    business.answers["/process"] = answers(lambda index: {"result": "ok"} | ({"stop": "finish"} if index == 20 else {}))
    batch = lab.batch(100_000, rate=100, runners=2)
    all_run(lab, batch)
    ended, progress = lab.now(batch)
    assert ended.status == FINISHED
    assert 20 < progress.position < 1000


def test_the_runner_that_ends_last_has_the_whole_rate(lab: Lab, fast: Receiver) -> None:
    batch = lab.batch(800, rate=200, runners=2)
    # The second comes when the first is done.
    assert go_on(lab, batch, 0) == ENDED
    assert lab.now(batch)[0].status != FINISHED
    fast.forget()
    assert go_on(lab, batch, 1) == ENDED
    moments = sorted(moment for moment, _, _ in fast.calls())
    assert len(moments) / (moments[-1] - moments[0]) == pytest.approx(200, rel=0.1)
    assert lab.now(batch)[0].status == FINISHED


def test_a_stop_ends_all_runners_at_their_place(lab: Lab, fast: Receiver) -> None:
    batch = lab.batch(100_000, rate=200, runners=3)
    threads = [lab.in_background(lambda r=r: go_on(lab, batch, r)) for r in range(3)]  # type: ignore[misc]
    time.sleep(1.5)
    lab.ask_to_stop(batch)
    for thread in threads:
        thread.join(10)
    ended, progress = lab.now(batch)
    assert (ended.status, ended.stop_reason) == (STOPPED, "enough")
    assert progress.position == len(fast.calls())
