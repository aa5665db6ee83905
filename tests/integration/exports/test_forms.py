"""Form-encoded bodies, as the PHP clients of the older download centre send them (`http_build_query`)."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.support.moto.cloud import Answer, MotoCloud, Project
from tidegate.web.routing import form_fields

FORM = {"content-type": "application/x-www-form-urlencoded; charset=UTF-8"}


def php(value: Any, name: str = "") -> list[tuple[str, str]]:
    """The pairs that PHP's http_build_query sends: null is left out, booleans are 1 and 0."""
    if isinstance(value, (dict, list)):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        return [pair for key, inner in entries for pair in php(inner, f"{name}[{key}]" if name else str(key))]
    if value is None:
        return []
    return [(name, str(int(value)) if isinstance(value, bool) else str(value))]


def post(cloud: MotoCloud, project: Project, path: str, fields: dict[str, Any]) -> Answer:
    return cloud.http("POST", path, body=urlencode(php(fields)), headers=FORM, key=project.key)


ROWS = [{"id": 1, "name": "é&="}, {"id": 2, "name": "b[c]"}]
TEMPLATE = [
    {"name": "id", "title": "Id", "style": {"width": 80, "bold": True, "total": False, "align": "left"}},
    {"title": "Who", "children": [{"name": "name", "title": "Name"}]},
]


def test_form_with_nested_fields_gives_the_file_of_json(cloud: MotoCloud, project: Project) -> None:
    fields = {"name": "report", "type": "excel", "source_data": ROWS, "template": TEMPLATE, "default_width": 60}
    texts = {**fields, "source_data": [{name: str(value) for name, value in row.items()} for row in ROWS]}
    by_form = post(cloud, project, "/v1/download/sync", {**fields, "file_name": "r.xlsx"})
    by_json = cloud.http("POST", "/v1/download/sync", json={**texts, "file_name": "r.xlsx"}, key=project.key)
    assert (by_form.status, by_form.headers["content-type"]) == (200, by_json.headers["content-type"])
    assert _cells(by_form.body) == _cells(by_json.body)


def _cells(workbook: bytes) -> Any:
    import io

    import openpyxl

    sheet = openpyxl.load_workbook(io.BytesIO(workbook)).active
    assert sheet is not None
    return [(cell.value, cell.font.bold) for row in sheet.iter_rows() for cell in row], dict(sheet.column_dimensions)[
        "A"
    ].width


def test_form_with_strings_of_json_is_accepted(cloud: MotoCloud, project: Project) -> None:
    fields = {"name": "report", "source_data": json.dumps([{"a": 100.50}]).replace("100.5", "100.50")}
    answer = post(cloud, project, "/v1/download/sync", fields)
    assert (answer.status, answer.body.splitlines()[-1]) == (200, b"100.50")


@pytest.mark.parametrize("encoded", [False, True])
def test_form_submits_an_export(cloud: MotoCloud, project: Project, encoded: bool) -> None:
    import base64

    text = urlencode(php({"name": "report", "source_data": ROWS, "step": 500, "merchant_type": 2}))
    if encoded:
        # As API Gateway passes on a form.
        event = cloud._http_event("POST", "/v1/task", "", FORM, base64.b64encode(text.encode()).decode())
        event["isBase64Encoded"] = True
        event["headers"]["authorization"] = f"Bearer {project.key}"
        described = cloud.invoke("authorizer", {**event, "type": "REQUEST"})
        event["requestContext"]["authorizer"] = {"lambda": described["context"]}
        made = json.loads(cloud.invoke("api", event)["body"])
    else:
        made = cloud.http("POST", "/v1/task", body=text, headers=FORM, key=project.key).json()
    shown = cloud.http("GET", "/v1/task", query={"task_id": made["task_id"]}, key=project.key).json()
    assert (shown["name"], shown["merchant_type"]) == ("report", 2)


def test_form_of_several_tables(cloud: MotoCloud, project: Project) -> None:
    fields = {"name": "two", "source_data": [[{"a": 1}], [{"b": 2}]], "title": ["one", "two"], "multi_type": "page"}
    assert post(cloud, project, "/v1/task/multiple", fields).status == 202
    by_form = post(cloud, project, "/v1/download/sync/multiple", fields)
    by_json = cloud.http("POST", "/v1/download/sync/multiple", json=fields, key=project.key)
    assert (by_form.status, by_form.body) == (200, by_json.body)


def test_idempotency_key_holds_for_forms(cloud: MotoCloud, project: Project) -> None:
    def send(name: str) -> Answer:
        text = urlencode(php({"name": name, "source_data": ROWS}))
        headers = {**FORM, "idempotency-key": "k-1"}
        return cloud.http("POST", "/v1/task", body=text, headers=headers, key=project.key)

    assert send("report").json() == send("report").json()
    assert send("another").status == 409


def test_unknown_or_wrong_field_of_a_form_is_named(cloud: MotoCloud, project: Project) -> None:
    answer = post(cloud, project, "/v1/task", {"name": "report", "source_data": ROWS, "stepp": 1, "step": 1})
    assert answer.status == 422
    assert sorted(error["loc"][-1] for error in answer.json()["errors"]) == ["step", "stepp"]


@pytest.mark.parametrize("body", ["a[b=1", "name=%FF", "[x]=1", "a[" + "][".join("b" * 30) + "]=1", "a]b=1"])
def test_broken_form_is_400(cloud: MotoCloud, project: Project, body: str) -> None:
    answer = cloud.http("POST", "/v1/task", body=body, headers=FORM, key=project.key)
    assert (answer.status, answer.json()["code"]) == (400, "broken_json")


def test_other_routes_take_no_form(cloud: MotoCloud, project: Project) -> None:
    assert cloud.http("POST", "/v1/biz", body="name=b", headers=FORM, key=project.key).status in (400, 422)


def test_lists_and_objects_of_a_form_are_told_apart() -> None:
    text = "a[]=1&a[]=2&b[1]=x&b[2]=y&c[0]=x&c[1][k]=z&d=1&d[e]=2&f[g]=1&f=3"
    assert form_fields(text) == {
        "a": ["1", "2"],
        "b": {"1": "x", "2": "y"},
        "c": ["x", {"k": "z"}],
        "d": {"e": "2"},
        "f": "3",
    }
