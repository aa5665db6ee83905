"""Changes of batch schedules, their runs, and the quota for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from tests.support.batches.schedules import batches, fire, new_schedule, now, to_next_run
from tests.support.batches.world import BatchWorld, batch_world
from tests.support.moto.cloud import MotoCloud
from tidegate.batches import batches as batches_module
from tidegate.queue.schedules import Schedules

LOST = EndpointConnectionError(endpoint_url="http://table")


@pytest.fixture
def world(cloud: MotoCloud) -> Iterator[BatchWorld]:
    with batch_world(cloud) as made:
        # Signatures would be too old or too new: these tests move their clock by hours.
        made.business.secret = None
        yield made


def change(world: BatchWorld, made: dict[str, Any], **fields: Any) -> Any:
    return world.http("PATCH", f"/v1/batch-schedules/{made['schedule_id']}", fields)


def runs(world: BatchWorld, made: dict[str, Any], query: str = "") -> dict[str, Any]:
    answer = world.http("GET", f"/v1/batch-schedules/{made['schedule_id']}/runs{query}")
    assert answer.status == 200, answer.body
    return dict(answer.json())


def test_paused_schedule_makes_up_for_no_missed_runs(world: BatchWorld) -> None:
    made = new_schedule(world)
    path = f"/v1/batch-schedules/{made['schedule_id']}"
    assert world.http("PATCH", path, {"paused": True}).json()["next_run"] is None
    world.cloud.clock.advance(3 * 86400)
    fire(world)
    resumed = world.http("PATCH", path, {"paused": False, "schedule": "cron(30 3 * * ? *)"}).json()
    assert resumed["next_run"].endswith("T03:30:00.000Z")
    fire(world)
    assert batches(world) == []
    to_next_run(world, made)
    fire(world)
    assert len(batches(world)) == 1


def test_change_without_effect_keeps_next_run(world: BatchWorld) -> None:
    made = new_schedule(world, schedule="rate(1 hour)")
    path = f"/v1/batch-schedules/{made['schedule_id']}"
    to_next_run(world, made)
    for body in ({"paused": False}, {"schedule": "rate(1 hour)"}):
        assert world.http("PATCH", path, body).json()["next_run"] == made["next_run"]
    fire(world)
    assert len(batches(world)) == 1


def test_schedule_without_further_runs_can_be_paused(world: BatchWorld) -> None:
    year = world.cloud.clock().year + 1
    made = new_schedule(world, schedule=f"cron(0 2 1 1 ? {year})")
    path = f"/v1/batch-schedules/{made['schedule_id']}"
    to_next_run(world, made)
    fire(world)
    assert now(world, made)["next_run"] is None
    paused = world.http("PATCH", path, {"paused": True})
    assert (paused.status, paused.json()["status"]) == (200, "paused")
    assert world.http("PATCH", path, {"paused": False}).status == 422


def test_schedule_changed_after_crash_has_its_running_batch(world: BatchWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    made = new_schedule(world)
    to_next_run(world, made)
    with monkeypatch.context() as patched:
        patched.setattr(Schedules, "record_run", lambda *_, **__: (_ for _ in ()).throw(LOST))
        fire(world)
    path = f"/v1/batch-schedules/{made['schedule_id']}"
    changed = world.http("PATCH", path, {"schedule": "rate(1 hour)"}).json()
    (batch,) = batches(world)
    assert changed["last_batch_id"] == batch["batch_id"]
    to_next_run(world, made)
    fire(world)
    assert len(batches(world)) == 1
    assert "still ran" in now(world, made)["last_error"]


def test_change_of_batch_keeps_other_fields(world: BatchWorld) -> None:
    made = new_schedule(world, retries=7, pause_windows=[{"start": "22:00", "end": "23:00"}])
    changed = change(world, made, batch={"rate": 20, "name": "hourly", "total": 3}, schedule="rate(1 hour)").json()
    assert (changed["name"], changed["schedule"], changed["revision"]) == ("hourly", "rate(1 hour)", 2)
    expected = {"rate": 20, "name": "hourly", "total": 3, "retries": 7}
    assert expected.items() <= changed["batch"].items()
    assert changed["batch"]["pause_windows"] == [{"start": "22:00", "end": "23:00"}]
    assert now(world, made) == changed
    to_next_run(world, made)
    fire(world)
    (batch,) = batches(world)
    assert (batch["name"], batch["total"], batch["rate"], batch["retries"]) == ("hourly", 3, 20, 7)


def test_null_removes_only_optional_fields(world: BatchWorld) -> None:
    made = new_schedule(world, max_errors=3)
    assert "max_errors" not in change(world, made, batch={"max_errors": None}).json()["batch"]
    assert change(world, made, batch={"rate": None}).status == 422
    assert change(world, made, batch={"speed": 1}).status == 422


@pytest.mark.parametrize("batch", [{"total": None}, {"biz_id": "biz-none"}, {"item_timeout": 900}])
def test_change_to_invalid_batch_is_refused(world: BatchWorld, batch: dict[str, Any]) -> None:
    made = new_schedule(world)
    assert change(world, made, batch=batch).status in (404, 422)
    assert now(world, made) == made


def test_change_of_older_revision_is_refused(world: BatchWorld) -> None:
    made = new_schedule(world)
    assert change(world, made, batch={"rate": 20}, revision=1).json()["revision"] == 2
    refused = change(world, made, batch={"rate": 30}, revision=1)
    assert (refused.status, refused.json()["code"]) == (409, "conflict")
    assert "revision 2, not 1" in refused.json()["detail"]
    assert now(world, made)["batch"]["rate"] == 20


def test_runs_do_not_change_the_revision(world: BatchWorld) -> None:
    made = new_schedule(world)
    to_next_run(world, made)
    fire(world)
    assert change(world, made, paused=True, revision=1).json()["revision"] == 2


def test_change_during_a_run_is_applied_after_it(world: BatchWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    made = new_schedule(world)
    to_next_run(world, made)
    check = batches_module.check

    def fires_meanwhile(*args: Any) -> None:
        monkeypatch.undo()
        fire(world)
        check(*args)

    monkeypatch.setattr(batches_module, "check", fires_meanwhile)
    changed = change(world, made, batch={"rate": 20}).json()
    assert (changed["batch"]["rate"], changed["last_batch_id"]) == (20, batches(world)[0]["batch_id"])
    assert changed["next_run"] > made["next_run"]


def test_batch_created_during_change_is_recorded(world: BatchWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    made = new_schedule(world)
    to_next_run(world, made)
    create = batches_module.create

    def changes_meanwhile(*args: Any, **more: Any) -> Any:
        monkeypatch.undo()
        assert change(world, made, schedule="rate(1 hour)").status == 200
        return create(*args, **more)

    monkeypatch.setattr(batches_module, "create", changes_meanwhile)
    fire(world)
    (batch,) = batches(world)
    shown = now(world, made)
    assert (shown["schedule"], shown["last_batch_id"]) == ("rate(1 hour)", batch["batch_id"])
    assert [run["batch_id"] for run in runs(world, made)["items"]] == [batch["batch_id"]]
    to_next_run(world, made)
    fire(world)
    assert len(batches(world)) == 1, "the previous batch still runs"


def test_runs_are_listed_newest_first_with_their_batches(world: BatchWorld) -> None:
    made = new_schedule(world, schedule="rate(1 hour)")
    moments = []
    for _ in range(3):
        moments.append(now(world, made)["next_run"])
        to_next_run(world, made)
        fire(world)
    first = runs(world, made, "?limit=2")
    second = runs(world, made, f"?limit=2&cursor={first['next_cursor']}")
    items = first["items"] + second["items"]
    assert [run["due"] for run in items] == moments[::-1]
    assert [run["state"] for run in items] == ["skipped", "skipped", "started"]
    (batch,) = batches(world)
    assert items[2]["batch_id"] == batch["batch_id"]
    assert items[2]["batch"]["status"] == "running"
    assert items[2]["batch"]["progress"]["total"] == 5
    assert all("still ran" in run["reason"] for run in items[:2])


def test_batch_refused_by_business_is_a_skipped_run(world: BatchWorld) -> None:
    world.business.answers["/before-run"] = lambda _: (200, {"result": "error", "msg": "closed today"})
    made = new_schedule(world, "before_run")
    to_next_run(world, made)
    fire(world)
    (run,) = runs(world, made)["items"]
    assert (run["state"], run["batch"]["status"]) == ("skipped", "stopped")
    assert "closed today" in run["reason"]


def test_runs_of_other_project_are_not_found(world: BatchWorld) -> None:
    made = new_schedule(world)
    other = world.cloud.project("other")
    path = f"/v1/batch-schedules/{made['schedule_id']}/runs"
    assert world.cloud.http("GET", path, key=other.key).status == 404


def test_quota_limits_number_of_schedules(world: BatchWorld) -> None:
    def usage() -> int:
        path = f"/v1/projects/{world.project.id}"
        return int(world.cloud.http("GET", path, key=world.cloud.admin_key).json()["usage"]["batch_schedules"])

    quotas = {"quotas": {"batch_schedules": 2}}
    path = f"/v1/projects/{world.project.id}"
    assert world.cloud.http("PATCH", path, json=quotas, key=world.cloud.admin_key).status == 200
    first, _ = new_schedule(world), new_schedule(world)
    batch = {"biz_id": first["biz_id"], "name": "one too many", "total": 5, "rate": 10}
    refused = world.http("POST", "/v1/batch-schedules", {"schedule": "rate(1 hour)", "batch": batch})
    assert (refused.status, refused.json()["code"]) == (429, "quota_exceeded")
    assert "batch_schedules is 2" in refused.json()["detail"]
    assert usage() == 2
    for expected in (204, 404):
        assert world.http("DELETE", f"/v1/batch-schedules/{first['schedule_id']}").status == expected
        assert usage() == 1
    new_schedule(world)
    assert usage() == 2
