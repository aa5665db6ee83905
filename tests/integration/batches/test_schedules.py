"""Recurring batches: one batch for each run of the schedule, even if functions die in between."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from tests.support.batches.schedules import batches, fire, new_schedule, now, to_next_run
from tests.support.batches.world import BatchWorld, batch_world
from tests.support.moto.cloud import MotoCloud
from tidegate.aws import keys
from tidegate.aws.table import update
from tidegate.batches import Batches, control
from tidegate.batches.batches import get
from tidegate.batches.schedules import BatchSchedule
from tidegate.queue.schedules import Schedules

LOST = EndpointConnectionError(endpoint_url="http://table")


@pytest.fixture
def world(cloud: MotoCloud) -> Iterator[BatchWorld]:
    with batch_world(cloud) as made:
        # Signatures would be too old or too new: these tests move their clock by hours.
        made.business.secret = None
        yield made


def test_each_run_creates_and_starts_one_batch(world: BatchWorld) -> None:
    made = new_schedule(world, pause_windows=[{"start": "22:00", "end": "23:00"}], job_data={"points": 1})
    assert made["next_run"].endswith("T02:00:00.000Z")
    fire(world)
    assert batches(world) == []
    to_next_run(world, made)
    fire(world)
    fire(world)
    (batch,) = batches(world)
    assert (batch["status"], batch["name"], batch["total"]) == ("running", "nightly", 5)
    assert batch["pause_windows"] == [{"start": "22:00", "end": "23:00"}]
    shown = now(world, made)
    assert (shown["last_batch_id"], shown["last_error"]) == (batch["batch_id"], None)
    assert shown["next_run"] > made["next_run"]
    world.act(batch["batch_id"], "stop")
    to_next_run(world, made)
    fire(world)
    assert [one["status"] for one in batches(world)] == ["running", "stopped"]


@pytest.mark.parametrize(
    ("owner", "step"),
    [(control, "start"), (Schedules, "record_run")],
    ids=["created and not started", "started and not recorded"],
)
def test_crash_during_run_leaves_one_batch_started_once(
    world: BatchWorld, monkeypatch: pytest.MonkeyPatch, owner: type, step: str
) -> None:
    made = new_schedule(world)
    to_next_run(world, made)

    def dies(*_: Any, **__: Any) -> None:
        raise LOST

    with monkeypatch.context() as patched:
        patched.setattr(owner, step, dies)
        fire(world)
    assert now(world, made)["next_run"] == made["next_run"]
    world.cloud.clock.advance(60)
    fire(world)
    (batch,) = batches(world)
    stored = get(world.cloud.app.batches, world.project.id, batch["batch_id"])
    assert (stored.status, stored.run) == ("running", 1)
    assert now(world, made)["last_batch_id"] == batch["batch_id"]
    assert now(world, made)["next_run"] > made["next_run"]


def test_batch_that_ended_before_retry_is_not_restarted(world: BatchWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    made = new_schedule(world)
    to_next_run(world, made)
    with monkeypatch.context() as patched:
        patched.setattr(Schedules, "record_run", lambda *_, **__: (_ for _ in ()).throw(LOST))
        fire(world)
    world.act(batches(world)[0]["batch_id"], "stop")
    world.cloud.clock.advance(60)
    fire(world)
    (batch,) = batches(world)
    assert batch["status"] == "stopped"
    assert now(world, made)["next_run"] > made["next_run"]


def record(world: BatchWorld, made: dict[str, Any]) -> dict[str, Any]:
    key = keys.BATCH_SCHEDULES.record(world.project.id, made["schedule_id"])
    item = world.cloud.app.table.get(key, consistent=True)
    assert item is not None
    return item


def test_two_functions_with_same_run_create_one_batch(world: BatchWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    made = new_schedule(world)
    to_next_run(world, made)
    schedules = world.cloud.app.batches.schedules
    seen = record(world, made)
    start = control.start

    def slow(b: Batches, *rest: Any) -> Any:
        """Another function completes the run while this one is about to start the batch."""
        monkeypatch.undo()
        assert schedules.fire_one(seen)
        return start(b, *rest)

    monkeypatch.setattr(control, "start", slow)
    schedules.fire_one(seen)
    (batch,) = batches(world)
    assert get(world.cloud.app.batches, world.project.id, batch["batch_id"]).run == 1
    next_run = now(world, made)["next_run"]
    assert next_run > made["next_run"]
    assert not schedules.fire_one(seen)
    assert now(world, made)["next_run"] == next_run


def test_stale_index_entry_creates_no_batch(world: BatchWorld) -> None:
    made = new_schedule(world)
    to_next_run(world, made)
    schedules = world.cloud.app.batches.schedules
    seen = record(world, made)
    path = f"/v1/batch-schedules/{made['schedule_id']}"
    assert world.http("PATCH", path, {"paused": True}).status == 200
    assert not schedules.fire_one(seen)
    assert world.http("DELETE", path).status == 204
    assert not schedules.fire_one(seen)
    assert batches(world) == []


def test_run_is_skipped_while_previous_batch_runs(world: BatchWorld) -> None:
    made = new_schedule(world, schedule="rate(1 hour)")
    for _ in range(2):
        to_next_run(world, made)
        fire(world)
    (batch,) = batches(world)
    shown = now(world, made)
    assert shown["last_batch_id"] == batch["batch_id"]
    assert "still ran" in shown["last_error"]


def test_several_missed_runs_create_one_batch(world: BatchWorld) -> None:
    made = new_schedule(world, schedule="rate(1 hour)")
    world.cloud.clock.advance(5 * 3600)
    fire(world)
    fire(world)
    assert len(batches(world)) == 1
    assert now(world, made)["next_run"] > made["next_run"]


def test_refusal_is_recorded_and_next_run_follows(world: BatchWorld) -> None:
    world.business.answers["/before-create"] = lambda _: (200, {"result": "error", "msg": "closed today"})
    made = new_schedule(world, "before_create")
    to_next_run(world, made)
    fire(world)
    shown = now(world, made)
    assert batches(world) == []
    assert "closed today" in shown["last_error"]
    world.business.answers.clear()
    to_next_run(world, made)
    fire(world)
    assert len(batches(world)) == 1
    assert now(world, made)["last_error"] is None


def test_unreachable_business_is_asked_again_in_a_minute(world: BatchWorld) -> None:
    world.business.answers["/before-create"] = lambda _: (503, {})
    made = new_schedule(world, "before_create")
    to_next_run(world, made)
    fire(world)
    assert (batches(world), now(world, made)["next_run"]) == ([], made["next_run"])
    world.business.answers.clear()
    world.cloud.clock.advance(60)
    fire(world)
    assert len(batches(world)) == 1
    ids = {world.business.received[0][1]["batch_id"], world.business.received[1][1]["batch_id"]}
    assert ids == {batches(world)[0]["batch_id"]}


def test_deleted_schedule_keeps_its_batches(world: BatchWorld) -> None:
    made = new_schedule(world)
    to_next_run(world, made)
    fire(world)
    path = f"/v1/batch-schedules/{made['schedule_id']}"
    assert world.http("DELETE", path).status == 204
    assert world.http("GET", path).status == 404
    world.cloud.clock.advance(2 * 86400)
    fire(world)
    assert len(batches(world)) == 1
    assert world.http("GET", "/v1/batch-schedules").json()["items"] == []


@pytest.mark.parametrize(
    "body",
    [
        {"schedule": "every day"},
        {"schedule": "cron(0 2 31 2 ? *)"},
        {"schedule": "cron(0 2 * * ? 1999)"},
        {"batch": {"biz_id": "biz-none", "name": "n", "total": 1, "rate": 1}},
        {"batch": {"name": "n", "rate": 1}},
    ],
)
def test_invalid_schedule_is_refused(world: BatchWorld, body: dict[str, Any]) -> None:
    whole = {"schedule": "rate(1 hour)", "batch": {"biz_id": world.register(), "name": "n", "total": 1, "rate": 1}}
    assert world.http("POST", "/v1/batch-schedules", whole | body).status in (404, 422)
    assert world.http("GET", "/v1/batch-schedules").json()["items"] == []


def test_schedule_of_other_project_is_not_found(world: BatchWorld) -> None:
    made = new_schedule(world)
    other = world.cloud.project("other")
    for method in ("GET", "PATCH", "DELETE"):
        body = {"paused": True} if method == "PATCH" else None
        answer = world.cloud.http(method, f"/v1/batch-schedules/{made['schedule_id']}", json=body, key=other.key)
        assert answer.status == 404


def test_unreadable_record_does_not_stop_other_schedules(world: BatchWorld) -> None:
    broken, whole = new_schedule(world), new_schedule(world)
    key = keys.BATCH_SCHEDULES.order(world.project.id, broken["schedule_id"])
    world.cloud.app.table.write(update(key, {"batch": "not JSON"}, condition=""))
    to_next_run(world, whole)
    fire(world)
    (batch,) = batches(world)
    assert now(world, whole)["last_batch_id"] == batch["batch_id"]


def test_unrecorded_refusal_does_not_stop_other_schedules(world: BatchWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.business.answers["/before-create"] = lambda _: (200, {"result": "error", "msg": "closed today"})
    refused, whole = new_schedule(world, "before_create"), new_schedule(world)
    to_next_run(world, whole)
    record_run = Schedules.record_run

    def lost(schedules: Schedules[Any, Any], schedule: BatchSchedule, *rest: Any, **more: Any) -> None:
        if more.get("record_id") == refused["schedule_id"]:
            raise LOST
        record_run(schedules, schedule, *rest, **more)

    monkeypatch.setattr(Schedules, "record_run", lost)
    fire(world)
    assert len(batches(world)) == 1
    assert now(world, whole)["next_run"] > whole["next_run"]
    assert now(world, refused)["next_run"] == refused["next_run"]


def test_slow_business_does_not_delay_other_schedules(world: BatchWorld) -> None:
    both = threading.Barrier(2, timeout=8)

    def waits_for_the_other(_: Any) -> tuple[int, dict[str, Any]]:
        both.wait()
        return 200, {"result": "ok"}

    world.business.answers["/before-create"] = waits_for_the_other
    made = [new_schedule(world, "before_create") for _ in range(2)]
    to_next_run(world, made[0])
    fire(world)
    assert len(batches(world)) == 2


def test_late_run_does_not_shift_later_runs(world: BatchWorld) -> None:
    made = new_schedule(world, schedule="rate(1 hour)")
    to_next_run(world, made)
    world.cloud.clock.advance(45)
    fire(world)
    passed = datetime.fromisoformat(now(world, made)["next_run"]) - datetime.fromisoformat(made["next_run"])
    assert passed.total_seconds() == 3600
