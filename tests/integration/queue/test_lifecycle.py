"""Submit, admit, heartbeat, finish: the life cycle of a request."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.support.calls import count_calls
from tests.support.moto.cloud import MotoCloud, Project
from tidegate.errors import LeaseLost, NotFound, RequestTimedOut, ServiceUnavailable
from tidegate.queue.admission import admit
from tidegate.queue.model import Request


def submit(cloud: MotoCloud, project: Project, **more: Any) -> Request:
    return cloud.app.queue.submit(project.id, more.pop("type", "check"), payload={}, **more)


def get(cloud: MotoCloud, request: Request) -> Request:
    return cloud.app.queue.get(request.project_id, request.request_id)


def finish(cloud: MotoCloud, request: Request, **outcome: Any) -> Request:
    now = get(cloud, request)
    return cloud.app.queue.finish(now.project_id, now.request_id, now.attempt, **outcome)


def executions(cloud: MotoCloud) -> list[str]:
    machine = cloud.names.machines["IngestMachine"]
    found = cloud.client("stepfunctions").list_executions(stateMachineArn=machine)["executions"]
    return sorted(entry["name"] for entry in found)


def test_submitted_request_is_admitted_and_its_machine_started(cloud: MotoCloud, project: Project) -> None:
    request = submit(cloud, project)

    assert cloud.deliver("AdmissionQueue") == 1

    running = get(cloud, request)
    assert (running.status, running.attempt) == ("running", 1)
    assert running.deadline == pytest.approx(cloud.clock().timestamp() + 60)
    assert executions(cloud) == [f"{request.request_id}-1"]


def test_same_id_twice_is_one_request(cloud: MotoCloud, project: Project) -> None:
    first = submit(cloud, project, request_id="req-one")
    again = submit(cloud, project, request_id="req-one", priority=1)

    assert again.priority == first.priority
    cloud.deliver("AdmissionQueue")
    assert len(executions(cloud)) == 1


def test_finish_releases_the_slot_and_is_idempotent(cloud: MotoCloud, project: Project) -> None:
    request = submit(cloud, project)
    cloud.deliver("AdmissionQueue")

    done = finish(cloud, request, result={"ok": True})
    again = cloud.app.queue.finish(project.id, request.request_id, 1, error=NotFound("late"))

    assert (done.status, done.result) == ("completed", {"ok": True})
    assert again.status == "completed"
    channel = cloud.app.queue.channel_store.get("no_cookie")
    assert channel is not None
    assert channel.running == 0
    assert cloud.app.queue.channel_store.slots("no_cookie") == []


def test_each_step_costs_few_calls(cloud: MotoCloud, project: Project) -> None:
    with count_calls(cloud.app) as calls:
        request = submit(cloud, project)
    # Reads the project's quota of queued requests, what it used today, and the number of runs of admission.
    assert calls == {"dynamodb.GetItem": 3, "dynamodb.TransactWriteItems": 1, "sqs.SendMessageBatch": 1}
    cloud.deliver("AdmissionQueue")

    with count_calls(cloud.app) as calls:
        finish(cloud, request, result={})
    writes = {"dynamodb.TransactWriteItems": 1, "sns.PublishBatch": 1, "dynamodb.BatchWriteItem": 1}
    assert calls - Counter(writes) - Counter({"sqs.SendMessageBatch": 1}) == {"dynamodb.GetItem": 3}

    submit(cloud, project)
    with count_calls(cloud.app) as calls:
        admit(cloud.app.queue, "no_cookie")
    # The freeze, the number of the run, channel, standings, shares, the lane; then the request, its transaction, its
    # machine.
    assert calls.total() == 9, calls


def test_outdated_attempt_changes_nothing(cloud: MotoCloud, project: Project) -> None:
    request = submit(cloud, project)
    cloud.deliver("AdmissionQueue")
    finish(cloud, request, error=ServiceUnavailable("busy"))
    cloud.clock.advance(5)
    admit(cloud.app.queue, "no_cookie")

    stale = cloud.app.queue.finish(project.id, request.request_id, 1, result={"old": True})

    assert (stale.status, stale.attempt) == ("running", 2)
    with pytest.raises(LeaseLost):
        cloud.app.queue.heartbeat(project.id, request.request_id, 1)
    cloud.app.queue.heartbeat(project.id, request.request_id, 2, {"rows": 7})
    assert get(cloud, request).progress == {"rows": 7}


def test_heartbeat_after_the_deadline_is_refused(cloud: MotoCloud, project: Project) -> None:
    request = submit(cloud, project)
    cloud.deliver("AdmissionQueue")

    cloud.clock.advance(61)

    with pytest.raises(RequestTimedOut):
        cloud.app.queue.heartbeat(project.id, request.request_id, 1)
