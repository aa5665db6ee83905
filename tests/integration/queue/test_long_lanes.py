"""One run of admission with very many waiting requests: its cost, and that it ends in time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.support.calls import count_calls
from tests.support.moto.bulk import multiply
from tests.support.queue import TestQueue
from tests.support.template import load_template, timeout_of
from tidegate.queue import admission
from tidegate.queue.admission import admit
from tidegate.queue.store import MAX_GROUP, standing_write


def admission_of(queue: TestQueue) -> Counter[str]:
    """The calls of a run that has no wait reasons to store."""
    with count_calls(queue.cloud.app) as calls:
        admit(queue.cloud.app.queue, "no_cookie")
    return calls


def test_requests_behind_one_mutex_are_not_read_one_by_one(queue: TestQueue) -> None:
    """In an earlier version, 300 of them cost 300² reads until all had run."""
    queue.capacity(no_cookie=5)
    queue.submit(subscription_id="sub-1")
    queue.admit()
    blocked = [queue.submit(subscription_id="sub-1") for _ in range(2)]
    queue.admit()
    costs = []
    for request, more in zip(blocked, (28, 270), strict=True):
        multiply(queue.cloud, request.request_id, more, by_sort_key=True)
        queue.cloud.app.table.write(standing_write("no_cookie", queue.project.id, waiting=more))
        costs.append(admission_of(queue))
    assert queue.cloud.app.queue.channel_store.count_waiting("no_cookie") == 300

    # The channel, the standings and two pages of the lane; the quotas and the mutex; when the channel is due again.
    assert costs[0]["dynamodb.Query"] == 2
    assert costs[1]["dynamodb.Query"] == 3
    assert costs[1].total() <= costs[0].total() + 1 <= 8
    # No admission was tried in vain.
    assert costs[1]["dynamodb.TransactWriteItems"] == 0


def test_request_passes_10_000_behind_a_mutex_with_few_reads(queue: TestQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    # moto is far slower than DynamoDB, so the run would be out of time.
    monkeypatch.setattr(queue.cloud.app.queue, "monotonic", lambda: 0.0)
    queue.capacity(no_cookie=5)
    queue.submit(subscription_id="sub-1")
    queue.admit()
    blocked = queue.submit(subscription_id="sub-1")
    queue.admit()
    multiply(queue.cloud, blocked.request_id, 10_000, by_sort_key=True)
    queue.cloud.app.table.write(standing_write("no_cookie", queue.project.id, waiting=10_000))
    free = queue.submit()

    with count_calls(queue.cloud.app) as calls:
        admit(queue.cloud.app.queue, "no_cookie")

    assert queue.statuses(free) == ["running"]
    # The standings, a page of 100 places and pages of 1 MB, about 2,500 places each.
    assert calls["dynamodb.Query"] <= 8


def test_requests_behind_a_mutex_are_not_tried_in_vain(queue: TestQueue) -> None:
    queue.capacity(no_cookie=5)
    requests = [queue.submit(subscription_id="sub-1") for _ in range(6)]
    with count_calls(queue.cloud.app) as calls:
        admit(queue.cloud.app.queue, "no_cookie")

    assert queue.statuses(*requests) == ["running"] + ["queued"] * 5
    # One admission, and the wait reasons of five.
    assert calls["dynamodb.TransactWriteItems"] == 6


def test_expired_mutex_holds_nobody_back(queue: TestQueue) -> None:
    queue.capacity(no_cookie=5)
    _, second, third = (queue.submit(subscription_id="sub-1") for _ in range(3))
    queue.admit()
    queue.cloud.clock.advance(181)
    admit(queue.cloud.app.queue, "no_cookie")

    assert queue.statuses(second, third) == ["running", "queued"]


@pytest.fixture
def slow(queue: TestQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half the time of a run passes between two reads of the clock."""

    def moments() -> Iterator[float]:
        now = 0.0
        while True:
            yield now
            now += admission._RUN_SECONDS / 2

    later = moments()
    monkeypatch.setattr(queue.cloud.app.queue, "monotonic", lambda: next(later))


def test_run_that_is_out_of_time_leaves_the_rest_to_the_next(queue: TestQueue, slow: None) -> None:
    """With the clock of this test, a run has time for two transactions."""
    in_time = 2 * MAX_GROUP
    queue.capacity(no_cookie=in_time + 3)
    requests = [queue.submit() for _ in range(in_time + 3)]
    sqs, url = queue.cloud.client("sqs"), queue.cloud.names.queues["AdmissionQueue"]
    sqs.purge_queue(QueueUrl=url)

    assert admit(queue.cloud.app.queue, "no_cookie") == in_time
    assert queue.statuses(*requests).count("running") == in_time
    # The channel is due, in case the message for the next run is lost.
    assert queue.channel().due_at is not None

    queue.admit()
    assert set(queue.statuses(*requests)) == {"running"}


def test_killed_admission_blocks_its_channel_for_a_minute_at_most() -> None:
    queues = load_template()["Mappings"]["Queues"]

    assert queues["Admission"]["VisibilityTimeout"] <= 60
    # A run has time for its work after the last start.
    assert timeout_of("admit") >= 2 * admission._RUN_SECONDS


def test_blocked_requests_of_one_project_leave_time_for_the_others(queue: TestQueue, slow: None) -> None:
    """Places behind a mutex are read only while the run has time, so that it ends and other projects are admitted."""
    queue.capacity(no_cookie=5)
    queue.submit(subscription_id="sub-1")
    queue.admit()
    blocked = queue.submit(subscription_id="sub-1")
    queue.admit()
    multiply(queue.cloud, blocked.request_id, 20_000, by_sort_key=True)
    queue.cloud.app.table.write(standing_write("no_cookie", queue.project.id, waiting=20_000))
    other = TestQueue(queue.cloud, queue.cloud.project())
    request = other.submit()

    with count_calls(queue.cloud.app) as calls:
        admit(queue.cloud.app.queue, "no_cookie")

    assert other.statuses(request) == ["running"]
    # The standings, the lanes' first pages of 100 places, and few pages of 1 MB: all would be about eight.
    assert calls["dynamodb.Query"] <= 5
