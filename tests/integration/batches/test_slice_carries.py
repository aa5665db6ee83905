"""What one slice hands over to the next: attempts, retries, the rate; skipped items, groups and shared rates."""

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
from botocore.exceptions import EndpointConnectionError

from tests.support.batches.lab import PROJECT, Lab
from tests.support.http_servers import Handler, serve
from tests.support.moto.cloud import MotoCloud
from tests.support.patience import Background, idle_clock, until
from tidegate.batches.model import FINISHED, STOPPED, Counts
from tidegate.batches.slice import ENDED, SLEEP
from tidegate.batches.store import BatchStore, fair_rates
from tidegate.projects.audit import SYSTEM, act

OK = {"result": "ok"}


class Business:
    def __init__(self) -> None:
        self.port = 0
        self.calls: list[tuple[float, dict[str, Any]]] = []
        self.answer: Callable[[dict[str, Any]], Any] = lambda _: OK
        self._lock = threading.Lock()

    def __call__(self, request: Handler) -> None:
        item = json.loads(request.body())
        with self._lock:
            self.calls.append((time.monotonic(), item))
        answer = self.answer(item)
        request.answer(202 if answer is None else 200, json.dumps(answer).encode())

    @property
    def indexes(self) -> list[int]:
        return [item["index"] for _, item in self.calls if "index" in item]


@pytest.fixture
def business() -> Iterator[Business]:
    made = Business()
    with serve(made) as made.port:
        yield made


@pytest.fixture
def lab(cloud: MotoCloud, business: Business) -> Lab:
    return Lab(cloud.app.table, f"http://127.0.0.1:{business.port}/process")


def test_retries_of_failing_item_span_slices(lab: Lab, business: Business) -> None:
    business.answer = lambda item: {"result": "error"} if item["index"] == 1 else OK
    batch = lab.batch(3, rate=10, retries=3, retry_delay=1.3)
    lab = lab.faster(slice_seconds=1)
    outcomes: list[str] = []
    while len(outcomes) < 8 and (not outcomes or outcomes[-1] != ENDED):
        outcomes.append(lab.slice(batch))
    assert outcomes[-1] == ENDED
    assert lab.now(batch)[0].status == STOPPED
    assert [item["attempt"] for _, item in business.calls if item["index"] == 1] == [1, 2, 3]
    assert sorted(business.indexes) == [0, 1, 1, 1, 2]


def test_failed_calls_are_shown_before_any_item_is_done(lab: Lab, business: Business) -> None:
    business.answer = lambda _: {"result": "error", "msg": "no stock"}
    batch = lab.faster(slice_seconds=0.5).batch(50, rate=40, retry_delay=60)
    lab.faster(slice_seconds=0.5).slice(batch)
    shown = lab.now(batch)[1].view(batch).fields()
    assert (shown["processed"], shown["failed_calls"], shown["retrying"]) == (
        0,
        len(business.calls),
        len(business.calls),
    )
    assert shown["failed_calls"] > 10


def test_data_posted_before_answer_reach_next_serial_item(lab: Lab, business: Business) -> None:
    batch = lab.batch(3, rate=1, job_data={"after": None})

    def post_then_answer(item: dict[str, Any]) -> Any:
        line = act(PROJECT, batch.batch_id, datetime.now(UTC), SYSTEM, "batch.data")
        lab.batches.set_job_data(lab.now(batch)[0], {"after": item["index"]}, line)
        return OK

    business.answer = post_then_answer
    assert lab.run(batch) == ENDED
    assert [item["job_data"]["after"] for _, item in business.calls] == [None, 0, 1]


def test_new_slice_does_not_reuse_a_spent_token(lab: Lab, business: Business) -> None:
    batch = lab.batch(50, rate=0.5)
    lab = lab.faster(slice_seconds=0.3)
    began = time.monotonic()
    while time.monotonic() < began + 3:
        lab.slice(batch)
    # Two, if the last slice ended in time.
    assert len(business.calls) <= 1 + (time.monotonic() - began) * 0.5


