"""`{date}`, `{time}`, `{from}` and `{to}`: each run of a recurring export asks for its own period."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.integration.exports.test_schedules import HOURLY, call, create, fire, runs
from tests.support.exports.paged_source import numbered
from tests.support.exports.running import ExportWorld
from tidegate.errors import Busy
from tidegate.exports.exports import Orders
from tidegate.exports.store import spec_object

DAILY = "cron(0 0 * * ? *)"


@pytest.fixture
def world(world: ExportWorld) -> ExportWorld:
    world.source.rows = numbered(3)
    return world


def to_next_run(world: ExportWorld, schedule_id: str) -> datetime:
    """Fires the next run. Returns its planned time."""
    planned = datetime.fromisoformat(call(world, "GET", f"/{schedule_id}").json()["next_run"])
    assert fire(world, (planned - world.cloud.clock()).total_seconds()) == 1
    return planned


def asked(world: ExportWorld, schedule_id: str) -> dict[str, str]:
    """Runs the last export to its end. Returns the query that its source got."""
    world.run(runs(world, schedule_id)[0]["task_id"])
    return dict(world.source.requests[-1].args)


def ordered(world: ExportWorld, schedule_id: str) -> Any:
    """What the last run ordered."""
    task_id = runs(world, schedule_id)[0]["task_id"]
    return json.loads(world.cloud.app.exports.objects.get(spec_object(world.project.id, task_id)) or b"")


def test_daily_report_asks_its_source_for_yesterday(world: ExportWorld) -> None:
    url = f"{world.source.url}?from={{from}}&to={{to}}&day={{date}}"
    schedule_id = create(world, source_url=url, schedule=DAILY, timezone="Asia/Shanghai")["schedule_id"]
    for _ in range(2):
        end = to_next_run(world, schedule_id).astimezone(tz=None) + timedelta(hours=8)
        query = asked(world, schedule_id)
        assert query["day"] == f"{end:%Y-%m-%d}"
        assert query["from"] == f"{end - timedelta(days=1):%Y-%m-%d}T00:00:00+08:00"
        assert query["to"] == f"{end:%Y-%m-%d}T00:00:00+08:00"
    assert b"%2B08%3A00" in world.source.requests[-1].query_string, "a plus sign would be read as a space"


def test_period_begins_at_the_last_run_that_started(world: ExportWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{world.source.url}?from={{from}}&to={{to}}"
    schedule_id = create(world, source_url=url, schedule=HOURLY)["schedule_id"]
    first = to_next_run(world, schedule_id)
    assert asked(world, schedule_id)["to"] == first.isoformat(timespec="seconds")

    def busy(*_: Any, **__: Any) -> str:
        raise Busy("the table is throttled")

    with monkeypatch.context() as patched:
        patched.setattr(Orders, "queue_order", busy)
        for _ in range(110):
            fire(world, 60)
    assert runs(world, schedule_id)[0]["code"] == "busy"
    assert fire(world, 3600) == 1
    query = asked(world, schedule_id)
    assert query["from"] == first.isoformat(timespec="seconds"), "nothing is left out"
    assert datetime.fromisoformat(query["to"]) == datetime.fromisoformat(runs(world, schedule_id)[0]["due"])


def test_later_try_asks_for_the_same_period(world: ExportWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{world.source.url}?from={{from}}&to={{to}}"
    schedule = create(world, source_url=url, schedule=HOURLY)

    def busy(*_: Any, **__: Any) -> str:
        raise Busy("the table is throttled")

    with monkeypatch.context() as patched:
        patched.setattr(Orders, "queue_order", busy)
        assert fire(world, 3600) == 0
    assert fire(world, 60) == 1
    assert asked(world, schedule["schedule_id"])["to"] == schedule["next_run"].replace(".000Z", "+00:00")


def test_missed_runs_are_one_period(world: ExportWorld) -> None:
    url = f"{world.source.url}?from={{from}}&to={{to}}"
    schedule_id = create(world, source_url=url, schedule=HOURLY)["schedule_id"]
    first = to_next_run(world, schedule_id)
    asked(world, schedule_id)
    assert fire(world, 10 * 3600) == 1
    late = asked(world, schedule_id)
    assert fire(world, 3600) == 1
    following = asked(world, schedule_id)
    assert (late["from"], following["from"]) == (first.isoformat(timespec="seconds"), late["to"])


def test_names_have_times_without_colons(world: ExportWorld) -> None:
    world.cloud.app.exports.deliveries.allowed = "acme-*"
    granted = {"deliver_to": ["acme-reports-1/daily/*"]}
    project = f"/v1/projects/{world.project.id}"
    assert world.cloud.http("PATCH", project, json=granted, key=world.cloud.admin_key).status == 200
    deliver = [{"bucket": "acme-reports-1", "key": "daily/{from}_{to}.csv"}]
    names = {"file_name": "orders-{date}-{time}-{to}", "deliver": deliver}
    schedule_id = create(world, schedule="cron(30 6 * * ? *)", timezone="Asia/Shanghai", **names)["schedule_id"]
    end = to_next_run(world, schedule_id) + timedelta(hours=8)
    shown = world.run(runs(world, schedule_id)[0]["task_id"])
    assert shown["file_name"] == f"orders-{end:%Y-%m-%d}-0630-{end:%Y%m%d}T063000+0800.csv"
    start = end - timedelta(days=1)
    assert shown["deliveries"][0]["key"] == f"daily/{start:%Y%m%d}T063000+0800_{end:%Y%m%d}T063000+0800.csv"


def test_query_of_a_direct_source_has_the_period(world: ExportWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = world.cloud.app.exports.allowed_sources
    checked = list[Any]()
    monkeypatch.setattr(type(allowed), "check", lambda _, __, source, *___: checked.append(source))
    query = {
        "table": "orders",
        "key_condition": "shop = :s AND at BETWEEN :a AND :b",
        "values": {":s": "north", ":a": "{from}", ":b": "{to}", ":n": 7},
    }
    schedule_id = create(world, source_url=None, source={"dynamodb": query}, schedule=DAILY)["schedule_id"]
    end = to_next_run(world, schedule_id)
    stored = ordered(world, schedule_id)["tables"][0]["source"]["dynamodb"]["values"]
    assert stored[":b"] == end.isoformat(timespec="seconds")
    assert stored[":a"] == (end - timedelta(days=1)).isoformat(timespec="seconds")
    assert (stored[":s"], stored[":n"]) == ("north", 7)
    assert "{from}" not in str(checked[0]["dynamodb"]["values"]), "checked as it will be asked"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"source_url": "http://127.0.0.1:9/rows?day={day}"}, "source_url"),
        ({"source_url": None, "source": {"athena": {"workgroup": "w", "sql": "SELECT '{yesterday}'"}}}, "source"),
        ({"file_name": "orders-{Date}"}, "file_name"),
        ({"deliver": [{"bucket": "acme-reports-1", "key": "{now}.csv"}]}, "deliver"),
    ],
)
def test_unknown_placeholder_is_refused(world: ExportWorld, fields: dict[str, Any], field: str) -> None:
    order = {"name": "orders", "source_url": world.source.url, "schedule": HOURLY, **fields}
    refused = call(world, "POST", json=order)
    assert refused.status == 422, refused.body
    (error,) = refused.json()["errors"]
    assert error["loc"] == ["body", field]
    assert "{from}" in error["msg"]
    schedule_id = create(world)["schedule_id"]
    assert call(world, "PATCH", f"/{schedule_id}", json=fields).status == 422


def test_braces_that_are_no_placeholder_stay(world: ExportWorld) -> None:
    url = world.source.url + "?like={4}&json={%22a%22:1}"
    schedule_id = create(world, source_url=url, schedule=HOURLY)["schedule_id"]
    to_next_run(world, schedule_id)
    assert asked(world, schedule_id)["like"] == "{4}"
