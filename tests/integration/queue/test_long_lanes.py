"""What one run of admission costs where very many wait, and that it ends in time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.support.calls import count_calls
from tests.support.moto.bulk import multiply
from tests.support.queue import TestQueue
from tests.support.template import load_template, timeout_of
from tidegate.queue.admission import admit
from tidegate.queue.admission.standings import standing_write
from tidegate.queue.admission.together import MOST_TOGETHER


def admission_of(queue: TestQueue) -> Counter[str]:
    """The calls of a run, where everybody was told already why they wait."""
    with count_calls(queue.cloud.app) as calls:
        queue.cloud.app.queue.admission.admit("no_cookie")
    return calls


def test_requests_behind_one_mutex_are_not_read_one_by_one(queue: TestQueue) -> None:
    """300 of them once cost 300² reads until all had run."""
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
    # No request was read, and none was tried in vain.
    assert costs[1]["dynamodb.TransactWriteItems"] == 0


def test_10_000_behind_one_mutex_let_another_request_pass_with_few_reads(queue: TestQueue) -> None:
    queue.capacity(no_cookie=5)
    queue.submit(subscription_id="sub-1")
    queue.admit()
    blocked = queue.submit(subscription_id="sub-1")
    queue.admit()
    multiply(queue.cloud, blocked.request_id, 10_000, by_sort_key=True)
    queue.cloud.app.table.write(standing_write("no_cookie", queue.project.id, waiting=10_000))
    free = queue.submit()

    with count_calls(queue.cloud.app) as calls:
        queue.cloud.app.queue.admission.admit("no_cookie")

    assert queue.statuses(free) == ["running"]
    # The standings, a page of 100 places and pages of 1 MB, about 2,500 places each.
    assert calls["dynamodb.Query"] <= 8


def test_next_of_one_mutex_runs_at_the_first_try(queue: TestQueue) -> None:
    """Those behind it are known to wait, and are not tried in vain."""
    queue.capacity(no_cookie=5)
    requests = [queue.submit(subscription_id="sub-1") for _ in range(6)]
    with count_calls(queue.cloud.app) as calls:
        queue.cloud.app.queue.admission.admit("no_cookie")

    assert queue.statuses(*requests) == ["running"] + ["queued"] * 5
    # One admission, and five that are told why they wait.
    assert calls["dynamodb.TransactWriteItems"] == 6


def test_mutex_whose_lease_ran_out_holds_nobody_back(queue: TestQueue) -> None:
    queue.capacity(no_cookie=5)
    _, second, third = (queue.submit(subscription_id="sub-1") for _ in range(3))
    queue.admit()
    queue.cloud.clock.advance(181)
    queue.cloud.app.queue.admission.admit("no_cookie")

    assert queue.statuses(second, third) == ["running", "queued"]


@pytest.fixture
def slow(queue: TestQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock finds it half a run further on."""

    def moments() -> Iterator[float]:
        now = 0.0
        while True:
            yield now
            now += admit._RUN_SECONDS / 2

    later = moments()
    monkeypatch.setattr(queue.cloud.app.queue.admission, "_monotonic", lambda: next(later))


def test_run_whose_time_is_up_leaves_the_rest_to_the_next(queue: TestQueue, slow: None) -> None:
    """Twice as many as one transaction admits are started in a run, as the clock of this test goes."""
    in_time = 2 * MOST_TOGETHER
    queue.capacity(no_cookie=in_time + 3)
    requests = [queue.submit() for _ in range(in_time + 3)]
    sqs, url = queue.cloud.client("sqs"), queue.cloud.names.queues["AdmissionQueue"]
    sqs.purge_queue(QueueUrl=url)

    assert queue.cloud.app.queue.admission.admit("no_cookie") == in_time
    assert queue.statuses(*requests).count("running") == in_time
    # Should its message be lost, the channel itself is due.
    assert queue.channel().due_at is not None

    queue.admit()
    assert set(queue.statuses(*requests)) == {"running"}


def test_killed_admission_blocks_its_channel_for_a_minute_at_most() -> None:
    queues = load_template()["Mappings"]["Queues"]

    assert queues["Admission"]["VisibilityTimeout"] <= 60
    # A run has time for what it does after its last start.
    assert timeout_of("admit") >= 2 * admit._RUN_SECONDS
