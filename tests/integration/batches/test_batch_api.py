from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.batch_world import BatchWorld, batch_world
from tests.support.moto_cloud import MotoCloud


@pytest.fixture
def world(cloud: MotoCloud) -> Iterator[BatchWorld]:
    with batch_world(cloud) as made:
        yield made


def test_a_business_is_registered_replaced_and_listed_without_its_code(world: BatchWorld) -> None:
    biz_id = world.register("before_run", auth_code="open sesame")
    body = {"name": "other", "process_url": world.business.url("/process")}
    replaced = world.http("PUT", f"/v1/biz/{biz_id}", body)
    assert replaced.status == 200
    listed = world.http("GET", "/v1/biz").json()["items"]
    assert [(item["biz_id"], item["name"], item["has_auth_code"]) for item in listed] == [(biz_id, "other", False)]
    assert listed[0].get("before_run_url") is None
    assert "sesame" not in str(listed)
    assert world.http("PUT", "/v1/biz/biz-none", body).status == 404


def test_private_addresses_are_refused_where_the_project_does_not_allow_them(cloud: MotoCloud) -> None:
    closed = cloud.project(allow_private_urls=False)
    body = {"name": "x", "process_url": "https://8.8.8.8/p", "before_run_url": "http://169.254.169.254/"}
    refused = cloud.http("POST", "/v1/biz", json=body, key=closed.key)
    assert (refused.status, refused.json()["code"]) == (422, "url_not_allowed")
    assert refused.json()["errors"][0]["loc"] == ["body", "before_run_url"]


def test_a_batch_is_created_shown_and_listed(world: BatchWorld) -> None:
    biz_id = world.register()
    batch_id = world.create(biz_id, max_errors=3)
    shown = world.shown(batch_id)
    assert (shown["status"], shown["total"], shown["retries"], shown["retry_delay"]) == ("created", 5, 5, 3)
    figures = ("processed", "errors", "succeeded", "failed", "abandoned", "failed_calls", "retrying", "awaiting")
    progress = {"total": 5, "percent": 0.0, "rate_now": 0.0, "offset": 0} | dict.fromkeys(figures, 0)
    assert shown["progress"] == progress
    watched = world.cloud.app.notifications.records.find(world.project.id, batch_id)
    assert watched is not None
    assert watched["status"] == "created"
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
        ({"rate": 10_001}, "rate"),
        ({"start_index": 6}, "start_index"),
        ({"job_data": [1, 2]}, "total"),
        ({"job_data": "x" * 300_001}, "job_data"),
        ({"retries": 0}, "retries"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_what_cannot_run_is_refused_and_named(world: BatchWorld, changes: dict[str, object], field: str) -> None:
    body = {"biz_id": world.register(), "name": "n", "total": 5, "rate": 10} | changes
    refused = world.http("POST", "/v1/batches", {name: value for name, value in body.items() if value is not None})
    assert refused.status == 422
    assert any(field in error["loc"] for error in refused.json()["errors"])


def test_another_projects_business_and_batch_are_not_there(world: BatchWorld) -> None:
    biz_id = world.register()
    batch_id = world.create(biz_id)
    stranger = world.cloud.project()
    body = {"biz_id": biz_id, "name": "n", "total": 1, "rate": 1}
    assert world.cloud.http("POST", "/v1/batches", json=body, key=stranger.key).status == 404
    for method, path in (("GET", ""), ("POST", "/start"), ("POST", "/stop"), ("GET", "/logs")):
        assert world.cloud.http(method, f"/v1/batches/{batch_id}{path}", key=stranger.key).status == 404


def test_the_business_may_refuse_a_batch_before_it_is_made(world: BatchWorld) -> None:
    world.business.answers["/before-create"] = lambda said: (200, {"result": "error", "msg": "no such campaign"})
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


def test_wrong_states_are_409(world: BatchWorld) -> None:
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


def test_rate_and_max_errors_may_change_while_it_runs(world: BatchWorld) -> None:
    batch_id = world.create(world.register(), max_errors=3)
    world.act(batch_id, "start")
    changed = world.http("PATCH", f"/v1/batches/{batch_id}", {"rate": 7, "max_errors": None})
    assert (changed.status, changed.json()["rate"], changed.json().get("max_errors")) == (202, 7, None)
    assert world.http("PATCH", f"/v1/batches/{batch_id}", {"job_data": {"a": 1}}).status == 409


def test_a_start_above_the_cap_is_queued_and_says_so(world: BatchWorld) -> None:
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


def test_several_runner_channels_share_the_batches_evenly() -> None:
    with MotoCloud(BATCH_CHANNELS="batch,batch_b") as two, batch_world(two) as world:
        two.app.queue.channels.set_capacities({"batch": 5, "batch_b": 5})
        biz_id = world.register()
        chosen = [world.act(world.create(biz_id), "start")["channel"] for _ in range(4)]
    assert sorted(chosen) == ["batch", "batch", "batch_b", "batch_b"]


def test_cancelling_the_request_stops_the_batch_in_the_same_write(world: BatchWorld) -> None:
    batch_id = world.create(world.register("process_stop"))
    started = world.act(batch_id, "start")
    world.admit()
    assert world.http("POST", f"/v1/requests/{started['request_id']}/cancel").status == 200
    shown = world.shown(batch_id)
    assert (shown["status"], shown["stop_reason"]) == ("stopped", "its request was cancelled")
    assert world.act(batch_id, "start")["status"] == "running"
