"""Retries by type of error, after the delay of the request's type, by delayed messages."""

from __future__ import annotations

import json

import pytest

from tests.support.queue import TestQueue
from tidegate.errors import (
    BadRequest,
    DomainError,
    Forbidden,
    NotFound,
    NotSent,
    ServiceUnavailable,
    TooManyRequests,
    Unauthorized,
)


@pytest.mark.parametrize("error", [ServiceUnavailable("503"), TooManyRequests("429")])
def test_503_and_429_are_retried_after_60_120_and_240_s(queue: TestQueue, error: DomainError) -> None:
    request = queue.submit(type="download")
    waits = []
    for _ in range(3):
        queue.admit()
        before = queue.cloud.clock().timestamp()
        again = queue.finish(request, error=error)
        assert (again.status, again.last_wait_reason) == ("pending", "backoff")
        waits.append(round((again.not_before or 0) - before))

        queue.cloud.clock.advance(waits[-1] - 1)
        queue.admit()
        assert queue.statuses(request) == ["pending"], "too early"
        queue.cloud.clock.advance(2)
        queue.cloud.app.queue.admission_queue.trigger("no_cookie")

    queue.admit()
    assert waits == [60, 120, 240]
    assert queue.finish(request, error=error).status == "failed"
    assert queue.now(request).attempt == 4


@pytest.mark.parametrize("error", [NotFound, Unauthorized, Forbidden, BadRequest])
def test_404_401_403_and_400_are_not_retried(queue: TestQueue, error: type[DomainError]) -> None:
    request = queue.submit(type="download")
    queue.admit()

    ended = queue.finish(request, error=error("no"))

    assert (ended.status, ended.attempt, ended.error) == ("failed", 1, {"code": error.code, "detail": "no"})


def test_retry_after_is_honoured(queue: TestQueue) -> None:
    request = queue.submit(type="download")
    queue.admit()

    again = queue.finish(request, error=TooManyRequests("429", retry_after=1000))

    assert again.not_before == pytest.approx(queue.cloud.clock().timestamp() + 1000)


def test_delayed_message_ends_a_back_off(queue: TestQueue) -> None:
    request = queue.submit(type="check")
    queue.admit()
    queue.finish(request, error=ServiceUnavailable("503"))
    queue.admit()
    attributes = queue.cloud.client("sqs").get_queue_attributes(
        QueueUrl=queue.cloud.names.queues["WakeupsQueue"], AttributeNames=["All"]
    )["Attributes"]
    assert attributes["ApproximateNumberOfMessagesDelayed"] == "1"

    queue.cloud.clock.advance(6)
    body = json.dumps({"channel": "no_cookie", "at": "2026-01-01T00:00:00.000Z"})
    queue.cloud.invoke("wake", {"Records": [{"messageId": "1", "body": body}]})
    queue.admit()

    assert queue.statuses(request) == ["running"]


def test_early_wakeup_does_not_run_admission(queue: TestQueue) -> None:
    body = json.dumps({"channel": "no_cookie", "at": "2999-01-01T00:00:00.000Z"})

    queue.cloud.invoke("wake", {"Records": [{"messageId": "1", "body": body}]})

    assert queue.cloud.deliver("AdmissionQueue") == 0


def test_retry_now_ends_the_back_off(queue: TestQueue) -> None:
    request = queue.submit()
    queue.admit()
    assert queue.act(request, "retry-now").status == 409
    queue.finish(request, error=ServiceUnavailable("busy", retry_after=3600))
    queue.admit()
    assert queue.statuses(request) == ["pending"]

    shown = queue.act(request, "retry-now")
    assert (shown.status, shown.json().get("last_wait_reason")) == (200, None)
    queue.admit()

    assert (queue.now(request).status, queue.now(request).attempt) == ("running", 2)


def test_short_pause_of_a_host_is_not_longer_than_it_asked(queue: TestQueue) -> None:
    request = queue.submit(type="download", payload={"file_id": "f"})
    queue.admit()
    error = NotSent("the host asked for a pause", retry_after=6)
    error.put_off = True

    queue.finish(request, error=error)

    waits = (queue.now(request).not_before or 0) - queue.cloud.clock().timestamp()
    assert waits == pytest.approx(6, abs=0.1)
