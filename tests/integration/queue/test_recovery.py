"""Recovery by compensation: lost messages, lost state machines, time-outs, leaked slots."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest

from tests.integration.compensation.polling import Ticks
from tests.support.moto.cloud import MotoCloud
from tests.support.queue import TestQueue
from tidegate.aws import keys
from tidegate.aws.table import delete, update
from tidegate.batches.slice import _execution_name
from tidegate.errors import Busy, LeaseLost, ServiceUnavailable
from tidegate.queue.admission import admit
from tidegate.queue.model import Request
from tidegate.queue.queue import RunningAttempt, Timing


@pytest.fixture
def ticks(cloud: MotoCloud, monkeypatch: pytest.MonkeyPatch) -> Ticks:
    return Ticks(cloud, monkeypatch)


def lose_messages(queue: TestQueue) -> None:
    queue.cloud.client("sqs").purge_queue(QueueUrl=queue.cloud.names.queues["AdmissionQueue"])


def test_request_whose_message_was_lost_runs(queue: TestQueue) -> None:
    request = queue.submit()
    lose_messages(queue)

    queue.compensate(31)

    assert queue.statuses(request) == ["running"]


def test_back_off_whose_wakeup_was_lost_ends(queue: TestQueue) -> None:
    request = queue.submit()
    queue.admit()
    queue.finish(request, error=ServiceUnavailable("503"))
    lose_messages(queue)

    queue.compensate(4)
    assert queue.statuses(request) == ["pending"]
    queue.compensate(32)

    assert queue.statuses(request) == ["running"]


def test_channel_whose_message_was_lost_continues(queue: TestQueue) -> None:
    queue.capacity(no_cookie=1)
    first, second = queue.submit(type="download"), queue.submit(type="download")
    queue.admit()
    queue.finish(first)
    lose_messages(queue)

    queue.compensate(91)

    assert queue.statuses(second) == ["running"]


def test_resumed_channel_whose_message_was_lost_continues(queue: TestQueue) -> None:
    queue.cloud.http("POST", "/v1/queue/pause", json={}, key=queue.cloud.admin_key)
    request = queue.submit()
    queue.admit()
    assert queue.statuses(request) == ["queued"]
    queue.cloud.http("POST", "/v1/queue/resume", json={}, key=queue.cloud.admin_key)
    lose_messages(queue)

    queue.compensate(31)

    assert queue.statuses(request) == ["running"]


def test_channel_is_due_instead_of_each_waiting_request(queue: TestQueue) -> None:
    queue.capacity(no_cookie=1)
    requests = [queue.submit() for _ in range(30)]
    lose_messages(queue)
    admit(queue.cloud.app.queue, "no_cookie")
    queue.compensate(31)

    assert queue.statuses(*requests)[1:] == ["queued"] * 29
    overdue = [
        item
        for shard in range(keys.DUE_SHARDS)
        for item in queue.cloud.app.table.query(keys.due_partition(shard), index="due").items
        if item["due_kind"] == "request"
    ]
    assert [item["status"] for item in overdue] == ["running"]


def test_machine_that_was_never_started_is_started(queue: TestQueue) -> None:
    request = queue.submit()
    with patch.object(queue.cloud.app.queue.runner, "start", return_value=""):
        queue.admit()
    assert queue.executions() == {}

    queue.compensate(46)

    assert list(queue.executions()) == [f"{request.request_id}-1"]
    assert queue.now(request).attempt == 1


def test_machine_that_could_not_be_started_is_started_later(queue: TestQueue) -> None:
    """The handler raises, so compensation does not count it as started."""
    request = queue.submit()
    with patch.object(queue.cloud.app.queue.runner, "start", side_effect=Busy("throttled")):
        queue.admit()
        with pytest.raises(Busy):
            queue.compensate(46)

    queue.compensate(0)

    assert list(queue.executions()) == [f"{request.request_id}-1"]


def test_request_of_a_dead_machine_releases_its_locks_and_is_retried(queue: TestQueue) -> None:
    request = queue.submit(subscription_id="sub-1")
    queue.admit()
    queue.cloud.app.queue.runner.stop(queue.now(request), "the cloud restarted")

    queue.compensate(46)
    again = queue.now(request)
    assert (again.status, again.error and again.error["code"]) == ("pending", "worker_lost")
    assert queue.channel().running == 0

    queue.cloud.clock.advance(6)
    admit(queue.cloud.app.queue, "no_cookie")
    assert queue.now(request).attempt == 2


def test_batch_is_running_while_any_of_its_runners_runs(queue: TestQueue) -> None:
    request = queue.submit(type="batch", payload={"batch_id": "b-1", "run": 1})
    queue.admit()
    queue.cloud.app.queue.runner.stop(queue.now(request), "the first runner is done")
    sfn, machine = queue.cloud.client("stepfunctions"), queue.cloud.names.machines["BatchMachine"]
    here = {"request_id": request.request_id, "attempt": 1}
    names = [_execution_name(here, 1, runner) for runner in (1, 2)]
    first, last = (sfn.start_execution(stateMachineArn=machine, name=name)["executionArn"] for name in names)
    sfn.stop_execution(executionArn=first)

    queue.compensate(121)
    assert (queue.now(request).status, queue.now(request).attempt) == ("running", 1)

    sfn.stop_execution(executionArn=last)
    queue.compensate(121)
    ended = queue.now(request)
    assert (ended.status, ended.error and ended.error["code"]) == ("pending", "worker_lost")


def test_request_that_times_out_twice_fails(queue: TestQueue) -> None:
    request = queue.submit()
    for attempt in (1, 2):
        queue.admit()
        assert queue.now(request).attempt == attempt
        queue.compensate(91)
        assert queue.executions()[f"{request.request_id}-{attempt}"] == "ABORTED"
        queue.cloud.clock.advance(6)
        queue.cloud.app.queue.admission_queue.trigger("no_cookie")

    ended = queue.now(request)
    assert (ended.status, ended.error and ended.error["code"]) == ("failed", "request_timeout")


def test_request_with_heartbeats_is_not_recovered(queue: TestQueue) -> None:
    request = queue.submit(type="download")
    queue.admit()
    for _ in range(5):
        queue.cloud.app.queue.heartbeat(request.project_id, request.request_id, 1)
        queue.compensate(30)

    assert queue.statuses(request) == ["running"]


def beat(queue: TestQueue, request: Request, attempt: int = 1, **more: Any) -> None:
    queue.cloud.app.queue.heartbeat(request.project_id, request.request_id, attempt, **more)


@pytest.mark.parametrize("kind", ["download", "scan", "export", "batch"])
def test_hung_worker_is_replaced_within_70_seconds(queue: TestQueue, ticks: Ticks, kind: str) -> None:
    payload = {"batch_id": "b-1", "run": 1} if kind == "batch" else {}
    request = queue.submit(type=kind, payload=payload)
    queue.admit()
    queue.cloud.app.compensation.revive()
    ended = queue.cloud.clock() + timedelta(seconds=47)
    while queue.cloud.clock() < ended:
        beat(queue, request)
        due = min(at for at, _ in ticks.waiting)
        if due > queue.cloud.clock() + timedelta(seconds=10):
            queue.cloud.clock.advance(10)
        else:
            ticks.next()
    beat(queue, request)
    hung_at = queue.cloud.clock()

    while queue.now(request).attempt == 1:
        assert queue.cloud.clock() < hung_at + timedelta(seconds=70), "it was not replaced"
        ticks.next()
        queue.admit()

    machine = {"export": "ExportMachine", "batch": "BatchMachine"}.get(kind, "IngestMachine")
    again = queue.now(request)
    assert (again.status, again.attempt) == ("running", 2)
    assert queue.executions(machine)[f"{request.request_id}-1"] == "ABORTED"
    assert queue.executions(machine)[f"{request.request_id}-2"] == "RUNNING"


def test_hung_worker_that_wakes_may_not_write(queue: TestQueue) -> None:
    request = queue.submit(type="download")
    queue.admit()
    beat(queue, request)
    queue.compensate(56)
    assert queue.now(request).attempt == 2

    with pytest.raises(LeaseLost):
        beat(queue, request)
    stale = queue.cloud.app.queue.finish(request.project_id, request.request_id, 1, result={"from": "the old one"})

    assert (stale.status, stale.attempt, stale.result) == ("running", 2, None)


def test_one_hung_worker_of_several_is_noticed(queue: TestQueue) -> None:
    request = queue.submit(type="export")
    queue.admit()
    beat(queue, request, worker="0")
    beat(queue, request, worker="1")
    for _ in range(5):
        queue.compensate(10)
        beat(queue, request, worker="1")
    assert queue.now(request).attempt == 1

    queue.compensate(6)

    assert queue.now(request).attempt == 2


def test_request_between_two_functions_is_not_taken_for_hung(queue: TestQueue) -> None:
    request = queue.submit(type="download")
    queue.admit()
    running = RunningAttempt(queue.cloud.app.queue, queue.now(request), Timing(look=0, beat=10))
    running({"bytes": 5})
    running.rest()

    for _ in range(4):
        queue.compensate(91)

    assert (queue.now(request).status, queue.now(request).attempt) == ("running", 1)


def test_hanging_again_without_progress_uses_up_the_retries(queue: TestQueue) -> None:
    """The first replacement is at once; the next ones wait as after any other failure."""
    request = queue.submit(type="download")
    outcomes = []
    for attempt in range(1, 5):
        queue.admit()
        beat(queue, request, attempt, progress={"bytes": 7})
        queue.compensate(56)
        outcomes.append(queue.now(request).status)
        queue.cloud.clock.advance(301)
        queue.cloud.app.queue.admission_queue.trigger("no_cookie")

    assert outcomes == ["running", "pending", "pending", "failed"]


def test_leaked_slot_is_released(queue: TestQueue) -> None:
    queue.capacity(no_cookie=2)
    gone, stays, waits = (queue.submit(type="download") for _ in range(3))
    queue.admit()
    table = queue.cloud.app.table
    table.write(delete(keys.request(gone.project_id, gone.request_id)))
    table.write(update(keys.channel("no_cookie"), {"running": 7}))

    queue.compensate(91)

    assert queue.statuses(stays, waits) == ["running", "running"]
    assert queue.channel().running == 2
