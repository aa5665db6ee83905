"""A file is announced, uploaded and completed."""

from __future__ import annotations

import hashlib

from tests.faults.sweep import Scenario
from tests.faults.world import World
from tidegate.files.model import upload_object

CONTENT = b"nothing accepted is lost" * 1000
SHA = hashlib.sha256(CONTENT).hexdigest()


def run(world: World) -> None:
    project = world.new_project()
    body = {"biz_id": 1, "app_id": 1, "file_path": "/a", "signature": SHA}
    file_id = world.ask("POST", "/v1/files", key=project.key, json=body).json()["file_id"]
    uploaded = upload_object(project.id, file_id)
    world.put_object(uploaded, CONTENT)

    done = world.ask("POST", f"/v1/files/{file_id}/complete", key=project.key)

    assert (done.status, done.json()["state"]) == (200, "ready"), done.body
    # The uploaded object is the content: nothing is copied, so nothing is left over.
    assert world.objects() == [uploaded]


SCENARIO = Scenario("upload", run, works_alone=False)
