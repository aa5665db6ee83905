"""Five hundred connections watch one Job and hear of its end within three seconds."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.support.deployed import Deployed, DeployedProject, deployed_at
from tests.support.product import product_on
from tidegate.notifications.websocket_messages import Holder

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

CROWD = 500
WITHIN_SECONDS = 3.0
CONTENT = b"for everyone"
SIGNATURE = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """A stack of its own: its Job waits until everyone watches."""
    with deployed_at(tmp_path_factory.mktemp("crowd"), JobTimeoutSeconds="600") as made:
        yield made


def start_job(project: DeployedProject) -> str:
    project.cloud.store(project, "/crowd.bin", CONTENT, SIGNATURE)
    body = {
        "biz_id": 2,
        "app_id": 3,
        "file_path": "/crowd.bin",
        "file_name": "crowd.bin",
        "target_agent_id": "agent-1",
        "target_user": "root",
        "target_file_dir": "/tmp",
        "file_signature": SIGNATURE,
    }
    made = project.http("POST", "/v1/downloads", json=body)
    assert made.status == 202, made.body
    return str(made.json()["job_id"])


def report_success(project: DeployedProject) -> None:
    key = project.agent_key("agent-1")
    (item,) = project.cloud.http("GET", "/v1/agents/agent-1/transfers?wait=20", key=key).json()["items"]
    result = {"transfer_id": item["transfer_id"], "container_id": item["container_id"], "error_code": 0}
    done = project.cloud.http("POST", "/v1/agents/agent-1/results", json={"items": [result]}, key=key)
    assert done.status == 200, done.body


async def watching(project: DeployedProject, ticket: str, job_id: str, few: asyncio.Semaphore) -> ClientConnection:
    async with few:
        socket = await connect(f"{project.cloud.ws_url}?ticket={ticket}", open_timeout=60, ping_interval=None)
        await socket.send(json.dumps({"action": "watch", "task_ids": [job_id]}))
        ack = json.loads(await socket.recv())
        assert ack["type"] == "watching", ack
        return socket


async def end_heard(socket: ClientConnection) -> tuple[float, dict[str, Any]]:
    while True:
        told = json.loads(await asyncio.wait_for(socket.recv(), 120))
        if told["type"] == "job.finished":
            return time.time(), told["data"]


async def crowd(project: DeployedProject, job_id: str) -> list[tuple[float, dict[str, Any]]]:
    tickets, key_id = product_on(project.cloud).notifications.tickets, project.key.split("_")[1]
    few = asyncio.Semaphore(8)
    sockets = [
        asyncio.create_task(watching(project, tickets.issue(Holder(project.id, key_id)).ticket, job_id, few))
        for _ in range(CROWD)
    ]
    joined = await asyncio.gather(*sockets)
    listening = [asyncio.create_task(end_heard(socket)) for socket in joined]
    await asyncio.to_thread(report_success, project)
    heard = await asyncio.gather(*listening)
    await asyncio.gather(*(socket.close() for socket in joined))
    return heard


def test_500_connections_watching_one_job_hear_its_end_within_3_s(patient: Deployed) -> None:
    project = patient.project()
    job_id = start_job(project)

    heard = asyncio.run(crowd(project, job_id))

    assert len(heard) == CROWD
    finished = datetime.fromisoformat(heard[0][1]["finish_time"]).timestamp()
    assert {data["status"] for _, data in heard} == {"Success"}
    last = max(at for at, _ in heard) - finished
    print(f"\nthe last of {CROWD} heard of the end after {last:.2f} s")
    assert last < WITHIN_SECONDS
