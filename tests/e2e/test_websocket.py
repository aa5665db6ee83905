"""The WebSocket on the deployed stack, with a real client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from tests.support.deployed import Deployed, DeployedProject, until
from tests.support.product import product_on

pytestmark = pytest.mark.e2e


def ticket(project: DeployedProject) -> str:
    made = project.http("POST", "/v1/ws-tickets")
    assert made.status == 201, made.body
    return str(made.json()["ticket"])


@contextmanager
def connected(project: DeployedProject, given: str | None = None) -> Iterator[ClientConnection]:
    with connect(f"{project.cloud.ws_url}?ticket={given or ticket(project)}", open_timeout=30) as socket:
        yield socket


def say(socket: ClientConnection, **message: Any) -> Any:
    socket.send(json.dumps(message))
    return hear(socket)


def hear(socket: ClientConnection, seconds: float = 20) -> Any:
    return json.loads(socket.recv(timeout=seconds))


def refused(project: DeployedProject, given: str) -> bool:
    try:
        with connected(project, given):
            return False
    except WebSocketException:
        return True


def waiting_export(project: DeployedProject) -> str:
    """An export whose source cannot be reached: it is tried again and again, for minutes."""
    made = project.http("POST", "/v1/task", json={"name": "slow", "source_url": "http://127.0.0.1:9/rows"})
    assert made.status == 202, made.body
    return str(made.json()["task_id"])


def cancel(project: DeployedProject, task_id: str) -> None:
    answer = project.http("POST", f"/v1/requests/{task_id}/cancel")
    assert answer.status == 200, answer.body


def test_the_ticket_says_where_to_connect(deployed: Deployed, project: DeployedProject) -> None:
    made = project.http("POST", "/v1/ws-tickets").json()

    assert made["ws_url"] == deployed.ws_url


def test_a_ticket_works_once(project: DeployedProject) -> None:
    given = ticket(project)
    with connected(project, given) as socket:
        assert say(socket, action="ping")["type"] == "pong"

    assert refused(project, given)


def test_a_ticket_does_not_work_after_60_s(deployed: Deployed, project: DeployedProject) -> None:
    a_minute_ago = product_on(deployed, clock=lambda: datetime.now(UTC) - timedelta(seconds=61))

    assert refused(project, a_minute_ago.tickets.issue(project.id, project.key.split("_")[1]).ticket)
    assert refused(project, "made-up")


def test_watching_a_finished_task_answers_at_once(project: DeployedProject) -> None:
    task_id = waiting_export(project)
    cancel(project, task_id)

    with connected(project) as socket:
        told = say(socket, action="watch", task_ids=[task_id])

    assert (told["type"], told["data"]["status"]) == ("task.failed", "cancelled")


def test_a_watcher_hears_the_end(project: DeployedProject) -> None:
    task_id = waiting_export(project)
    with connected(project) as socket:
        ack = say(socket, action="watch", task_ids=[task_id])
        assert ack == {"type": "watching", "data": {"task_ids": [task_id]}}
        cancel(project, task_id)
        told = hear(socket)
        while told["type"] == "task.progress":
            told = hear(socket)

    assert (told["data"]["task_id"], told["data"]["status"]) == (task_id, "cancelled")


def test_another_projects_task_is_an_error_and_no_data(deployed: Deployed, project: DeployedProject) -> None:
    task_id = waiting_export(project)
    with connected(deployed.project()) as stranger:
        told = say(stranger, action="watch", task_ids=[task_id])
        cancel(project, task_id)
        with pytest.raises(TimeoutError):
            hear(stranger, seconds=3)

    assert told["type"] == "error"
    assert set(told["data"]) == {"code", "detail", "task_id"}


def test_a_connection_that_left_is_forgotten(deployed: Deployed, project: DeployedProject) -> None:
    task_id = waiting_export(project)
    with connected(project) as socket:
        say(socket, action="watch", task_ids=[task_id])
    watches = product_on(deployed).watches

    until(lambda: watches.on(project.id, task_id), lambda left: left == [], 10)
