"""A file is ingested from a source URL: as one stream, and in parallel parts."""

from __future__ import annotations

import hashlib

from tests.faults.sweep import Scenario
from tests.faults.world import World
from tests.support.http_servers import Handler, serve
from tests.support.ingest.small_parts import small_parts

CONTENT = b"from far away" * 20_000
SHA = hashlib.sha256(CONTENT).hexdigest()
OVER = {"completed", "failed", "cancelled"}


def run_in_parts(world: World) -> None:
    part = len(CONTENT) // 3
    with small_parts(part, parallel_from=2 * part):
        run(world)


def run(world: World) -> None:
    project = world.new_project()
    with serve(_source) as port:
        body = {
            "biz_id": 1,
            "app_id": 1,
            "file_path": "/in",
            "source_url": f"http://127.0.0.1:{port}/f",
            "signature": SHA,
        }
        made = world.ask("POST", "/v1/files", key=project.key, json=body)
        assert made.status == 202, made.body
        request = made.json()["request_id"]
        world.settle(lambda: world.shown(f"/v1/requests/{request}", project)["status"] in OVER)

    ended = world.shown(f"/v1/requests/{request}", project)
    assert ended["status"] == "completed", ended
    file = world.shown(f"/v1/files/{made.json()['file_id']}", project)
    assert [one["file_id"] for one in world.shown("/v1/files", project)["items"]] == [file["file_id"]]
    assert (file["state"], file["signature"]) == ("ready", SHA), file
    world.settle(lambda: request in world.notified())
    world.settle(lambda: world.idle_channels())
    world.next_day()
    # One object, which the content's record names: the sweep removed what dead attempts had stored.
    with world.calls.without_faults():
        named = world.cloud.app.files.store.object_of(project.id, SHA)
    assert world.objects() == [named]
    assert world.uploads() == []


def _source(request: Handler) -> None:
    wanted = request.headers.get("Range")
    if not wanted:
        request.answer(200, CONTENT, ETag='"1"', Accept_Ranges="bytes")
        return
    first, _, last = wanted.removeprefix("bytes=").partition("-")
    part = CONTENT[int(first) : int(last) + 1 if last else None]
    end = int(first) + len(part) - 1
    request.answer(206, part, ETag='"1"', Content_Range=f"bytes {first}-{end}/{len(CONTENT)}")


SCENARIO = Scenario("ingest", run)
IN_PARTS = Scenario("ingest in parts", run_in_parts)
