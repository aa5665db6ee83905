"""Admission of several requests in one transaction follows the same rules as one by one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.calls import count_calls
from tests.support.queue import TestQueue, set_quotas
from tidegate.aws import keys
from tidegate.aws.table import update
from tidegate.queue import admission
from tidegate.queue.admission import admit
from tidegate.queue.control import repair_counts
from tidegate.queue.store import MAX_GROUP, RequestStore


@pytest.fixture
def groups(queue: TestQueue, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many requests each transaction admitted."""
    sizes: list[int] = []
    admit_group = RequestStore.admit_group

    def counted(store: RequestStore, moves: Any, *rest: Any) -> None:
        admit_group(store, moves, *rest)
        sizes.append(len(moves))

    monkeypatch.setattr(RequestStore, "admit_group", counted)
    return sizes


def running_of(queue: TestQueue, project_id: str) -> int:
    return queue.cloud.app.queue.channel_store.standing("no_cookie", project_id).running


def test_40_requests_are_read_once_and_admitted_in_three_transactions(queue: TestQueue, groups: list[int]) -> None:
    queue.capacity(no_cookie=40)
    requests = [queue.submit() for _ in range(41)]
    with count_calls(queue.cloud.app) as calls:
        admit(queue.cloud.app.queue, "no_cookie")
    assert groups == [MAX_GROUP, MAX_GROUP, 2]
    # The quotas of the project, and the requests.
    assert calls["dynamodb.BatchGetItem"] == 2
    assert queue.statuses(*requests) == ["running"] * 40 + ["queued"]
    assert {f"{request.request_id}-1" for request in requests[:40]} <= queue.executions().keys()
    app = queue.cloud.app
    standing = app.queue.channel_store.standing("no_cookie", queue.project.id)
    assert (queue.channel().running, standing.running, standing.waiting) == (40, 40, 1)
    assert len(app.queue.channel_store.slots("no_cookie")) == 40
    assert app.queue.project_usage(queue.project.id)["queued"] == 1
    # The counts are right: there is nothing to repair.
    assert repair_counts(app.queue, "no_cookie") == 0
    assert queue.channel().running == 40


def test_run_that_is_out_of_time_is_continued_by_another(
    queue: TestQueue, groups: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.capacity(no_cookie=40)
    requests = [queue.submit() for _ in range(30)]
    monkeypatch.setattr(admission, "_RUN_SECONDS", -1.0)
    assert admit(queue.cloud.app.queue, "no_cookie") == MAX_GROUP
    assert queue.statuses(*requests).count("running") == MAX_GROUP
    monkeypatch.undo()
    queue.cloud.deliver("WakeupsQueue")
    queue.admit()
    assert queue.statuses(*requests) == ["running"] * 30


def test_request_cancelled_meanwhile_is_not_admitted_with_its_group(
    queue: TestQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.capacity(no_cookie=10)
    requests = [queue.submit() for _ in range(5)]
    admit_group = RequestStore.admit_group

    def late(store: RequestStore, *rest: Any) -> None:
        monkeypatch.setattr(RequestStore, "admit_group", admit_group)
        assert queue.act(requests[2], "cancel").status == 200
        admit_group(store, *rest)

    monkeypatch.setattr(RequestStore, "admit_group", late)
    queue.admit()
    assert queue.statuses(*requests) == ["running", "running", "cancelled", "running", "running"]
    assert queue.channel().running == 4


def test_capacity_lowered_meanwhile_limits_a_group(queue: TestQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.capacity(no_cookie=10)
    requests = [queue.submit() for _ in range(6)]
    admit_group = RequestStore.admit_group

    def late(store: RequestStore, *rest: Any) -> None:
        monkeypatch.setattr(RequestStore, "admit_group", admit_group)
        lower = {"no_cookie": 2}
        assert queue.cloud.http("POST", "/v1/queue/capacity", json=lower, key=queue.cloud.admin_key).status == 200
        admit_group(store, *rest)

    monkeypatch.setattr(RequestStore, "admit_group", late)
    queue.admit()
    assert queue.statuses(*requests) == ["running", "running", *["queued"] * 4]
    assert queue.channel().running == 2


def test_paused_channel_admits_no_group(queue: TestQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.capacity(no_cookie=10)
    requests = [queue.submit() for _ in range(3)]
    admit_group = RequestStore.admit_group

    def late(store: RequestStore, *rest: Any) -> None:
        pause = {"scope": "no_cookie"}
        assert queue.cloud.http("POST", "/v1/queue/pause", json=pause, key=queue.cloud.admin_key).status == 200
        admit_group(store, *rest)

    monkeypatch.setattr(RequestStore, "admit_group", late)
    queue.admit()
    assert "running" not in queue.statuses(*requests)


def test_projects_take_turns_within_a_group(queue: TestQueue, groups: list[int]) -> None:
    queue.capacity(no_cookie=10)
    other = TestQueue(queue.cloud, queue.cloud.project("other"))
    for _ in range(20):
        queue.submit()
    for _ in range(20):
        other.submit()
    queue.admit()
    assert groups == [10]
    assert (running_of(queue, queue.project.id), running_of(queue, other.project.id)) == (5, 5)


def test_groups_of_many_projects_fit_into_100_writes(queue: TestQueue, groups: list[int]) -> None:
    queue.capacity(no_cookie=20)
    requests = [TestQueue(queue.cloud, queue.cloud.project(f"p{number}")).submit() for number in range(16)]
    queue.admit()
    assert groups == [12, 4]
    assert queue.channel().running == len(requests)


def test_share_limits_a_group(queue: TestQueue, groups: list[int]) -> None:
    set_quotas(queue, share={"no_cookie": 3})
    queue.capacity(no_cookie=10)
    requests = [queue.submit() for _ in range(6)]
    queue.admit()
    assert groups == [3]
    assert queue.statuses(*requests).count("running") == 3


def test_requests_with_a_mutex_are_admitted_one_by_one_between_groups(queue: TestQueue, groups: list[int]) -> None:
    queue.capacity(no_cookie=20)
    before = [queue.submit() for _ in range(3)]
    locked = [queue.submit(subscription_id="sub-1") for _ in range(2)]
    after = [queue.submit() for _ in range(3)]
    queue.admit()
    assert groups == [3, 3]
    assert queue.statuses(*before, *after) == ["running"] * 6
    assert queue.statuses(*locked) == ["running", "queued"]
    assert queue.now(locked[1]).last_wait_reason == "mutex"


@pytest.mark.parametrize("taken", [1, 2, 3])
def test_slots_taken_meanwhile_limit_a_group(queue: TestQueue, monkeypatch: pytest.MonkeyPatch, taken: int) -> None:
    """Another admitter takes slots between the read of the channel and the transaction of the group."""
    queue.capacity(no_cookie=3)
    requests = [queue.submit() for _ in range(3)]
    admit_group = RequestStore.admit_group

    def late(store: RequestStore, *rest: Any) -> None:
        monkeypatch.setattr(RequestStore, "admit_group", admit_group)
        queue.cloud.app.table.write(update(keys.channel("no_cookie"), adds={"running": taken}))
        admit_group(store, *rest)

    monkeypatch.setattr(RequestStore, "admit_group", late)
    queue.admit()
    assert queue.statuses(*requests).count("running") == 3 - taken
    assert queue.channel().running == 3
