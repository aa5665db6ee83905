"""Deleting batches and businesses: what is deleted with them, when it is refused, and the end of retention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.support.batches.world import BatchWorld, batch_world
from tests.support.moto.cloud import MotoCloud
from tidegate.aws import keys
from tidegate.aws.table import update
from tidegate.batches import batches
from tidegate.batches.model import NewBatch
from tidegate.errors import RecordNotFound
from tidegate.queue.retention import sweep

DAY = 86400


@pytest.fixture
def world(cloud: MotoCloud) -> Iterator[BatchWorld]:
    with batch_world(cloud) as made:
        yield made


def used(world: BatchWorld, name: str) -> int:
    return int(world.cloud.app.queue.project_usage(world.project.id)[name])


def stopped(world: BatchWorld, biz_id: str, **more: Any) -> str:
    """A batch that was started and has ended, with an object, a log line and a result."""
    batch_id = world.create(biz_id, **more)
    world.act(batch_id, "start")
    world.act(batch_id, "stop")
    assert world.shown(batch_id)["status"] == "stopped"
    b = world.cloud.app.batches
    b.bucket.put(f"batches/{world.project.id}/{batch_id}/outcomes/1.jsonl", b"{}")
    world.http("POST", f"/v1/batches/{batch_id}/logs", {"items": [{"message": "hello", "index": 1}]})
    b.table.write(update(keys.batch_result(world.project.id, batch_id, 1), {"index": 1, "text": "{}"}, condition=""))
    return batch_id


def left(world: BatchWorld, batch_id: str) -> list[str]:
    """What the table and the bucket still have of the batch, except its request and the audit lines."""
    table, found = world.cloud.client("dynamodb"), []
    for page in table.get_paginator("scan").paginate(TableName=world.cloud.app.table.name):
        for item in page["Items"]:
            pk = item["pk"]["S"]
            if batch_id in pk and "AUDIT" not in pk:
                found.append(f"{pk} {item['sk']['S']}")
    return found + list(world.cloud.app.batches.objects.keys(f"batches/{world.project.id}/{batch_id}/"))


def delete(world: BatchWorld, path: str) -> Any:
    return world.http("DELETE", path)


def tick(world: BatchWorld, days: float = 0.01) -> None:
    world.cloud.clock.advance(days * DAY)
    world.cloud.app.compensation.trigger()
    world.cloud.deliver("CompensationQueue")


def test_deleted_batch_leaves_no_record_and_no_object(world: BatchWorld) -> None:
    biz_id = world.register()
    batch_id, other = stopped(world, biz_id, runners=3), stopped(world, biz_id)

    assert delete(world, f"/v1/batches/{batch_id}").status == 204

    assert left(world, batch_id) == []
    assert len(left(world, other)) == 6
    assert world.http("GET", f"/v1/batches/{batch_id}").status == 404
    assert delete(world, f"/v1/batches/{batch_id}").status == 404
    assert [item["batch_id"] for item in world.http("GET", "/v1/batches").json()["items"]] == [other]
    assert used(world, "batches") == 1
    lines = world.http("GET", "/v1/audit").json()["items"]
    assert any(line["action"] == "batch.delete" and batch_id in line.values() for line in lines)


def test_unstarted_batch_is_deleted_and_makes_room(world: BatchWorld) -> None:
    batch_id = world.create(world.register())
    assert (used(world, "batches"), used(world, "unstarted_batches")) == (1, 1)

    assert delete(world, f"/v1/batches/{batch_id}").status == 204

    assert (used(world, "batches"), used(world, "unstarted_batches")) == (0, 0)
    assert left(world, batch_id) == []


@pytest.mark.parametrize("hooks", [(), ("before_run",)])
def test_batch_that_runs_or_waits_is_not_deleted(world: BatchWorld, hooks: tuple[str, ...]) -> None:
    batch_id = world.create(world.register(*hooks))
    world.act(batch_id, "start")

    refused = delete(world, f"/v1/batches/{batch_id}")

    assert (refused.status, refused.json()["code"]) == (409, "wrong_state")
    assert world.shown(batch_id)["status"] in ("running", "waiting_biz")


def test_batch_started_meanwhile_is_not_deleted(world: BatchWorld) -> None:
    batch_id = world.create(world.register())
    b = world.cloud.app.batches
    seen = batches.get(b, world.project.id, batch_id)
    world.act(batch_id, "start")

    assert not batches._delete(b, seen, "key", "batch.delete", "")

    assert world.shown(batch_id)["status"] == "running"
    assert (used(world, "batches"), used(world, "unstarted_batches")) == (1, 0)


def test_batch_of_another_project_is_not_found(world: BatchWorld) -> None:
    biz_id = world.register()
    batch_id, stranger = stopped(world, biz_id), world.cloud.project()
    for path in (f"/v1/batches/{batch_id}", f"/v1/biz/{biz_id}"):
        assert world.cloud.http("DELETE", path, key=stranger.key).status == 404
    assert world.shown(batch_id)["status"] == "stopped"


def test_rest_of_a_deleted_batch_goes_after_a_crash(world: BatchWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The function died after the record was deleted, and before the objects were."""
    batch_id = stopped(world, world.register())
    with monkeypatch.context() as patched:
        patched.setattr(batches, "finish_delete", lambda *_: True)
        assert delete(world, f"/v1/batches/{batch_id}").status == 204
    assert len(left(world, batch_id)) == 4
    assert world.http("GET", f"/v1/batches/{batch_id}").status == 404

    tick(world)

    assert left(world, batch_id) == []


