from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from tests.support.batches.world import BatchWorld, batch_world
from tests.support.moto.cloud import MotoCloud
from tidegate.aws import keys
from tidegate.aws.clients import execution_arn
from tidegate.aws.table import update
from tidegate.batches import batches
from tidegate.batches.model import STOPPED, Counts, Rules, Verdict, WindowState
from tidegate.batches.run_state import RunState
from tidegate.errors import Invalid
from tidegate.queue.control import recover_request


@pytest.fixture
def world(cloud: MotoCloud) -> Iterator[BatchWorld]:
    with batch_world(cloud) as made:
        yield made


def test_business_is_registered_replaced_and_listed_without_auth_code(world: BatchWorld) -> None:
    biz_id = world.register("before_run", auth_code="open sesame")
    body = {"name": "other", "process_url": world.business.url("/process")}
    replaced = world.http("PUT", f"/v1/biz/{biz_id}", body)
    assert replaced.status == 200
    listed = world.http("GET", "/v1/biz").json()["items"]
    assert [(item["biz_id"], item["name"], item["has_auth_code"]) for item in listed] == [(biz_id, "other", False)]
    assert listed[0].get("before_run_url") is None
    assert "sesame" not in str(listed)
    assert world.http("PUT", "/v1/biz/biz-none", body).status == 404


def test_private_address_is_refused_unless_project_allows_it(cloud: MotoCloud) -> None:
    closed = cloud.project(allow_private_urls=False)
    body = {"name": "x", "process_url": "https://8.8.8.8/p", "before_run_url": "http://169.254.169.254/"}
    refused = cloud.http("POST", "/v1/biz", json=body, key=closed.key)
    assert (refused.status, refused.json()["code"]) == (422, "url_not_allowed")
    assert refused.json()["errors"][0]["loc"] == ["body", "before_run_url"]


