"""Slices of a batch whose items are the rows of a file."""

from __future__ import annotations

import gzip
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
        batch_id, request_id = start_file_batch(world, 40, retry_delay=9)
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
    assert (shown["status"], shown["progress"]["succeeded"]) == ("finished", 40)
    assert {call["index"]: call["job_data"]["n"] for call in calls} == {number: number for number in range(40)}


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
    assert "no longer in the library" in shown["stop_reason"]


def test_cause_of_a_dead_function_is_not_shown_to_the_caller() -> None:
    with MotoCloud() as cloud, batch_world(cloud) as world:
        _, request_id = start_file_batch(world, 3)
        cause = '{"errorMessage": "role/batches may not PutItem", "stackTrace": ["File /opt/python/steps.py"]}'
        world.step(request_id, runner=0, failure={"Error": "ClientError", "Cause": cause})
        error = cloud.app.queue.get(world.project.id, request_id).error
    assert error == {"code": "worker_lost", "detail": "the function that ran a slice of the batch died (ClientError)"}


def run_to_end(world: BatchWorld, batch_id: str) -> dict[str, Any]:
    started = world.act(batch_id, "start")
    world.admit()
    outcome = world.step(started["request_id"])["outcome"]
    while outcome in ("split", "continue"):
        outcome = world.step(started["request_id"], runner=0)["outcome"]
    return world.shown(batch_id)


def test_rows_of_a_gbk_export_reach_the_business_unchanged() -> None:
    with MotoCloud() as cloud, batch_world(cloud) as world:
        file_id = world.store_file("单据.csv.gz", gzip.compress("编号;名称\n1;海运\n2;空运\n".encode("gbk")))
        body = {"biz_id": world.register(), "name": "rows", "rate": 200}
        refused = world.http("POST", "/v1/batches", body | {"source": {"file_id": file_id, "delimiter": ";"}})
        source = {"file_id": file_id, "encoding": "gbk", "delimiter": ";"}
        made = world.http("POST", "/v1/batches", body | {"source": source})
        assert made.status == 201, made.body
        tried = world.http("POST", f"/v1/batches/{made.json()['batch_id']}/dry-run", {"items": 1})
        shown = run_to_end(world, made.json()["batch_id"])
        calls = world.business.calls()
    assert (refused.status, "line 1, column 1 is not utf-8 text" in refused.body.decode()) == (422, True)
    assert tried.json()["items"][0]["job_data"] == {"编号": "1", "名称": "海运"}
    assert (shown["status"], shown["source"]["compression"]) == ("finished", "gzip")
    sent = [call["job_data"] for call in calls if not call.get("dry_run")]
    assert sorted(sent, key=lambda row: row["编号"]) == [{"编号": "1", "名称": "海运"}, {"编号": "2", "名称": "空运"}]


def test_undecodable_row_is_refused_before_the_first_call() -> None:
    """It is too far on for the check of a new batch, and in another range than the first rows."""
    lines = [b"id,name", *(b"%d,ok" % number for number in range(500)), b"500,\xba\xa3\xd4\xcb"]
    with MotoCloud() as cloud, batch_world(cloud) as world:
        cloud.app.batches.rows.range_bytes = 1000
        file_id = world.store_file("rows.csv", b"\n".join(lines))
        body = {"biz_id": world.register(), "name": "rows", "rate": 200, "source": {"file_id": file_id}}
        shown = run_to_end(world, world.http("POST", "/v1/batches", body).json()["batch_id"])
        calls = world.business.calls()
    assert (shown["status"], calls) == ("stopped", [])
    assert "line 502, column 5 is not utf-8 text" in shown["stop_reason"]
