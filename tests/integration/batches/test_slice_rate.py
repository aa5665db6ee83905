"""The rate, the hand-over between slices and the size of the stored record."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from tests.support.batches.lab import PROJECT, Lab
from tests.support.batches.receiver import Receiver, busiest_second, receiver
from tests.support.http_servers import serve
from tests.support.moto.cloud import MotoCloud
from tests.support.patience import Background, idle_clock, until
from tidegate.aws import keys
from tidegate.batches.model import DAY, FINISHED, RUNNING, STOPPED, PauseWindow, batch_view
from tidegate.batches.slice import ENDED, SLEEP
from tidegate.projects.audit import SYSTEM, act


@pytest.fixture(scope="module")
def business() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


@pytest.fixture
def lab(cloud: MotoCloud, business: Receiver) -> Lab:
    business.forget()
    return Lab(cloud.app.table, business.url)


def test_1000_items_at_100_per_second_take_10_seconds(lab: Lab, business: Receiver) -> None:
    """The rate is never exceeded, and is reached in one of three rounds: other work of the machine slows a round."""
    seconds: list[float] = []
    while len(seconds) < 3 and not any(took <= 11.0 for took in seconds):
        business.forget()
        batch = lab.batch(1000, rate=100)
        started, idle_started = time.monotonic(), idle_clock()
        assert lab.run(batch) == ENDED
        seconds.append(idle_clock() - idle_started)
        assert time.monotonic() - started >= 9.0
        calls = business.calls()
        assert sorted(index for _, index, _ in calls) == list(range(1000))
        assert busiest_second([moment for moment, _, _ in calls]) <= 110
        ended, progress = lab.now(batch)
        assert (ended.status, progress.position, progress.errors) == (FINISHED, 1000, 0)
    assert seconds[-1] <= 11.0, seconds


def test_hand_over_between_slices_takes_less_than_a_second(lab: Lab, business: Receiver) -> None:
    """In one of three rounds: other work of the machine slows a round."""
    lab = lab.faster(slice_seconds=1)
    pauses: list[float] = []
    while len(pauses) < 3 and not any(pause < 1.0 for pause in pauses):
        business.forget()
        assert lab.run(lab.batch(150, rate=50)) == ENDED
        moments = sorted(moment for moment, _, _ in business.calls())
        assert len(moments) == 150
        pauses.append(max(later - earlier for earlier, later in pairwise(moments)))
    assert pauses[-1] < 1.0, pauses


def test_eta_counts_in_the_pauses_to_come(lab: Lab) -> None:
    """100 s of calls, of which 20 s fit before a pause of two hours; the business takes calls as fast as they come."""
    began = int(time.time())
    night = PauseWindow((began + 20) % DAY, (began + 7220) % DAY)
    batch = lab.batch(1000, rate=10, pause_windows=(night,))
    running = Background(lambda: lab.run(batch))
    until(lambda: lab.now(batch)[1].position >= 20)
    lab.ask_to_stop(batch)
    eta = lab.now(batch)[1].eta
    running.join(10)
    assert eta == pytest.approx(began + 100 + 7200, abs=10)


def test_eta_during_a_pause_begins_at_its_end(lab: Lab, business: Receiver) -> None:
    began = int(time.time())
    batch = lab.batch(1000, rate=10, pause_windows=(PauseWindow((began - 60) % DAY, (began + 7200) % DAY),))
    assert lab.slice(batch) == SLEEP
    assert not business.calls()
    assert lab.now(batch)[1].eta == pytest.approx(began + 7200 + 100, abs=2)


def test_batch_that_ends_after_the_year_9999_has_no_eta(lab: Lab) -> None:
    batch = lab.batch(10**15, rate=5)
    running = Background(lambda: lab.run(batch))
    until(lambda: lab.now(batch)[1].position > 0)
    lab.ask_to_stop(batch)
    present, progress = lab.now(batch)
    running.join(10)
    shown = batch_view(replace(present, status=RUNNING), progress)["progress"]
    assert (shown["processed"] > 0, shown.get("eta")) == (True, None)


def test_changed_rate_applies_to_running_batch(lab: Lab, business: Receiver) -> None:
    """At the first rate it would take half an hour: longer than any wait of a busy machine for the end."""
    batch = lab.batch(600, rate=1 / 3)
    running = Background(lambda: lab.run(batch))
    until(lambda: business.calls())
    line = act(batch.project_id, batch.batch_id, datetime.now(UTC), SYSTEM, "batch.change")
    lab.batches.patch(lab.now(batch)[0], {"rate": 200}, (), line)
    running.join(10)
    assert len(business.calls()) == 600
    assert lab.now(batch)[0].status == FINISHED


@pytest.mark.parametrize("limit", [{"max_errors": 3}, {"max_failed": 2}, {"max_failed_percent": 0.5}])
def test_changed_limit_of_failures_stops_running_batch(lab: Lab, limit: dict[str, float]) -> None:
    # A refusal, not an outage: while the business is down, no item fails.
    with serve(lambda request: request.answer(200, request.body()[:0] + b'{"result": "error"}')) as port:
        lab = replace(lab, url=f"http://127.0.0.1:{port}/")
        batch = lab.batch(500, rate=20, retries=1, on_item_failure="skip")
        running = Background(lambda: lab.run(batch))
        until(lambda: lab.now(batch)[1].errors >= 5)
        line = act(batch.project_id, batch.batch_id, datetime.now(UTC), SYSTEM, "batch.change")
        lab.batches.patch(lab.now(batch)[0], limit, (), line)
        running.join(10)
    stopped, progress = lab.now(batch)
    assert stopped.status == STOPPED
    assert next(iter(limit)) in (stopped.stop_reason or "")
    assert progress.position < 100


def test_ten_billion_items_need_one_small_record(lab: Lab, business: Receiver) -> None:
    total = 10**10
    batch = lab.batch(total, rate=500, start_index=total - 300)
    before = sys.getallocatedblocks()
    assert lab.run(batch) == ENDED
    assert sorted(index for _, index, _ in business.calls()) == list(range(total - 300, total))
    assert lab.now(batch)[1].position == total
    record = lab.table.get(keys.batch_progress(PROJECT, batch.batch_id))
    assert record is not None
    assert len(str(record)) < 2000
    assert sys.getallocatedblocks() - before < 100_000