def test_batch_is_created_shown_and_listed(world: BatchWorld) -> None:
    biz_id = world.register()
    batch_id = world.create(biz_id, max_errors=3)
    shown = world.shown(batch_id)
    assert (shown["status"], shown["total"], shown["retries"], shown["retry_delay"]) == ("created", 5, 5, 3)
    figures = ("processed", "errors", "succeeded", "failed", "abandoned", "failed_calls", "retrying", "awaiting")
    progress = {"total": 5, "percent": 0.0, "rate_now": 0.0, "offset": 0, "eta": None} | dict.fromkeys(figures, 0)
    assert shown["progress"] == progress
    record = world.cloud.app.notifications.records.find(world.project.id, batch_id)
    assert record is not None
    assert record["status"] == "created"
    world.cloud.clock.advance(1)
    other = world.create(biz_id)
    listed = world.http("GET", "/v1/batches").json()["items"]
    assert [item["batch_id"] for item in listed] == [other, batch_id]
    assert world.http("GET", "/v1/batches?status=running").json()["items"] == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"total": None}, "total"),
        ({"rate": 0}, "rate"),
        ({"rate": 1.4e-287}, "rate"),
        ({"rate": 100_001}, "rate"),
        ({"start_index": 6}, "start_index"),
        ({"job_data": [1, 2]}, "total"),
        ({"job_data": "x" * 300_001}, "job_data"),
        ({"retries": 0}, "retries"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_invalid_field_is_refused_and_named(world: BatchWorld, changes: dict[str, object], field: str) -> None:
    body = {"biz_id": world.register(), "name": "n", "total": 5, "rate": 10} | changes
    refused = world.http("POST", "/v1/batches", {name: value for name, value in body.items() if value is not None})
    assert refused.status == 422
    assert any(field in error["loc"] for error in refused.json()["errors"])


def test_business_and_batch_of_other_project_are_not_found(world: BatchWorld) -> None:
    biz_id = world.register()
    batch_id = world.create(biz_id)
    stranger = world.cloud.project()
    body = {"biz_id": biz_id, "name": "n", "total": 1, "rate": 1}
    assert world.cloud.http("POST", "/v1/batches", json=body, key=stranger.key).status == 404
    for method, path in (("GET", ""), ("POST", "/start"), ("POST", "/stop"), ("GET", "/logs")):
        assert world.cloud.http(method, f"/v1/batches/{batch_id}{path}", key=stranger.key).status == 404


def test_business_may_refuse_a_new_batch(world: BatchWorld) -> None:
    world.business.answers["/before-create"] = lambda _: (200, {"result": "error", "msg": "no such campaign"})
    body = {"biz_id": world.register("before_create"), "name": "n", "total": 7, "rate": 2, "job_data": {"c": 9}}
    refused = world.http("POST", "/v1/batches", body)
    assert (refused.status, refused.json()["code"], refused.json()["detail"]) == (
        422,
        "business_refused",
        "no such campaign",
    )
    asked = world.business.calls("/before-create")[0]
    assert (asked["total"], asked["rate"], asked["job_data"]) == (7, 2, {"c": 9})
    assert world.http("GET", "/v1/batches").json()["items"] == []
    world.business.answers.clear()
    assert world.http("POST", "/v1/batches", body).status == 201


def test_action_in_wrong_state_is_409(world: BatchWorld) -> None:
    batch_id = world.create(world.register())
    for action in ("stop", "biz-start", "biz-stop"):
        world.act(batch_id, action, {} if "biz" in action else None, expect=409)
    world.act(batch_id, "start")
    refused = world.http("POST", f"/v1/batches/{batch_id}/start")
    assert (refused.status, refused.json()["code"]) == (409, "wrong_state")
    world.act(batch_id, "biz-start", {}, expect=409)
    world.act(batch_id, "data", {"job_data": 1}, expect=409)
    world.admit()
    assert world.act(batch_id, "stop")["status"] == "stopping"
    assert world.act(batch_id, "stop")["status"] == "stopping"


def test_running_batch_accepts_new_rate_and_max_errors(world: BatchWorld) -> None:
    batch_id = world.create(world.register(), max_errors=3)
    world.act(batch_id, "start")
    changed = world.http("PATCH", f"/v1/batches/{batch_id}", {"rate": 7, "max_errors": None})
    assert (changed.status, changed.json()["rate"], changed.json().get("max_errors")) == (202, 7, None)
    assert world.http("PATCH", f"/v1/batches/{batch_id}", {"job_data": {"a": 1}}).status == 409


def test_options_of_a_running_batch_can_be_changed_within_their_limits(world: BatchWorld) -> None:
    batch_id = world.create(world.register(), rate=50)
    world.act(batch_id, "start")
    wanted = {"concurrency": 7, "retries": 2, "retry_delay": 9, "item_timeout": 90}
    backoff = {"base": 2, "factor": 3, "max": 60, "jitter": 0.5}
    changed = world.http("PATCH", f"/v1/batches/{batch_id}", wanted | {"backoff": backoff})
    assert (changed.status, changed.json() | wanted) == (202, changed.json())
    assert world.shown(batch_id)["backoff"] == backoff
    fewer = world.http("PATCH", f"/v1/batches/{batch_id}", {"concurrency": None, "backoff": None}).json()
    assert (fewer.get("concurrency"), fewer.get("backoff"), fewer["retries"]) == (None, None, 2)
    for refused in ({"item_timeout": 700}, {"concurrency": 300}, {"retries": 0}, {"backoff": {"factor": 2}}):
        assert world.http("PATCH", f"/v1/batches/{batch_id}", refused).status == 422, refused


def test_start_above_capacity_is_shown_as_queued(world: BatchWorld) -> None:
    world.cloud.app.queue.channels.set_capacities({"batch": 1})
    biz_id = world.register()
    first, second = world.create(biz_id), world.create(biz_id)
    world.act(first, "start")
    world.cloud.clock.advance(1)
    world.act(second, "start")
    world.admit()
    assert world.shown(first)["queue_status"] == "running"
    waiting = world.shown(second)
    assert (waiting["status"], waiting["queue_status"], waiting["last_wait_reason"]) == (
        "running",
        "queued",
        "capacity",
    )
    stopped = world.act(second, "stop")
    assert (stopped["status"], stopped["stop_reason"]) == ("stopped", "stopped on request")
    world.act(second, "start")


def test_channels_share_batches_evenly() -> None:
    with MotoCloud(BATCH_CHANNELS="batch,batch_b") as two, batch_world(two) as world:
        two.app.queue.channels.set_capacities({"batch": 5, "batch_b": 5})
        biz_id = world.register()
        chosen = [world.act(world.create(biz_id), "start")["channel"] for _ in range(4)]
    assert sorted(chosen) == ["batch", "batch", "batch_b", "batch_b"]


def test_cancelled_request_stops_its_batch(world: BatchWorld) -> None:
    batch_id = world.create(world.register("process_stop"))
    started = world.act(batch_id, "start")
    world.admit()
    assert world.http("POST", f"/v1/requests/{started['request_id']}/cancel").status == 200
    shown = world.shown(batch_id)
    assert (shown["status"], shown["stop_reason"]) == ("stopped", "its request was cancelled")
    assert world.act(batch_id, "start")["status"] == "running"


def test_retried_batch_shows_no_end_of_its_last_run(world: BatchWorld) -> None:
    world.business.answers["/process"] = lambda _: (200, {"result": "error", "msg": "no stock"})
    batch_id = world.create(world.register(), rate=0.001, retries=1)
    started = world.act(batch_id, "start")
    world.admit()
    while world.step(started["request_id"])["outcome"] == "continue":
        pass
    stopped = world.shown(batch_id)
    assert (stopped["status"], "no stock" in stopped["stop_reason"]) == ("stopped", True)
    assert stopped["finish_time"]
    world.business.answers.clear()
    assert world.http("POST", f"/v1/requests/{started['request_id']}/retry").status == 200
    world.admit()
    while (stepped := world.step(started["request_id"]))["outcome"] == "continue":
        pass
    shown = world.shown(batch_id)
    assert (stepped["outcome"], shown["status"]) == ("sleep", "running")
    assert (shown.get("stop_reason"), shown.get("finish_time")) == (None, None)


def test_function_that_stalled_does_not_restart_a_stopped_batch(
    world: BatchWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It read the request while that was running, and the batch after another function had stopped it."""
    world.business.answers["/process"] = lambda _: (200, {"result": "error", "msg": "no stock"})
    batch_id = world.create(world.register(), rate=100, retries=1)
    started = world.act(batch_id, "start")
    world.admit()
    queue = world.cloud.app.queue
    read_before = queue.running(world.project.id, started["request_id"], 1)
    while world.step(started["request_id"])["outcome"] == "continue":
        pass
    assert world.shown(batch_id)["status"] == "stopped"
    calls = len(world.business.calls())
    monkeypatch.setattr(queue, "running", lambda **_: read_before)

    assert world.step(started["request_id"])["outcome"] == "ended"

    assert world.shown(batch_id)["status"] == "stopped"
    assert len(world.business.calls()) == calls


def test_retried_batch_is_not_ended_by_a_verdict_of_its_last_run(world: BatchWorld) -> None:
    batch_id = world.create(world.register(), rate=100, runners=2)
    started = world.act(batch_id, "start")
    world.admit()
    runs = world.cloud.app.batches.store
    batch = batches.get(world.cloud.app.batches, world.project.id, batch_id)
    fence, progress = runs.acquire(batch, 1.0, 0.0, 1) or (0, None)
    assert progress
    runs.save(batch, fence, replace(progress, verdict=Verdict(STOPPED, "item 3 failed", failed=True)), 0, 1)
    queue = world.cloud.app.queue
    queue.finish(world.project.id, started["request_id"], 1, error=Invalid("its other runner was lost for good"))
    assert world.shown(batch_id)["status"] == "stopped"
    assert world.http("POST", f"/v1/requests/{started['request_id']}/retry").status == 200
    world.admit()
    assert world.step(started["request_id"])["outcome"] == "split"
    assert [record.progress.verdict for record in runs.runners(batch)] == [None, None]


def test_pause_windows_are_shown_changed_and_checked(world: BatchWorld) -> None:
    night = [{"start": "22:00", "end": "06:30"}]
    batch_id = world.create(world.register(), pause_windows=night)
    assert world.shown(batch_id)["pause_windows"] == night
    changed = world.http("PATCH", f"/v1/batches/{batch_id}", {"pause_windows": []})
    assert (changed.status, changed.json().get("pause_windows")) == (202, None)
    body = {"biz_id": world.register(), "name": "n", "total": 1, "rate": 1}
    refused = world.http("POST", "/v1/batches", body | {"pause_windows": [{"start": "25:00", "end": "06:00"}]})
    assert refused.status == 422


def test_sleeping_batch_is_stopped_at_once(world: BatchWorld) -> None:
    # The next call is so far away that a slow machine cannot come near it.
    batch_id = world.create(world.register(), total=5, rate=0.001)
    started = world.act(batch_id, "start")
    world.admit()
    while (stepped := world.step(started["request_id"]))["outcome"] == "continue":
        pass
    assert (stepped["outcome"], stepped["seconds"]) == ("sleep", 60)
    stopped = world.act(batch_id, "stop")
    assert (stopped["status"], stopped["stop_reason"]) == ("stopped", "stopped on request")
    assert stopped["progress"]["processed"] == 1


@pytest.mark.parametrize("every", [{"progress_every_percent": 20}, {"progress_every_items": 20}])
def test_progress_webhook_is_sent_once_per_milestone_across_slices(every: dict[str, int]) -> None:
    with MotoCloud(BATCH_SLICE_SECONDS="1") as cloud, batch_world(cloud) as world:
        webhook = {"progress_url": world.business.url("/progress")} | every
        batch_id = world.create(world.register(), total=100, rate=30, **webhook)
        started = world.act(batch_id, "start")
        world.admit()
        while world.step(started["request_id"])["outcome"] == "continue":
            pass
        cloud.deliver("CallbacksQueue")
        notices = world.business.calls("/progress")
    assert {notice["type"] for notice in notices} == {"batch.progress"}
    done = sorted(notice["data"]["progress"]["processed"] for notice in notices)
    assert len({count // 20 for count in done}) == len(done) >= 2
    assert max(done) < 100


def test_progress_url_without_interval_is_refused(world: BatchWorld) -> None:
    body = {"biz_id": world.register(), "name": "n", "total": 1, "rate": 1, "progress_url": world.business.url("/p")}
    assert world.http("POST", "/v1/batches", body).status == 422
    assert world.http("POST", "/v1/batches", body | {"progress_every_items": 5}).status == 201


def recorded(method: Callable[..., Any], name: str, calls: list[str]) -> Callable[..., Any]:
    def call(**arguments: Any) -> Any:
        calls.append(name)
        return method(**arguments)

    return call


def test_list_of_running_batches_needs_three_reads(world: BatchWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    biz_id = world.register()
    for _ in range(6):
        world.act(world.create(biz_id), "start")
    client, reads = world.cloud.app.dynamodb, list[str]()
    for name in ("get_item", "query", "batch_get_item"):
        monkeypatch.setattr(client, name, recorded(getattr(client, name), name, reads))
    page = batches.list_batches(world.cloud.app.batches, world.project.id, None, 20, None)
    assert [item["queue_status"] for item in page.items] == ["queued"] * 6
    # The list, its records consistently, and where they wait.
    assert reads == ["query", "batch_get_item", "batch_get_item"]


def test_start_repeated_by_sdk_after_lost_answer_starts_once(
    world: BatchWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id = world.create(world.register())
    table = world.cloud.app.table
    transact = table.transact

    def twice(writes: Any, *args: Any, **kwargs: Any) -> None:
        transact(writes, *args, **kwargs)
        transact(writes, *args, **kwargs)

    waiting_id = world.create(world.register("before_run"))
    with monkeypatch.context() as lossy:
        lossy.setattr(table, "transact", twice)
        started = world.act(batch_id, "start")
        waiting = world.act(waiting_id, "start")
    assert (started["status"], started["queue_status"]) == ("running", "queued")
    assert waiting["status"] == "waiting_biz"


def test_start_with_same_idempotency_key_starts_once(world: BatchWorld) -> None:
    batch_id = world.create(world.register())
    path, key = f"/v1/batches/{batch_id}/start", {"Idempotency-Key": "start-1"}
    assert [world.http("POST", path, headers=key).status for _ in range(2)] == [202, 202]


def test_log_export_has_newest_lines_and_mentions_others(world: BatchWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    batch_id = world.create(world.register())
    for number in range(4):
        world.act(batch_id, "logs", {"items": [{"message": f"m{number}"}]}, expect=201)
        world.cloud.clock.advance(1)
    monkeypatch.setattr("tidegate.batches.batches.MOST_LOGS_EXPORTED", 2)
    rows = batches.log_rows(world.cloud.app.batches, world.project.id, batch_id)
    assert [row["message"] for row in rows][1:] == ["m2", "m3"]
    assert (rows[0]["level"], rows[0]["message"]) == (
        "warning",
        "older lines are left out: an export holds the newest 2",
    )


def test_status_and_stop_follow_the_successor_execution() -> None:
    with MotoCloud(BATCH_ROUNDS="1", BATCH_SLICE_SECONDS="1") as cloud, batch_world(cloud) as world:
        started = world.act(world.create(world.register(), total=500, rate=10), "start")
        world.admit()
        stepped = world.step(started["request_id"])
        assert stepped["outcome"] == "renew"
        request = cloud.app.queue.get(world.project.id, started["request_id"])
        machine, successor = cloud.app.settings.batch_machine_arn, stepped["successor"]
        first = execution_arn(machine, f"{request.request_id}-1")
        ended = {"status": "SUCCEEDED", "output": json.dumps(stepped)}
        executions = {first: ended, execution_arn(machine, successor["name"]): {"status": "RUNNING"}}
        stopped: list[str] = []
        machines = cloud.app.queue.runner._machines

        class Client:
            exceptions = machines._client.exceptions

            def describe_execution(self, executionArn: str) -> dict[str, Any]:
                if executionArn not in executions:
                    raise self.exceptions.ExecutionDoesNotExist({"Error": {}}, "DescribeExecution")
                return executions[executionArn]

            def stop_execution(self, executionArn: str, cause: str) -> None:
                stopped.append(executionArn)

        machines._client = cast(Any, Client())
        assert cloud.app.queue.runner.status(request) == "RUNNING"
        cloud.clock.advance(120)
        recover_request(cloud.app.queue, world.project.id, request.request_id)
        assert cloud.app.queue.get(world.project.id, request.request_id).attempt == 1
        cloud.app.queue.runner.stop(request, "cancel")
    assert stopped == [execution_arn(machine, successor["name"])]


def test_note_is_set_at_creation_changed_and_removed_even_at_the_end(world: BatchWorld) -> None:
    batch_id = world.create(world.register(), note="ticket 17")
    assert world.shown(batch_id)["note"] == "ticket 17"
    table, key = world.cloud.app.table, keys.batch(world.project.id, batch_id)
    table.write(update(key, {"status": "finished"}))
    assert world.http("PATCH", f"/v1/batches/{batch_id}", {"note": "done: 完成"}).status == 202
    assert world.shown(batch_id)["note"] == "done: 完成"
    lines = world.http("GET", f"/v1/audit?record={batch_id}").json()["items"]
    assert [line["why"] for line in lines if line["action"] == "batch.change"] == ["note done: 完成"]
    assert world.http("PATCH", f"/v1/batches/{batch_id}", {"note": None}).status == 202
    assert world.shown(batch_id).get("note") is None
    assert world.http("PATCH", f"/v1/batches/{batch_id}", {"note": "x", "rate": 2}).status == 409
    refused = world.http("PATCH", f"/v1/batches/{batch_id}", {"note": "x" * 501})
    assert (refused.status, refused.json()["errors"][0]["loc"]) == (422, ["body", "note"])


def test_fields_of_the_source_are_refused_outside_of_it(world: BatchWorld) -> None:
    body = {"biz_id": world.register(), "name": "x", "rate": 1, "total": 1}
    for field in ("file_id", "format", "encoding", "delimiter", "compression"):
        refused = world.http("POST", "/v1/batches", body | {field: "gzip"})
        assert (refused.status, refused.json()["errors"][0]["loc"]) == (422, ["body", field])


def test_lines_of_one_call_are_listed_in_their_order(world: BatchWorld) -> None:
    batch_id = world.create(world.register())
    lines = [f"line {number}" for number in range(20)]
    world.act(batch_id, "logs", {"items": [{"message": line} for line in lines]}, expect=201)
    newest_first = [
        line["message"] for line in world.http("GET", f"/v1/batches/{batch_id}/logs?limit=50").json()["items"]
    ]
    assert newest_first == lines[::-1]


def test_start_is_refused_while_more_items_failed_than_max_errors(world: BatchWorld) -> None:
    world.business.answers["/process"] = lambda _: (200, {"result": "abandon"})
    batch_id = world.create(world.register(), total=50, rate=100, max_errors=2)
    started = world.act(batch_id, "start")
    world.admit()
    while world.step(started["request_id"])["outcome"] == "continue":
        pass
    assert world.shown(batch_id)["status"] == "stopped"
    calls = len(world.business.calls())
    refused = world.http("POST", f"/v1/batches/{batch_id}/start", {})
    assert refused.status == 409
    assert "raise or remove that limit (PATCH), then start the batch again" in refused.json()["detail"]
    assert len(world.business.calls()) == calls
    assert world.http("PATCH", f"/v1/batches/{batch_id}", {"max_errors": None}).status == 202
    world.act(batch_id, "start")


def test_limit_that_is_lowered_below_the_errors_stops_a_running_batch() -> None:
    state = RunState(9, Rules(rate=1), WindowState(3), 0.0, Counts(abandoned=3))
    assert not state.over
    state.change_rules(Rules(rate=1, max_errors=2), 1.0)
    assert isinstance(state.verdict, Verdict)
    assert state.verdict.failed
    assert RunState(9, Rules(rate=1, max_failed=2), WindowState(3), 0.0, Counts(abandoned=3)).over
