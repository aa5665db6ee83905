"""What one slice leaves to the next: attempts, retries, the rate; and what must not hold it up."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from tests.support.batches.lab import PROJECT, Lab
from tests.support.http_servers import Handler, serve
from tests.support.moto.cloud import MotoCloud
from tidegate.batches.model import FINISHED, STOPPED
from tidegate.batches.run.rate_shares import fair_rates
from tidegate.batches.run.slice import ENDED, SLEEP
from tidegate.batches.run.values import Counts
from tidegate.batches.store import BatchStore
from tidegate.projects.audit import SYSTEM, act

OK = {"result": "ok"}


class Business:
    def __init__(self) -> None:
        self.port = 0
        self.calls: list[tuple[float, dict[str, Any]]] = []
        self.answer: Callable[[dict[str, Any]], Any] = lambda _: OK
        self._lock = threading.Lock()

    def __call__(self, request: Handler) -> None:
        said = json.loads(request.body())
        with self._lock:
            self.calls.append((time.monotonic(), said))
        answer = self.answer(said)
        request.answer(202 if answer is None else 200, json.dumps(answer).encode())

    @property
    def indexes(self) -> list[int]:
        return [said["index"] for _, said in self.calls if "index" in said]


@pytest.fixture
def business() -> Iterator[Business]:
    made = Business()
    with serve(made) as made.port:
        yield made


@pytest.fixture
def lab(cloud: MotoCloud, business: Business) -> Lab:
    return Lab(cloud.app.table, f"http://127.0.0.1:{business.port}/process")


def test_a_poison_item_ends_the_batch_although_its_retries_span_slices(lab: Lab, business: Business) -> None:
    business.answer = lambda said: {"result": "error"} if said["index"] == 1 else OK
    batch = lab.batch(3, rate=10, retries=3, retry_delay=1.3)
    lab = lab.faster(slice_seconds=1)
    outcomes: list[str] = []
    while len(outcomes) < 8 and (not outcomes or outcomes[-1] != ENDED):
        outcomes.append(lab.slice(batch))
    assert outcomes[-1] == ENDED
    assert lab.now(batch)[0].status == STOPPED
    assert [said["attempt"] for _, said in business.calls if said["index"] == 1] == [1, 2, 3]
    assert sorted(business.indexes) == [0, 1, 1, 1, 2]


def test_failed_calls_show_before_any_item_is_done(lab: Lab, business: Business) -> None:
    business.answer = lambda _: {"result": "error", "msg": "no stock"}
    batch = lab.faster(slice_seconds=0.5).batch(50, rate=40, retry_delay=60)
    lab.faster(slice_seconds=0.5).slice(batch)
    shown = lab.now(batch)[1].shown(batch)
    assert (shown["processed"], shown["failed_calls"], shown["retrying"]) == (
        0,
        len(business.calls),
        len(business.calls),
    )
    assert shown["failed_calls"] > 10


def test_data_posted_before_the_answer_reach_the_next_item_of_a_serial_batch(lab: Lab, business: Business) -> None:
    batch = lab.batch(3, rate=1, job_data={"after": None})

    def post_then_answer(said: dict[str, Any]) -> Any:
        line = act(PROJECT, batch.batch_id, datetime.now(UTC), SYSTEM, "batch.data")
        lab.batches.set_job_data(lab.now(batch)[0], {"after": said["index"]}, line)
        return OK

    business.answer = post_then_answer
    assert lab.run(batch) == ENDED
    assert [said["job_data"]["after"] for _, said in business.calls] == [None, 0, 1]


def test_a_new_slice_does_not_start_with_a_token_that_was_spent(lab: Lab, business: Business) -> None:
    batch = lab.batch(50, rate=0.5)
    lab = lab.faster(slice_seconds=0.3)
    end = time.monotonic() + 3
    while time.monotonic() < end:
        lab.slice(batch)
    assert len(business.calls) <= 2


def test_a_batch_whose_next_call_is_far_sleeps_outside_the_function(lab: Lab, business: Business) -> None:
    batch = lab.batch(5, rate=0.01)
    began = time.monotonic()
    assert lab.slice(batch) == SLEEP
    assert time.monotonic() - began < 4
    assert lab.ended.seconds == 60
    (record,) = lab.batches.runners(batch)
    progress = record.progress
    assert progress.asleep_until is not None
    assert 90 < progress.asleep_until - time.time() <= 100
    assert record.lease_until == 0
    assert lab.slice(batch) == SLEEP
    assert business.indexes == [0]


def test_a_batch_whose_next_retry_is_far_sleeps_too(lab: Lab, business: Business) -> None:
    business.answer = lambda said: {"result": "error"} if said["index"] == 2 else OK
    batch = lab.batch(3, rate=50, retry_delay=30)
    assert lab.slice(batch) == SLEEP
    assert 20 <= lab.ended.seconds <= 29


class SlowLogs(BatchStore):
    slow = True

    def add_logs(self, *args: Any, **kwargs: Any) -> None:
        while self.slow:
            time.sleep(0.05)
        super().add_logs(*args, **kwargs)


def test_slow_log_writing_holds_up_neither_progress_nor_a_stop(lab: Lab, business: Business) -> None:
    business.answer = lambda said: {"result": "ok", "logs": ["a", "b", "c"]}
    batch = lab.batch(2000, rate=100)
    slow = SlowLogs(lab.table)
    running = lab.in_background(lambda: lab.slice(batch, batches=slow))
    time.sleep(2.4)
    assert lab.now(batch)[1].position > 80
    lab.ask_to_stop(batch)
    deadline = time.monotonic() + 2.5
    while lab.now(batch)[0].status != STOPPED:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    slow.slow = False
    running.join(20)
    lines = lab.batches.logs(PROJECT, batch.batch_id, index=None, limit=1000, cursor=None).items
    assert len(lines) == 3 * len(business.calls)


def test_with_skip_a_failed_item_is_kept_and_the_batch_goes_on(lab: Lab, business: Business) -> None:
    answers = {1: {"result": "error", "msg": "no stock"}, 3: {"result": "abandon", "msg": "gone"}}
    business.answer = lambda said: answers.get(said["index"], OK)
    batch = lab.batch(6, rate=100, retries=2, retry_delay=0, on_item_failure="skip")
    assert lab.run(batch) == ENDED
    ended, progress = lab.now(batch)
    assert (ended.status, progress.counts) == (FINISHED, Counts(failed=1, abandoned=1, failed_calls=2))
    assert lab.outcomes.by_index() == {1: ("failed", 2), 3: ("abandoned", 1)}
    assert progress.shown(batch)["succeeded"] == 4


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_errors": 2}, "max_errors reached: 2 items did not succeed"),
        ({"max_failed": 1}, "2 items did not succeed, and max_failed allows 1"),
        ({"max_failed_percent": 4}, "2 items did not succeed, and max_failed_percent allows 4 % of 40"),
    ],
)
def test_failures_are_tolerated_up_to_a_limit(
    lab: Lab, business: Business, limits: dict[str, Any], reason: str
) -> None:
    business.answer = lambda said: {"result": "error"} if said["index"] % 10 == 5 else OK
    batch = lab.batch(40, rate=200, retries=1, concurrency=1, on_item_failure="skip", **limits)
    assert lab.run(batch) == ENDED
    assert (lab.now(batch)[0].status, lab.now(batch)[0].stop_reason) == (STOPPED, reason)


def test_groups_of_items_are_called_together_and_answered_one_by_one(lab: Lab, business: Business) -> None:
    sizes: list[int] = []

    def answer(said: dict[str, Any]) -> Any:
        sizes.append(len(said["items"]))
        bad = [entry for entry in said["items"] if entry["index"] == 13 and entry["attempt"] == 1]
        return {
            "results": [
                {"index": entry["index"], "result": "error" if entry in bad else "ok"} for entry in said["items"]
            ]
        }

    business.answer = answer
    batch = lab.batch(205, rate=1000, items_per_call=50, retry_delay=0)

    assert lab.run(batch) == ENDED
    assert lab.now(batch)[0].status == FINISHED
    assert (max(sizes), sum(sizes)) == (50, 206)
    assert len(sizes) <= 7
    assert lab.outcomes.by_index() == {13: ("recovered", 2)}


def test_two_batches_of_a_business_share_its_rate(lab: Lab, business: Business) -> None:
    lab.shared_rate = 60
    small, large = lab.batch(40, rate=20), lab.batch(80, rate=500)
    runs = [lab.in_background(partial(replace(lab).run, one)) for one in (small, large)]
    began = time.monotonic()
    for thread in runs:
        thread.join(20)
    assert time.monotonic() - began > 1.7
    per_second = Counter(int(at - business.calls[0][0]) for at, _ in business.calls)
    # The first second may have both before each has heard of the other.
    assert per_second[1] <= 66
    assert sorted(business.indexes) == sorted([*range(40), *range(80)])


def test_a_rate_is_shared_by_need() -> None:
    assert fair_rates(100, {"a": 10, "b": 500, "c": 500}) == {"a": 10, "b": 45, "c": 45}
    assert fair_rates(100, {"a": 500}) == {"a": 100}
    assert fair_rates(100, {"a": 20, "b": 30}) == {"a": 20, "b": 30}
