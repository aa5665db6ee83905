"""Cancel, pause, resume and retry over HTTP, and their lines in the audit trail."""

from __future__ import annotations

import pytest
from botocore.exceptions import EndpointConnectionError

from tests.support.queue import TestQueue
from tidegate.batches.slice import _execution_name
from tidegate.errors import Busy, LeaseLost, NotFound
from tidegate.queue.model import Request


def test_cancelled_queued_request_never_runs(queue: TestQueue) -> None:
    queue.capacity(no_cookie=1)
    running, waiting = queue.submit(), queue.submit()
    queue.admit()

    answer = queue.act(waiting, "cancel")
    queue.finish(running)
    queue.admit()

    assert (answer.status, answer.json()["status"]) == (200, "cancelled")
    assert queue.now(waiting).attempt == 0
    assert list(queue.executions()) == [f"{running.request_id}-1"]


def test_cancelled_running_request_is_stopped_and_releases_its_slot(queue: TestQueue) -> None:
    queue.capacity(no_cookie=1)
    running, waiting = queue.submit(subscription_id="sub-1"), queue.submit(subscription_id="sub-1")
    queue.admit()

    queue.act(running, "cancel")
    queue.admit()

    assert queue.executions()[f"{running.request_id}-1"] == "ABORTED"
    assert queue.statuses(running, waiting) == ["cancelled", "running"]
    with pytest.raises(LeaseLost):
        queue.cloud.app.queue.heartbeat(running.project_id, running.request_id, 1)


@pytest.mark.parametrize("action", ["cancel", "pause"])
def test_all_executions_of_a_batch_are_stopped(queue: TestQueue, action: str) -> None:
    request = queue.submit(type="batch", payload={"batch_id": "b-1", "run": 1})
    queue.admit()
    others = start_others(queue, request)

    queue.act(request, action)

    executions = queue.executions("BatchMachine")
    assert set(executions) == {f"{request.request_id}-1", *others}
    assert set(executions.values()) == {"ABORTED"}


def test_an_execution_that_cannot_be_stopped_does_not_keep_the_others_running(
    queue: TestQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = queue.submit(type="batch", payload={"batch_id": "b-1", "run": 1})
    queue.admit()
    others = start_others(queue, request)
    runner = queue.cloud.app.queue.runner
    stop = runner._machines.stop

    def failing(machine_arn: str, name: str, cause: str) -> None:
        if name == f"{request.request_id}-1":
            raise EndpointConnectionError(endpoint_url="https://states")
        stop(machine_arn, name, cause)

    monkeypatch.setattr(runner._machines, "stop", failing)
    with pytest.raises(Busy):
        runner.stop(queue.now(request), "timed out")

    executions = queue.executions("BatchMachine")
    assert {executions[name] for name in others} == {"ABORTED"}


def start_others(queue: TestQueue, request: Request) -> list[str]:
    """Starts two more runners and two indexers, as the machine does. Returns the names of their executions."""
    here = {"request_id": request.request_id, "attempt": 1}
    names = [_execution_name(here, 1, runner) for runner in (1, 2)]
    names += [_execution_name(here, 1, indexer=number) for number in (0, 1)]
    sfn, machine = queue.cloud.client("stepfunctions"), queue.cloud.names.machines["BatchMachine"]
    for name in names:
        sfn.start_execution(stateMachineArn=machine, name=name)
    return names


def test_waiting_and_running_requests_can_be_paused_and_resumed(queue: TestQueue) -> None:
    queue.capacity(no_cookie=1)
    running, waiting = queue.submit(), queue.submit()
    queue.admit()

    assert queue.act(waiting, "pause").json()["status"] == "paused"
    assert queue.act(running, "pause").json()["status"] == "paused"
    queue.admit()
    assert queue.channel().running == 0
    assert queue.executions()[f"{running.request_id}-1"] == "ABORTED"

    assert queue.act(running, "resume").json()["status"] == "pending"
    queue.admit()
    assert queue.now(running).attempt == 2
    assert queue.statuses(running, waiting) == ["running", "paused"]


def test_retried_request_has_all_its_retries_again(queue: TestQueue) -> None:
    request = queue.submit()
    queue.admit()
    failed = queue.finish(request, error=NotFound("gone"))
    assert (failed.status, failed.error) == ("failed", {"code": "upstream_not_found", "detail": "gone"})

    again = queue.act(request, "retry").json()
    queue.admit()

    assert (again["status"], again.get("error")) == ("pending", None)
    assert queue.now(request).attempt == 2


@pytest.mark.parametrize(
    ("action", "body"), [("pause", None), ("resume", None), ("retry", None), ("cancel", None), ("prioritize", 1)]
)
def test_action_not_allowed_in_its_state_is_409_wrong_state(queue: TestQueue, action: str, body: int | None) -> None:
    request = queue.submit()
    queue.admit()
    queue.finish(request)

    refused = queue.act(request, action, {"priority": body} if body else None)

    assert (refused.status, refused.json()["code"]) == (409, "wrong_state")


def test_every_transition_is_in_the_audit_trail(queue: TestQueue) -> None:
    request = queue.submit()
    queue.admit()
    queue.act(request, "pause")
    queue.act(request, "cancel")

    lines = queue.cloud.http("GET", "/v1/audit", query={"record": request.request_id}, key=queue.project.key).json()

    transitions = [(line["from"], line["to"], line["attempt"]) for line in reversed(lines["items"])]
    assert transitions == [
        (None, "pending", 0),
        ("pending", "running", 1),
        ("running", "paused", 1),
        ("paused", "cancelled", 1),
    ]
    newest = lines["items"][0]
    assert newest["who"].startswith("key")
    assert {"at", "why", "action"} <= set(newest)


def test_audit_lines_of_one_millisecond_keep_their_order(queue: TestQueue) -> None:
    request = queue.submit()
    actions = ["pause", "resume"] * 4
    for action in actions:
        assert queue.act(request, action).status == 200

    found = queue.cloud.http("GET", "/v1/audit", query={"record": request.request_id}, key=queue.project.key).json()

    assert len({line["at"] for line in found["items"]}) == 1
    assert [line["action"] for line in reversed(found["items"])] == ["submit", *actions]


def test_another_projects_request_is_404(queue: TestQueue) -> None:
    request = queue.submit()
    other = queue.cloud.project()

    assert queue.cloud.http("GET", f"/v1/requests/{request.request_id}", key=other.key).status == 404
    assert queue.cloud.http("POST", f"/v1/requests/{request.request_id}/cancel", key=other.key).status == 404
    assert (
        queue.cloud.http("GET", "/v1/audit", query={"record": request.request_id}, key=other.key).json()["items"] == []
    )


@pytest.mark.parametrize("path", ["/v1/queue/capacity", "/v1/queue/pause", "/v1/queue/resume", "/v1/cleanup"])
def test_queue_operations_need_the_admin_scope(queue: TestQueue, path: str) -> None:
    assert queue.cloud.http("POST", path, json={}, key=queue.project.key).status == 403


@pytest.mark.parametrize("body", [{}, {"no_cookie": -1}, {"no_cookie": "many"}, {"All Of": 1}, {"all": 1}])
def test_invalid_capacity_is_422(queue: TestQueue, body: dict[str, object]) -> None:
    assert queue.cloud.http("POST", "/v1/queue/capacity", json=body, key=queue.cloud.admin_key).status == 422
