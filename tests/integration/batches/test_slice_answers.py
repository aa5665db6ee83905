"""Stops, failures and what the business says, through the real runner."""

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
from tidegate.batches.model import FINISHED, STOPPED
from tidegate.batches.run.slice import ENDED
from tidegate.batches.run.state import SKIP_ADVICE
from tidegate.batches.run.values import Verdict
from tidegate.projects.audit import SYSTEM, act


class Business:
    """Answers by index; `script` holds what is not simply ok."""

    def __init__(self) -> None:
        self.port = 0
        self.script: dict[int, dict[str, Any] | int] = {}
        self.calls: list[tuple[float, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.slow = 0.0
        self.at_once = self.most_at_once = 0
        self._lock = threading.Lock()

    def __call__(self, request: Handler) -> None:
        body = request.body()
        Webhook(SECRET).verify(body, dict(request.headers.items()))
        said = json.loads(body)
        with self._lock:
            self.calls.append((time.monotonic(), said))
            self.headers.append({name.lower(): value for name, value in request.headers.items()})
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        time.sleep(self.slow)
        with self._lock:
            self.at_once -= 1
        answer = self.script.get(said["index"], {"result": "ok"})
        if isinstance(answer, int):
            request.answer(answer, b"broken")
        else:
            request.answer(200, json.dumps(answer).encode())

    @property
    def indexes(self) -> list[int]:
        return [said["index"] for _, said in self.calls]


@pytest.fixture
def business() -> Iterator[Business]:
    business = Business()
    with serve(business) as business.port:
        yield business


@pytest.fixture
def lab(cloud: MotoCloud, business: Business) -> Lab:
    return Lab(cloud.app.table, f"http://127.0.0.1:{business.port}/item")


def test_stop_ends_the_calls_within_two_seconds_and_start_goes_on_there(lab: Lab, business: Business) -> None:
    business.slow = 0.05
    batch = lab.batch(160, rate=40)
    running = lab.in_background(lambda: lab.run(batch))
    time.sleep(1.5)
    lab.ask_to_stop(batch)
    asked_at = time.monotonic()
    running.join(5)
    stopped, progress = lab.now(batch)
    assert (stopped.status, stopped.stop_reason) == (STOPPED, "enough")
    assert max(at for at, _ in business.calls) < asked_at + 2
    assert progress.position == len(business.calls)
    assert progress.window.bitmap == b""
    before = len(business.calls)
    again = lab.start_again(batch)
    assert lab.run(again) == ENDED
    assert lab.now(batch)[0].status == FINISHED
    assert len(business.calls) > before
    assert sorted(business.indexes) == list(range(160))


def test_a_slow_business_gets_as_many_calls_at_once_as_the_rate_needs(lab: Lab, business: Business) -> None:
    business.slow = 0.8
    batch = lab.batch(100, rate=50)
    started = time.monotonic()
    assert lab.run(batch) == ENDED
    assert time.monotonic() - started < 2 + 0.8 + 1.2
    assert sorted(business.indexes) == list(range(100))


def test_no_more_calls_are_under_way_than_the_concurrency_allows(lab: Lab, business: Business) -> None:
    business.slow = 0.05
    assert lab.run(lab.batch(40, rate=400, concurrency=3)) == ENDED
    assert business.most_at_once <= 3
    business.most_at_once = 0
    assert lab.run(lab.batch(2, rate=1)) == ENDED
    assert business.most_at_once == 1


def test_an_item_that_always_fails_stops_the_batch_after_five_tries(lab: Lab, business: Business) -> None:
    business.script[7] = 500
    batch = lab.batch(500, rate=100, retry_delay=0.2)
    assert lab.run(batch) == ENDED
    stopped, progress = lab.now(batch)
    assert stopped.status == STOPPED
    assert stopped.stop_reason == f"item 7 failed 5 times: The remote server answered 500; {SKIP_ADVICE}"
    assert [said["attempt"] for _, said in business.calls if said["index"] == 7] == [1, 2, 3, 4, 5]
    assert len({headers["webhook-id"] for headers in business.headers if headers["webhook-id"].endswith(".7")}) == 1
    assert progress.window.offset == 7
    # No endless restart: another slice of the same run does nothing.
    made = len(business.calls)
    assert lab.run(batch) == ENDED
    assert len(business.calls) == made
    lines = lab.batches.logs(PROJECT, batch.batch_id, index=7, limit=10, cursor=None).items
    assert lines[0].message == "item 7 failed at attempt 5: The remote server answered 500"


def test_after_the_fault_is_mended_a_start_repeats_only_the_failed_item(lab: Lab, business: Business) -> None:
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


def test_an_abandoned_item_is_an_error_and_the_batch_goes_on(lab: Lab, business: Business) -> None:
    business.script[7] = {"result": "abandon", "logs": ["no such user"]}
    batch = lab.batch(30, rate=100)
    assert lab.run(batch) == ENDED
    ended, progress = lab.now(batch)
    assert (ended.status, progress.errors, progress.position) == (FINISHED, 1, 30)


def test_max_errors_reached_stops_it_with_that_reason(lab: Lab, business: Business) -> None:
    business.script = {index: {"result": "abandon"} for index in (3, 6, 9)}
    batch = lab.batch(500, rate=50, max_errors=3)
    assert lab.run(batch) == ENDED
    stopped, progress = lab.now(batch)
    assert (stopped.status, stopped.stop_reason) == (STOPPED, "max_errors reached: 3 items did not succeed")
    assert progress.errors == 3


def test_finish_from_the_business_ends_it_as_finished(lab: Lab, business: Business) -> None:
    business.script[5] = {"result": "ok", "stop": "finish"}
    batch = lab.batch(1000, rate=100)
    assert lab.run(batch) == ENDED
    ended, progress = lab.now(batch)
    assert (ended.status, ended.stop_reason) == (FINISHED, None)
    assert 6 <= progress.position < 100


def test_recovery_never_records_a_finish_as_stopped(lab: Lab, business: Business) -> None:
    """The runner wrote the verdict and died before it ended the batch; someone asked to stop meanwhile."""
    batch = lab.batch(1000, rate=100)
    taken = lab.runs.acquire(batch, 1.0, 0.0)
    assert taken
    fence, progress = taken
    lab.runs.save(batch, fence, replace(progress, verdict=Verdict(FINISHED)), 0)
    lab.ask_to_stop(batch)
    assert lab.run(batch) == ENDED
    ended, _ = lab.now(batch)
    assert (ended.status, ended.stop_reason) == (FINISHED, None)
    assert business.calls == []


def test_items_of_a_list_come_with_their_data_and_logs_are_kept(lab: Lab, business: Business) -> None:
    business.script[1] = {"result": "ok", "logs": ["seen", {"level": "warn", "message": "odd"}]}
    batch = lab.batch(3, rate=50, job_data=["a", {"b": 1}, None])
    assert lab.run(batch) == ENDED
    assert {said["index"]: said["job_data"] for _, said in business.calls} == {0: "a", 1: {"b": 1}, 2: None}
    lines = lab.batches.logs(PROJECT, batch.batch_id, index=None, limit=10, cursor=None).items
    assert sorted((line.index, line.level, line.message) for line in lines) == [(1, "info", "seen"), (1, "warn", "odd")]


def test_data_changed_while_a_serial_batch_runs_reaches_the_next_items(lab: Lab, business: Business) -> None:
    batch = lab.batch(4, rate=1, job_data={"v": 1})
    running = lab.in_background(lambda: lab.run(batch))
    time.sleep(0.5)
    line = act(batch.project_id, batch.batch_id, datetime.now(UTC), SYSTEM, "batch.data")
    lab.batches.set_job_data(lab.now(batch)[0], {"v": 2}, line)
    running.join(10)
    assert business.calls[0][1]["job_data"]["v"] == 1
    assert business.calls[-1][1]["job_data"]["v"] == 2
