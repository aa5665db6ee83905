"""Maps and masks of columns: in every format, and lifted only by a key that may."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import pyarrow.parquet
import pytest

from tests.support.exports.paged_source import numbered
from tests.support.exports.ranges import staged_only
from tests.support.exports.running import ExportWorld, read_csv, read_sheet

ROW = {"id": 1, "Mobile": "13800138000", "paid": 1, "mail": "ann@acme.example"}
MASKED = {"id": 1, "Mobile": "138****8000", "paid": 1, "mail": "a***@acme.example"}


def set_masks(world: ExportWorld, masks: dict[str, Any]) -> None:
    path = f"/v1/projects/{world.project.id}"
    assert world.cloud.http("PATCH", path, json={"masks": masks}, key=world.cloud.admin_key).status == 200


@pytest.fixture
def masked(world: ExportWorld) -> ExportWorld:
    set_masks(world, {"mobile": "phone", "mail": "email"})
    world.source.rows = [ROW]
    return world


def rows_of(kind: str, data: bytes) -> list[dict[str, Any]]:
    if kind == "csv":
        return [{**row, "id": int(row["id"]), "paid": int(row["paid"])} for row in read_csv(data)]
    if kind == "jsonl":
        return [json.loads(line) for line in data.splitlines()]
    if kind == "parquet":
        found = pyarrow.parquet.read_table(io.BytesIO(data)).to_pylist()
        return [{**row, "id": int(row["id"]), "paid": int(row["paid"])} for row in found]
    head, *rows = read_sheet(data)
    return [dict(zip(head, row, strict=True)) for row in rows]


@pytest.mark.parametrize("kind", ["csv", "excel", "jsonl", "parquet"])
@pytest.mark.parametrize("how", ["staged", "sync", "given"])
def test_columns_of_the_project_are_masked_in_every_format(masked: ExportWorld, kind: str, how: str) -> None:
    if how == "sync":
        data = masked.post("/v1/download/sync", type=kind).body
    else:
        more: dict[str, Any] = {"source_data": [ROW]} if how == "given" else {}
        _, data = masked.export(type=kind, **more)
    assert rows_of(kind, data) == [MASKED]


@pytest.mark.parametrize("kind", ["csv", "excel", "jsonl", "parquet"])
def test_ranges_and_staged_pages_are_masked_alike(masked: ExportWorld, kind: str) -> None:
    masked.source.rows = [{**ROW, "id": n, "Mobile": f"138{n:04d}{n:04d}"} for n in range(2050)]
    _, joined = masked.export(type=kind, step=100)
    with staged_only(masked):
        _, staged = masked.export(type=kind, step=100)
    expected = [{**MASKED, "id": n, "Mobile": f"138****{n:04d}"} for n in range(2050)]
    assert rows_of(kind, joined) == rows_of(kind, staged) == expected


@pytest.mark.parametrize("name", [" mobile", "Mobile\u00a0", "ＭＯＢＩＬＥ", "mob\u200bile", "MOBILE\ufeff", "mobi le"])
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_column_is_masked_however_its_name_is_spaced(masked: ExportWorld, kind: str, name: str) -> None:
    """The head of a CSV object may be `id, mobile`: a mask that is missed for a blank shows what it should hide."""
    masked.source.rows = [{"id": 1, name: "13800138000"}]
    _, data = masked.export(type=kind, template=[{"name": "id"}, {"name": name, "style": {"type": "integer"}}])
    (found,) = pyarrow.parquet.read_table(io.BytesIO(data)).to_pylist() if kind == "parquet" else [json.loads(data)]
    assert found[name] == "138****8000"


def test_project_masks_show_as_many_characters_as_set(world: ExportWorld) -> None:
    set_masks(world, {"a": {"start": 2}, "b": {"end": 3}, "c": {"start": 1, "end": 1}, "d": {}})
    world.source.rows = [dict.fromkeys("abcd", "12345")]
    assert world.export(csv_header="none")[1] == b"12***,**345,1***5,*****\n"


def test_map_and_mask_of_the_template_change_the_values(world: ExportWorld) -> None:
    world.source.rows = [{"paid": 0, "card": "6222020200112233", "name": "张三丰", "x": 1.50}, {"paid": "7", "x": None}]
    style = {"map": {"0": "unpaid", "1.5": 3}, "map_default": "?"}
    template = [
        {"name": "paid", "style": style},
        {"name": "card", "style": {"mask": "card"}},
        {"name": "name", "style": {"mask": {"start": 1}}},
        {"name": "x", "style": {"map": {"1.5": 3, "": "none"}}},
    ]
    _, data = world.export(template=template)
    assert data.decode() == "paid,card,name,x\nunpaid,************2233,张**,3\n?,,,none\n"


@pytest.mark.parametrize("mask", ["phone", "id", "card", {"start": 3, "end": 4}])
@pytest.mark.parametrize("value", ["1234567", 1234567, "12", 12.5, True, ["13800138000"]])
def test_short_value_is_hidden_whole(world: ExportWorld, mask: Any, value: Any) -> None:
    if mask == "card" and value in ("1234567", 1234567):
        pytest.skip("a card shows its last four digits")
    world.source.rows = [{"a": value, "b": 1}]
    _, data = world.export(template=[{"name": "a", "style": {"mask": mask}}])
    assert not set(read_csv(data)[0]["a"]) - set("*")


def test_map_of_the_caller_sees_only_what_the_project_shows(masked: ExportWorld) -> None:
    style = {"map": {"13800138000": "found", "138****8000": "hidden"}}
    _, data = masked.export(template=[{"name": "Mobile", "style": style}], csv_header="none")
    assert b"hidden" in data
    assert b"found" not in data


def test_masks_may_not_be_lifted_without_the_scope(masked: ExportWorld) -> None:
    for path in ("/v1/task", "/v1/download/sync"):
        answer = masked.post(path, unmask=True)
        assert (answer.status, answer.json()["code"]) == (403, "scope_missing"), path
    fields = {"name": "orders", "source_url": masked.source.url, "unmask": True, "schedule": "rate(1 day)"}
    answer = masked.cloud.http("POST", "/v1/export-schedules", json=fields, key=masked.project.key)
    assert answer.status == 403


def test_key_of_scope_unmask_exports_unmasked_and_is_audited(masked: ExportWorld) -> None:
    weak = masked.project.key
    made = masked.cloud.app.projects.api_keys.add(masked.project.id, ["read", "write", "unmask"], None)
    strong, key_id = made.key, made.key_id
    masked.project = replace(masked.project, key=strong)
    shown, data = masked.export(type="jsonl", unmask=True)
    assert json.loads(data) == ROW
    assert shown["unmask"] is True
    assert json.loads(masked.post("/v1/download/sync", type="jsonl", unmask=True).body) == ROW
    assert json.loads(masked.export(type="jsonl")[1]) == MASKED, "only where it was asked for"

    audit = masked.cloud.http("GET", "/v1/audit", query={"action": "export.unmask"}, key=strong)
    lines = audit.json()["items"]
    assert [line["actor"] for line in lines] == [key_id] * 2
    assert shown["task_id"] in [line["record"] for line in lines]

    query = {"task_id": shown["task_id"]}
    for path in ("/v1/download/url", "/v1/download/async"):
        assert masked.cloud.http("GET", path, query=query, key=weak).status == 403, "others may not fetch the file"
        assert masked.cloud.http("GET", path, query=query, key=strong).status in (200, 302)


def test_schedule_that_unmasks_cannot_be_changed_without_the_scope(masked: ExportWorld) -> None:
    weak = masked.project.key
    strong = masked.cloud.make_key(masked.project.id, ["read", "write", "unmask"])
    fields = {"name": "orders", "source_url": masked.source.url, "unmask": True, "schedule": "rate(1 day)"}
    made = masked.cloud.http("POST", "/v1/export-schedules", json=fields, key=strong).json()
    path = f"/v1/export-schedules/{made['schedule_id']}"
    assert masked.cloud.http("PATCH", path, json={"file_name": "x"}, key=weak).status == 403
    assert masked.cloud.http("PATCH", path, json={"file_name": "x"}, key=strong).status == 200
    assert masked.cloud.http("PATCH", path, json={"unmask": False}, key=weak).status == 200


def test_sample_of_a_source_is_masked(masked: ExportWorld) -> None:
    answer = masked.post("/v1/task/sample")
    fields = {"source_url": masked.source.url}
    answer = masked.cloud.http("POST", "/v1/task/sample", json=fields, key=masked.project.key)
    assert answer.json()["rows"] == [MASKED]


def test_masks_in_force_when_the_export_is_queued_count(masked: ExportWorld) -> None:
    task_id = masked.submit(type="jsonl")
    set_masks(masked, {})
    masked.run(task_id)
    assert json.loads(masked.file(task_id)) == MASKED
    assert json.loads(masked.export(type="jsonl")[1]) == ROW


@pytest.mark.parametrize("masks", [{"a": "all"}, {"a": {"start": 99}}, {"a": {"first": 1}}, {"": "phone"}, []])
def test_unknown_mask_of_a_project_is_refused(world: ExportWorld, masks: Any) -> None:
    path = f"/v1/projects/{world.project.id}"
    assert world.cloud.http("PATCH", path, json={"masks": masks}, key=world.cloud.admin_key).status == 422


@pytest.mark.parametrize(
    "style", [{"mask": "all"}, {"mask": {"start": -1}}, {"map": "x"}, {"map": {"a": []}}, {"mask": 3}]
)
def test_unknown_map_or_mask_of_a_template_is_refused(world: ExportWorld, style: Any) -> None:
    answer = world.post(template=[{"name": "a", "style": style}])
    assert (answer.status, answer.json()["code"]) == (422, "bad_table")


def test_masked_pages_that_differ_are_no_repeats(masked: ExportWorld) -> None:
    masked.source.rows = numbered(950)
    set_masks(masked, {"id": {"end": 0, "start": 0}, "name": {"start": 1, "end": 0}, "amount": {"start": 0, "end": 0}})
    assert len(read_csv(masked.export(step=100)[1])) == 950
