"""Stops, failures and answers of the business, with the real runner."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from standardwebhooks import Webhook

from tests.support.batches.lab import PROJECT, SECRET, Lab
from tests.support.http_servers import Handler, serve
from tests.support.moto.cloud import MotoCloud
from tests.support.patience import Background, idle_clock, until
from tidegate.batches.model import FINISHED, STOPPED, Verdict
from tidegate.batches.run_state import SKIP_ADVICE
from tidegate.batches.slice import ENDED
from tidegate.projects.audit import SYSTEM, act


class Business:
    """Answers `ok`, or what `script` has for an index: an answer or a status."""

    def __init__(self) -> None:
        self.port = 0
        self.script: dict[int, dict[str, Any] | int] = {}
        self.calls: list[tuple[float, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.slow = 0.0
        self.concurrent = self.max_concurrent = 0
        self._lock = threading.Lock()

    def __call__(self, request: Handler) -> None:
        body = request.body()
        Webhook(SECRET).verify(body, dict(request.headers.items()))
        item = json.loads(body)
        with self._lock:
            self.calls.append((time.monotonic(), item))
            self.last_call = idle_clock()
            self.headers.append({name.lower(): value for name, value in request.headers.items()})
            self.concurrent += 1
            self.max_concurrent = max(self.max_concurrent, self.concurrent)
        time.sleep(self.slow)
        with self._lock:
            self.concurrent -= 1
        answer = self.script.get(item["index"], {"result": "ok"})
        if isinstance(answer, int):
            request.answer(answer, b"broken")
        else:
            request.answer(200, json.dumps(answer).encode())

    @property
    def indexes(self) -> list[int]:
        return [item["index"] for _, item in self.calls]


@pytest.fixture
def business() -> Iterator[Business]:
    business = Business()
    with serve(business) as business.port:
        yield business


@pytest.fixture
def lab(cloud: MotoCloud, business: Business) -> Lab:
    return Lab(cloud.app.table, f"http://127.0.0.1:{business.port}/item")


def test_stop_takes_two_seconds_and_start_continues_there(lab: Lab, business: Business) -> None:
    business.slow = 0.05
    batch = lab.batch(160, rate=40)
    running = Background(lambda: lab.run(batch))
    until(lambda: len(business.calls) >= 40)
    lab.ask_to_stop(batch)
    asked_at = idle_clock()
    running.join(5)
    stopped, progress = lab.now(batch)
    assert (stopped.status, stopped.stop_reason) == (STOPPED, "enough")
    assert business.last_call < asked_at + 2
    assert progress.position == len(business.calls)
    assert progress.window.bitmap == b""
    before = len(business.calls)
    again = lab.start_again(batch)
    assert lab.run(again) == ENDED
    assert lab.now(batch)[0].status == FINISHED
    assert len(business.calls) > before
    assert sorted(business.indexes) == list(range(160))


def test_slow_business_gets_enough_concurrent_calls_for_rate(lab: Lab, business: Business) -> None:
    """In one of three rounds: other work of the machine slows a round."""
    business.slow = 0.8
    seconds: list[float] = []
    while len(seconds) < 3 and not any(took < 2 + 0.8 + 1.2 for took in seconds):
        business.calls.clear()
        started = idle_clock()
        assert lab.run(lab.batch(100, rate=50)) == ENDED
        seconds.append(idle_clock() - started)
        assert sorted(business.indexes) == list(range(100))
    assert seconds[-1] < 2 + 0.8 + 1.2, seconds


def test_concurrency_limits_calls_under_way(lab: Lab, business: Business) -> None:
    business.slow = 0.05
    assert lab.run(lab.batch(40, rate=400, concurrency=3)) == ENDED
    assert business.max_concurrent <= 3
    business.max_concurrent = 0
    assert lab.run(lab.batch(2, rate=1)) == ENDED
    assert business.max_concurrent == 1


def test_answer_after_six_seconds_counts_if_item_timeout_is_longer(lab: Lab, business: Business) -> None:
    business.slow = 6.5
    batch = lab.batch(2, rate=2, item_timeout=30)
    assert lab.run(batch) == ENDED
    ended, progress = lab.now(batch)
    assert (ended.status, progress.errors, progress.position) == (FINISHED, 0, 2)
    assert sorted(business.indexes) == [0, 1]


def test_answer_after_item_timeout_is_a_failed_attempt(lab: Lab, business: Business) -> None:
    business.slow = 1.6
    batch = lab.batch(1, rate=1, item_timeout=1, retries=2, retry_delay=0.1)
    assert lab.run(batch) == ENDED
    stopped, _ = lab.now(batch)
    assert stopped.status == STOPPED
    assert "did not answer within 1 s" in (stopped.stop_reason or "")
    assert business.indexes == [0, 0]


def test_answer_after_slice_and_lease_ended_counts_once(lab: Lab, business: Business) -> None:
    business.slow = 4
    lab = lab.faster(slice_seconds=1, lease_seconds=2)
    batch = lab.batch(2, rate=1, item_timeout=20)
    assert lab.run(batch) == ENDED
    assert lab.now(batch)[0].status == FINISHED
    assert business.indexes == [0, 1]


def test_item_that_always_fails_stops_batch_with_reason(lab: Lab, business: Business) -> None:
    business.script[7] = 500
    batch = lab.batch(500, rate=100, retry_delay=0.2)
    assert lab.run(batch) == ENDED
    stopped, progress = lab.now(batch)
    assert stopped.status == STOPPED
    assert stopped.stop_reason == f"item 7 failed 5 times: The remote server answered 500; {SKIP_ADVICE}"
    assert [item["attempt"] for _, item in business.calls if item["index"] == 7] == [1, 2, 3, 4, 5]
    assert len({headers["webhook-id"] for headers in business.headers if headers["webhook-id"].endswith(".7")}) == 1
    assert progress.window.offset == 7
    # Another slice of the same run does nothing.
    made = len(business.calls)
    assert lab.run(batch) == ENDED
    assert len(business.calls) == made
    lines = lab.batches.logs(PROJECT, batch.batch_id, index=7, limit=10, cursor=None).items
    assert lines[0].message == "item 7 failed at attempt 5: The remote server answered 500"


def test_start_after_fix_repeats_only_the_failed_item(lab: Lab, business: Business) -> None:
    business.script[7] = {"result": "error"}
    batch = lab.batch(60, rate=100, retry_delay=0.05)
    lab.run(batch)
    business.script.clear()
    assert lab.run(lab.start_again(batch)) == ENDED
    assert lab.now(batch)[0].status == FINISHED
    counted = Counter(business.indexes)
    assert counted.pop(7) == 6
    assert set(counted.values()) == {1}
    assert len(counted) == 59


def test_abandoned_item_is_an_error_and_batch_finishes(lab: Lab, business: Business) -> None:
    business.script[7] = {"result": "abandon", "logs": ["no such user"]}
    batch = lab.batch(30, rate=100)
    assert lab.run(batch) == ENDED
    ended, progress = lab.now(batch)
    assert (ended.status, progress.errors, progress.position) == (FINISHED, 1, 30)


def test_max_errors_stops_batch_with_reason(lab: Lab, business: Business) -> None:
    business.script = {index: {"result": "abandon"} for index in (3, 6, 9)}
    batch = lab.batch(500, rate=50, max_errors=3)
    assert lab.run(batch) == ENDED
    stopped, progress = lab.now(batch)
    assert (stopped.status, stopped.stop_reason) == (STOPPED, "max_errors reached: 3 items did not succeed")
    assert progress.errors == 3


def test_finish_from_business_ends_batch_as_finished(lab: Lab, business: Business) -> None:
    business.script[5] = {"result": "ok", "stop": "finish"}
    batch = lab.batch(1000, rate=100)
    assert lab.run(batch) == ENDED
    ended, progress = lab.now(batch)
    assert (ended.status, ended.stop_reason) == (FINISHED, None)
    assert 6 <= progress.position < 100


def test_recovery_never_records_a_finish_as_stopped(lab: Lab, business: Business) -> None:
    """The runner saved its verdict and died before it ended the batch; then somebody asked to stop it."""
    batch = lab.batch(1000, rate=100)
    taken = lab.batches.acquire(batch, 1.0, 0.0)
    assert taken
    fence, progress = taken
    lab.batches.save(batch, fence, replace(progress, verdict=Verdict(FINISHED)), 0)
    lab.ask_to_stop(batch)
    assert lab.run(batch) == ENDED
    ended, _ = lab.now(batch)
    assert (ended.status, ended.stop_reason) == (FINISHED, None)
    assert business.calls == []


def test_items_have_their_list_entries_and_logs_are_stored(lab: Lab, business: Business) -> None:
    business.script[1] = {"result": "ok", "logs": ["seen", {"level": "warn", "message": "odd"}]}
    batch = lab.batch(3, rate=50, job_data=["a", {"b": 1}, None])
    assert lab.run(batch) == ENDED
    assert {item["index"]: item["job_data"] for _, item in business.calls} == {0: "a", 1: {"b": 1}, 2: None}
    lines = lab.batches.logs(PROJECT, batch.batch_id, index=None, limit=10, cursor=None).items
    assert sorted((line.index, line.level, line.message) for line in lines) == [(1, "info", "seen"), (1, "warn", "odd")]


def test_data_changed_during_serial_batch_reach_next_items(lab: Lab, business: Business) -> None:
    batch = lab.batch(4, rate=1, job_data={"v": 1})
    running = Background(lambda: lab.run(batch))
    until(lambda: business.calls)
    line = act(batch.project_id, batch.batch_id, datetime.now(UTC), SYSTEM, "batch.data")
    lab.batches.set_job_data(lab.now(batch)[0], {"v": 2}, line)
    running.join(10)
    assert business.calls[0][1]["job_data"]["v"] == 1
    assert business.calls[-1][1]["job_data"]["v"] == 2
