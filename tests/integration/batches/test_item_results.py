"""Results that come in separate calls: an accepted result counts, and every other one is refused."""

from __future__ import annotations

import json
import math
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest

from local.launcher import processes_per_core
from tests.support.batches.lab import Killed, Lab
from tests.support.calls import count_calls
from tests.support.http_servers import Handler, serve
from tests.support.moto.cloud import MotoCloud
from tests.support.patience import Background, until
from tidegate.batches import SliceTiming
from tidegate.batches.items import DataItems, ItemResults
from tidegate.batches.model import ASYNC, FINISHED, SKIP, STOPPED, Batch, Carried, Decision, OpenItem
from tidegate.batches.run_state import NO_RESULT
from tidegate.batches.slice import BUSY
from tidegate.errors import WrongState

LEASE = 3.0
OK, ERROR = {"result": "ok"}, {"result": "error", "msg": "no stock"}
Plan = Callable[[int, int], tuple[float, dict[str, Any]] | None]


@dataclass
class Business:
    """Takes each item with 202, and posts its result as the plan says: (delay, answer) by index and attempt."""

    lab: Lab
    plan: Plan
    called: dict[tuple[int, int], float] = field(default_factory=dict)
    # What was posted, and whether it was accepted.
    ledger: dict[int, list[tuple[str, bool]]] = field(default_factory=lambda: defaultdict(list))
    batch: Batch | None = None
    url: str = ""
    _timers: list[threading.Timer] = field(default_factory=list)

    def __call__(self, request: Handler) -> None:
        item = json.loads(request.body())
        index, attempt = item["index"], item["attempt"]
        self.called[index, attempt] = time.time()
        planned = self.plan(index, attempt)
        if planned is not None:
            timer = threading.Timer(planned[0], self.post, [index, planned[1], attempt])
            timer.daemon = True
            self._timers.append(timer)
            timer.start()
        request.answer(202)

    def post(self, index: int, answer: dict[str, Any], attempt: int | None = None) -> str | None:
        """Posts a result as the API does. Returns why it was refused; None if it was accepted."""
        assert self.batch
        present = self.lab.now(self.batch)[0]
        # Without what another function has learned.
        results = ItemResults(self.lab.table)
        try:
            if present.status == FINISHED:
                raise WrongState("finished")
            results.add(present, index, index, answer, attempt, time.time())
        except WrongState as error:
            self.ledger[index].append((answer["result"], False))
            return error.detail
        self.ledger[index].append((answer["result"], True))
        return None

    def accepted(self, index: int) -> list[str]:
        return [result for result, taken in self.ledger[index] if taken]

    def wait(self) -> None:
        """Waits until all planned results were posted."""
        for timer in self._timers:
            timer.join()