def test_batch_with_distant_next_call_sleeps_outside_function(lab: Lab, business: Business) -> None:
    batch = lab.batch(5, rate=0.01)
    began = idle_clock()
    assert lab.slice(batch) == SLEEP
    assert idle_clock() - began < 4
    assert lab.ended.seconds == 60
    (record,) = lab.batches.runners(batch)
    progress = record.progress
    assert progress.wake_at is not None
    assert 90 < progress.wake_at - time.time() <= 100
    assert record.lease_until == 0
    assert lab.slice(batch) == SLEEP
    assert business.indexes == [0]


def test_batch_with_distant_retry_sleeps_outside_function(lab: Lab, business: Business) -> None:
    business.answer = lambda item: {"result": "error"} if item["index"] == 2 else OK
    batch = lab.batch(3, rate=50, retry_delay=30)
    assert lab.slice(batch) == SLEEP
    assert 20 <= lab.ended.seconds <= 29


class SlowLogs(BatchStore):
    slow = True

    def add_logs(self, *args: Any, **kwargs: Any) -> None:
        while self.slow:
            time.sleep(0.05)
        super().add_logs(*args, **kwargs)


def test_slow_log_writes_delay_neither_progress_nor_stop(lab: Lab, business: Business) -> None:
    business.answer = lambda _: {"result": "ok", "logs": ["a", "b", "c"]}
    batch = lab.batch(2000, rate=100)
    slow = SlowLogs(lab.table)
    running = Background(lambda: lab.slice(batch, store=slow))
    until(lambda: lab.now(batch)[1].position > 80, seconds=5)
    lab.ask_to_stop(batch)
    deadline = idle_clock() + 2.5
    while lab.now(batch)[0].status != STOPPED:
        assert idle_clock() < deadline
        time.sleep(0.05)
    slow.slow = False
    running.join(20)
    lines = lab.batches.logs(PROJECT, batch.batch_id, index=None, limit=1000, cursor=None).items
    assert len(lines) == 3 * len(business.calls)


def test_failed_item_is_skipped_and_recorded(lab: Lab, business: Business) -> None:
    answers = {1: {"result": "error", "msg": "no stock"}, 3: {"result": "abandon", "msg": "gone"}}
    business.answer = lambda item: answers.get(item["index"], OK)
    batch = lab.batch(6, rate=100, retries=2, retry_delay=0, on_item_failure="skip")
    assert lab.run(batch) == ENDED
    ended, progress = lab.now(batch)
    assert (ended.status, progress.counts) == (FINISHED, Counts(failed=1, abandoned=1, failed_calls=2))
    assert lab.outcomes.by_index() == {1: ("failed", 2), 3: ("abandoned", 1)}
    assert progress.view(batch).succeeded == 4


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_errors": 2}, "max_errors reached: 2 items did not succeed"),
        ({"max_failed": 1}, "2 items did not succeed, and max_failed allows 1"),
        ({"max_failed_percent": 4}, "2 items did not succeed, and max_failed_percent allows 4 % of 40"),
    ],
)
def test_failures_beyond_limit_stop_the_batch(
    lab: Lab, business: Business, limits: dict[str, Any], reason: str
) -> None:
    business.answer = lambda item: {"result": "error"} if item["index"] % 10 == 5 else OK
    batch = lab.batch(40, rate=200, retries=1, concurrency=1, on_item_failure="skip", **limits)
    assert lab.run(batch) == ENDED
    assert (lab.now(batch)[0].status, lab.now(batch)[0].stop_reason) == (STOPPED, reason)


def test_grouped_items_are_answered_one_by_one(lab: Lab, business: Business) -> None:
    sizes: list[int] = []

    def answer(call: dict[str, Any]) -> Any:
        sizes.append(len(call["items"]))
        bad = [entry for entry in call["items"] if entry["index"] == 13 and entry["attempt"] == 1]
        return {
            "results": [
                {"index": entry["index"], "result": "error" if entry in bad else "ok"} for entry in call["items"]
            ]
        }

    business.answer = answer
    batch = lab.batch(205, rate=1000, items_per_call=50, retry_delay=0)

    assert lab.run(batch) == ENDED
    assert lab.now(batch)[0].status == FINISHED
    assert (max(sizes), sum(sizes)) == (50, 206)
    assert len(sizes) <= 7
    assert lab.outcomes.by_index() == {13: ("recovered", 2)}


