"""Recurring exports: each scheduled time makes one export, even if functions crash or run twice."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Any

import pytest

from tests.support.exports.killing import Killed, killed_at
from tests.support.exports.paged_source import numbered
from tests.support.exports.running import ExportWorld, read_csv
from tests.support.moto.cloud import Answer
from tidegate.aws import keys
from tidegate.aws.table import update
from tidegate.errors import Busy, Invalid
from tidegate.exports.exports import Orders
from tidegate.exports.schedules import ExportSchedule, ScheduledOrder

HOURLY = "rate(1 hour)"


@pytest.fixture
def world(world: ExportWorld) -> ExportWorld:
    world.source.rows = numbered(150)
    return world


def call(world: ExportWorld, method: str, path: str = "", key: str | None = None, **options: Any) -> Answer:
    return world.cloud.http(method, f"/v1/export-schedules{path}", key=key or world.project.key, **options)


def create(world: ExportWorld, **fields: Any) -> dict[str, Any]:
    order = {"name": "orders", "source_url": world.source.url, "step": 100, "schedule": HOURLY, **fields}
    answer = call(world, "POST", json=order)
    assert answer.status == 201, answer.body
    return dict(answer.json())


def fire(world: ExportWorld, seconds: float = 3601) -> int:
    world.cloud.clock.advance(seconds)
    return int(world.cloud.invoke("start_scheduled_exports", {})["fired"])


def runs(world: ExportWorld, schedule_id: str) -> list[dict[str, Any]]:
    answer = call(world, "GET", f"/{schedule_id}/runs")
    assert answer.status == 200, answer.body
    return list(answer.json()["items"])


def test_each_run_makes_one_export_with_all_rows(world: ExportWorld) -> None:
    schedule_id = create(world)["schedule_id"]
    assert fire(world, 3500) == 0
    assert fire(world, 101) == 1
    assert fire(world, 0) == 0
    (run,) = runs(world, schedule_id)
    shown = world.run(run["task_id"])
    assert (shown["status"], shown["schedule_id"]) == ("completed", schedule_id)
    assert len(read_csv(world.file(run["task_id"]))) == 150
    assert runs(world, schedule_id)[0]["task"]["status"] == "completed"
    assert call(world, "GET", f"/{schedule_id}").json()["last_task_id"] == run["task_id"]


def test_rate_counts_from_the_due_time(world: ExportWorld) -> None:
    schedule = create(world)
    assert fire(world, 3650) == 1
    following = call(world, "GET", f"/{schedule['schedule_id']}").json()["next_run"]
    interval = datetime.fromisoformat(following) - datetime.fromisoformat(schedule["next_run"])
    assert interval.total_seconds() == 3600


def test_missed_runs_are_not_made_up_for(world: ExportWorld) -> None:
    schedule_id = create(world)["schedule_id"]
    assert fire(world, 10 * 3600 + 5) == 1
    assert fire(world, 0) == 0
    assert len(runs(world, schedule_id)) == 1


def test_crash_at_any_call_makes_one_export_per_run(world: ExportWorld) -> None:
    for calls in range(1, 30):
        schedule_id = create(world)["schedule_id"]
        world.cloud.clock.advance(3601)
        with killed_at(calls) as died, suppress(Killed):
            world.cloud.invoke("start_scheduled_exports", {})
        world.cloud.invoke("start_scheduled_exports", {})
        (run,) = runs(world, schedule_id)
        assert world.run(run["task_id"])["status"] == "completed", calls
        assert len(world.get("/v1/tasks").json()["items"]) == calls
        assert call(world, "DELETE", f"/{schedule_id}").status == 204
        if not died():
            assert calls > 4
            return
    raise AssertionError("every run was killed: the loop needs a higher limit")


def test_two_functions_at_once_make_one_export(world: ExportWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule_id = create(world)["schedule_id"]
    schedules = world.cloud.app.exports.schedules
    order, fired_meanwhile = schedules.order, list[int]()

    def fire_meanwhile(schedule: ExportSchedule) -> ScheduledOrder:
        if not fired_meanwhile:
            fired_meanwhile.append(0)
            fired_meanwhile[0] = schedules.fire()
        return order(schedule)

    monkeypatch.setattr(schedules, "order", fire_meanwhile)
    fire(world)
    assert fired_meanwhile == [1]
    assert len(runs(world, schedule_id)) == len(world.get("/v1/tasks").json()["items"]) == 1


def test_stale_index_repeats_no_run(world: ExportWorld) -> None:
    schedule_id = create(world)["schedule_id"]
    schedules = world.cloud.app.exports.schedules
    key = keys.EXPORT_SCHEDULES.record(world.project.id, schedule_id)
    stale = world.cloud.app.table.get(key, consistent=True)
    assert stale is not None
    assert fire(world) == 1
    (run,) = runs(world, schedule_id)
    assert not schedules.fire_one(stale)
    assert world.run(run["task_id"])["status"] == "completed"
    assert not schedules.fire_one(stale)
    assert runs(world, schedule_id)[0]["state"] == "started"
    assert call(world, "POST", f"/{schedule_id}/pause").status == 200
    assert not schedules.fire_one(stale)


def test_unreadable_schedule_does_not_stop_the_others(world: ExportWorld) -> None:
    broken, intact = create(world)["schedule_id"], create(world)["schedule_id"]
    key = keys.EXPORT_SCHEDULES.record(world.project.id, broken)
    world.cloud.app.table.write(update(key, {}, removes=["name"], condition=""))
    assert fire(world) == 1
    assert [run["state"] for run in runs(world, intact)] == ["started"]


def test_refused_run_is_recorded_and_the_next_one_follows(world: ExportWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule_id = create(world)["schedule_id"]

    def refuses(*_: Any, **__: Any) -> str:
        raise Invalid("there is no type export")

    with monkeypatch.context() as patched:
        patched.setattr(Orders, "queue_order", refuses)
        assert fire(world) == 0
    assert [(run["state"], run["reason"], run["code"]) for run in runs(world, schedule_id)] == [
        ("skipped", "there is no type export", "invalid")
    ]
    assert fire(world) == 1


def test_run_is_retried_after_a_busy_table(world: ExportWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule_id = create(world)["schedule_id"]

    def busy(*_: Any, **__: Any) -> str:
        raise Busy("the table is throttled")

    with monkeypatch.context() as patched:
        patched.setattr(Orders, "queue_order", busy)
        assert fire(world) == 0
    assert runs(world, schedule_id) == []
    assert fire(world, 60) == 1


def test_run_is_skipped_while_the_one_before_runs(world: ExportWorld) -> None:
    schedule_id = create(world)["schedule_id"]
    assert (fire(world), fire(world)) == (1, 0)
    skipped, started = runs(world, schedule_id)
    assert (started["state"], skipped["state"]) == ("started", "skipped")
    assert started["task_id"] in skipped["reason"]
    world.run(started["task_id"])
    assert fire(world) == 1


def test_run_waits_within_its_period_for_the_quota(world: ExportWorld) -> None:
    schedule_id = create(world)["schedule_id"]
    project = f"/v1/projects/{world.project.id}"
    changed = world.cloud.http("PATCH", project, json={"quotas": {"queued": 1}}, key=world.cloud.admin_key)
    assert changed.status == 200, changed.body
    world.submit()
    assert fire(world) == 0
    assert runs(world, schedule_id) == []
    for _ in range(58):
        assert fire(world, 60) == 0
    (run,) = runs(world, schedule_id)
    assert (run["state"], run["code"], "queued" in run["reason"]) == ("skipped", "quota_exceeded", True)


def test_paused_schedule_continues_from_its_resume(world: ExportWorld) -> None:
    schedule_id = create(world)["schedule_id"]
    for _ in range(2):
        paused = call(world, "POST", f"/{schedule_id}/pause")
        assert (paused.status, paused.json()["status"]) == (200, "paused")
    assert paused.json().get("next_run") is None
    assert fire(world) == 0
    assert call(world, "POST", f"/{schedule_id}/resume").json()["status"] == "active"
    assert (fire(world, 3000), fire(world, 601)) == (0, 1)


def test_exports_of_a_deleted_schedule_stay(world: ExportWorld) -> None:
    schedule_id = create(world)["schedule_id"]
    fire(world)
    (run,) = runs(world, schedule_id)
    assert call(world, "DELETE", f"/{schedule_id}").status == 204
    assert call(world, "DELETE", f"/{schedule_id}").status == 404
    assert call(world, "GET", f"/{schedule_id}/runs").status == 404
    assert fire(world) == 0
    assert world.run(run["task_id"])["status"] == "completed"
    assert call(world, "GET").json()["items"] == []


def test_names_and_copies_have_the_date_of_the_run(world: ExportWorld) -> None:
    world.s3.create_bucket(Bucket="acme-reports-1")
    world.cloud.app.exports.deliveries.allowed = "acme-*"
    granted = {"deliver_to": ["acme-reports-1/daily/*"]}
    project = f"/v1/projects/{world.project.id}"
    assert world.cloud.http("PATCH", project, json=granted, key=world.cloud.admin_key).status == 200
    deliver = [{"bucket": "acme-reports-1", "key": "daily/{date}-{time}.csv"}]
    schedule = create(world, file_name="orders-{date}", deliver=deliver, schedule="cron(30 6 * * ? *)")
    fire(world, 86_400)
    (run,) = runs(world, schedule["schedule_id"])
    shown = world.run(run["task_id"])
    day = schedule["next_run"][:10]
    assert shown["file_name"] == f"orders-{day}.csv"
    assert shown["deliveries"][0]["key"] == f"daily/{day}-0630.csv"


def test_run_keeps_several_tables_and_exact_decimals(world: ExportWorld) -> None:
    rows = '[[{"a": 100.00}], null]'
    body = '{"name": "two", "schedule": "%s", "source_data": %s, "source_url": [null, "%s"]}'
    order = body % (HOURLY, rows, world.source.url)
    answer = world.cloud.http("POST", "/v1/export-schedules/multiple", body=order, key=world.project.key)
    assert answer.status == 201, answer.body
    fire(world)
    (run,) = runs(world, answer.json()["schedule_id"])
    world.run(run["task_id"])
    assert world.file(run["task_id"]).startswith(b"a\n100.00\n")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"schedule": "every day"}, "schedule"),
        ({"schedule": "cron(0 0 31 2 ? *)"}, "schedule"),
        ({"source_url": None}, "source_url"),
        ({"source_url": "http://169.254.169.254/"}, "source_url"),
        ({"template": [{"title": "x", "columns": []}]}, "template"),
        ({"deliver": [{"bucket": "elsewhere", "key": "x"}]}, "deliver"),
        ({"source_url": None, "source_data": [{"a": "x" * 310_000}]}, "source_data"),
    ],
)
def test_order_that_every_run_would_fail_is_refused(world: ExportWorld, fields: dict[str, Any], field: str) -> None:
    order = {"name": "orders", "source_url": world.source.url, "schedule": HOURLY, **fields}
    answer = call(world, "POST", json=order)
    assert answer.status == 422, answer.body
    assert field in str(answer.json())


def test_other_project_cannot_see_the_schedule(world: ExportWorld) -> None:
    schedule_id = create(world)["schedule_id"]
    other = world.cloud.project().key
    for method, path in (("GET", ""), ("GET", "/runs"), ("POST", "/pause"), ("DELETE", "")):
        assert call(world, method, f"/{schedule_id}{path}", key=other).status == 404
    assert call(world, "GET", key=other).json()["items"] == []