def test_large_batch_is_deleted_in_portions(world: BatchWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    batch_id = stopped(world, world.register())
    for number in range(7):
        world.cloud.app.batches.bucket.put(f"batches/{world.project.id}/{batch_id}/outcomes/x{number}", b"{}")
    with monkeypatch.context() as patched:
        patched.setattr(batches, "_DELETED_AT_ONCE", 3)
        patched.setattr(batches, "_DELETE_SECONDS", 0.0)
        assert delete(world, f"/v1/batches/{batch_id}").status == 204
        assert len(left(world, batch_id)) == 3 + 5, "one portion is gone; log line, result and marker are left too"
        for _ in range(8):
            tick(world)
    assert left(world, batch_id) == []


def test_batch_over_the_quota_is_refused_until_one_is_deleted(world: BatchWorld) -> None:
    world.cloud.app.table.write(update(keys.project(world.project.id), {"quotas": {"batches": 2}}))
    biz_id = world.register()
    first, _ = stopped(world, biz_id), world.create(biz_id)

    refused = world.http("POST", "/v1/batches", {"biz_id": biz_id, "name": "points", "total": 5, "rate": 100})

    assert (refused.status, refused.json()["code"]) == (429, "quota_exceeded")
    assert "batches is 2" in refused.json()["detail"]
    assert "unstarted" not in refused.json()["detail"]
    assert delete(world, f"/v1/batches/{first}").status == 204
    world.create(biz_id)


def test_ended_batch_is_deleted_after_its_retention(world: BatchWorld) -> None:
    biz_id = world.register()
    ended, again = stopped(world, biz_id), stopped(world, biz_id)
    days = world.cloud.app.settings.batch_retention_days
    tick(world, days - 1)
    world.act(again, "start")
    assert world.shown(ended)["status"] == "stopped"

    tick(world, 1.1)

    assert world.http("GET", f"/v1/batches/{ended}").status == 404
    assert left(world, ended) == []
    assert world.shown(again)["status"] == "running"
    assert used(world, "batches") == 1


def test_longer_retention_holds_for_batches_that_have_ended(world: BatchWorld) -> None:
    batch_id, app = stopped(world, world.register()), world.cloud.app
    days = app.settings.batch_retention_days
    app.batches.settings = replace(app.settings, batch_retention_days=days + 10)

    tick(world, days + 1)
    assert world.shown(batch_id)["status"] == "stopped"
    due = app.table.get(keys.batch(world.project.id, batch_id), consistent=True)
    assert due is not None
    assert due["due_at"] > world.cloud.clock().timestamp() + 8 * DAY
    world.cloud.clock.advance(9.5 * DAY)
    assert app.batches.act_when_due(due)

    assert world.http("GET", f"/v1/batches/{batch_id}").status == 404


def test_business_is_deleted_once_nothing_uses_it(world: BatchWorld) -> None:
    biz_id = world.register()
    batch_id = stopped(world, biz_id)
    refused = delete(world, f"/v1/biz/{biz_id}")
    assert (refused.status, refused.json()["code"]) == (409, "in_use")
    assert "1 batches use" in refused.json()["detail"]
    assert delete(world, f"/v1/batches/{batch_id}").status == 204

    assert delete(world, f"/v1/biz/{biz_id}").status == 204

    assert world.http("GET", f"/v1/biz/{biz_id}").status == 404
    assert delete(world, f"/v1/biz/{biz_id}").status == 404
    assert used(world, "businesses") == 0


def test_business_of_a_schedule_is_in_use(world: BatchWorld) -> None:
    biz_id = world.register()
    order = {"biz_id": biz_id, "name": "points", "total": 5, "rate": 100}
    made = world.http("POST", "/v1/batch-schedules", {"schedule": "rate(1 day)", "batch": order}).json()

    refused = delete(world, f"/v1/biz/{biz_id}")

    assert (refused.status, refused.json()["code"]) == (409, "in_use")
    assert made["schedule_id"] in refused.json()["detail"]
    assert delete(world, f"/v1/batch-schedules/{made['schedule_id']}").status == 204
    assert delete(world, f"/v1/biz/{biz_id}").status == 204


def test_business_from_before_the_count_is_in_use_by_its_batches(world: BatchWorld) -> None:
    biz_id = world.register()
    old = world.create(biz_id)
    table, project_id = world.cloud.app.table, world.project.id
    table.write(update(keys.business(project_id, biz_id), removes=["batches", "counts_batches"]))
    table.write(update(keys.batch(project_id, old), removes=["counted_in_all"]))

    assert delete(world, f"/v1/biz/{biz_id}").json()["code"] == "in_use"
    assert delete(world, f"/v1/batches/{old}").status == 204
    assert delete(world, f"/v1/biz/{biz_id}").status == 204


def test_batch_of_a_business_deleted_meanwhile_is_refused(world: BatchWorld) -> None:
    biz_id, b = world.register(), world.cloud.app.batches
    business = batches.get_business(b, world.project.id, biz_id)
    assert delete(world, f"/v1/biz/{biz_id}").status == 204

    with pytest.raises(RecordNotFound):
        batches.create(b, business, NewBatch(biz_id=biz_id, name="points", total=5, rate=100))

    assert used(world, "batches") == 0


def test_replaced_business_keeps_its_count_and_loses_other_fields(world: BatchWorld) -> None:
    biz_id = world.register("process_stop", rate=5)
    world.create(biz_id)
    body = {"name": "new", "process_url": world.business.url("/process")}

    replaced = world.http("PUT", f"/v1/biz/{biz_id}", body).json()

    assert (replaced["name"], replaced.get("rate"), replaced.get("process_stop_url")) == ("new", None, None)
    assert world.http("GET", f"/v1/biz/{biz_id}").json() == replaced
    assert delete(world, f"/v1/biz/{biz_id}").json()["code"] == "in_use"


def test_sweep_removes_an_object_written_after_the_deletion(world: BatchWorld) -> None:
    batch_id = stopped(world, world.register())
    assert delete(world, f"/v1/batches/{batch_id}").status == 204
    late = f"batches/{world.project.id}/{batch_id}/outcomes/late.jsonl"
    world.cloud.app.batches.bucket.put(late, b"{}")

    world.cloud.clock.advance(2 * DAY)
    sweep(world.cloud.app.queue)

    assert left(world, batch_id) == []
