"""The rules that the schedules of exports, batches and subscriptions share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.integration.batches.test_schedule_permissions import refused, table_calls
from tests.support.moto.cloud import Answer, MotoCloud, Project
from tidegate.aws import keys
from tidegate.aws.keys import ScheduleKeys
from tidegate.aws.table import Item, update
from tidegate.errors import Busy, DomainError, Invalid
from tidegate.notifications.notices import notice_id_for
from tidegate.queue.schedules import Schedules

HOUR = 3600
NOWHERE = "http://127.0.0.1:9/list"
# Attributes that records have since there is one engine.
NEW = ("timezone", "planned_at", "tries", "last_run_at", "last_error", "failed_runs")


@dataclass
class World:
    cloud: MotoCloud
    project: Project
    path: str
    function: str
    keys: ScheduleKeys
    engine: Schedules[Any, Any]
    # First word of its audit lines.
    noun: str
    fields: dict[str, Any]

    def http(self, method: str, path: str = "", json: Any = None) -> Answer:
        return self.cloud.http(method, f"{self.path}{path}", json=json, key=self.project.key)

    def create(self, schedule: str = "rate(1 hour)", **more: Any) -> str:
        answer = self.http("POST", json={**self.fields, "schedule": schedule, **more})
        assert answer.status == 201, answer.body
        return str(answer.json()[self.engine.kind.id_name])

    def shown(self, record_id: str) -> dict[str, Any]:
        answer = self.http("GET", f"/{record_id}")
        assert answer.status == 200, answer.body
        return dict(answer.json())

    def runs(self, record_id: str) -> list[dict[str, Any]]:
        answer = self.http("GET", f"/{record_id}/runs")
        assert answer.status == 200, answer.body
        return list(answer.json()["items"])

    def after(self, seconds: float) -> int:
        """Runs the function of the schedules after this time. Returns how many runs it started."""
        self.cloud.clock.advance(seconds)
        return int(self.cloud.invoke(self.function, {})["fired"])

    def item(self, record_id: str) -> Item:
        found = self.cloud.app.table.get(self.keys.record(self.project.id, record_id), consistent=True)
        assert found is not None
        return found


def _exports(cloud: MotoCloud, project: Project) -> World:
    fields = {"name": "orders", "source_data": [{"a": 1}]}
    return World(
        cloud,
        project,
        "/v1/export-schedules",
        "start_scheduled_exports",
        keys.EXPORT_SCHEDULES,
        cloud.app.exports.schedules,
        "export-schedule",
        fields,
    )


def _batches(cloud: MotoCloud, project: Project) -> World:
    biz = cloud.http("POST", "/v1/biz", json={"name": "ledger", "process_url": NOWHERE}, key=project.key)
    assert biz.status == 201, biz.body
    fields = {"batch": {"biz_id": biz.json()["biz_id"], "name": "points", "total": 1, "rate": 1}}
    return World(
        cloud,
        project,
        "/v1/batch-schedules",
        "start_scheduled_batches",
        keys.BATCH_SCHEDULES,
        cloud.app.batches.schedules,
        "batch-schedule",
        fields,
    )


def _scans(cloud: MotoCloud, project: Project) -> World:
    fields = {"name": "mirror", "source_url": NOWHERE}
    return World(
        cloud,
        project,
        "/v1/subscriptions",
        "scan_subscriptions",
        keys.SUBSCRIPTIONS,
        cloud.app.ingest.scans,
        "subscription",
        fields,
    )


@pytest.fixture(params=[_exports, _batches, _scans], ids=["exports", "batches", "scans"])
def world(request: pytest.FixtureRequest, cloud: MotoCloud, project: Project) -> World:
    made: Callable[[MotoCloud, Project], World] = request.param
    return made(cloud, project)


@pytest.fixture
def failing(world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception | None], list[int]]:
    """Lets every start raise the error; None lets it start again. Returns the planned times of the starts."""
    start, planned = world.engine.kind.start, list[int]()

    def fail(error: Exception | None) -> list[int]:
        def failing_start(engine: Any, schedule: Any, work_id: str) -> None:
            planned.append(schedule.planned)
            if error:
                raise error
            start(engine, schedule, work_id)

        monkeypatch.setattr(world.engine, "kind", replace(world.engine.kind, start=failing_start))
        return planned

    return fail


Failing = Callable[[Exception | None], list[int]]


@pytest.mark.parametrize("error", [Busy("the table is throttled"), RuntimeError("a bug")], ids=["busy", "bug"])
def test_failed_run_is_tried_again_with_growing_pauses(world: World, failing: Failing, error: Exception) -> None:
    record_id = world.create()
    planned = world.shown(record_id)["next_run"]
    tries = failing(error)
    minutes = list[int]()
    world.cloud.clock.advance(HOUR)
    for minute in range(60):
        before = len(tries)
        world.after(0)
        minutes += [minute] if len(tries) > before else []
        if minute == 10:
            assert world.shown(record_id)["last_error"]
            assert world.shown(record_id)["next_run"] == planned, "the planned time, not that of the next try"
            assert world.runs(record_id) == []
        world.cloud.clock.advance(60)
    assert minutes == [0, 1, 3, 7, 15, 30, 45]
    assert len(set(tries)) == 1
    (run,) = world.runs(record_id)
    code, reason = (error.code, error.detail) if isinstance(error, DomainError) else ("internal", "RuntimeError")
    assert (run["due"], run["state"], run["code"]) == (planned, "skipped", code)
    assert reason in run["reason"]
    assert world.shown(record_id)["failed_runs"] == 1

    failing(None)
    assert world.after(0) == 1, "the run of the next hour"
    shown = world.shown(record_id)
    assert (shown["failed_runs"], shown.get("last_error")) == (0, None)
    assert shown["last_run"] > planned


def test_run_is_started_by_a_later_try(world: World, failing: Failing) -> None:
    record_id = world.create()
    planned = world.shown(record_id)["next_run"]
    failing(Busy("the table is throttled"))
    assert world.after(HOUR) == 0
    failing(None)
    assert [world.after(30), world.after(30), world.after(60)] == [0, 1, 0]
    (run,) = world.runs(record_id)
    assert (run["due"], run["state"]) == (planned, "started")
    assert world.shown(record_id)["last_run"] == planned


def test_failures_end_even_if_no_run_follows(world: World, failing: Failing) -> None:
    at = world.cloud.clock()
    record_id = world.create(f"cron(0 0 1 1 ? {at.year + 1})")
    tries = failing(Busy("the table is throttled"))
    world.cloud.clock.advance(400 * 86_400)
    for _ in range(120):
        world.after(900)
    assert len(tries) == 100
    assert [run["code"] for run in world.runs(record_id)] == ["busy"]
    assert world.shown(record_id).get("next_run") is None


def test_run_that_cannot_succeed_is_recorded_at_once(world: World, failing: Failing) -> None:
    record_id = world.create()
    tries = failing(Invalid("the order is not valid"))
    assert [world.after(HOUR), world.after(60), world.after(60)] == [0, 0, 0]
    assert len(tries) == 1
    assert [(run["code"], run["reason"]) for run in world.runs(record_id)] == [("invalid", "the order is not valid")]


def test_third_failed_run_sends_one_notice(world: World, failing: Failing) -> None:
    record_id = world.create()
    failing(Invalid("the order is not valid"))
    sent = list[bool]()
    for number in range(1, 5):
        world.after(HOUR)
        due = world.runs(record_id)[0]["due"]
        notice_id = notice_id_for("schedule.failing", record_id, due)
        notice = world.cloud.app.table.get(keys.notice(world.project.id, notice_id), consistent=True)
        sent.append(notice is not None)
        assert world.shown(record_id)["failed_runs"] == number
        if notice:
            assert (notice["kind"], notice["record_id"]) == ("schedule.failing", record_id)
            assert "the order is not valid" in notice["data"]
    assert sent == [False, False, True, False]


def test_role_of_the_function_allows_every_call(world: World, failing: Failing) -> None:
    record_id = world.create()
    name = "".join(part.title() for part in world.function.split("_")) + "Function"
    failing(Busy("the table is throttled"))
    with table_calls(world.cloud) as calls:
        for _ in range(5 * 12):
            world.after(300)
        assert world.shown(record_id)["failed_runs"] >= 3, "the notice was written"
        failing(None)
        assert world.after(HOUR) == 1
    assert refused(name, calls) == set()


def test_run_skipped_for_the_one_before_has_not_failed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    record_id = world.create()
    assert world.after(HOUR) == 1
    monkeypatch.setattr(world.engine, "kind", replace(world.engine.kind, is_active=lambda *_: True))
    assert world.after(HOUR) == 0
    skipped, started = world.runs(record_id)
    assert (started["state"], skipped["state"], skipped.get("code")) == ("started", "skipped", None)
    shown = world.shown(record_id)
    assert (shown["failed_runs"], shown["last_run"]) == (0, started["due"])
    assert "still ran" in shown["last_error"]


def test_record_of_the_release_before_runs_and_changes(world: World) -> None:
    record_id = world.create()
    key = world.keys.record(world.project.id, record_id)
    world.cloud.app.table.write(update(key, removes=NEW))
    assert world.after(HOUR) == 1
    assert world.shown(record_id)["timezone"] == "UTC"
    world.cloud.app.table.write(update(key, removes=(*NEW, "revision")))
    changed = world.http("PATCH", f"/{record_id}", {"timezone": "Asia/Shanghai"})
    assert (changed.status, changed.json()["timezone"]) == (200, "Asia/Shanghai")


def test_stale_item_starts_no_second_run(world: World) -> None:
    record_id = world.create()
    stale = world.item(record_id)
    assert world.after(HOUR) == 1
    assert not world.engine.fire_one(stale)
    assert len(world.runs(record_id)) == 1


@pytest.mark.parametrize("zone", ["Asia/Shanghai", "America/New_York"])
def test_time_of_day_is_that_of_the_time_zone(world: World, zone: str) -> None:
    expected = {"Asia/Shanghai": "18:00", "America/New_York": "07:00"}[zone]
    record_id = world.create("cron(0 2 * * ? *)", timezone=zone)
    shown = world.shown(record_id)
    assert (shown["timezone"], shown["next_run"][11:16]) == (zone, expected)
    changed = world.http("PATCH", f"/{record_id}", {"timezone": "UTC"}).json()
    assert changed["next_run"][11:16] == "02:00"


def test_unknown_time_zone_is_refused(world: World) -> None:
    fields = {**world.fields, "schedule": "rate(1 hour)", "timezone": "Mars/Olympus"}
    refused = world.http("POST", json=fields)
    assert refused.status == 422
    assert "Mars/Olympus" in str(refused.json()["errors"])
    record_id = world.create()
    assert world.http("PATCH", f"/{record_id}", {"timezone": "Mars/Olympus"}).status == 422


def test_change_of_an_old_revision_is_refused(world: World) -> None:
    record_id = world.create()
    seen = world.shown(record_id)["revision"]
    paused = world.http("PATCH", f"/{record_id}", {"paused": True, "revision": seen})
    assert (paused.status, paused.json()["status"], paused.json()["revision"]) == (200, "paused", seen + 1)
    refused = world.http("PATCH", f"/{record_id}", {"paused": False, "revision": seen})
    assert (refused.status, refused.json()["code"]) == (409, "conflict")
    assert f"revision {seen + 1}, not {seen}" in refused.json()["detail"]
    assert world.shown(record_id)["status"] == "paused"


def test_runs_do_not_change_the_revision(world: World) -> None:
    record_id = world.create()
    seen = world.shown(record_id)["revision"]
    assert world.after(HOUR) == 1
    assert world.shown(record_id)["revision"] == seen


def test_audit_lines_have_one_form(world: World) -> None:
    record_id = world.create()
    for change in ({"paused": True}, {"paused": False}, {"schedule": "rate(1 day)", "timezone": "Asia/Shanghai"}):
        assert world.http("PATCH", f"/{record_id}", change).status == 200
    assert world.http("DELETE", f"/{record_id}").status == 204
    lines = world.cloud.http("GET", "/v1/audit", query={"record": record_id}, key=world.project.key).json()["items"]
    actions = [line["action"] for line in sorted(lines, key=lambda line: line["at"])]
    assert sorted(actions) == sorted(
        f"{world.noun}.{action}" for action in ("create", "pause", "resume", "change", "delete")
    )
    (changed,) = [line["why"] for line in lines if line["action"].endswith(".change")]
    assert changed == "schedule, timezone"


def test_other_project_cannot_see_the_runs(world: World) -> None:
    record_id = world.create()
    other = world.cloud.project()
    assert world.cloud.http("GET", f"{world.path}/{record_id}/runs", key=other.key).status == 404
