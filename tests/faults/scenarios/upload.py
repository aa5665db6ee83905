"""A file is announced, uploaded and completed."""

from __future__ import annotations

import hashlib
from typing import Any
from unittest.mock import patch
from urllib.parse import parse_qsl, unquote, urlsplit

from moto.s3 import models as s3_models

from tests.faults.sweep import Scenario
from tests.faults.world import World
from tidegate.aws import keys
from tidegate.files import library, reading, upload
from tidegate.files import reading as verify
from tidegate.files.model import upload_object

CONTENT = b"nothing accepted is lost" * 1000
PART = 10_000
SHA = hashlib.sha256(CONTENT).hexdigest()


def run(world: World) -> None:
    project = world.new_project()
    body = {"biz_id": 1, "app_id": 1, "file_path": "/a", "signature": SHA}
    file_id = world.ask("POST", "/v1/files", key=project.key, json=body).json()["file_id"]
    uploaded = upload_object(project.id, file_id)
    world.put_object(uploaded, CONTENT)

    done = world.ask("POST", f"/v1/files/{file_id}/complete", key=project.key)

    assert (done.status, done.json()["state"]) == (200, "ready"), done.body
    # The uploaded object itself is the content: nothing is copied.
    assert world.objects() == [uploaded]
    _check_counts(world, project.id, file_id)


def run_in_parts(world: World) -> None:
    """Uploads in parts; after the completion a queued request verifies the file."""
    with (
        patch.object(library, "LARGEST_SINGLE_UPLOAD", 1000),
        patch.object(upload, "LARGEST_SINGLE_UPLOAD", 1000),
        patch.object(upload, "part_size_for", lambda size: PART),
        patch.object(verify, "RANGE", 5000),
        patch.object(s3_models, "S3_UPLOAD_PART_MIN_SIZE", 1),
    ):
        _send_in_parts(world)


def run_in_turns(world: World) -> None:
    """The same, but every invocation has time to read only one range."""
    with (
        patch.object(reading, "LARGEST_SINGLE_UPLOAD", 1000),
        patch.object(reading, "RESERVE_SECONDS", 10_000.0),
    ):
        run_in_parts(world)


def _send_in_parts(world: World) -> None:
    project = world.new_project()
    body = {"biz_id": 1, "app_id": 1, "file_path": "/a", "signature": SHA, "size": len(CONTENT)}
    file_id = world.ask("POST", "/v1/files", key=project.key, json=body).json()["file_id"]
    numbers = list(range(1, -(-len(CONTENT) // PART) + 1))
    signed = world.ask("POST", f"/v1/files/{file_id}/parts", key=project.key, json={"numbers": numbers})
    assert signed.status == 200, signed.body
    parts = [{"number": part["number"], "etag": _put_part(world, part)} for part in signed.json()["parts"]]

    done = world.ask("POST", f"/v1/files/{file_id}/complete", key=project.key, json={"parts": parts})

    assert done.status in (200, 202), done.body
    shown = f"/v1/files/{file_id}"
    world.settle(lambda: world.shown(shown, project)["state"] in ("ready", "failed"))
    assert world.shown(shown, project)["state"] == "ready", world.shown(shown, project)
    world.settle(world.idle_channels)
    stored = upload_object(project.id, file_id)
    assert world.read(stored) == CONTENT
    # If the answer of the first announcement was lost, the sweep removes what it had begun.
    world.next_day()
    assert world.objects() == [stored]
    _check_counts(world, project.id, file_id)


def _check_counts(world: World, project_id: str, ready: str) -> None:
    """A ready file counts as stored. Only announcements whose answer was lost still count as open."""
    app = world.cloud.app
    with world.calls.without_faults():
        found = app.table.query(keys.open_uploads(project_id), consistent=True).items
        usage = app.queue.project_usage(project_id)
        held = app.table.get(keys.upload_usage(project_id), consistent=True) or {}
    assert ready not in [item["sk"] for item in found]
    assert (usage["open_uploads"], usage["stored_bytes"]) == (len(found), len(CONTENT)), usage
    assert held["announced_bytes"] == sum(item["size"] for item in found), held


def _put_part(world: World, part: dict[str, Any]) -> str:
    address = urlsplit(part["url"])
    bucket = world.cloud.names.refs["FilesBucket"]
    start = (part["number"] - 1) * PART
    sent = world.cloud.client("s3").upload_part(
        Bucket=bucket,
        Key=unquote(address.path.split(f"{bucket}/", 1)[1]),
        UploadId=dict(parse_qsl(address.query))["uploadId"],
        PartNumber=part["number"],
        Body=CONTENT[start : start + PART],
    )
    return str(sent["ETag"])


SCENARIO = Scenario("upload", run, works_alone=False)
IN_PARTS = Scenario("upload in parts", run_in_parts)
IN_TURNS = Scenario("upload in turns", run_in_turns, only=("ingest",))
