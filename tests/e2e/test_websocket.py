"""The WebSocket on the deployed stack, with a real client."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.protocol import State
from websockets.sync.client import ClientConnection, connect

from tests.support.deployed import Deployed, DeployedProject, until
from tests.support.patience import idle_clock
from tests.support.product import product_on
from tidegate.notifications.websocket import Holder

pytestmark = pytest.mark.e2e


def ticket(project: DeployedProject) -> str:
    answer = project.http("POST", "/v1/ws-tickets")
    assert answer.status == 201, answer.body
    return str(answer.json()["ticket"])


@contextmanager
def connected(project: DeployedProject, ticket_to_use: str | None = None) -> Iterator[ClientConnection]:
    with connect(f"{project.cloud.ws_url}?ticket={ticket_to_use or ticket(project)}", open_timeout=30) as socket:
        yield socket


def say(socket: ClientConnection, **message: Any) -> Any:
    socket.send(json.dumps(message))
    return hear(socket)


def hear(socket: ClientConnection, seconds: float = 20) -> Any:
    return json.loads(socket.recv(timeout=seconds))


def refused(project: DeployedProject, used_ticket: str) -> bool:
    try:
        with connected(project, used_ticket):
            return False
    except WebSocketException:
        return True


def waiting_export(project: DeployedProject) -> str:
    """Submits an export whose source cannot be reached, so that it is retried for minutes. Returns its id."""
    answer = project.http("POST", "/v1/task", json={"name": "slow", "source_url": "http://127.0.0.1:9/rows"})
    assert answer.status == 202, answer.body
    return str(answer.json()["task_id"])


def cancel(project: DeployedProject, task_id: str) -> None:
    answer = project.http("POST", f"/v1/requests/{task_id}/cancel")
    assert answer.status == 200, answer.body


def test_ticket_has_the_url_to_connect_to(deployed: Deployed, project: DeployedProject) -> None:
    answer = project.http("POST", "/v1/ws-tickets").json()

    assert answer["ws_url"] == deployed.ws_url


def test_ticket_works_once(project: DeployedProject) -> None:
    used_ticket = ticket(project)
    with connected(project, used_ticket) as socket:
        assert say(socket, action="ping")["type"] == "pong"

    assert refused(project, used_ticket)


def test_ticket_does_not_work_after_60_s(deployed: Deployed, project: DeployedProject) -> None:
    a_minute_ago = product_on(deployed, clock=lambda: datetime.now(UTC) - timedelta(seconds=61))

    assert refused(
        project, a_minute_ago.notifications.websocket.issue_ticket(Holder(project.id, project.key.split("_")[1])).ticket
    )
    assert refused(project, "made-up")


def new_reader(deployed: Deployed, project: DeployedProject, **body: Any) -> tuple[str, str]:
    """Creates a key with scope read. Returns its id and a ticket made with it."""
    path = f"/v1/projects/{project.id}/keys"
    created = deployed.http("POST", path, json={"scopes": ["read"], **body}, key=deployed.admin_key).json()
    answer = deployed.http("POST", "/v1/ws-tickets", key=created["key"])
    assert answer.status == 201, answer.body
    return created["key_id"], answer.json()["ticket"]


def test_revoking_a_key_closes_its_websocket_and_leaves_others(deployed: Deployed, project: DeployedProject) -> None:
    key_id, new_ticket = new_reader(deployed, project)
    with connected(project) as other, connected(project, new_ticket) as socket:
        assert say(socket, action="ping")["type"] == "pong"

        assert deployed.http("DELETE", f"/v1/keys/{key_id}", key=deployed.admin_key).status == 204

        with pytest.raises(ConnectionClosed):
            hear(socket)
        assert say(other, action="ping")["type"] == "pong"


def test_compensation_closes_the_websocket_of_a_key_that_expired(deployed: Deployed, project: DeployedProject) -> None:
    _, new_ticket = new_reader(deployed, project, expires_in=8)
    with connected(project, new_ticket) as socket:
        assert say(socket, action="ping")["type"] == "pong"

        # The key is overdue 30 s after its expiry. The next poll may be five minutes away, so it is triggered.
        deadline = idle_clock() + 120
        while socket.state is State.OPEN and idle_clock() < deadline:
            time.sleep(5)
            deployed.http("POST", "/v1/compensation/trigger", key=deployed.admin_key)

        with pytest.raises(ConnectionClosed):
            hear(socket)


def test_watching_a_finished_task_answers_at_once(project: DeployedProject) -> None:
    task_id = waiting_export(project)
    cancel(project, task_id)

    with connected(project) as socket:
        message = say(socket, action="watch", task_ids=[task_id])

    assert (message["type"], message["data"]["status"]) == ("task.failed", "cancelled")


def test_watcher_is_sent_the_end_of_the_task(project: DeployedProject) -> None:
    task_id = waiting_export(project)
    with connected(project) as socket:
        ack = say(socket, action="watch", task_ids=[task_id])
        assert ack == {"type": "watching", "data": {"task_ids": [task_id]}}
        cancel(project, task_id)
        message = hear(socket)
        while message["type"] == "task.progress":
            message = hear(socket)

    assert (message["data"]["task_id"], message["data"]["status"]) == (task_id, "cancelled")


def test_another_projects_task_is_an_error_and_no_data(deployed: Deployed, project: DeployedProject) -> None:
    task_id = waiting_export(project)
    with connected(deployed.project()) as stranger:
        message = say(stranger, action="watch", task_ids=[task_id])
        cancel(project, task_id)
        with pytest.raises(TimeoutError):
            hear(stranger, seconds=3)

    assert message["type"] == "error"
    assert set(message["data"]) == {"code", "detail", "task_id"}


def test_watches_of_a_closed_connection_are_removed(deployed: Deployed, project: DeployedProject) -> None:
    task_id = waiting_export(project)
    with connected(project) as socket:
        say(socket, action="watch", task_ids=[task_id])
    watches = product_on(deployed).notifications.watches

    until(lambda: watches.of_record(project.id, task_id), lambda left: left == [], 10)
