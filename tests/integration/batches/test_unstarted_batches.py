"""Batches that nobody starts: the project's quota limits them, and they are deleted after 30 days."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.batches.world import BatchWorld, batch_world
from tests.support.moto.cloud import MotoCloud
from tidegate.aws import keys
from tidegate.aws.table import update
from tidegate.batches import batches, control
from tidegate.batches.model import UNSTARTED_KEPT_SECONDS, NewBatch


@pytest.fixture
def world(cloud: MotoCloud) -> Iterator[BatchWorld]:
    with batch_world(cloud) as made:
        yield made


def set_quota(world: BatchWorld, limit: int) -> None:
    world.cloud.app.table.write(update(keys.project(world.project.id), {"quotas": {"unstarted_batches": limit}}))


def unstarted(world: BatchWorld) -> int:
    return int(world.cloud.app.queue.project_usage(world.project.id)["unstarted_batches"])


def create(world: BatchWorld, biz_id: str) -> Any:
    return world.http("POST", "/v1/batches", {"biz_id": biz_id, "name": "points", "total": 5, "rate": 100})


def after_days(world: BatchWorld, days: float) -> None:
    """Moves the clock and runs the compensation poll."""
    world.cloud.clock.advance(days * 86400)
    world.cloud.app.compensation.trigger()
    world.cloud.deliver("CompensationQueue")


def records(world: BatchWorld, batch_id: str) -> list[Any]:
    pk = keys.batch(world.project.id, batch_id)["pk"]
    return list(world.cloud.app.table.query_all(pk, consistent=True))


@pytest.mark.parametrize("hooks", [(), ("before_run",)])
def test_batch_over_the_quota_is_refused_until_another_is_started(world: BatchWorld, hooks: tuple[str, ...]) -> None:
    set_quota(world, 2)
    biz_id = world.register(*hooks)
    made = [create(world, biz_id) for _ in range(3)]

    assert [answer.status for answer in made] == [201, 201, 429]
    refused = made[2].json()
    assert refused["code"] == "quota_exceeded"
    assert "unstarted_batches is 2" in refused["detail"]
    assert len(world.http("GET", "/v1/batches").json()["items"]) == unstarted(world) == 2

    world.act(made[0].json()["batch_id"], "start")
    assert unstarted(world) == 1
    assert create(world, biz_id).status == 201


def test_stop_and_second_start_do_not_change_the_count(world: BatchWorld) -> None:
    biz_id = world.register()
    first, _ = world.create(biz_id), world.create(biz_id)
    for action in ("start", "stop", "start"):
        world.act(first, action)
        assert unstarted(world) == 1


def test_batch_that_is_created_again_under_its_id_is_counted_once(world: BatchWorld) -> None:
    """As a schedule does, if the function died after it had created the batch."""
    set_quota(world, 1)
    new = NewBatch(biz_id=world.register(), name="points", total=5, rate=100)
    b = world.cloud.app.batches
    business = batches.get_business(b, world.project.id, new.biz_id)

    made = [batches.create(b, business, new, batch_id="bat-same") for _ in range(2)]

    assert [batch.batch_id for batch in made] == ["bat-same", "bat-same"]
    assert unstarted(world) == 1


def test_unstarted_batch_is_deleted_after_30_days(world: BatchWorld) -> None:
    biz_id = world.register()
    batch_id, started = world.create(biz_id, runners=3, job_data={"a": 1}), world.create(biz_id)
    world.act(started, "start")
    world.act(started, "stop")

    after_days(world, UNSTARTED_KEPT_SECONDS / 86400 - 1)
    assert world.shown(batch_id)["status"] == "created"
    after_days(world, 1.1)

    assert world.http("GET", f"/v1/batches/{batch_id}").status == 404
    assert records(world, batch_id) == []
    assert unstarted(world) == 0
    assert world.shown(started)["status"] == "stopped"


def test_batch_started_at_the_last_moment_is_kept(world: BatchWorld) -> None:
    batch_id = world.create(world.register())
    b = world.cloud.app.batches
    seen = batches.get(b, world.project.id, batch_id)
    world.act(batch_id, "start")

    assert not batches.delete_unstarted(b, world.project.id, batch_id)
    line = control._line(b, seen, "created", "system", "batch.expire")
    assert not b.store.delete(seen, line, 0.0)
    assert world.shown(batch_id)["status"] == "running"
    assert unstarted(world) == 0


def test_batch_from_before_the_quota_is_not_counted_when_it_starts(world: BatchWorld) -> None:
    biz_id = world.register()
    old, _ = world.create(biz_id), world.create(biz_id)
    table, project_id = world.cloud.app.table, world.project.id
    table.write(update(keys.batch(project_id, old), removes=["counted"]))

    world.act(old, "start")

    assert unstarted(world) == 2