@pytest.fixture
def waits_for_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner that only waits for results keeps its function, instead of ending it and sleeping for 15 s."""
    monkeypatch.setattr("tidegate.batches.slice._WORTH_SLEEPING", 60.0)


@contextmanager
def business(cloud: MotoCloud, plan: Plan) -> Iterator[Business]:
    lab = Lab(cloud.app.table, "", SliceTiming(lease_seconds=LEASE))
    made = Business(lab, plan)
    with serve(made) as port:
        lab.url = f"http://127.0.0.1:{port}/process"
        yield made
        made.wait()


def started(made: Business, total: int, **more: Any) -> Batch:
    options: dict[str, Any] = {"rate": 100, "ack": ASYNC, "retries": 1, "retry_delay": 0.2, "on_item_failure": SKIP}
    made.batch = made.lab.batch(total, **(options | more))
    return made.batch


def run_to_end(lab: Lab, batch: Batch, runner: int = 0) -> None:
    while lab.run(batch, runner) == BUSY:
        time.sleep(0.1)


def test_result_shortly_before_the_time_out_counts(cloud: MotoCloud) -> None:
    busy = min(processes_per_core(), 10)
    with business(cloud, lambda index, attempt: (busy * (1.5 + index % 10 * 0.05), OK)) as made:
        batch = started(made, 40, item_timeout=math.ceil(2 * busy))
        made.lab.run(batch)
        ended, progress = made.lab.now(batch)
        assert ended.status == FINISHED
        # On a slow machine, a few may really come too late: then they were refused.
        late = [index for index in range(40) if not made.accepted(index)]
        assert len(late) < 10
        assert (sorted(made.lab.outcomes.by_index()), progress.position) == (late, 40)


def test_result_while_the_batch_is_stopped_counts_after_the_restart(cloud: MotoCloud) -> None:
    with business(cloud, lambda index, attempt: None) as made:
        batch = started(made, 20, item_timeout=8)
        running = Background(lambda: made.lab.run(batch))
        until(lambda: len(made.called) == 20)
        made.lab.ask_to_stop(batch)
        running.join(10)
        assert made.lab.now(batch)[0].status == STOPPED
        for index in range(15):
            assert made.post(index, OK) is None
        # The time-out is judged by when a result comes, not by when it is read.
        until(lambda: time.time() > max(made.called.values()) + 8.5)
        for index in range(15, 20):
            assert made.post(index, OK) == f"the result of item {index} comes too late: its item_timeout has passed"
        made.batch = batch = made.lab.start_again(batch)
        made.lab.run(batch)
        _, progress = made.lab.now(batch)
        assert (progress.position, progress.counts.failed) == (20, 5)
        assert sorted(made.lab.outcomes.by_index()) == list(range(15, 20))


def killed(made: Business, batch: Batch, when: Callable[[], bool]) -> None:
    """Runs the batch in a process that is killed as soon as `when` is true."""
    mortal, dead = made.lab.mortal()

    def run() -> None:
        with pytest.raises(Killed):
            mortal.run(batch)

    running = Background(run)
    until(when)
    dead.set()
    running.join(10)


def test_result_for_the_second_attempt_of_killed_runner_counts(cloud: MotoCloud) -> None:
    with business(cloud, lambda index, attempt: (0, ERROR) if attempt == 1 else (0.3, OK)) as made:
        batch = started(made, 10, item_timeout=5, retries=2, retry_delay=0)
        killed(made, batch, lambda: len([1 for _, attempt in made.called if attempt == 2]) == 10)
        until(lambda: all(made.accepted(index) == ["error", "ok"] for index in range(10)))
        before = dict(made.called)
        run_to_end(made.lab, batch)
        _, progress = made.lab.now(batch)
        assert (progress.position, progress.counts.failed) == (10, 0)
        # Their results are stored, so they are not called again.
        assert made.called == before


def test_refused_result_says_why(cloud: MotoCloud) -> None:
    with business(cloud, lambda index, attempt: None) as made:
        batch = started(made, 100, rate=2, item_timeout=2, retries=2, retry_delay=1)
        assert made.post(0, OK) == "item 0 was not called yet: send its result after process_url was called with it"
        running = Background(lambda: made.lab.run(batch))
        until(lambda: (0, 1) in made.called)
        assert "was not called yet" in (made.post(50, OK) or "")
        assert made.post(0, OK, 2) == (
            "item 0 was not called with attempt 2 yet: send the attempt of the call that this is for"
        )
        assert made.post(0, ERROR) is None
        assert made.post(0, ERROR) is None
        assert made.post(0, OK) == "item 0 already has a result for attempt 1: the first one counts"
        until(lambda: (0, 2) in made.called)
        assert made.post(0, OK, 1) == "attempt 1 of item 0 is outdated: it has been called again, with attempt 2"
        assert made.post(0, OK, 2) is None
        until(lambda: (1, 2) in made.called)
        until(lambda: made.lab.outcomes.by_index().get(1) == ("failed", 2))
        assert made.post(1, OK) == ("the result of item 1 comes too late: attempt 2 has failed: no result came in time")
        made.lab.ask_to_stop(batch)
        running.join(10)
        outcomes = made.lab.outcomes.by_index()
        assert (outcomes[0], outcomes[1]) == (("recovered", 2), ("failed", 2))


# What has happened to an item, and the attempts of which a result is taken then. None: it does not name its attempt.
CALLED = Decision(0, 2, 2)
TAKEN: dict[str, tuple[list[Decision | dict[str, Any]], set[int | None]]] = {
    "called": ([], {None, 1}),
    "answered": ([OK], set()),
    "timed out": ([Decision(0, 1, 1, NO_RESULT)], set()),
    "failed and called again": ([ERROR, CALLED], {None, 2}),
    "timed out and called again": ([Decision(0, 1, 1, NO_RESULT), CALLED], {None, 2}),
    "called again and answered": ([ERROR, CALLED, OK], set()),
    "called again and timed out": ([ERROR, CALLED, Decision(0, 2, 2, NO_RESULT)], set()),
}


@pytest.mark.parametrize("attempt", [None, 1, 2, 3])
@pytest.mark.parametrize("happened", TAKEN)
def test_result_is_taken_for_the_open_attempt_only(cloud: MotoCloud, happened: str, attempt: int | None) -> None:
    lab, items, now = Lab(cloud.app.table, ""), DataItems(lambda: None), time.time()
    batch = lab.batch(1, rate=1, ack=ASYNC)
    acquired = lab.batches.acquire(batch, now, 60)
    assert acquired
    results = ItemResults(lab.table)
    results.store_reach(batch, 0, 1)
    for event in TAKEN[happened][0]:
        if isinstance(event, dict):
            results.add(batch, 0, 0, event, None, now)
        elif event.answer:
            assert results.decide(batch, 0, acquired[0], [event], items, now) == [(event, None)]
        else:
            assert results.open(batch, 0, acquired[0], [event], items, now) == [event]

    # Another one than was given before: the same would be a repetition.
    answer = {"result": "abandon", "msg": "sold out"}
    if attempt in TAKEN[happened][1]:
        results.add(batch, 0, 0, answer, attempt, now)
        ((_, parsed),) = results.read(batch, items, 0, None)
        assert parsed
        assert parsed.answer.result == "abandon"
    else:
        with pytest.raises(WrongState):
            results.add(batch, 0, 0, answer, attempt, now)


def test_result_for_a_call_of_an_older_version_counts(cloud: MotoCloud) -> None:
    with business(cloud, lambda index, attempt: None) as made:
        batch = started(made, 2, item_timeout=30)
        acquired = made.lab.batches.acquire(batch, time.time(), 1)
        assert acquired
        # It has called both items, the second one twice, and stored no reach and no record of the second attempt.
        until_then = time.time() + 30
        waiting = (OpenItem(0, 1, until_then, awaiting=True), OpenItem(1, 2, until_then, awaiting=True))
        progress = replace(acquired[1], carried=Carried(open_items=waiting))
        made.lab.batches.save(batch, acquired[0], progress, 0)
        assert made.post(0, OK) is None
        running = Background(lambda: run_to_end(made.lab, batch))
        until(lambda: made.lab.now(batch)[1].position == 1)
        assert made.post(1, OK, 2) is None
        running.join(60)
        assert (made.lab.now(batch)[1].position, made.called) == (2, {})


@pytest.mark.usefixtures("waits_for_results")
def test_results_are_refused_once_the_business_finished_the_batch(cloud: MotoCloud) -> None:
    finish = OK | {"stop": "finish"}
    with business(cloud, lambda index, attempt: (1.5, finish) if index == 3 else None) as made:
        batch = started(made, 10, item_timeout=30)
        running = Background(lambda: made.lab.run(batch))
        until(lambda: len(made.called) == 10)
        taken = [index for index in (0, 1) if made.post(index, OK) is None]
        # Every item is posted again and again while the batch ends.
        while running.is_alive():
            for index in (5, 6, 7):
                made.post(index, OK, 1)
            time.sleep(0.01)
        ended, progress = made.lab.now(batch)
        assert ended.status == FINISHED
        taken += [index for index in (5, 6, 7) if made.accepted(index)]
        assert progress.position == len(taken) + 1
        stored = ItemResults(made.lab.table)
        with pytest.raises(WrongState, match="finished without this item"):
            stored.add(replace(ended, status="running"), 9, 9, OK, None, time.time())


@pytest.mark.parametrize("runners", [1, 3])
def test_accepted_results_count_as_they_said_and_no_others(cloud: MotoCloud, runners: int) -> None:
    """Results come around the time-out, twice, too early and too late, while runners are killed."""
    chance = random.Random(runners)
    said = ["ok", "ok", "ok", "error", "abandon"]
    total = 60

    def plan(index: int, attempt: int) -> tuple[float, dict[str, Any]] | None:
        if chance.random() < 0.15:
            return None
        return chance.choice([0, 0.5, 0.9, 0.98, 1.0, 1.05, 1.2, 1.9, 2.2]), {"result": chance.choice(said)}

    with business(cloud, plan) as made, ExitStack() as stack:
        batch = started(made, total, rate=60, item_timeout=1, retries=2, runners=runners)
        over = threading.Event()
        stack.callback(over.set)

        def post_anything() -> None:
            while not over.wait(0.02):
                made.post(chance.randrange(total), {"result": chance.choice(said)}, chance.choice([None, 1, 2]))

        def run_and_die(runner: int) -> None:
            for seconds in (1.3, 2.1):
                mortal, dead = made.lab.mortal()
                timer = threading.Timer(seconds, dead.set)
                timer.start()
                try:
                    run_to_end(mortal, batch, runner)
                except Killed:
                    continue
                finally:
                    timer.cancel()
            run_to_end(made.lab, batch, runner)

        noise = Background(post_anything)
        threads = [Background(partial(run_and_die, runner)) for runner in range(runners)]
        for thread in threads:
            thread.join(60)
        over.set()
        noise.join(5)
        made.wait()
        ended, progress = made.lab.now(batch)
        assert (ended.status, progress.position) == (FINISHED, total)
        outcomes = made.lab.outcomes.by_index()
        for index in range(total):
            final = [result for result in made.accepted(index) if result != "error"]
            state = outcomes.get(index, ("ok", 1))[0]
            expected = {"ok": ("ok", "recovered"), "abandon": ("abandoned",)}[final[0]] if final else ("failed",)
            assert state in expected, (index, made.ledger[index], outcomes.get(index))
            assert len(set(final)) <= 1, (index, made.ledger[index])
        assert any(not taken for posts in made.ledger.values() for _, taken in posts)


@pytest.mark.usefixtures("waits_for_results")
def test_result_costs_one_write_and_shares_the_rest(cloud: MotoCloud) -> None:
    """At a high rate: the API stores each result with one write; the runner does nothing for a single item."""
    with business(cloud, lambda index, attempt: None) as made:
        batch, total = started(made, 300, rate=2000, item_timeout=30), 300
        running = Background(lambda: made.lab.run(batch))
        until(lambda: len(made.called) == total)
        results = ItemResults(made.lab.table)
        with count_calls(cloud.app) as calls:
            for index in range(total):
                results.add(batch, index, index, OK, 1, time.time())
            running.join(20)
        assert made.lab.now(batch)[1].position == total
        # Of these, the API makes one read for all results; the runner makes the others, once a second.
        seconds = calls["dynamodb.Query"]
        assert calls["dynamodb.UpdateItem"] <= total + 2 * seconds + 4
        assert calls["dynamodb.GetItem"] <= 1 + 3 * seconds
        assert calls["dynamodb.BatchWriteItem"] == 0
        assert calls["dynamodb.TransactWriteItems"] <= 1
