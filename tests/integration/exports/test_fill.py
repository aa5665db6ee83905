"""Exports that fill a template of the library."""

from __future__ import annotations

import io
import json
from contextlib import ExitStack
from typing import Any

import openpyxl
import pytest
from openpyxl.styles import Alignment, Font, PatternFill

from tests.support.exports.fill import cells, opened, saved, sheet_of
from tests.support.exports.paged_source import numbered
from tests.support.exports.running import ExportWorld
from tests.support.moto.cloud import Answer
from tidegate.files.model import upload_object
from tidegate.sheets.rows import value_text
from tidegate.sheets.table import letters

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


def test_values_keep_their_digits(world: ExportWorld) -> None:
    file_id = template(world, sheet_of({"A1": "{sum} at {rate}", "A2": "{.a}", "A3": "{sum}", "A4": "{rate}"}))
    fill = f'{{"file_id": "{file_id}", "values": {{"sum": 12345678901234567.89, "rate": 100.00}}}}'
    order = '"name": "orders", "type": "excel", "source_data": [{"a": 1}]'
    wanted = [["12345678901234567.89 at 100.00"], [1], ["12345678901234567.89"], [100]]

    task_id = world.cloud.http("POST", "/v1/task", body=f'{{{order}, "fill": {fill}}}', key=world.project.key).json()
    world.run(task_id["task_id"])
    assert cells(world.file(task_id["task_id"])) == wanted

    posted = world.cloud.http(
        "POST", "/v1/download/sync", body=f'{{{order}, "fill": {json.dumps(fill)}}}', key=world.project.key
    )
    asked = world.get("/v1/download/sync", type="excel", source_data='[{"a": 1}]', fill=fill)
    assert (cells(posted.body), cells(asked.body)) == (wanted, wanted)

    made = world.cloud.http(
        "POST",
        "/v1/export-schedules",
        body=f'{{{order}, "schedule": "rate(1 day)", "fill": {fill}}}',
        key=world.project.key,
    ).json()
    path = f"/v1/export-schedules/{made['schedule_id']}"
    assert world.get(path).json()["order"]["fill"]["values"]["rate"] == 100
    assert world.cloud.http("PATCH", path, body='{"note": "n"}', key=world.project.key).status == 200
    stored = world.cloud.app.exports.schedules
    kept = stored.order(stored.get(world.project.id, made["schedule_id"])).spec.fill
    assert kept
    assert kept.values
    assert value_text(kept.values["sum"]) == "12345678901234567.89"


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


def placeholders(world: ExportWorld, file_id: str, key: str | None = None) -> Answer:
    return world.cloud.http("GET", "/v1/task/placeholders", query={"file_id": file_id}, key=key or world.project.key)


def test_template_tells_its_placeholders_and_first_cells(world: ExportWorld) -> None:
    def design(sheet: Any) -> None:
        sheet["A1"].font = Font(bold=True, color="FF0000AA")
        sheet["A1"].fill = PatternFill("solid", fgColor="00FFEE00")
        sheet["A1"].alignment = Alignment(horizontal="center")
        sheet.merge_cells("A1:C1")
        sheet["A200"] = "far below"

    content = sheet_of({"A1": "Bill of {customer}", "A2": "plain & <text>", "A3": "{2.b}", "C4": "=SUM(A3:A3)"}, design)
    found = placeholders(world, template(world, content)).json()

    assert found["values"] == ["customer"]
    assert found["lists"] == [{"name": "2", "sheet": "Report", "row": 3, "last_row": 3, "columns": ["b"]}]
    [sheet] = found["sheets"]
    assert (sheet["name"], sheet["merges"]) == ("Report", ["A1:C1"])
    shown = {(cell["row"], cell["column"]): cell for cell in sheet["cells"] if cell["text"]}
    look = {"bold": True, "align": "center", "color": "0000AA", "bg_color": "FFEE00"}
    assert shown.pop((1, 1)) == {"row": 1, "column": 1, "text": "Bill of {customer}"} | look
    assert {place: cell["text"] for place, cell in shown.items()} == {
        (2, 1): "plain & <text>",
        (3, 1): "{2.b}",
        (4, 3): "=SUM(A3:A3)",
    }


def test_placeholders_of_another_project_or_no_workbook_are_refused(world: ExportWorld) -> None:
    file_id = template(world)
    other = world.cloud.project("other")
    not_ready = template(world, ready=False)

    assert placeholders(world, file_id).status == 200
    assert placeholders(world, file_id, other.key).status == 404
    assert placeholders(world, "file-none").status == 404
    for refused in (not_ready, template(world, b"PK no workbook")):
        answer = placeholders(world, refused)
        assert (answer.status, answer.json()["code"]) == (422, "bad_table")


def test_placeholders_that_do_not_fit_an_answer_are_refused(world: ExportWorld) -> None:
    names = [f"{{{number:06d}{'n' * 190}}}" for number in range(30_000)]
    many = sheet_of({f"A{row}": "".join(names[row * 150 : row * 150 + 150]) for row in range(1, 200)})
    wide = sheet_of({f"{letters(column)}{row}": "中" * 300 for column in range(1, 27) for row in range(1, 41)})
    book = openpyxl.load_workbook(io.BytesIO(wide))
    for _ in range(4):
        book.copy_worksheet(book["Report"])

    assert placeholders(world, template(world, many)).json()["code"] == "content_too_large"
    found = placeholders(world, template(world, saved(book)))
    assert (found.status, 0 < len(found.json()["sheets"]) < 5) == (200, True)


def test_placeholders_count_as_a_slow_call(world: ExportWorld) -> None:
    file_id = template(world)
    with ExitStack() as others:
        for _ in range(20):
            others.enter_context(world.cloud.app.projects.slow_calls.held(world.project.id))
        assert placeholders(world, file_id).json()["code"] == "rate_limited"


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
