"""Retries by type of error, after the type's delay, without anybody sleeping."""

from __future__ import annotations

import json

import pytest

from tests.support.queue import TestQueue
from tidegate.errors import (
    BadRequest,
    DomainError,
    Forbidden,
    NotFound,
    ServiceUnavailable,
    TooManyRequests,
    Unauthorized,
)


@pytest.mark.parametrize("error", [ServiceUnavailable("503"), TooManyRequests("429")])
def test_503_and_429_retry_with_60_120_240_and_then_fail(queue: TestQueue, error: DomainError) -> None:
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
def test_404_401_403_400_do_not_retry(queue: TestQueue, error: type[DomainError]) -> None:
    request = queue.submit(type="download")
    queue.admit()

    ended = queue.finish(request, error=error("no"))

    assert (ended.status, ended.attempt, ended.error) == ("failed", 1, {"code": error.code, "detail": "no"})


def test_a_retry_after_is_honoured(queue: TestQueue) -> None:
    request = queue.submit(type="download")
    queue.admit()

    again = queue.finish(request, error=TooManyRequests("429", retry_after=1000))

    assert again.not_before == pytest.approx(queue.cloud.clock().timestamp() + 1000)


def test_a_back_off_is_a_delayed_message_that_wakes_the_channel(queue: TestQueue) -> None:
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


def test_a_wait_longer_than_a_message_can_be_delayed_is_passed_on(queue: TestQueue) -> None:
    body = json.dumps({"channel": "no_cookie", "at": "2999-01-01T00:00:00.000Z"})

    queue.cloud.invoke("wake", {"Records": [{"messageId": "1", "body": body}]})

    assert queue.cloud.deliver("AdmissionQueue") == 0
