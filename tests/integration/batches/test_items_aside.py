"""Items that wait for a retry or for an answer stand aside: the batch goes on without them, and none is lost."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import PropertyMock, patch

import pytest

from tests.support.batches.lab import Killed, Lab
from tests.support.http_servers import Handler, serve
from tests.support.moto.cloud import MotoCloud
from tests.support.patience import Background, idle_clock
from tidegate.batches import SliceTiming
from tidegate.batches.model import FINISHED, Batch, BatchProgress, Rules
from tidegate.batches.slice import BUSY, ENDED

OK = {"result": "ok"}


@pytest.fixture(autouse=True)
def small_window() -> Iterator[None]:
    with patch.object(Rules, "window_size", PropertyMock(return_value=20)):
        yield


class Business:
    def __init__(self) -> None:
        self.port = 0
        self.called: Counter[int] = Counter()
        self.answer: Callable[[dict[str, Any]], Any] = lambda _: OK
        self._lock = threading.Lock()

    def __call__(self, request: Handler) -> None:
        item = json.loads(request.body())
        with self._lock:
            self.called[item["index"]] += 1
        request.answer(200, json.dumps(self.answer(item)).encode())


@pytest.fixture
def business() -> Iterator[Business]:
    made = Business()
    with serve(made) as made.port:
        yield made


@pytest.fixture
def lab(cloud: MotoCloud, business: Business) -> Lab:
    return Lab(cloud.app.table, f"http://127.0.0.1:{business.port}/", SliceTiming(lease_seconds=3))


def wait_for(lab: Lab, batch: Batch, wanted: Callable[[BatchProgress], bool], seconds: float = 15) -> BatchProgress:
    deadline = idle_clock() + seconds
    while not wanted(progress := lab.now(batch)[1]):
        assert idle_clock() < deadline, progress.view(batch)
        time.sleep(0.05)
    return progress


def test_batch_goes_on_while_one_item_waits_for_retry(lab: Lab, business: Business) -> None:
    business.answer = lambda item: {"result": "error"} if (item["index"], item["attempt"]) == (3, 1) else OK
    batch = lab.batch(300, rate=100, retry_delay=8)
    began = time.time()
    running = Background(lambda: lab.run(batch))

    progress = wait_for(lab, batch, lambda one: one.position == 299, seconds=7)
    shown = progress.view(batch).fields()
    assert (shown["offset"], shown["retrying"], shown["processed"]) == (3, 1, 299)
    # The end is the retry, not what the pace of the last seconds suggests.
    assert progress.eta == pytest.approx(began + 8, abs=1.5)
    running.join(20)
    ended, progress = lab.now(batch)
    assert (ended.status, progress.position, progress.window.aside) == (FINISHED, 300, ())
    assert business.called == Counter(range(300)) + Counter([3])
    assert lab.outcomes.by_index() == {3: ("recovered", 2)}


def test_batch_goes_on_while_one_call_hangs(lab: Lab, business: Business) -> None:
    answered = threading.Event()

    def answer(item: dict[str, Any]) -> Any:
        if item["index"] == 3:
            answered.wait(20)
        return OK

    business.answer = answer
    batch = lab.batch(300, rate=100, item_timeout=30)
    running = Background(lambda: lab.run(batch))
    shown = wait_for(lab, batch, lambda one: one.position == 299).view(batch).fields()
    assert (shown["offset"], shown["retrying"]) == (3, 0)
    answered.set()
    running.join(20)
    assert lab.now(batch)[0].status == FINISHED
    assert business.called == Counter(range(300))


def test_retries_of_hanging_items_leave_calls_for_new_ones(lab: Lab, business: Business) -> None:
    def answer(item: dict[str, Any]) -> Any:
        if item["index"] % 20 == 7 and item["index"] < 200:
            hanging.wait(1.5)
        return OK

    hanging = threading.Event()
    business.answer = answer
    batch = lab.batch(400, rate=100, concurrency=4, item_timeout=1, retries=60, retry_delay=0, on_item_failure="skip")
    running = Background(lambda: lab.run(batch))
    wait_for(lab, batch, lambda one: one.position == 390, seconds=40)
    assert max(business.called.values()) < 30, "ten that hang would have used up their attempts first"
    hanging.set()
    running.join(40)
    assert lab.now(batch)[0].status == FINISHED


def test_killed_runner_repeats_a_second_and_loses_no_item_aside(lab: Lab, business: Business) -> None:
    """At the kill some items wait for their retry, and others for their answer."""
    hanging = threading.Event()
    killed = threading.Event()

    def answer(item: dict[str, Any]) -> Any:
        if item["index"] % 50 == 7:
            return {"result": "error"} if item["attempt"] < 3 else OK
        if item["index"] % 50 == 9 and not killed.is_set():
            hanging.wait(20)
        return OK

    business.answer = answer
    batch = lab.batch(600, rate=100, retry_delay=2.5, retries=4)
    mortal, dead = lab.mortal()

    def run_until_killed() -> None:
        with pytest.raises(Killed):
            mortal.run(batch)

    dying = Background(run_until_killed)
    wait_for(lab, batch, lambda one: one.position > 150 and len(one.window.aside) > 4)
    saved = lab.now(batch)[1]
    killed.set()
    dead.set()
    hanging.set()
    dying.join(20)
    assert saved.window.first_open == 7
    assert {item.index for item in lab.now(batch)[1].carried.open_items if item.at == 0} >= {9, 59}
    while (outcome := lab.run(batch)) == BUSY:
        time.sleep(0.1)
    assert outcome == ENDED
    ended, progress = lab.now(batch)
    assert (ended.status, progress.position) == (FINISHED, 600)
    assert sorted(business.called) == list(range(600))
    expected = {index: 3 if index % 50 == 7 else 1 for index in range(600)}
    repeats = sum(business.called[index] - times for index, times in expected.items())
    # About a second of calls, those that were under way, and the retries of that second.
    assert 0 < repeats <= 180
    assert {index for index, (state, _) in lab.outcomes.by_index().items()} == set(range(7, 600, 50))
