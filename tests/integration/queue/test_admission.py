"""Admission: slots, priorities, pauses, the mutex of a subscription."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from tests.support.queue import TestQueue
from tidegate import app as composition
from tidegate.errors import LeaseLost
from tidegate.queue.admission import admit
from tidegate.queue.model import Channel, Request


def test_prioritized_request_runs_next(queue: TestQueue) -> None:
    queue.capacity(no_cookie=1)
    running, second, third, fourth = (queue.submit() for _ in range(4))
    queue.admit()
    assert queue.statuses(running, second, third, fourth) == ["running", "queued", "queued", "queued"]

    assert queue.act(fourth, "prioritize", {"priority": 1}).status == 200
    queue.finish(running)
    queue.admit()

    assert queue.statuses(second, third, fourth) == ["queued", "queued", "running"]


def test_requests_run_by_priority_then_age(queue: TestQueue) -> None:
    queue.capacity(no_cookie=1)
    order = []
    waiting = [queue.submit(priority=priority) for priority in (7, 5, 1, 5, 10)]
    for _ in waiting:
        queue.admit()
        running = next(request for request in waiting if queue.now(request).status == "running")
        order.append(waiting.index(running))
        queue.finish(running)

    assert order == [2, 1, 3, 0, 4]


def test_priority_of_each_kind_of_work_is_that_of_its_request(queue: TestQueue) -> None:
    def post(path: str, **body: Any) -> dict[str, Any]:
        answer = queue.cloud.http("POST", path, json=body, key=queue.project.key)
        assert answer.status < 300, answer.body
        return dict(answer.json())

    def priorities(kind: str) -> list[int]:
        items = queue.cloud.app.queue.store.list(queue.project.id, 100, None, type=kind).items
        return sorted(request.priority for request in items)

    url, place = "http://127.0.0.1:9/", {"biz_id": 1, "app_id": 1, "file_path": "/a"}
    biz = post("/v1/biz", name="points", process_url=url)["biz_id"]
    batch = post("/v1/batches", biz_id=biz, name="points", total=1, rate=1, priority=2)["batch_id"]
    post(f"/v1/batches/{batch}/start")
    assert priorities("batch") == [2]
    post("/v1/task", name="orders", source_url=url, priority=9)
    assert priorities("export") == [9]
    post("/v1/files", source_url=url, priority=6, **place)
    post("/v1/requests", type="download", priority=4, payload={"source_url": url, **place})
    assert priorities("download") == [4, 6]
    made = post("/v1/subscriptions", name="daily", source_url=url, schedule="rate(1 hour)", priority=7)
    queue.cloud.clock.advance(3601)
    queue.cloud.invoke("scan_subscriptions", {})
    assert priorities("scan") == [7]
    path = f"/v1/subscriptions/{made['subscription_id']}"
    assert queue.cloud.http("PATCH", path, json={"priority": 1}, key=queue.project.key).status == 200
    (scan,) = queue.cloud.app.queue.store.list(queue.project.id, 100, None, type="scan").items
    assert queue.act(scan, "cancel").status == 200
    queue.cloud.clock.advance(3601)
    queue.cloud.invoke("scan_subscriptions", {})
    assert priorities("scan") == [1, 7]


def test_waiting_requests_have_a_reason(queue: TestQueue) -> None:
    queue.capacity(no_cookie=1)
    _first, second = queue.submit(), queue.submit()
    queue.admit()
    assert queue.now(second).last_wait_reason == "capacity"

    queue.cloud.http("POST", "/v1/queue/pause", json={"scope": "no_cookie"}, key=queue.cloud.admin_key)
    queue.admit()
    assert queue.now(second).last_wait_reason == "paused"


def test_higher_capacity_admits_now_and_lower_one_drains(queue: TestQueue) -> None:
    queue.capacity(no_cookie=1)
    requests = [queue.submit() for _ in range(4)]
    queue.admit()

    queue.capacity(no_cookie=3)
    assert queue.statuses(*requests) == ["running", "running", "running", "queued"]

    queue.capacity(no_cookie=1)
    queue.finish(requests[0])
    queue.finish(requests[1])
    queue.admit()
    assert queue.statuses(*requests[2:]) == ["running", "queued"]

    queue.finish(requests[2])
    queue.admit()
    assert queue.statuses(requests[3]) == ["running"]


def test_paused_channel_does_not_stop_another(queue: TestQueue) -> None:
    paused = queue.cloud.http("POST", "/v1/queue/pause", json={"scope": "requires_cookie"}, key=queue.cloud.admin_key)
    assert paused.json()["channels"]["requires_cookie"]["paused"] is True

    held, free = queue.submit(channel="requires_cookie"), queue.submit(channel="no_cookie")
    queue.admit()
    assert queue.statuses(held, free) == ["queued", "running"]

    queue.cloud.http("POST", "/v1/queue/resume", json={"scope": "requires_cookie"}, key=queue.cloud.admin_key)
    queue.admit()
    assert queue.statuses(held) == ["running"]


def test_pausing_all_stops_channels_that_were_never_used_too(queue: TestQueue) -> None:
    assert queue.cloud.http("POST", "/v1/queue/pause", key=queue.cloud.admin_key).status == 200
    requests = [queue.submit(channel=channel) for channel in ("no_cookie", "requires_cookie")]
    queue.admit()
    assert queue.statuses(*requests) == ["queued", "queued"]

    queue.cloud.http("POST", "/v1/queue/resume", json={"scope": "all"}, key=queue.cloud.admin_key)
    queue.admit()
    assert queue.statuses(*requests) == ["running", "running"]


def test_two_requests_of_one_subscription_never_overlap(queue: TestQueue) -> None:
    first, second = queue.submit(subscription_id="sub-1"), queue.submit(subscription_id="sub-1")
    other = queue.submit(subscription_id="sub-2")
    queue.admit()

    assert queue.statuses(first, second, other) == ["running", "queued", "running"]
    assert queue.now(second).last_wait_reason == "mutex"

    queue.finish(first)
    queue.admit()
    assert queue.statuses(second) == ["running"]


def test_projects_do_not_share_a_mutex(queue: TestQueue) -> None:
    other = TestQueue(queue.cloud, queue.cloud.project())
    mine, theirs = queue.submit(subscription_id="sub-1"), other.submit(subscription_id="sub-1")
    queue.admit()

    assert queue.statuses(mine, theirs) == ["running", "running"]


def test_mutex_of_a_dead_owner_is_free_after_its_lease(queue: TestQueue) -> None:
    # A download may run for half an hour, so it is the lease that ends, not the request.
    dead, following = (queue.submit(type="download", subscription_id="sub-1") for _ in range(2))
    queue.admit()

    queue.cloud.clock.advance(181)
    admit(queue.cloud.app.queue, "no_cookie")

    assert queue.statuses(following) == ["running"]
    with pytest.raises(LeaseLost):
        queue.cloud.app.queue.heartbeat(dead.project_id, dead.request_id, 1)
    late = queue.finish(dead, result={"by": "the dead worker"})
    assert (late.status, late.result) == ("pending", None)
    assert queue.channel().running == 1


def test_heartbeats_renew_the_mutex_for_two_hours_at_most(queue: TestQueue) -> None:
    owner = queue.submit(type="extract", channel="no_cookie", subscription_id="sub-1")
    other = queue.submit(subscription_id="sub-1")
    queue.admit()
    for _ in range(7200 // 170):
        queue.cloud.clock.advance(170)
        queue.cloud.app.queue.heartbeat(owner.project_id, owner.request_id, 1)
    admit(queue.cloud.app.queue, "no_cookie")
    assert queue.now(other).status == "queued"

    queue.cloud.clock.advance(170)
    with pytest.raises(LeaseLost):
        queue.cloud.app.queue.heartbeat(owner.project_id, owner.request_id, 1)
    queue.cloud.clock.advance(20)
    admit(queue.cloud.app.queue, "no_cookie")
    assert queue.now(other).status == "running"


def messages(queue: TestQueue) -> int:
    return queue.cloud.app.compensation.status()[1]


def test_50_submits_before_a_run_are_one_message(queue: TestQueue) -> None:
    queue.capacity(no_cookie=50)
    requests = [queue.submit() for _ in range(50)]

    assert messages(queue) <= 2
    assert queue.cloud.deliver("AdmissionQueue") <= 2
    assert set(queue.statuses(*requests)) == {"running"}


def test_50_ends_before_a_run_are_one_message(queue: TestQueue) -> None:
    queue.capacity(no_cookie=50)
    requests = [queue.submit() for _ in range(100)]
    queue.admit()
    for request in requests[:50]:
        queue.finish(request)

    assert messages(queue) == 1
    queue.admit()
    assert set(queue.statuses(*requests[50:])) == {"running"}


@pytest.mark.parametrize("read", ["ensure", "standings", "waiting", "set_due"])
def test_submit_during_a_run_has_a_run_of_its_own(queue: TestQueue, read: str) -> None:
    """At each read of a run: what is submitted after it is not seen by it, and SQS must not drop the message."""
    store = queue.cloud.app.queue.channel_store
    original, late = getattr(store, read), list[Request]()

    def then_submit(*args: Any, **more: Any) -> Any:
        result = original(*args, **more)
        result = list(result) if read == "waiting" else result
        if not late:
            late.append(queue.submit())
        return result

    queue.capacity(no_cookie=1)
    first, second = queue.submit(), queue.submit()
    with patch.object(store, read, then_submit):
        queue.cloud.deliver("AdmissionQueue", limit=1)
    queue.admit()
    assert messages(queue) == 0
    for request in (first, second):
        queue.finish(request)
        queue.admit()
    assert queue.statuses(*late) == ["running"]


def test_another_process_asks_for_the_same_run(queue: TestQueue) -> None:
    requests = []
    for _ in range(3):
        composition.install(composition.App(clock=queue.cloud.clock))
        requests.append(queue.submit())

    assert messages(queue) == 1
    queue.admit()
    assert set(queue.statuses(*requests)) == {"running"}


def test_message_in_the_dead_letters_stops_others_for_seconds_only(queue: TestQueue) -> None:
    first = queue.submit()
    queue.cloud.client("sqs").purge_queue(QueueUrl=queue.cloud.names.queues["AdmissionQueue"])
    queue.cloud.clock.advance(10)

    second = queue.submit()
    queue.admit()

    assert queue.statuses(first, second) == ["running", "running"]


def test_failed_channel_keeps_one_message_and_stops_no_other(queue: TestQueue) -> None:
    """All messages of a channel ask for the same, and siblings must not use up their receives together."""
    requests = [queue.submit(), queue.submit(channel="export")]
    store, admission = queue.cloud.app.queue.channel_store, queue.cloud.app.queue.admission_queue
    admission.trigger_anew("no_cookie")
    original = store.ensure

    def ensure(name: str, capacity: int) -> Channel:
        if name == "no_cookie":
            raise RuntimeError("throttled")
        return original(name, capacity)

    with patch.object(store, "ensure", ensure):
        assert queue.cloud.deliver("AdmissionQueue") == 3
    assert queue.statuses(*requests) == ["pending", "running"]

    queue.cloud.clock.advance(3)
    assert queue.cloud.deliver("AdmissionQueue") == 1
    assert queue.statuses(*requests) == ["running", "running"]
