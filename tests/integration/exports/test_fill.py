"""Exports that fill a template of the library."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.exports.fill import cells, opened, sheet_of
from tests.support.exports.paged_source import numbered
from tests.support.exports.running import ExportWorld
from tidegate.files.model import upload_object

TEMPLATE = {
    "A1": "{customer}: {rate}",
    "B1": "{rate}",
    "A3": "{.id}",
    "B3": "{.name}",
    "C3": "{.amount}",
    "C4": "=SUM(C3:C3)",
    "A5": "{Station}",
}


def template(world: ExportWorld, content: bytes | None = None, *, ready: bool = True) -> str:
    fields = {"biz_id": 1, "app_id": 2, "file_path": "/templates/report.xlsx"}
    file_id = str(world.cloud.http("POST", "/v1/files", json=fields, key=world.project.key).json()["file_id"])
    key = upload_object(world.project.id, file_id)
    world.s3.put_object(Bucket=world.bucket, Key=key, Body=sheet_of(TEMPLATE) if content is None else content)
    if ready:
        assert world.cloud.http("POST", f"/v1/files/{file_id}/complete", key=world.project.key).status == 200
    return file_id


def test_pulled_rows_fill_the_template(world: ExportWorld) -> None:
    world.source.rows = numbered(2500)
    fill = {"file_id": template(world), "values": {"customer": "ACME", "rate": 100.50}}

    shown, data = world.export(
        type="excel", source_url=world.source.url, step=100, fill=fill, header={"Station": "North"}
    )

    found = cells(data)
    assert (found[0], found[-1]) == (["ACME: 100.5", 100.5], ["North"])
    assert [row[0] for row in found[2:-2]] == [row["id"] for row in world.source.rows]
    assert found[-2] == [None, None, "=SUM(C3:C2502)"]
    assert not shown.get("warnings")
    assert not world.objects("staging/")


def test_several_tables_fill_lists_named_by_title_or_number(world: ExportWorld) -> None:
    file_id = template(world, sheet_of({"A1": "{orders.a}", "A3": "{2.b}", "B3": "{who}"}))

    shown, data = world.export(
        "/v1/task/multiple",
        type="excel",
        source_data=[[{"a": 1}, {"a": 2}], [{"b": 3}]],
        title=["orders", None],
        fill={"file_id": file_id},
    )

    assert cells(data) == [[1], [2], [], [3]]
    assert shown["warnings"] == ["fill: nothing was given for {who}, so these cells are empty"]


def test_synchronous_export_fills_a_template_too(world: ExportWorld) -> None:
    fields = {
        "type": "excel",
        "source_data": [{"id": 1, "name": "x", "amount": 2}],
        "fill": {"file_id": template(world)},
    }
    answer = world.cloud.http("POST", "/v1/download/sync", json=fields, key=world.project.key)

    assert answer.status == 200
    assert opened(answer.body)["Report"]["A3"].value == 1


def test_masks_of_the_project_hold_in_a_template(world: ExportWorld) -> None:
    path = f"/v1/projects/{world.project.id}"
    world.cloud.http("PATCH", path, json={"masks": {"name": "phone"}}, key=world.cloud.admin_key)
    rows = [{"id": 1, "name": "13800138000", "amount": 1}]

    _, data = world.export(type="excel", source_data=rows, fill={"file_id": template(world)})

    assert cells(data)[2] == [1, "138****8000", 1]


@pytest.mark.parametrize(
    ("content", "fields", "reason"),
    [
        (b"no workbook", {}, "not an .xlsx file"),
        (sheet_of({"A1": "{orders.id}"}), {}, "no table 'orders'"),
        (None, {"type": "csv"}, "only an export of type excel"),
    ],
)
def test_template_that_cannot_be_filled_is_refused(
    world: ExportWorld, content: bytes | None, fields: dict[str, Any], reason: str
) -> None:
    fill = {"file_id": template(world, content)}
    answer = world.post(**{"type": "excel", "source_data": [{"id": 1}], "fill": fill, **fields})

    assert (answer.status, answer.json()["code"]) == (422, "bad_table")
    assert reason in answer.json()["detail"]
    assert answer.json()["errors"][0]["loc"] == ["body", "fill"]


def test_template_that_is_not_ready_or_of_no_file_is_refused(world: ExportWorld) -> None:
    pending = world.post(type="excel", source_data=[], fill={"file_id": template(world, ready=False)})
    unknown = world.post(type="excel", source_data=[], fill={"file_id": "file-of-another-project"})

    assert (pending.status, "wait until it is ready" in pending.json()["detail"]) == (422, True)
    assert unknown.status == 404
