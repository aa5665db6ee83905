"""Freeze and thaw: nothing new starts, running work ends or is parked, submits are accepted and wait."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.compensation.polling import Ticks
from tests.support.calls import count_calls
from tests.support.moto.cloud import MotoCloud, Project
from tests.support.queue import TestQueue
from tidegate.errors import Frozen


@pytest.fixture
def queue(cloud: MotoCloud, project: Project) -> TestQueue:
    return TestQueue(cloud, project)


def ops(cloud: MotoCloud, action: str, **body: Any) -> Any:
    answer = cloud.http("POST", f"/v1/ops/{action}", json=body or None, key=cloud.admin_key)
    assert answer.status == 200, answer.body
    # Functions cache the state for some seconds.
    cloud.app.freeze.now()
    return answer.json()


def test_frozen_queue_accepts_and_admits_after_the_thaw(queue: TestQueue) -> None:
    ops(queue.cloud, "freeze", reason="the source is broken")
    request = queue.submit()
    queue.admit()
    assert queue.statuses(request) == ["pending"]
    assert queue.executions() == {}

    ops(queue.cloud, "thaw")
    queue.admit()

    assert queue.statuses(request) == ["running"]


def test_running_request_goes_back_to_the_queue_without_using_a_retry(queue: TestQueue) -> None:
    request = queue.submit()
    queue.admit()
    running = queue.now(request)
    ops(queue.cloud, "freeze", reason="restore")

    with pytest.raises(Frozen) as frozen:
        queue.cloud.app.queue.heartbeat(running.project_id, running.request_id, running.attempt)
    queue.finish(request, error=frozen.value)
    parked = queue.now(request)
    assert (parked.status, parked.retries) == ("pending", 0)
    assert (parked.error or {})["code"] == "frozen"

    ops(queue.cloud, "thaw")
    queue.cloud.clock.advance(60)
    queue.cloud.app.queue.admission_queue.trigger("no_cookie")
    queue.admit()
    assert (queue.now(request).status, queue.now(request).attempt) == ("running", 2)


def test_ingest_step_is_parked_and_goes_on_after_the_thaw(queue: TestQueue) -> None:
    request = queue.submit(payload={"file_id": "file-x"})
    queue.admit()
    ops(queue.cloud, "freeze", reason="restore")
    event = {"project_id": request.project_id, "request_id": request.request_id, "attempt": 1}

    assert queue.cloud.invoke("ingest", event)["status"] == "pending"
    assert queue.now(request).retries == 0


def test_compensation_rests_and_starts_what_is_due_after_the_thaw(
    cloud: MotoCloud, ticks: Ticks, queue: TestQueue
) -> None:
    request = queue.submit()
    cloud.client("sqs").purge_queue(QueueUrl=cloud.names.queues["AdmissionQueue"])
    ops(cloud, "freeze", reason="incident")
    cloud.app.compensation.revive()
    for _ in range(5):
        assert ticks.next() <= 10
    queue.admit()
    assert queue.statuses(request) == ["pending"]

    ops(cloud, "thaw")
    queue.admit()
    assert queue.statuses(request) == ["running"]


@pytest.mark.parametrize("function", ["scan_subscriptions", "start_scheduled_exports", "start_scheduled_batches"])
def test_schedules_fire_nothing_during_a_freeze(cloud: MotoCloud, function: str) -> None:
    ops(cloud, "freeze", reason="incident")
    assert cloud.invoke(function, {}) == {"fired": 0}


def test_clean_up_deletes_nothing_during_a_freeze(cloud: MotoCloud) -> None:
    ops(cloud, "freeze", reason="incident")
    assert set(cloud.invoke("clean_up", {}).values()) == {0}
    refused = cloud.http("POST", "/v1/cleanup", key=cloud.admin_key)
    assert (refused.status, refused.json()["code"]) == (503, "frozen")


def test_state_is_shown_and_audited(cloud: MotoCloud) -> None:
    assert cloud.http("GET", "/v1/system", key=cloud.admin_key).json()["freeze"]["frozen"] is False
    shown = ops(cloud, "freeze", reason="a restore")
    assert (shown["frozen"], shown["reason"], shown["by"]) == (True, "a restore", "admin")
    assert cloud.http("GET", "/v1/system", key=cloud.admin_key).json()["freeze"] == shown
    assert ops(cloud, "thaw")["frozen"] is False
    lines = cloud.http(
        "GET", "/v1/audit", query={"record": "system", "project_id": "_system"}, key=cloud.admin_key
    ).json()["items"]
    assert {line["action"] for line in lines} >= {"ops.freeze", "ops.thaw"}


def test_callers_cannot_freeze(cloud: MotoCloud, project: Project) -> None:
    for action in ("freeze", "thaw", "reconcile"):
        answer = cloud.http("POST", f"/v1/ops/{action}", json={"reason": "x"}, key=project.key)
        assert answer.status == 403


def test_reconcile_needs_a_freeze(cloud: MotoCloud) -> None:
    assert cloud.http("POST", "/v1/ops/reconcile", key=cloud.admin_key).status == 409


def test_steps_read_the_state_once_in_five_seconds(cloud: MotoCloud) -> None:

    freeze = cloud.app.freeze
    with count_calls(cloud.app) as calls:
        assert not any(freeze.is_on for _ in range(100))
    assert calls == {"dynamodb.GetItem": 1}
