"""Fair admission: a project cannot keep the requests of another from running."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from tests.support.calls import count_calls
from tests.support.queue import TestQueue, set_quotas
from tidegate.aws import keys
from tidegate.aws.table import delete, put, update
from tidegate.queue import admission
from tidegate.queue.admission import admit
from tidegate.queue.control import recover_channel, repair_counts
from tidegate.queue.model import AGE_STEP_SECONDS, Request
from tidegate.queue.store import place_item, place_key


@pytest.fixture
def other(queue: TestQueue) -> TestQueue:
    return TestQueue(queue.cloud, queue.cloud.project())


def as_older_version_wrote_it(queue: TestQueue, request: Request) -> None:
    """Moves the place to the lane that all projects shared."""
    table = queue.cloud.app.table
    shared = keys.shared_waiting_place(request.channel, request.priority, request.created_at, request.request_id)
    table.write(put({**place_item(request), **shared}))
    table.write(delete(place_key(request)))


@pytest.mark.parametrize("capacity", [1, 2, 4])
def test_only_project_may_fill_the_capacity(queue: TestQueue, capacity: int) -> None:
    queue.capacity(no_cookie=capacity)
    requests = [queue.submit(type="download") for _ in range(6)]
    queue.admit()
    queue.cloud.clock.advance(61)
    admit(queue.cloud.app.queue, "no_cookie")

    assert queue.statuses(*requests).count("running") == capacity
    assert queue.now(requests[5]).last_wait_reason == "capacity"


@pytest.mark.parametrize("kind", ["export", "batch"])
def test_project_without_a_slot_gets_an_extra_one_after_a_minute(queue: TestQueue, other: TestQueue, kind: str) -> None:
    held = [queue.submit(type=kind, timeout=86400) for _ in range(6)]
    queue.admit()
    assert queue.statuses(*held).count("running") == 4

    late = [other.submit(type=kind) for _ in range(2)]
    queue.admit()
    assert other.statuses(*late) == ["queued", "queued"]

    queue.cloud.clock.advance(61)
    queue.cloud.deliver("WakeupsQueue")
    queue.admit()

    assert other.statuses(*late) == ["running", "queued"]
    assert queue.channel(kind).running == 5


@pytest.mark.parametrize("capacity", [2, 4])
def test_there_is_one_extra_slot_at_a_time(queue: TestQueue, other: TestQueue, capacity: int) -> None:
    queue.capacity(no_cookie=capacity)
    held = [queue.submit(type="download") for _ in range(capacity + 2)]
    queue.admit()
    third = TestQueue(queue.cloud, queue.cloud.project())
    late = [tenant.submit(type="download") for tenant in (other, third)]
    queue.admit()
    queue.cloud.clock.advance(61)
    for _ in range(2):
        admit(queue.cloud.app.queue, "no_cookie")
    # One of the two projects without a slot has got the extra one.
    assert sorted(queue.statuses(*late)) == ["queued", "running"]
    assert queue.channel().running == capacity + 1

    queue.finish(next(request for request in late if queue.now(request).status == "running"))
    assert queue.channel().running == capacity
    queue.admit()
    assert queue.statuses(*late, *held).count("running") == capacity + 1
    queue.finish(held[0])
    queue.admit()
    assert queue.channel().running == capacity


def test_channel_with_one_slot_has_no_extra_slot(queue: TestQueue, other: TestQueue) -> None:
    queue.capacity(no_cookie=1)
    running = queue.submit(type="download")
    queue.admit()
    late = other.submit(type="download")
    queue.cloud.clock.advance(600)
    admit(queue.cloud.app.queue, "no_cookie")
    assert other.statuses(late) == ["queued"]

    queue.submit(type="download")
    queue.finish(running)
    queue.admit()
    assert other.statuses(late) == ["running"]


def test_no_extra_slot_while_holders_keep_to_their_fixed_share(queue: TestQueue, other: TestQueue) -> None:
    queue.capacity(no_cookie=2)
    set_quotas(queue, share={"no_cookie": 2})
    for _ in range(2):
        queue.submit(type="download")
    queue.admit()
    late = other.submit(type="download")
    queue.cloud.clock.advance(61)
    admit(queue.cloud.app.queue, "no_cookie")

    assert other.statuses(late) == ["queued"]


def test_no_extra_slot_until_a_lowered_capacity_has_drained(queue: TestQueue, other: TestQueue) -> None:
    queue.capacity(no_cookie=4)
    held = [queue.submit(type="download") for _ in range(4)]
    queue.admit()
    late = other.submit(type="download")
    queue.capacity(no_cookie=2)
    queue.cloud.clock.advance(61)
    admit(queue.cloud.app.queue, "no_cookie")
    assert other.statuses(late) == ["queued"]

    for request in held[:2]:
        queue.finish(request)
    queue.admit()
    assert other.statuses(late) == ["running"]


def test_two_admissions_at_once_give_one_extra_slot(queue: TestQueue, other: TestQueue) -> None:
    """The second run decides by what it read before the first one wrote."""
    queue.capacity(no_cookie=2)
    for _ in range(2):
        queue.submit(type="download")
    queue.admit()
    third = TestQueue(queue.cloud, queue.cloud.project())
    late = [tenant.submit(type="download") for tenant in (other, third)]
    queue.cloud.clock.advance(61)
    requests = queue.cloud.app.queue
    stale = admission._turns(requests, "no_cookie")
    with patch.object(admission, "_turns", side_effect=[admission._turns(requests, "no_cookie"), stale]):
        assert admit(requests, "no_cookie") == 1
        assert admit(requests, "no_cookie") == 0

    assert sorted(queue.statuses(*late)) == ["queued", "running"]


@pytest.mark.parametrize("dies", ["before the slot is taken", "after the slot is taken", "before the machine starts"])
def test_admission_that_dies_gives_one_extra_slot(queue: TestQueue, other: TestQueue, dies: str) -> None:
    held = [queue.submit(type="export", timeout=86400) for _ in range(4)]
    queue.admit()
    late = [tenant.submit(type="export") for tenant in (other, TestQueue(queue.cloud, queue.cloud.project()))]
    queue.cloud.clock.advance(61)
    app = queue.cloud.app
    transact = app.table.transact

    def dying(*args: Any, **options: Any) -> None:
        if dies == "after the slot is taken":
            transact(*args, **options)
        raise RuntimeError(dies)

    starts = dies == "before the machine starts"
    target: Any = app.queue.runner if starts else app.table
    with patch.object(target, "start" if starts else "transact", dying), pytest.raises(RuntimeError):
        admit(app.queue, "export")
    admit(app.queue, "export")
    queue.compensate(91)

    assert queue.statuses(*held) == ["running"] * 4
    assert sorted(queue.statuses(*late)) == ["queued", "running"]
    assert queue.channel("export").running == len(app.queue.channel_store.slots("export")) == 5
    (admitted,) = [request for request in late if queue.now(request).status == "running"]
    assert f"{admitted.request_id}-1" in queue.executions("ExportMachine")


def test_compensation_gives_the_extra_slot_if_its_wakeup_was_lost(queue: TestQueue, other: TestQueue) -> None:
    held = [queue.submit(type="export", timeout=86400) for _ in range(4)]
    queue.admit()
    late = other.submit(type="export")
    queue.cloud.client("sqs").purge_queue(QueueUrl=queue.cloud.names.queues["AdmissionQueue"])

    queue.compensate(31)
    queue.compensate(91)

    assert queue.statuses(*held, late) == ["running"] * 5


def test_project_gets_the_next_free_slot_despite_a_stream_of_another(queue: TestQueue, other: TestQueue) -> None:
    queue.capacity(no_cookie=1)
    stream = [queue.submit() for _ in range(3)]
    queue.admit()
    late = other.submit()
    for _ in range(29):
        running = next(request for request in stream if queue.now(request).status == "running")
        stream.append(queue.submit())
        queue.finish(running)
        queue.admit()
        if other.now(late).status == "running":
            break

    assert other.statuses(late) == ["running"]
    assert sum(queue.now(request).status == "completed" for request in stream) == 1


def test_projects_take_turns_within_a_priority(queue: TestQueue, other: TestQueue) -> None:
    queue.capacity(no_cookie=1)
    third = TestQueue(queue.cloud, queue.cloud.project())
    requests = [tenant.submit() for tenant in (queue, other, third) for _ in range(3)]
    order = []
    for _ in requests:
        queue.admit()
        (running,) = [request for request in requests if queue.now(request).status == "running"]
        order.append(running.project_id)
        queue.finish(running)

    assert all(len(set(order[start : start + 3])) == 3 for start in (0, 3, 6)), order


@pytest.mark.parametrize("capacity", [1, 2, 4])
def test_new_project_gets_its_half_as_slots_become_free(queue: TestQueue, other: TestQueue, capacity: int) -> None:
    queue.capacity(no_cookie=capacity)
    first = [queue.submit() for _ in range(6)]
    queue.admit()
    second = [other.submit() for _ in range(6)]
    queue.admit()
    assert other.statuses(*second).count("running") == 0

    for request in first[:capacity]:
        queue.finish(request)
    queue.admit()
    # Both have waiting requests, so each gets half the slots; with one slot, they take turns.
    assert other.statuses(*second).count("running") == max(1, capacity // 2)
    assert queue.statuses(*first).count("running") == capacity - max(1, capacity // 2)


def test_urgent_requests_of_one_project_take_no_more_than_its_share(queue: TestQueue, other: TestQueue) -> None:
    queue.capacity(no_cookie=4)
    urgent = [queue.submit(priority=1) for _ in range(8)]
    normal = [other.submit(priority=9) for _ in range(8)]
    queue.admit()

    assert queue.statuses(*urgent).count("running") == 2
    assert other.statuses(*normal).count("running") == 2


def test_share_set_by_an_operator_replaces_the_fair_split(queue: TestQueue, other: TestQueue) -> None:
    queue.capacity(no_cookie=4)
    set_quotas(queue, share={"no_cookie": 1})
    set_quotas(other, share={"no_cookie": 4})
    first = [queue.submit() for _ in range(4)]
    queue.admit()
    assert queue.statuses(*first).count("running") == 1

    second = [other.submit() for _ in range(6)]
    queue.admit()
    assert other.statuses(*second).count("running") == 3

    queue.finish(first[0])
    for request in first[1:]:
        queue.act(request, "cancel")
    queue.admit()
    assert other.statuses(*second).count("running") == 4


def test_request_that_waited_long_runs_before_newer_urgent_ones(queue: TestQueue) -> None:
    queue.capacity(no_cookie=1)
    running, old = queue.submit(type="download"), queue.submit(priority=5)
    queue.admit()
    queue.cloud.clock.advance(4 * AGE_STEP_SECONDS - 10)
    overtakes = queue.submit(priority=1)
    queue.cloud.clock.advance(20)
    too_late = queue.submit(priority=1)
    order = []
    for _ in range(3):
        queue.finish(running)
        queue.admit()
        (running,) = [request for request in (old, overtakes, too_late) if queue.now(request).status == "running"]
        order.append(running.request_id)

    assert order == [overtakes.request_id, old.request_id, too_late.request_id]


def test_ageing_gets_a_request_past_a_stream_of_urgent_ones(queue: TestQueue, other: TestQueue) -> None:
    queue.capacity(no_cookie=1)
    running = queue.submit(priority=1)
    queue.admit()
    late = other.submit(priority=3)
    waited = 0
    while other.now(late).status != "running" and waited < 3600:
        following = queue.submit(priority=1)
        queue.cloud.clock.advance(60)
        waited += 60
        queue.finish(running)
        queue.admit()
        running = following

    # Two steps to rise from priority 3 to 1, then its project's turn.
    assert waited <= 2 * AGE_STEP_SECONDS + 120


def test_blocked_requests_do_not_hold_back_others_of_their_project(queue: TestQueue) -> None:
    first = queue.submit(subscription_id="sub-1")
    blocked = [queue.submit(subscription_id="sub-1") for _ in range(3)]
    free = queue.submit()
    queue.admit()

    assert queue.statuses(first, *blocked, free) == ["running", "queued", "queued", "queued", "running"]
    assert {queue.now(request).last_wait_reason for request in blocked} == {"mutex"}


def test_project_with_blocked_requests_takes_no_slot_from_another(queue: TestQueue, other: TestQueue) -> None:
    queue.capacity(no_cookie=4)
    other.submit(subscription_id="sub-1")
    queue.admit()
    for _ in range(3):
        other.submit(subscription_id="sub-1")
    many = [queue.submit() for _ in range(4)]
    queue.admit()

    # The other project cannot use a second slot, because its requests wait for a mutex.
    assert queue.statuses(*many).count("running") == 3


def test_calls_of_an_admission_do_not_grow_with_the_queue(queue: TestQueue, other: TestQueue) -> None:
    queue.capacity(no_cookie=1)
    counts = []
    for crowd in (1, 60):
        for _ in range(crowd):
            queue.submit(), other.submit()
        # Each run stores the wait reasons of some requests.
        for _ in range(6):
            admit(queue.cloud.app.queue, "no_cookie")
        slots = queue.cloud.app.queue.channel_store.slots("no_cookie")
        for project_id, request_id, attempt, _ in slots:
            queue.cloud.app.queue.finish(project_id, request_id, attempt)
        with count_calls(queue.cloud.app) as calls:
            assert admit(queue.cloud.app.queue, "no_cookie") == 1
        counts.append(calls.total())

    # Run, channel, standings, shares, two lanes; the request, its transaction, its machine; the channel's due time.
    assert max(counts) <= 10, counts


def test_requests_in_the_shared_lane_of_an_older_version_are_admitted(queue: TestQueue, other: TestQueue) -> None:
    table = queue.cloud.app.table
    queue.capacity(no_cookie=1)
    running = queue.submit(type="download")
    queue.admit()
    pending, queued, cancelled = queue.submit(type="download"), other.submit(type="download"), other.submit()
    for request in (pending, queued, cancelled):
        as_older_version_wrote_it(queue, request)
    # That version did not count by project.
    for tenant in (queue, other):
        table.write(delete(keys.standing("no_cookie", tenant.project.id)))
        table.write(delete(keys.usage(tenant.project.id)))
    assert other.act(cancelled, "cancel").status == 200

    queue.finish(running)
    order = []
    for _ in range(4):
        queue.compensate(91)
        running_now = [request for request in (pending, queued) if queue.now(request).status == "running"]
        order += [request.request_id for request in running_now]
        for request in running_now:
            queue.finish(request)

    assert sorted(order) == sorted([pending.request_id, queued.request_id])
    recover_channel(queue.cloud.app.queue, "no_cookie")
    assert list(queue.cloud.app.queue.channel_store.shared_places("no_cookie")) == []
    assert queue.cloud.app.queue.channel_store.count_waiting("no_cookie") == 0
    assert queue.channel().running == 0


def test_wrong_counts_of_a_project_are_repaired(queue: TestQueue, other: TestQueue) -> None:
    queue.capacity(no_cookie=2)
    running, waits, late = queue.submit(), queue.submit(), other.submit()
    queue.admit()
    table = queue.cloud.app.table
    table.write(update(keys.standing("no_cookie", queue.project.id), {"running": 5, "waiting": 9}))
    table.write(update(keys.usage(queue.project.id), {"queued": 9}))
    table.write(update(keys.standing("no_cookie", other.project.id), {"running": -1}))

    repair_counts(queue.cloud.app.queue, "no_cookie")

    assert queue.statuses(running, waits, late) == ["running", "queued", "running"]
    counts = {
        each.project_id: (each.waiting, each.running)
        for each in queue.cloud.app.queue.channel_store.standings("no_cookie")
    }
    assert counts == {queue.project.id: (1, 1), other.project.id: (0, 1)}
    assert queue.cloud.app.queue.project_usage(queue.project.id)["queued"] == 1
