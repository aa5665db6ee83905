"""Everything in the queue survives a restart of the local cloud."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import pytest

from local.cloud import cloud_up
from local.place import Place
from local.progress import silence
from tests.support.deployed import Deployed, DeployedProject, free_port, until
from tests.support.sources import Hosted, file_source

pytestmark = pytest.mark.e2e


def status_of(project: DeployedProject, request_id: str) -> str:
    return str(project.http("GET", f"/v1/requests/{request_id}").json()["status"])


def overdue(cloud: Deployed, project_id: str, request_id: str) -> None:
    """As if its machine had been silent for long: nobody waits for a minute and a half here."""
    cloud.client("dynamodb").update_item(
        TableName=cloud.outputs["TableName"],
        Key={"pk": {"S": f"P#{project_id}#REQUEST#{request_id}"}, "sk": {"S": "META"}},
        UpdateExpression="SET due_at = :then",
        ExpressionAttributeValues={":then": {"N": str(int(time.time()) - 60)}},
    )


def test_everything_survives_a_restart_of_the_local_cloud(tmp_path: Path) -> None:
    place = Place(home=tmp_path, port=free_port())

    def submit(project: DeployedProject, channel: str) -> str:
        payload = {"file_id": file_id, "source_url": source.url("/a")}
        body: dict[str, Any] = {"type": "check", "payload": payload, "channel": channel}
        answer = project.http("POST", "/v1/requests", json=body)
        assert answer.status == 202, answer.body
        return str(answer.json()["request_id"])

    with file_source() as source:
        source.files["/a"] = Hosted(b"content")
        with cloud_up(place, silence) as up:
            cloud = Deployed(up)
            project = cloud.project()
            file_id = cloud.store(project, "/in/a", b"content", hashlib.sha256(b"content").hexdigest())
            cloud.http("POST", "/v1/queue/capacity", json={"held": 2, "busy": 1}, key=cloud.admin_key)
            cloud.http("POST", "/v1/queue/pause", json={"scope": "held"}, key=cloud.admin_key)
            held = [submit(project, "held") for _ in range(3)]
            source.delay = 30
            running, waiting = submit(project, "busy"), submit(project, "busy")
            until(lambda: status_of(project, running), lambda status: status == "running")
            until(lambda: source.seen, bool)
        source.delay = 0

        with cloud_up(place, silence) as up:
            cloud = Deployed(up)
            project = DeployedProject(project.id, project.key, project.callback_secret, cloud)
            assert {status_of(project, request) for request in held} == {"queued"}
            stats = project.http("GET", "/v1/queue/stats").json()["channels"]
            assert (stats["held"]["capacity"], stats["held"]["paused"], stats["held"]["queued"]) == (2, True, 3)
            cloud.http("POST", "/v1/queue/resume", json={"scope": "held"}, key=cloud.admin_key)
            overdue(cloud, project.id, running)
            cloud.http("POST", "/v1/compensation/trigger", key=cloud.admin_key)
            for request in (*held, running, waiting):
                until(lambda request=request: status_of(project, request), lambda status: status == "completed")  # type: ignore[misc]
            again = project.http("GET", f"/v1/requests/{running}").json()
            assert again["attempts"] == 2