def test_batches_of_one_business_share_its_rate(lab: Lab, business: Business) -> None:
    """Each alone could use the whole rate, and has work for longer than is counted: unshared, twice as many calls."""
    lab.shared_rate = 60
    batches = [lab.batch(150, rate=500) for _ in range(2)]
    runs = [Background(partial(replace(lab).run, one)) for one in batches]
    for thread in runs:
        thread.join(60)
    per_second = Counter(int(at - business.calls[0][0]) for at, _ in business.calls)
    # In the first second, both may run before each has read the rate of the other.
    assert per_second[1] + per_second[2] <= 2 * 66
    assert max(per_second) >= 3, "without any limit, all would be done within a second"
    assert sorted(business.indexes) == sorted([*range(150), *range(150)])


def test_shared_rate_is_divided_by_need() -> None:
    assert fair_rates(100, {"a": 10, "b": 500, "c": 500}) == {"a": 10, "b": 45, "c": 45}
    assert fair_rates(100, {"a": 500}) == {"a": 100}
    assert fair_rates(100, {"a": 20, "b": 30}) == {"a": 20, "b": 30}


def test_recovered_items_alone_are_merged_at_the_end(lab: Lab, business: Business) -> None:
    business.answer = lambda item: {"result": "error"} if (item["index"], item["attempt"]) == (1, 1) else OK
    batch = lab.batch(3, rate=100, retry_delay=0)
    assert lab.run(batch) == ENDED
    assert lab.outcomes.by_index() == {1: ("recovered", 2)}
    assert lab.outcomes.merged == [[1]]


class LosesAnswers(BatchStore):
    """Saves, and then fails as if DynamoDB's answer were lost, the first `times` times."""

    times = 1

    def save(self, *args: Any, **kwargs: Any) -> None:
        super().save(*args, **kwargs)
        if self.times:
            self.times -= 1
            raise EndpointConnectionError(endpoint_url="http://table")


def test_part_of_outcomes_is_not_rewritten_after_lost_answer(lab: Lab, business: Business) -> None:
    """Somebody may have downloaded, and so merged, the outcomes as the stored progress counts them."""
    business.answer = lambda _: {"result": "abandon"}
    batch = lab.batch(30, rate=10)
    assert lab.slice(batch, store=LosesAnswers(lab.table)) == ENDED
    parts = [part for part, _ in lab.outcomes.written]
    assert parts == sorted(set(parts))
    assert len(parts) >= 2
    assert sorted(lab.outcomes.by_index()) == list(range(30))


@pytest.mark.parametrize("write", ["write_part", "write_report", "add_logs", "save"])
def test_what_could_not_be_stored_is_stored_later(
    lab: Lab, business: Business, write: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outcomes, the report, log lines and progress wait in memory until a write has succeeded."""
    business.answer = lambda _: {"result": "abandon", "logs": ["sold out"]}
    batch = lab.batch(30, rate=10, report=True, on_item_failure="skip")
    holder = lab.outcomes if write.startswith("write") else lab.batches
    store, failures = getattr(holder, write), [2]

    def fail_first(*args: Any, **named: Any) -> None:
        if failures[0]:
            failures[0] -= 1
            raise EndpointConnectionError(endpoint_url="http://store")
        store(*args, **named)

    monkeypatch.setattr(holder, write, fail_first)
    assert lab.run(batch) == ENDED
    assert failures == [0]
    assert lab.outcomes.by_index() == dict.fromkeys(range(30), ("abandoned", 1))
    assert sorted(outcome.index for _, outcome in lab.outcomes.report_lines) == list(range(30))
    lines = lab.batches.logs(PROJECT, batch.batch_id, index=None, limit=1000, cursor=None).items
    assert Counter(line.index for line in lines if line.message == "sold out") == Counter(range(30))
    assert lab.now(batch)[1].position == 30


def test_many_batches_of_one_size_have_names_of_their_own(lab: Lab) -> None:
    """The bench makes several in one table; the names were addresses of freed objects, which repeat."""
    assert len({lab.batch(5, rate=1).batch_id for _ in range(20)}) == 20
