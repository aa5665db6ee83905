"""Changes of recurring exports: schedule, order, pause; the order as shown; the quota."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from tests.integration.exports.test_schedules import HOURLY, call, create, fire, runs
from tests.support.exports.killing import Killed, killed_at
from tests.support.exports.paged_source import numbered
from tests.support.exports.running import ExportWorld, read_csv
from tests.support.moto.cloud import Answer
from tidegate.aws import keys
from tidegate.aws.table import Table, Write, update


@pytest.fixture
def world(world: ExportWorld) -> ExportWorld:
    world.source.rows = numbered(150)
    return world


def change(world: ExportWorld, schedule_id: str, key: str | None = None, **fields: Any) -> Answer:
    return call(world, "PATCH", f"/{schedule_id}", key=key, json=fields)


def stored_order(world: ExportWorld, schedule_id: str) -> Any:
    item = world.cloud.app.table.get(keys.EXPORT_SCHEDULES.order(world.project.id, schedule_id), consistent=True)
    assert item is not None
    return json.loads(item["order"])


def changed(world: ExportWorld, schedule_id: str, **fields: Any) -> dict[str, Any]:
    answer = change(world, schedule_id, **fields)
    assert answer.status == 200, answer.body
    return dict(answer.json())


def test_new_schedule_decides_the_next_run(world: ExportWorld) -> None:
    record = create(world)
    shown = changed(world, record["schedule_id"], schedule="rate(1 day)")
    assert (shown["schedule"], shown["revision"]) == ("rate(1 day)", 1)
    assert shown["next_run"] > record["next_run"]
    assert fire(world) == 0
    assert fire(world, 86_400) == 1


def test_other_fields_of_the_order_change_the_next_file(world: ExportWorld) -> None:
    schedule_id = create(world)["schedule_id"]
    shown = changed(
        world, schedule_id, name="other", delimiter=";", template=[{"name": "id", "title": "No"}], csv_header="titles"
    )
    assert shown["name"] == "other"
    assert fire(world) == 1
    (run,) = runs(world, schedule_id)
    world.run(run["task_id"])
    data = world.file(run["task_id"])
    assert data.startswith(b"No;")
    assert world.shown(run["task_id"])["name"] == "other"


def test_omitted_fields_stay_and_null_removes_a_field(world: ExportWorld) -> None:
    schedule_id = create(world, file_name="orders-{date}", delimiter=";", priority=2)["schedule_id"]
    changed(world, schedule_id, delimiter=None)
    fire(world)
    (run,) = runs(world, schedule_id)
    shown = world.run(run["task_id"])
    assert shown["file_name"].startswith("orders-20")
    assert shown["priority"] == 2
    assert len(read_csv(world.file(run["task_id"]))) == 150


def test_change_pauses_and_resumes_a_schedule(world: ExportWorld) -> None:
    schedule_id = create(world)["schedule_id"]
    shown = changed(world, schedule_id, paused=True)
    assert shown["status"] == "paused"
    assert shown.get("next_run") is None
    assert fire(world) == 0
    # A new schedule does not resume a paused one.
    assert changed(world, schedule_id, schedule="rate(2 hours)").get("next_run") is None
    assert changed(world, schedule_id, paused=False)["status"] == "active"
    assert fire(world, 7201) == 1


def test_rows_given_with_the_order_keep_their_digits(world: ExportWorld) -> None:
    rows = '[{"amount": 100.00, "n": 12345678901234567.89}]'
    order = f'{{"name": "given", "source_data": {rows}, "schedule": "rate(1 hour)"}}'
    answer = call(world, "POST", body=order)
    assert answer.status == 201, answer.body
    schedule_id = answer.json()["schedule_id"]
    changed(world, schedule_id, file_name="renamed")
    fire(world)
    (run,) = runs(world, schedule_id)
    world.run(run["task_id"])
    assert b"100.00,12345678901234567.89" in world.file(run["task_id"])


def test_new_source_replaces_given_rows(world: ExportWorld) -> None:
    answer = call(world, "POST", json={"name": "given", "source_data": [{"a": 1}], "schedule": "rate(1 hour)"})
    schedule_id = answer.json()["schedule_id"]
    changed(world, schedule_id, source_url=world.source.url, step=100)
    fire(world)
    (run,) = runs(world, schedule_id)
    world.run(run["task_id"])
    assert len(read_csv(world.file(run["task_id"]))) == 150


def test_several_tables_are_changed_by_lists(world: ExportWorld) -> None:
    order = {"name": "two", "type": "excel", "source_url": [world.source.url] * 2, "schedule": "rate(1 hour)"}
    answer = call(world, "POST", "/multiple", json=order)
    schedule_id = answer.json()["schedule_id"]
    assert change(world, schedule_id, title="one text").status == 422
    assert changed(world, schedule_id, title=["A", "B"], multi_type="tab")["revision"] == 1
    order_kept = stored_order(world, schedule_id)
    assert [table["title"] for table in order_kept["spec"]["tables"]] == ["A", "B"]
    assert order_kept["spec"]["multi_type"] == "tab"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"schedule": "hourly"}, "schedule"),
        ({"step": 7}, "step"),
        ({"type": "pdf"}, "type"),
        ({"type": "excel", "compression": "gzip"}, "compression"),
        ({"template": [{"title": "t", "oops": 1}]}, "template"),
        ({"source_url": "http://169.254.169.254/"}, "source_url"),
        ({"name": None}, "name"),
        ({"email": ["a@b.example"]}, "email"),
        ({"project_id": "prj-x"}, "project_id"),
        ({"interval": 5}, "interval"),
    ],
)
def test_bad_change_is_refused_and_the_field_named(world: ExportWorld, fields: dict[str, Any], field: str) -> None:
    schedule_id = create(world)["schedule_id"]
    answer = change(world, schedule_id, **fields)
    assert answer.status == 422, answer.body
    assert field in str(answer.body)
    assert call(world, "GET", f"/{schedule_id}").json()["revision"] == 0


def test_change_of_an_old_revision_is_refused(world: ExportWorld) -> None:
    schedule_id = create(world)["schedule_id"]
    assert changed(world, schedule_id, name="first", revision=0)["revision"] == 1
    answer = change(world, schedule_id, name="second", revision=0)
    assert answer.status == 409
    assert "revision 1, not 0" in answer.json()["detail"]
    assert call(world, "GET", f"/{schedule_id}").json()["name"] == "first"
    # Pausing increases the revision too.
    call(world, "POST", f"/{schedule_id}/pause")
    assert change(world, schedule_id, name="third", revision=1).status == 409


def test_two_changes_at_once_do_not_mix_their_orders(world: ExportWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule_id = create(world)["schedule_id"]
    schedules = world.cloud.app.exports.schedules
    kind, orders = schedules.kind, schedules.kind.orders
    assert orders

    def interrupted(*arguments: Any) -> str:
        monkeypatch.setattr(schedules, "kind", kind)
        changed(world, schedule_id, name="between")
        return orders.stored(*arguments)

    monkeypatch.setattr(schedules, "kind", replace(kind, orders=replace(orders, stored=interrupted)))
    answer = change(world, schedule_id, name="late")
    assert (answer.status, answer.json()["code"]) == (409, "conflict")
    assert call(world, "GET", f"/{schedule_id}").json()["name"] == "between"


def test_schedule_without_revision_can_be_changed(world: ExportWorld) -> None:
    schedule_id = create(world)["schedule_id"]
    old = update(keys.EXPORT_SCHEDULES.record(world.project.id, schedule_id), removes=("revision", "counted"))
    world.cloud.app.table.write(old)
    assert changed(world, schedule_id, name="renamed")["revision"] == 1
    assert call(world, "DELETE", f"/{schedule_id}").status == 204


def test_change_that_changes_nothing_writes_nothing(world: ExportWorld) -> None:
    schedule_id = create(world)["schedule_id"]
    assert changed(world, schedule_id, paused=False, schedule="rate(1 hour)")["revision"] == 0


def test_other_project_cannot_change_the_schedule(world: ExportWorld) -> None:
    schedule_id = create(world)["schedule_id"]
    stranger = world.cloud.project("stranger")
    assert change(world, schedule_id, key=stranger.key, paused=True).status == 404


def test_crash_during_a_change_leaves_it_old_or_new(world: ExportWorld) -> None:
    for call_number in range(1, 30):
        schedule_id = create(world)["schedule_id"]
        with killed_at(call_number) as died, suppress(Killed):
            changed(world, schedule_id, name="renamed", schedule="rate(1 day)")
        record = call(world, "GET", f"/{schedule_id}").json()
        order = stored_order(world, schedule_id)
        state = record["name"], record["schedule"], order["options"]["name"], record["revision"]
        new = ("renamed", "rate(1 day)", "renamed", 1)
        assert state in (("orders", "rate(1 hour)", "orders", 0), new)
        call(world, "DELETE", f"/{schedule_id}")
        if not died():
            assert state == new
            return
    raise AssertionError("every run was killed: the loop needs a higher limit")


def test_schedule_over_the_quota_is_refused(world: ExportWorld) -> None:
    path = f"/v1/projects/{world.project.id}"
    limits = {"quotas": {"export_schedules": 2}}
    assert world.cloud.http("PATCH", path, json=limits, key=world.cloud.admin_key).status == 200
    first = create(world)["schedule_id"]
    create(world)
    order = {"name": "orders", "source_url": world.source.url, "schedule": "rate(1 hour)"}
    answer = call(world, "POST", json=order)
    assert (answer.status, answer.json()["code"]) == (429, "quota_exceeded")
    assert "export_schedules is 2" in answer.json()["detail"]

    usage = world.cloud.http("GET", path, key=world.cloud.admin_key).json()["usage"]
    assert usage["export_schedules"] == 2
    assert call(world, "DELETE", f"/{first}").status == 204
    assert call(world, "DELETE", f"/{first}").status == 404
    assert call(world, "POST", json=order).status == 201


def test_schedule_shows_its_order(world: ExportWorld) -> None:
    credential = {"headers": {"authorization": "Bearer hidden"}, "origins": [world.source.url.removesuffix("/rows")]}
    assert world.cloud.http("PUT", "/v1/credentials/shop", json=credential, key=world.project.key).status < 300
    template = [{"name": "id", "title": "No", "style": {"width": 40.5}}]
    fields = {"file_name": "orders-{date}", "template": template, "source_headers": {"credential": "shop"}}
    schedule_id = create(world, **fields)["schedule_id"]
    answer = call(world, "GET", f"/{schedule_id}")
    order = answer.json()["order"]
    assert {name: order[name] for name in fields} == fields
    assert (order["source_url"], order["step"], order["name"]) == (world.source.url, 100, "orders")
    assert b"hidden" not in answer.body
    changed(world, schedule_id, delimiter=";")
    assert call(world, "GET", f"/{schedule_id}").json()["order"] == order | {"delimiter": ";"}
    second = call(world, "POST", json=order | {"schedule": "rate(1 day)"})
    assert second.status == 201, second.body


def test_order_of_given_rows_is_shown_without_them(world: ExportWorld) -> None:
    fields = {"name": "two", "source_data": [[{"id": "secret"}], [{"id": 2}]], "title": ["a", "b"], "schedule": HOURLY}
    answer = call(world, "POST", "/multiple", json=fields | {"type": "excel"})
    shown = call(world, "GET", f"/{answer.json()['schedule_id']}")
    assert shown.json()["order"]["title"] == ["a", "b"]
    assert b"secret" not in shown.body


@pytest.mark.parametrize("limit", [1, 2])
def test_lost_response_of_a_new_schedule_counts_as_created(
    world: ExportWorld, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    path = f"/v1/projects/{world.project.id}"
    limits = {"quotas": {"export_schedules": limit}}
    assert world.cloud.http("PATCH", path, json=limits, key=world.cloud.admin_key).status == 200
    transact, listed = Table.transact, keys.EXPORT_SCHEDULES.list(world.project.id)

    def written_twice(table: Table, writes: Sequence[Write], *args: Any, **kwargs: Any) -> None:
        transact(table, writes, *args, **kwargs)
        if any((write.item or {}).get("gsi1pk") == listed for write in writes):
            transact(table, writes, *args, **kwargs)

    with monkeypatch.context() as lost:
        lost.setattr(Table, "transact", written_twice)
        schedule_id = create(world)["schedule_id"]
    assert [item["schedule_id"] for item in call(world, "GET").json()["items"]] == [schedule_id]
    usage = world.cloud.http("GET", path, key=world.cloud.admin_key).json()["usage"]
    assert usage["export_schedules"] == 1
