"""What compensation puts right: lost words, lost machines, time-outs, leaked slots."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from tests.support.queue import TestQueue
from tidegate.aws import keys
from tidegate.aws.writes import delete, update
from tidegate.errors import Busy, ServiceUnavailable


def lose_words(queue: TestQueue) -> None:
    queue.cloud.client("sqs").purge_queue(QueueUrl=queue.cloud.names.queues["AdmissionQueue"])


def test_a_request_whose_message_to_admission_was_lost_runs(queue: TestQueue) -> None:
    request = queue.submit()
    lose_words(queue)

    queue.compensate(31)

    assert queue.statuses(request) == ["running"]


def test_a_back_off_whose_wake_up_was_lost_ends(queue: TestQueue) -> None:
    request = queue.submit()
    queue.admit()
    queue.finish(request, error=ServiceUnavailable("503"))
    lose_words(queue)

    queue.compensate(4)
    assert queue.statuses(request) == ["pending"]
    queue.compensate(32)

    assert queue.statuses(request) == ["running"]


def test_a_channel_whose_message_was_lost_goes_on(queue: TestQueue) -> None:
    queue.capacity(no_cookie=1)
    first, second = queue.submit(type="download"), queue.submit(type="download")
    queue.admit()
    queue.finish(first)
    lose_words(queue)

    queue.compensate(91)

    assert queue.statuses(second) == ["running"]


def test_a_resumed_channel_whose_message_was_lost_goes_on(queue: TestQueue) -> None:
    queue.cloud.http("POST", "/v1/queue/pause", json={}, key=queue.cloud.admin_key)
    request = queue.submit()
    queue.admit()
    assert queue.statuses(request) == ["queued"]
    queue.cloud.http("POST", "/v1/queue/resume", json={}, key=queue.cloud.admin_key)
    lose_words(queue)

    queue.compensate(31)

    assert queue.statuses(request) == ["running"]


def test_many_that_wait_are_looked_after_by_their_channel_not_one_by_one(queue: TestQueue) -> None:
    queue.capacity(no_cookie=1)
    requests = [queue.submit() for _ in range(30)]
    lose_words(queue)
    queue.cloud.app.queue.admission.admit("no_cookie")
    queue.compensate(31)

    assert queue.statuses(*requests)[1:] == ["queued"] * 29
    overdue = [
        item
        for shard in range(keys.DUE_SHARDS)
        for item in queue.cloud.app.table.query(keys.due_partition(shard), index="due").items
        if item["due_kind"] == "request"
    ]
    assert [item["status"] for item in overdue] == ["running"]


def test_a_machine_that_was_never_started_is_started(queue: TestQueue) -> None:
    request = queue.submit()
    with patch.object(queue.cloud.app.queue.runner, "start", return_value=""):
        queue.admit()
    assert queue.executions() == {}

    queue.compensate(46)

    assert list(queue.executions()) == [f"{request.request_id}-1"]
    assert queue.now(request).attempt == 1


def test_a_machine_that_cannot_be_started_now_is_not_taken_for_started(queue: TestQueue) -> None:
    """Compensation counts what it started, and looks again at what it did not."""
    request = queue.submit()
    with patch.object(queue.cloud.app.queue.runner, "start", side_effect=Busy("throttled")):
        queue.admit()
        with pytest.raises(Busy):
            queue.compensate(46)

    queue.compensate(0)

    assert list(queue.executions()) == [f"{request.request_id}-1"]


def test_a_dead_machine_frees_slot_and_mutex_and_is_tried_again(queue: TestQueue) -> None:
    request = queue.submit(subscription_id="sub-1")
    queue.admit()
    queue.cloud.app.queue.runner.stop(queue.now(request), "the cloud restarted")

    queue.compensate(46)
    again = queue.now(request)
    assert (again.status, again.error and again.error["code"]) == ("pending", "worker_lost")
    assert queue.channel().running == 0

    queue.cloud.clock.advance(6)
    queue.cloud.app.queue.admission.admit("no_cookie")
    assert queue.now(request).attempt == 2


def test_time_outs_end_requests(queue: TestQueue) -> None:
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


def test_a_heartbeat_keeps_a_running_request_alone(queue: TestQueue) -> None:
    request = queue.submit(type="download")
    queue.admit()
    for _ in range(5):
        queue.cloud.app.queue.queue.heartbeat(request.project_id, request.request_id, 1)
        queue.compensate(30)

    assert queue.statuses(request) == ["running"]


def test_a_leaked_slot_is_healed(queue: TestQueue) -> None:
    queue.capacity(no_cookie=2)
    gone, stays, waits = (queue.submit(type="download") for _ in range(3))
    queue.admit()
    table = queue.cloud.app.table
    table.write(delete(keys.request(gone.project_id, gone.request_id)))
    table.write(update(keys.channel("no_cookie"), {"running": 7}))

    queue.compensate(91)

    assert queue.statuses(stays, waits) == ["running", "running"]
    assert queue.channel().running == 2
