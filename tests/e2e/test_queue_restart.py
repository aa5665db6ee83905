"""Queued and running requests survive a restart of the local cloud."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Any

import pytest
from pytest_httpserver import HTTPServer

from local.cloud import cloud_up
from local.place import Place
from local.progress import silence
from tests.support.deployed import SOON_AGAIN, Deployed, DeployedProject, until
from tests.support.exports.paged_source import PagedSource, honest, numbered
from tests.support.exports.running import read_csv
from tests.support.http_servers import free_port
from tests.support.ingest.sources import Hosted, gated_source
from tests.support.patience import idle_clock

pytestmark = pytest.mark.e2e


def status_of(project: DeployedProject, request_id: str) -> str:
    return str(project.http("GET", f"/v1/requests/{request_id}").json()["status"])


def make_overdue(cloud: Deployed, project_id: str, request_id: str) -> None:
    """Makes the request overdue now, so that the test does not have to wait 90 s."""
    cloud.client("dynamodb").update_item(
        TableName=cloud.outputs["TableName"],
        Key={"pk": {"S": f"P#{project_id}#REQUEST#{request_id}"}, "sk": {"S": "META"}},
        UpdateExpression="SET due_at = :then",
        ExpressionAttributeValues={":then": {"N": str(int(time.time()) - 60)}},
    )


def attempts_of(project: DeployedProject, request_id: str) -> int:
    return int(project.http("GET", f"/v1/requests/{request_id}").json()["attempts"])


def test_queued_and_running_requests_survive_a_restart(tmp_path: Path) -> None:
    place = Place(home=tmp_path, port=free_port(), params=SOON_AGAIN)
    large = os.urandom(1024 * 1024) * 40

    def submit(project: DeployedProject, channel: str) -> str:
        payload = {"file_id": file_id, "source_url": source.url("/a")}
        body: dict[str, Any] = {"type": "check", "payload": payload, "channel": channel}
        answer = project.http("POST", "/v1/requests", json=body)
        assert answer.status == 202, answer.body
        return str(answer.json()["request_id"])

    def slow_page(rows: PagedSource, page: int, size: int) -> Any:
        if page > 0:
            source.gate.wait(60)
        return honest(rows, page, size)

    with gated_source() as source, HTTPServer(threaded=True) as server:
        source.files |= {"/a": Hosted(b"content"), "/large": Hosted(large)}
        rows = PagedSource(server)
        rows.rows, rows.answer = numbered(3000), slow_page
        with cloud_up(place, silence) as up:
            cloud = Deployed(up)
            project = cloud.project()
            file_id = cloud.store(project, "/in/a", b"content", hashlib.sha256(b"content").hexdigest())
            cloud.http("POST", "/v1/queue/capacity", json={"held": 2, "busy": 1}, key=cloud.admin_key)
            cloud.http("POST", "/v1/queue/pause", json={"scope": "held"}, key=cloud.admin_key)
            held = [submit(project, "held") for _ in range(3)]
            order = {"biz_id": 2, "app_id": 3, "file_path": "/in/large", "source_url": source.url("/large")}
            coming = project.http("POST", "/v1/files", json=order).json()
            export = project.http("POST", "/v1/task", json={"name": "rows", "source_url": rows.url}).json()["task_id"]
            until(lambda: source.reading, lambda reading: reading >= 3)
            until(lambda: rows.pages[1], bool)
            source.delay = 30
            running, waiting = submit(project, "busy"), submit(project, "busy")
            until(lambda: status_of(project, running), lambda status: status == "running")
            until(lambda: "/a" in [path for path, _ in source.seen], bool)
            stopped_at = idle_clock()
        assert idle_clock() - stopped_at < 10, "stopping waited for running functions instead of saving the state"
        source.delay = 0

        with cloud_up(place, silence) as up:
            cloud = Deployed(up)
            project = DeployedProject(project.id, project.key, project.callback_secret, cloud)
            assert {status_of(project, request) for request in held} == {"queued"}
            stats = project.http("GET", "/v1/queue/stats").json()["channels"]
            assert (stats["held"]["capacity"], stats["held"]["paused"], stats["held"]["queued"]) == (2, True, 3)
            cloud.http("POST", "/v1/queue/resume", json={"scope": "held"}, key=cloud.admin_key)
            interrupted = [running, coming["request_id"], export]
            for request in interrupted:
                assert status_of(project, request) == "running"
                make_overdue(cloud, project.id, request)
            cloud.http("POST", "/v1/compensation/trigger", key=cloud.admin_key)
            # Processes from before the restart may still transfer data; they are released when others have taken over.
            for request in interrupted:
                until(lambda request=request: attempts_of(project, request), lambda attempts: attempts == 2)  # type: ignore[misc]
            source.gate.set()
            for request in (*held, *interrupted, waiting):
                until(lambda request=request: status_of(project, request), lambda status: status == "completed")  # type: ignore[misc]

            assert {attempts_of(project, request) for request in interrupted} == {2}
            link = project.http("GET", f"/v1/files/{coming['file_id']}/url").json()["url"]
            assert cloud.pool.request("GET", link).data == large
            link = project.http("GET", "/v1/download/url", query={"task_id": export}).json()["url"]
            exported = read_csv(cloud.pool.request("GET", link).data)
            assert [int(row["id"]) for row in exported] == list(range(3000))
            stats = project.http("GET", "/v1/queue/stats").json()["channels"]
            assert {(channel["running"], channel["queued"]) for channel in stats.values()} == {(0, 0)}
