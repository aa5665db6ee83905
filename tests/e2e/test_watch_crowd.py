"""100 connections that watch one Job get its end about as fast as any message can be sent to them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from datetime import datetime
from typing import Any

import pytest
from botocore.credentials import ReadOnlyCredentials
from websockets.asyncio.client import ClientConnection, connect

from tests.support.deployed import Deployed, DeployedProject
from tests.support.product import product_on
from tidegate.notifications.websocket import Holder, WebSocketSender

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

CROWD = 100
CONTENT = b"for everyone"
SIGNATURE = hashlib.sha256(CONTENT).hexdigest()


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
    answer = project.http("POST", "/v1/downloads", json=body)
    assert answer.status == 202, answer.body
    return str(answer.json()["job_id"])


def report_success(project: DeployedProject) -> None:
    key = project.agent_key("agent-1")
    (item,) = project.cloud.http("GET", "/v1/agents/agent-1/transfers?wait=20", key=key).json()["items"]
    result = {"transfer_id": item["transfer_id"], "container_id": item["container_id"], "error_code": 0}
    answer = project.cloud.http("POST", "/v1/agents/agent-1/results", json={"items": [result]}, key=key)
    assert answer.status == 200, answer.body


async def watching(project: DeployedProject, job_id: str, few: asyncio.Semaphore) -> ClientConnection:
    tickets, holder = product_on(project.cloud).notifications.websocket, Holder(project.id, project.key.split("_")[1])
    async with few:
        # Made just before its use, because a ticket is valid for a minute.
        ticket = (await asyncio.to_thread(tickets.issue_ticket, holder)).ticket
        socket = await connect(f"{project.cloud.ws_url}?ticket={ticket}", open_timeout=60, ping_interval=None)
        await socket.send(json.dumps({"action": "watch", "task_ids": [job_id]}))
        ack = json.loads(await socket.recv())
        assert ack["type"] == "watching", ack
        return socket


async def end_heard(socket: ClientConnection) -> tuple[float, dict[str, Any]]:
    while True:
        message = json.loads(await asyncio.wait_for(socket.recv(), 120))
        if message["type"] == "job.finished":
            return time.time(), message["data"]


async def sent_to_all(cloud: Deployed, sockets: list[ClientConnection]) -> float:
    """Returns the seconds from sending a bare message to all connections until the last one received it."""

    async def heard(socket: ClientConnection) -> float:
        while json.loads(await asyncio.wait_for(socket.recv(), 120)) != {"type": "bare"}:
            pass
        return time.time()

    listening = [asyncio.create_task(heard(socket)) for socket in sockets]
    pages = cloud.client("dynamodb").get_paginator("scan").paginate(TableName=cloud.outputs["TableName"])
    stored = (item["pk"]["S"] for page in pages for item in page["Items"])
    ids = [pk.rsplit("#", 1)[-1] for pk in stored if "#CONNECTION#" in pk]
    sender = WebSocketSender(
        cloud.ws_url.replace("ws", "http", 1), "us-east-1", lambda: ReadOnlyCredentials("test", "test", None)
    )
    began = time.time()
    await asyncio.to_thread(sender.send, [(connection_id, '{"type": "bare"}') for connection_id in ids])
    return max(await asyncio.gather(*listening)) - began


async def crowd(project: DeployedProject, job_id: str, size: int) -> tuple[float, float]:
    """Returns the seconds until the last watcher received (a bare message, the Job's end)."""
    few = asyncio.Semaphore(8)
    joined = await asyncio.gather(*(watching(project, job_id, few) for _ in range(size)))
    bare = await sent_to_all(project.cloud, joined)
    listening = [asyncio.create_task(end_heard(socket)) for socket in joined]
    await asyncio.to_thread(report_success, project)
    heard = await asyncio.gather(*listening)
    await asyncio.gather(*(socket.close() for socket in joined))
    assert len(heard) == size
    assert {data["status"] for _, data in heard} == {"Success"}
    finished = datetime.fromisoformat(heard[0][1]["finish_time"]).timestamp()
    return bare, max(at for at, _ in heard) - finished


def test_100_watchers_get_the_end_about_as_soon_as_one(deployed: Deployed) -> None:
    """Compared with one watcher, and with bare messages to all of them, on the same machine a moment before."""
    project = deployed.project()
    _, alone = asyncio.run(crowd(project, start_job(project), 1))
    bare, together = asyncio.run(crowd(project, start_job(project), CROWD))

    print(f"\nafter {alone:.2f} s one, after {together:.2f} s the last of {CROWD}; bare messages to all {bare:.2f} s")
    assert together < 2 * alone + 2 * bare + 1.0
