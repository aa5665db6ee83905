"""The batch state machine on moto: start, admission, slices, end, notice, and failed slices."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.batches.world import BatchWorld, batch_world
from tests.support.moto.cloud import MotoCloud
from tests.support.patience import idle_clock, until
from tests.support.template import ROOT
from tidegate.batches import Batches
from tidegate.batches import slice as batch_slice
from tidegate.batches.run_state import SKIP_ADVICE


@pytest.fixture
def world(running_cloud: MotoCloud) -> Iterator[BatchWorld]:
    with batch_world(running_cloud) as batches:
        yield batches


def test_batch_runs_to_its_end_and_sends_stop_callback(world: BatchWorld) -> None:
    batch_id = world.create(world.register("process_stop"), total=20, job_data={"campaign": 9})
    started = world.act(batch_id, "start")
    world.admit()
    shown = world.ended(batch_id)
    assert (shown["status"], shown["progress"]["processed"], shown["progress"]["percent"]) == ("finished", 20, 100.0)
    calls = world.business.calls()
    assert sorted(call["index"] for call in calls) == list(range(20))
    assert {"batch_id": batch_id, "index": 0, "attempt": 1, "job_data": {"campaign": 9}} in calls
    request = world.http("GET", f"/v1/requests/{started['request_id']}").json()
    assert (request["status"], request["result"]["status"]) == ("completed", "finished")
    world.cloud.deliver("CallbacksQueue")
    (notice,) = world.business.calls("/process-stop")
    assert (notice["type"], notice["data"]["batch_id"], notice["data"]["status"]) == (
        "batch.finished",
        batch_id,
        "finished",
    )
    assert notice["data"]["progress"]["processed"] == 20


def test_retry_of_failed_request_continues_where_batch_stopped(world: BatchWorld) -> None:
    broken = {7}
    world.business.answers["/process"] = lambda item: (200, {"result": "error" if item["index"] in broken else "ok"})
    batch_id = world.create(world.register(), total=30, retry_delay=0)
    started = world.act(batch_id, "start")
    world.admit()
    shown = world.ended(batch_id)
    assert (shown["status"], shown["stop_reason"]) == ("stopped", f"item 7 failed 5 times; {SKIP_ADVICE}")
    request = world.http("GET", f"/v1/requests/{started['request_id']}").json()
    assert (request["status"], request["error"]["code"]) == ("failed", "batch_stopped")
    broken.clear()
    assert world.http("POST", f"/v1/requests/{started['request_id']}/retry").status == 200
    world.admit()
    deadline = idle_clock() + 60
    while world.shown(batch_id)["status"] != "finished":
        assert idle_clock() < deadline
        time.sleep(0.1)
    counted = [call["index"] for call in world.business.calls()]
    assert sorted(set(counted)) == list(range(30))
    assert len(counted) == 30 + 5


def test_csv_rows_reach_the_business_and_are_counted(world: BatchWorld) -> None:
    content = "id,name\r\n" + "".join(f'{n},"line\n{n}"\r\n' for n in range(12))
    file_id = world.store_file("people.csv", content.encode())
    biz_id = world.register()
    body = {"biz_id": biz_id, "name": "rows", "rate": 200, "source": {"file_id": file_id}, "start_index": 2}
    created = world.http("POST", "/v1/batches", body)
    assert created.status == 201, created.body
    assert created.json()["source"]["signature"] == hashlib.sha256(content.encode()).hexdigest()
    batch_id = created.json()["batch_id"]
    world.act(batch_id, "start")
    world.admit()
    shown = world.ended(batch_id)
    assert (shown["status"], shown["total"]) == ("finished", 12)
    rows = {call["index"]: call["job_data"] for call in world.business.calls()}
    assert rows == {n: {"id": str(n), "name": f"line\n{n}"} for n in range(2, 12)}


def test_log_lines_are_exported_as_csv(world: BatchWorld) -> None:
    world.business.answers["/process"] = lambda item: (200, {"result": "ok", "logs": [f"did {item['index']}"]})
    batch_id = world.create(world.register(), total=3, rate=50)
    world.act(batch_id, "start")
    world.admit()
    world.ended(batch_id)
    task_id = world.act(batch_id, "logs/export")["task_id"]
    world.admit()
    deadline = idle_clock() + 60
    while world.http("GET", f"/v1/task?task_id={task_id}").json()["status"] != "completed":
        assert idle_clock() < deadline
        time.sleep(0.1)
    link = world.http("GET", f"/v1/download/url?task_id={task_id}").json()["url"]
    key = unquote(urlsplit(link).path).split("/", 2)[2]
    stored = world.cloud.client("s3").get_object(Bucket=world.cloud.app.settings.files_bucket, Key=key)
    rows = list(csv.DictReader(io.StringIO(stored["Body"].read().decode("utf-8-sig"))))
    assert sorted((row["index"], row["level"], row["message"]) for row in rows) == [
        (str(number), "info", f"did {number}") for number in range(3)
    ]


def test_unknown_file_or_format_is_refused(world: BatchWorld) -> None:
    file_id = world.store_file("people.txt", b"a\n1\n")
    biz_id = world.register()
    body: dict[str, Any] = {"biz_id": biz_id, "name": "rows", "rate": 2, "source": {"file_id": file_id}}
    assert world.http("POST", "/v1/batches", body).status == 422
    body["source"]["format"] = "csv"
    assert world.http("POST", "/v1/batches", body).status == 201
    body["source"] = {"file_id": "file-none"}
    assert world.http("POST", "/v1/batches", body).status == 404


def test_long_batch_continues_in_new_execution() -> None:
    with (
        MotoCloud(machines_run=True, BATCH_ROUNDS="2", BATCH_SLICE_SECONDS="1") as cloud,
        batch_world(cloud) as world,
    ):
        batch_id = world.create(world.register(), total=60, rate=15)
        started = world.act(batch_id, "start")
        world.admit()
        shown = world.ended(batch_id)
        machine = cloud.app.settings.batch_machine_arn
        executions = cloud.client("stepfunctions").list_executions(stateMachineArn=machine)["executions"]
    assert (shown["status"], shown["progress"]["processed"]) == ("finished", 60)
    names = {execution["name"] for execution in executions}
    request_id = started["request_id"]
    assert {f"{request_id}-1", f"{request_id}-1-2"} <= names
    assert sorted(call["index"] for call in world.business.calls()) == list(range(60))


def test_failed_slice_is_retried(world: BatchWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    step = batch_slice.step
    failures: list[Any] = []

    def die_once(b: Batches, event: Any) -> Any:
        if not failures:
            failures.append(event)
            raise RuntimeError("out of memory")
        return step(b, event)

    monkeypatch.setattr(batch_slice, "step", die_once)
    batch_id = world.create(world.register(), total=10)
    world.act(batch_id, "start")
    world.admit()
    assert world.ended(batch_id)["status"] == "finished"
    assert failures


def test_queue_retries_batch_after_machine_gave_up(world: BatchWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    step = batch_slice.step
    deaths: list[Any] = []

    def die_while_running(b: Batches, event: Any) -> Any:
        if "failure" not in event and len(deaths) < 6:
            deaths.append(event)
            raise RuntimeError("out of memory")
        return step(b, event)

    monkeypatch.setattr(batch_slice, "step", die_while_running)
    batch_id = world.create(world.register(), total=10)
    started = world.act(batch_id, "start")
    world.admit()
    deadline = idle_clock() + 60
    while world.shown(batch_id)["status"] != "finished":
        assert idle_clock() < deadline, world.shown(batch_id)
        world.cloud.clock.advance(31)
        world.cloud.deliver("WakeupsQueue")
        world.admit()
        time.sleep(0.2)
    request = world.http("GET", f"/v1/requests/{started['request_id']}").json()
    assert (request["attempts"], len(deaths)) == (2, 6)


def test_paused_request_pauses_its_batch_until_resume(world: BatchWorld) -> None:
    batch_id = world.create(world.register(), total=200, rate=50)
    started = world.act(batch_id, "start")
    world.admit()
    until(lambda: world.business.calls())
    assert world.http("POST", f"/v1/requests/{started['request_id']}/pause").status == 200

    def made_in_a_second() -> int:
        before = len(world.business.calls())
        time.sleep(1)
        return len(world.business.calls()) - before

    until(lambda: made_in_a_second() == 0)
    assert 0 < len(world.business.calls()) < 200
    assert world.http("POST", f"/v1/requests/{started['request_id']}/resume").status == 200
    world.admit()
    assert world.ended(batch_id)["status"] == "finished"
    counted = [call["index"] for call in world.business.calls()]
    assert sorted(counted) == list(range(200))


def test_machine_handles_every_outcome_of_the_function() -> None:
    definition = json.loads((ROOT / "statemachines/batch.asl.json").read_text())
    outcomes = {choice["StringEquals"] for choice in definition["States"]["WhatNext"]["Choices"]}
    assert outcomes == {"continue", "busy", "sleep", "split", "renew"}
    assert all("TimeoutSeconds" in state for state in definition["States"].values() if state["Type"] == "Task")


def test_batch_with_three_runners_ends_once_with_all_outcomes(world: BatchWorld) -> None:
    world.business.answers["/process"] = lambda item: (
        200,
        {"result": "abandon" if item["index"] in (1, 15, 29) else "ok"},
    )
    data = [{"sku": number} for number in range(30)]
    batch_id = world.create(world.register("process_stop"), total=30, rate=60, runners=3, job_data=data)
    world.act(batch_id, "start")
    world.admit()
    shown = world.ended(batch_id)
    progress = shown["progress"]
    assert (shown["status"], shown["runners"]) == ("finished", 3)
    assert (progress["processed"], progress["succeeded"], progress["abandoned"], progress["offset"]) == (30, 27, 3, 30)
    calls = world.business.calls()
    assert sorted((call["index"], call["job_data"]["sku"]) for call in calls) == [(n, n) for n in range(30)]
    listed = world.http("GET", f"/v1/batches/{batch_id}/items").json()["items"]
    assert [(item["index"], item["job_data"]) for item in listed] == [(n, {"sku": n}) for n in (1, 15, 29)]
    world.cloud.deliver("CallbacksQueue")
    assert len(world.business.calls("/process-stop")) == 1
    redriven = world.act(batch_id, "redrive", {"states": ["abandoned"]}, expect=201)
    assert (redriven["total"], redriven["runners"]) == (3, 3)
    world.business.answers.clear()
    world.act(redriven["batch_id"], "start")
    world.admit()
    assert world.ended(redriven["batch_id"])["status"] == "finished"
    assert sorted(call["index"] for call in world.business.calls()[30:]) == [1, 15, 29]


def test_concurrency_must_fit_the_number_of_runners(world: BatchWorld) -> None:
    biz_id = world.register()
    body = {"biz_id": biz_id, "name": "n", "total": 10, "rate": 10, "runners": 2}
    for concurrency in (1, 513):
        refused = world.http("POST", "/v1/batches", body | {"concurrency": concurrency})
        assert (refused.status, refused.json()["errors"][0]["loc"]) == (422, ["body", "concurrency"])
    assert world.http("POST", "/v1/batches", body | {"runners": 33}).status == 422


def test_dry_run_calls_first_items_and_counts_nothing(world: BatchWorld) -> None:
    file_id = world.store_file("people.csv", b"id\n1\n2\n3\n")
    world.business.answers["/process"] = lambda item: (
        (200, {"result": "abandon", "msg": "gone"}) if item["index"] == 1 else (500, {})
    )
    body = {"biz_id": world.register(), "name": "rows", "rate": 5, "source": {"file_id": file_id}, "start_index": 1}
    batch_id = world.http("POST", "/v1/batches", body).json()["batch_id"]
    tried = world.act(batch_id, "dry-run", {"items": 10}, expect=200)["items"]
    assert [(item["index"], item["job_data"], item["answer"]["result"]) for item in tried] == [
        (1, {"id": "2"}, "abandon"),
        (2, {"id": "3"}, "error"),
    ]
    assert [(call["index"], call["dry_run"]) for call in world.business.calls()] == [(1, True), (2, True)]
    shown = world.shown(batch_id)
    assert (shown["status"], shown["progress"]["processed"], shown["progress"]["failed_calls"]) == ("created", 1, 0)
    assert world.http("GET", f"/v1/batches/{batch_id}/logs").json()["items"] == []
    assert world.http("POST", f"/v1/batches/{batch_id}/dry-run", {"items": 11}).status == 422


def test_batches_with_same_concurrency_key_run_one_after_another(world: BatchWorld) -> None:
    gate = threading.Event()

    def answer(_: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        assert gate.wait(20)
        return 200, {"result": "ok"}

    world.business.answers["/process"] = answer
    biz_id = world.register()
    one, two, other = (
        world.create(biz_id, total=20, rate=20, **more)
        for more in ({"concurrency_key": "stock"}, {"concurrency_key": "stock"}, {"concurrency_key": "prices"})
    )
    for batch_id in (one, two, other):
        world.act(batch_id, "start")
    world.admit()
    # Both were started in the same millisecond, so either may run first.
    first, second = sorted((one, two), key=lambda batch_id: world.shown(batch_id)["last_wait_reason"] == "mutex")
    assert [world.shown(batch_id)["last_wait_reason"] for batch_id in (first, second)] == [None, "mutex"]
    assert "last_wait_reason" not in {k for k, v in world.shown(other).items() if v is not None}
    gate.set()
    world.ended(first)
    world.ended(other)
    assert world.shown(second)["status"] == "running"
    world.admit()
    assert world.ended(second)["status"] == "finished"


def test_large_file_is_indexed_by_separate_functions(world: BatchWorld) -> None:
    """The file has more ranges than the runners index themselves."""
    world.cloud.app.batches.rows.range_bytes = 64
    content = "id,name\n" + "".join(f'{n},"line\n{n}"\n' for n in range(120))
    file_id = world.store_file("people.csv", content.encode())
    body = {"biz_id": world.register(), "name": "rows", "rate": 300, "source": {"file_id": file_id}, "runners": 2}
    batch_id = world.http("POST", "/v1/batches", body).json()["batch_id"]
    world.act(batch_id, "start")
    world.admit()
    shown = world.ended(batch_id)
    assert (shown["status"], shown["total"], shown["progress"]["succeeded"]) == ("finished", 120, 120)
    rows = {call["index"]: call["job_data"] for call in world.business.calls()}
    assert rows == {n: {"id": str(n), "name": f"line\n{n}"} for n in range(120)}
    assert len(world.business.calls()) == 120
    machine = world.cloud.app.settings.batch_machine_arn
    listed = world.cloud.client("stepfunctions").list_executions(stateMachineArn=machine)["executions"]
    names = [execution["name"] for execution in listed]
    request = shown["request_id"]
    assert {name.removeprefix(f"{request}-1") for name in names if name.startswith(request)} == {"", "-r1-1", "-i0-1"}


def test_unreadable_row_stops_batch_with_reason(world: BatchWorld) -> None:
    world.cloud.app.batches.rows.range_bytes = 250_000
    content = "id\n" + f"{'9' * 4999}\n" * 60 + '"' + "x" * 1_100_000
    file_id = world.store_file("people.csv", content.encode())
    body = {"biz_id": world.register(), "name": "rows", "rate": 300, "source": {"file_id": file_id}}
    batch_id = world.http("POST", "/v1/batches", body).json()["batch_id"]
    world.act(batch_id, "start")
    world.admit()
    shown = world.ended(batch_id)
    assert shown["status"] == "stopped"
    assert "is a closing quote missing?" in shown["stop_reason"]
    # A file of this size is read whole before its first row is sent.
    assert world.business.calls() == []
