"""A business that does not answer: the batch waits, says so, and goes on. Options that change while it runs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.batches.lab import PROJECT, Lab
from tests.support.http_servers import Handler, serve
from tests.support.moto.cloud import MotoCloud
from tests.support.patience import Background, idle_clock, until
from tidegate.batches.model import FINISHED, NO_OUTAGE, RUNNING, STOPPED, Batch, batch_view
from tidegate.projects.audit import SYSTEM, act


class Business:
    def __init__(self) -> None:
        self.port = 0
        self.calls: list[tuple[float, int, int]] = []
        self.is_down = False
        self.refused: set[tuple[int, int]] = set()
        self.answers_after: Callable[[int], float] = lambda _: 0.0
        self._lock = threading.Lock()

    def __call__(self, request: Handler) -> None:
        item = json.loads(request.body())
        with self._lock:
            self.calls.append((time.monotonic(), item["index"], item["attempt"]))
        if self.is_down:
            request.answer(503)
            return
        time.sleep(self.answers_after(item["index"]))
        refused = (item["index"], item["attempt"]) in self.refused
        request.answer(200, b'{"result": "error"}' if refused else b'{"result": "ok"}')


@pytest.fixture
def business() -> Iterator[Business]:
    made = Business()
    with serve(made) as made.port:
        yield made


@pytest.fixture
def lab(cloud: MotoCloud, business: Business) -> Lab:
    return Lab(cloud.app.table, f"http://127.0.0.1:{business.port}/")


def view(lab: Lab, batch: Batch) -> dict[str, Any]:
    return batch_view(*lab.now(batch))


def test_batch_waits_for_a_business_that_is_down_and_goes_on(lab: Lab, business: Business) -> None:
    batch = lab.batch(600, rate=100, retries=1, on_item_failure="stop")
    running = Background(lambda: lab.run(batch))
    until(lambda: view(lab, batch)["progress"]["processed"] > 50)
    assert "waiting" not in view(lab, batch)
    business.is_down = True
    until(lambda: view(lab, batch).get("waiting") == "business_down")
    assert "eta" not in view(lab, batch)["progress"]
    before = len(business.calls)
    time.sleep(3)
    assert len(business.calls) - before <= 3
    business.is_down = False
    running.join(30)
    ended, progress = lab.now(batch)
    assert (ended.status, progress.position, progress.errors) == (FINISHED, 600, 0)
    assert {attempt for _, _, attempt in business.calls} == {1}
    assert "waiting" not in view(lab, batch)
    lines = [
        line.message for line in lab.batches.logs(PROJECT, batch.batch_id, index=None, limit=100, cursor=None).items
    ]
    assert [line for line in reversed(lines) if line.startswith("the business")] == [
        "the business does not answer: one call at a time tests it, and no item loses an attempt",
        "the business answers again",
    ]


def test_restarted_batch_does_not_wait_for_the_business(lab: Lab, business: Business) -> None:
    business.is_down = True
    batch = lab.batch(600, rate=100)
    running = Background(lambda: lab.run(batch))
    until(lambda: view(lab, batch).get("waiting") == "business_down")
    lab.ask_to_stop(batch)
    running.join(30)
    stopped, progress = lab.now(batch)
    assert (stopped.status, progress.carried.outage.since > 0) == (STOPPED, True)

    line = act(PROJECT, batch.batch_id, datetime.now(UTC), SYSTEM, "batch.start")
    lab.table.transact(lab.batches.start_writes(stopped, {"status": RUNNING, "run": 2}, line))

    assert lab.now(batch)[1].carried.outage == NO_OUTAGE


def change(lab: Lab, batch: Batch, **options: Any) -> None:
    line = act(PROJECT, batch.batch_id, datetime.now(UTC), SYSTEM, "batch.change")
    lab.batches.patch(lab.now(batch)[0], options, [], line)


def test_changed_delay_calls_items_that_wait_now(lab: Lab, business: Business) -> None:
    business.refused = {(90, 1)}
    batch = lab.batch(200, rate=20, retry_delay=3600)
    running = Background(lambda: lab.run(batch))
    until(lambda: view(lab, batch)["progress"]["processed"] > 100)
    change(lab, batch, retry_delay=0.0)
    running.join(40)
    assert lab.now(batch)[0].status == FINISHED
    assert lab.outcomes.by_index() == {90: ("recovered", 2)}


def test_changed_options_act_while_the_batch_runs(lab: Lab, business: Business) -> None:
    business.answers_after = lambda index: 1.6 if index == 90 else 0.0
    batch = lab.batch(200, rate=20, item_timeout=30, retries=5, retry_delay=60, on_item_failure="skip")
    running = Background(lambda: lab.run(batch))
    until(lambda: view(lab, batch)["progress"]["processed"] > 10)
    change(lab, batch, item_timeout=1, retries=2, backoff={"base": 0.5, "factor": 1, "max": 1, "jitter": 0})
    running.join(40)
    times = [at for at, index, _ in business.calls if index == 90]
    assert len(times) == 2, "each ends after a second, and there are two"
    assert 1.4 < times[1] - times[0] < 2.4
    assert lab.outcomes.by_index() == {90: ("failed", 2)}


def test_changed_concurrency_acts_while_the_batch_runs(lab: Lab, business: Business) -> None:
    business.answers_after = lambda _: 0.3
    batch = lab.batch(120, rate=100, concurrency=1)
    running = Background(lambda: lab.run(batch))
    until(lambda: view(lab, batch)["progress"]["processed"] >= 3)
    change(lab, batch, concurrency=40)
    began = idle_clock()
    running.join()
    assert lab.now(batch)[0].status == FINISHED
    assert idle_clock() - began < 15, "one at a time would take 35 s"
