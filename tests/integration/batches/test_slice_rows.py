"""Slices of a batch whose items are the rows of a file."""

from __future__ import annotations

import time
from typing import Any

from tests.support.batches.world import BatchWorld, batch_world
from tests.support.moto.cloud import MotoCloud


def start_file_batch(world: BatchWorld, rows: int, **options: Any) -> tuple[str, str]:
    """Returns (batch_id, request_id) of a batch that was admitted."""
    content = "".join(f'{{"n":{number}}}\n' for number in range(rows))
    file_id = world.store_file("rows.ndjson", content.encode())
    body = {"biz_id": world.register(), "name": "rows", "rate": 20, "source": {"file_id": file_id}} | options
    made = world.http("POST", "/v1/batches", body)
    assert made.status == 201, made.body
    started = world.act(made.json()["batch_id"], "start")
    world.admit()
    return started["batch_id"], started["request_id"]


def next_slice(world: BatchWorld, request_id: str) -> str:
    began = time.monotonic()
    outcome = world.step(request_id, runner=0)["outcome"]
    world.cloud.clock.advance(time.monotonic() - began)
    return str(outcome)


def test_new_process_retries_items_beyond_its_indexed_rows() -> None:
    """The first process knew more ranges of the file than its list of ranges names."""
    with MotoCloud(BATCH_SLICE_SECONDS="2") as cloud, batch_world(cloud) as world:
        cloud.app.batches.rows.range_bytes = 32
        world.business.answers["/process"] = lambda said: (
            (200, {"result": "error"}) if said["attempt"] == 1 and said["index"] in (0, 8) else (200, {"result": "ok"})
        )
        batch_id, request_id = start_file_batch(world, 60, retry_delay=9)
        assert world.step(request_id)["outcome"] == "split"
        while len(world.business.calls()) < 9:
            assert next_slice(world, request_id) == "continue"
        _, rows = cloud.app.batches.rows._last or ("", None)
        assert rows
        assert (rows.index.indexed[0] > 8, rows.index._listed) == (True, 0)
        cloud.app.batches.rows._last = None
        cloud.clock.advance(20)
        while next_slice(world, request_id) == "continue":
            pass
        shown = world.shown(batch_id)
        calls = world.business.calls()
    assert (shown["status"], shown["progress"]["succeeded"]) == ("finished", 60)
    assert {call["index"]: call["job_data"]["n"] for call in calls} == {number: number for number in range(60)}


def test_batch_whose_file_was_deleted_stops() -> None:
    with MotoCloud() as cloud, batch_world(cloud) as world:
        file_id = world.store_file("rows.ndjson", b'{"n":1}\n')
        body = {"biz_id": world.register(), "name": "rows", "rate": 20, "source": {"file_id": file_id}}
        batch_id = world.http("POST", "/v1/batches", body).json()["batch_id"]
        assert world.http("DELETE", f"/v1/files/{file_id}").status == 204
        started = world.act(batch_id, "start")
        world.admit()
        assert world.step(started["request_id"])["outcome"] == "ended"
        shown = world.shown(batch_id)
    assert shown["status"] == "stopped"
    assert "not in the library" in shown["stop_reason"]


def test_cause_of_a_dead_function_is_not_shown_to_the_caller() -> None:
    with MotoCloud() as cloud, batch_world(cloud) as world:
        _, request_id = start_file_batch(world, 3)
        cause = '{"errorMessage": "role/batches may not PutItem", "stackTrace": ["File /opt/python/steps.py"]}'
        world.step(request_id, runner=0, failure={"Error": "ClientError", "Cause": cause})
        error = cloud.app.queue.queue.get(world.project.id, request_id).error
    assert error == {"code": "worker_lost", "detail": "the function that ran a slice of the batch died (ClientError)"}
