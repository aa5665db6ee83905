"""One tenant cannot keep another's work from running."""

from __future__ import annotations

import pytest

from tests.support.calls import count_calls
from tests.support.queue import TestQueue, set_quotas
from tidegate.aws import keys
from tidegate.aws.writes import delete, put, update
from tidegate.queue.fairness import AGE_STEP_SECONDS
from tidegate.queue.items import place_item, place_key
from tidegate.queue.model import Request


@pytest.fixture
def other(queue: TestQueue) -> TestQueue:
    return TestQueue(queue.cloud, queue.cloud.project())


def as_older_version_wrote_it(queue: TestQueue, request: Request) -> None:
    """Puts the place into the one lane that all projects shared."""
    table = queue.cloud.app.table
    shared = keys.shared_waiting_place(request.channel, request.priority, request.created_at, request.request_id)
    table.write(put({**place_item(request), **shared}))
    table.write(delete(place_key(request)))


def test_four_day_long_exports_of_one_project_leave_room_for_another(queue: TestQueue, other: TestQueue) -> None:
    exports = [queue.submit(type="export", timeout=86400) for _ in range(4)]
    queue.admit()
    assert queue.now(exports[3]).last_wait_reason == "share"

    late = other.submit(type="export")
    queue.admit()

    assert other.statuses(late) == ["running"]
    assert queue.statuses(*exports) == ["running", "running", "running", "queued"]


def test_batches_that_hold_slots_for_90_days_leave_room_for_another(queue: TestQueue, other: TestQueue) -> None:
    for _ in range(6):
        queue.submit(type="batch")
    queue.admit()

    late = other.submit(type="batch")
    queue.admit()

    assert other.statuses(late) == ["running"]


def test_steady_stream_of_one_project_lets_another_in_at_the_next_free_slot(queue: TestQueue, other: TestQueue) -> None:
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


@pytest.mark.parametrize(("capacity", "alone", "newcomers"), [(1, 1, 0), (2, 1, 1), (4, 3, 1)])
def test_newcomer_starts_at_once_unless_there_is_one_slot_only(
    queue: TestQueue, other: TestQueue, capacity: int, alone: int, newcomers: int
) -> None:
    queue.capacity(no_cookie=capacity)
    first = [queue.submit() for _ in range(6)]
    queue.admit()
    assert queue.statuses(*first).count("running") == alone

    second = [other.submit() for _ in range(6)]
    queue.admit()
    assert other.statuses(*second).count("running") == newcomers

    for request in first[:alone]:
        queue.finish(request)
    queue.admit()
    # From now on both wait, so each has its half; of one slot, its turn.
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


def test_request_that_waited_long_goes_before_urgent_ones_that_came_later(queue: TestQueue) -> None:
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


def test_ageing_ends_a_stream_of_urgent_requests_in_a_channel_of_one_slot(queue: TestQueue, other: TestQueue) -> None:
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

    # Two steps to rise from 3 to 1, and then its turn.
    assert waited <= 2 * AGE_STEP_SECONDS + 120


def test_blocked_first_requests_do_not_hold_back_the_rest_of_their_project(queue: TestQueue) -> None:
    first = queue.submit(subscription_id="sub-1")
    blocked = [queue.submit(subscription_id="sub-1") for _ in range(3)]
    free = queue.submit()
    queue.admit()

    assert queue.statuses(first, *blocked, free) == ["running", "queued", "queued", "queued", "running"]
    assert {queue.now(request).last_wait_reason for request in blocked} == {"mutex"}


def test_project_whose_requests_cannot_run_takes_no_slot_from_another(queue: TestQueue, other: TestQueue) -> None:
    queue.capacity(no_cookie=4)
    other.submit(subscription_id="sub-1")
    queue.admit()
    for _ in range(3):
        other.submit(subscription_id="sub-1")
    many = [queue.submit() for _ in range(4)]
    queue.admit()

    # The other's mutex keeps it from its second slot.
    assert queue.statuses(*many).count("running") == 3


def test_calls_of_an_admission_do_not_grow_with_the_number_waiting(queue: TestQueue, other: TestQueue) -> None:
    queue.capacity(no_cookie=1)
    counts = []
    for crowd in (1, 60):
        for _ in range(crowd):
            queue.submit(), other.submit()
        # Each run tells some of those who wait why they do.
        for _ in range(6):
            queue.cloud.app.queue.admission.admit("no_cookie")
        slots = queue.cloud.app.queue.channel_store.slots("no_cookie")
        for project_id, request_id, attempt in slots:
            queue.cloud.app.queue.queue.finish(project_id, request_id, attempt)
        with count_calls(queue.cloud.app) as calls:
            assert queue.cloud.app.queue.admission.admit("no_cookie") == 1
        counts.append(calls.total())

    # Channel, standings, shares, two lanes; the request, its transaction, its machine; and when to look again.
    assert max(counts) <= 9, counts


def test_places_of_the_shared_lane_of_an_older_version_are_admitted(queue: TestQueue, other: TestQueue) -> None:
    table = queue.cloud.app.table
    queue.capacity(no_cookie=1)
    running = queue.submit(type="download")
    queue.admit()
    pending, queued, cancelled = queue.submit(type="download"), other.submit(type="download"), other.submit()
    for request in (pending, queued, cancelled):
        as_older_version_wrote_it(queue, request)
    # Nothing was counted by project then, not even what runs.
    for tenant in (queue, other):
        table.write(delete(keys.standing("no_cookie", tenant.project.id)))
        table.write(delete(keys.usage(tenant.project.id)))
    assert other.act(cancelled, "cancel").status == 200

    queue.finish(running)
    order = []
    for _ in range(4):
        queue.compensate(91)
        going = [request for request in (pending, queued) if queue.now(request).status == "running"]
        order += [request.request_id for request in going]
        for request in going:
            queue.finish(request)

    assert sorted(order) == sorted([pending.request_id, queued.request_id])
    queue.cloud.app.queue.recovery.channel("no_cookie")
    assert list(queue.cloud.app.queue.channel_store.waiting_together("no_cookie")) == []
    assert queue.cloud.app.queue.channels.waiting()["no_cookie"] == 0
    assert queue.channel().running == 0


def test_wrong_counts_of_a_project_are_healed(queue: TestQueue, other: TestQueue) -> None:
    queue.capacity(no_cookie=2)
    running, waits, late = queue.submit(), queue.submit(), other.submit()
    queue.admit()
    table = queue.cloud.app.table
    table.write(update(keys.standing("no_cookie", queue.project.id), {"running": 5, "waiting": 9}))
    table.write(update(keys.usage(queue.project.id), {"queued": 9}))
    table.write(update(keys.standing("no_cookie", other.project.id), {"running": -1}))

    queue.cloud.app.queue.recovery.heal("no_cookie")

    assert queue.statuses(running, waits, late) == ["running", "queued", "running"]
    counts = {
        each.project_id: (each.waiting, each.running)
        for each in queue.cloud.app.queue.channel_store.standings("no_cookie")
    }
    assert counts == {queue.project.id: (1, 1), other.project.id: (0, 1)}
    assert queue.cloud.app.queue.project_usage(queue.project.id)["queued"] == 1
