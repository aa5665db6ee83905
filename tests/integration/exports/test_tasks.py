"""The routes of exports: order, show, list, link, delete, and their refusals."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.exports.paged_source import numbered
from tests.support.exports.running import ExportWorld

DAY = 86_400


OUT_OF_BOUNDS: list[dict[str, Any]] = [
    {"step": 99},
    {"step": 5001},
    {"name": "x"},
    {"name": "x" * 61},
    {"file_name": "x" * 121},
    {"file_name": "../x"},
    {"type": "pdf"},
    {"callback": "http://h/" + "x" * 300},
    {"merchant_type": 4},
    {"priority": 11},
    {"header_align": "middle"},
    {"header": [1]},
    {"source_data": "{broken"},
    {"rows_per_file": 0},
    {"colour": "red"},
]


def test_fields_out_of_bounds_are_refused_and_named(world: ExportWorld) -> None:
    for fields in OUT_OF_BOUNDS:
        answer = world.post(**{"source_data": [], **fields})
        assert answer.status == 422, (fields, answer.body)
        (field,) = fields
        assert field in str(answer.json()["errors"])


def test_order_that_could_only_fail_later_is_refused(world: ExportWorld) -> None:
    shape = world.post(source_data=[1]).json()
    assert shape["errors"] == [{"loc": ["body", "source_data"], "msg": shape["detail"]}]
    for fields in (
        {"source_data": [1]},
        {"source_data": [], "template": {"col": [{"title": "x", "children": [{}]}]}},
        {"source_url": "ftp://h/x"},
        {"source_data": [], "callback": "http://169.254.169.254/"},
    ):
        assert world.post(**fields).status == 422, fields
    missing = world.cloud.http("POST", "/v1/task", json={"name": "orders"}, key=world.project.key)
    assert missing.status == 422
    multiple = world.post("/v1/task/multiple", source_data=[[]], title="not a list")
    assert (multiple.status, "one entry for each table" in str(multiple.json())) == (422, True)


def test_json_strings_are_parsed(world: ExportWorld) -> None:
    task_id = world.submit(
        source_data='[{"a": 1}]', type="excel", template='{"a": "甲"}', header='{"k": "v"}', step="100", merchant_id=7
    )
    shown = world.run(task_id)
    assert (shown["status"], shown["merchant_id"]) == ("completed", 7)


def test_finished_export_has_the_fields_of_the_contract(world: ExportWorld) -> None:
    world.source.rows = numbered(3)
    task_id = world.submit(operator_id="op1", merchant_type=2, merchant_id="m9")
    assert world.shown(task_id)["status"] == "pending"
    shown = world.run(task_id)

    assert shown["file_name"].endswith(".csv")
    assert shown["finish_time"] > shown["create_time"]
    expected = {
        "task_id": task_id,
        "name": "orders",
        "type": "csv",
        "status": "completed",
        "progress": {"rows": 3, "total": 3, "percent": 100},
        "size": len(world.file(task_id)),
        "attempts": 1,
        "operator_id": "op1",
        "merchant_type": 2,
        "merchant_id": "m9",
    }
    assert expected.items() <= shown.items()


def test_same_idempotency_key_makes_one_export(world: ExportWorld) -> None:
    def order(name: str) -> Any:
        return world.cloud.http(
            "POST",
            "/v1/task",
            json={"name": name, "source_data": []},
            key=world.project.key,
            headers={"idempotency-key": "k1"},
        )

    assert order("one").json() == order("one").json()
    assert order("two").status == 409
    assert len(world.get("/v1/tasks").json()["items"]) == 1


def test_lists_are_filtered_newest_first_and_paged(world: ExportWorld) -> None:
    task_ids = []
    for number in range(5):
        world.cloud.clock.advance(1)
        task_ids.append(
            world.submit(source_data=[], name=f"n{number}", operator_id=f"op{number % 2}", merchant_type=number % 4)
        )
    world.run(task_ids[2])

    def ids(**query: Any) -> list[str]:
        return [item["task_id"] for item in world.get("/v1/tasks", **query).json()["items"]]

    assert ids() == task_ids[::-1]
    assert ids(operator_id="op1") == [task_ids[3], task_ids[1]]
    assert ids(merchant_type=0) == [task_ids[4], task_ids[0]]
    assert ids(name="n3") == [task_ids[3]]
    assert ids(status="completed") == [task_ids[2]]
    first = world.get("/v1/tasks", limit=2, operator_id="op0").json()
    rest = world.get("/v1/tasks", limit=2, operator_id="op0", cursor=first["next_cursor"]).json()
    assert [item["task_id"] for item in first["items"] + rest["items"]] == [task_ids[4], task_ids[2], task_ids[0]]
    assert rest["next_cursor"] is None


def test_lifetimes_of_temporary_and_permanent_urls(world: ExportWorld) -> None:
    task_id = world.submit(source_data=[{"a": 1}], file_name="报表")
    for path in ("/v1/download/url", "/v1/download/async"):
        early = world.get(path, task_id=task_id)
        assert (early.status, early.json()["code"]) == (409, "not_ready")
    world.run(task_id)

    link = world.get("/v1/download/url", task_id=task_id).json()
    query = parse_qs(urlsplit(link["url"]).query)
    assert query["X-Amz-Expires"] == ["300"]
    assert "%E6%8A%A5%E8%A1%A8.csv" in query["response-content-disposition"][0]
    permanent = world.get("/v1/download/async", task_id=task_id)
    assert (permanent.status, "X-Amz-Expires=300" in permanent.headers["location"]) == (302, True)
    assert world.cloud.http("GET", f"/v1/download/async?task_id={task_id}").status == 401
    stranger = world.cloud.project()
    for path in ("/v1/task", "/v1/download/url", "/v1/download/async"):
        assert world.cloud.http("GET", f"{path}?task_id={task_id}", key=stranger.key).status == 404

    world.cloud.clock.advance(7 * DAY)
    for path in ("/v1/download/url", "/v1/download/async"):
        late = world.get(path, task_id=task_id)
        assert (late.status, late.json()["code"]) == (410, "expired")
    assert world.shown(task_id)["status"] == "expired"
    assert [item["task_id"] for item in world.get("/v1/tasks", status="expired").json()["items"]] == [task_id]

    # The daily clean-up deletes the file; the record stays `expired` for some days.
    assert world.cloud.invoke("clean_up", {})["removed"] == 1
    assert world.objects("exports") == []
    assert world.shown(task_id)["status"] == "expired"
    assert world.get("/v1/download/url", task_id=task_id).status == 410


def test_delete_removes_records_and_files_and_cancels_running_exports(world: ExportWorld) -> None:
    world.source.rows = numbered(3)
    done, waiting, running = world.submit(), world.submit(), world.submit()
    world.run(done)
    state = {"project_id": world.project.id, "request_id": running, "attempt": 1}
    stranger = world.cloud.project()
    body = {"task_ids": [done, waiting, running, "exp-unknown", done]}
    assert world.cloud.http("POST", "/v1/tasks/delete", json=body, key=stranger.key).json() == {"deleted": 0}

    assert world.cloud.http("POST", "/v1/tasks/delete", json=body, key=world.project.key).json() == {"deleted": 3}
    assert world.cloud.http("POST", "/v1/tasks/delete", json=body, key=world.project.key).json() == {"deleted": 0}
    assert world.objects() == []
    assert world.get("/v1/tasks").json()["items"] == []
    assert world.get("/v1/task", task_id=done).status == 404
    assert world.cloud.invoke("pull_pages", state)["next"] == "over"
    assert world.cloud.app.queue.channel_store.get("export").running == 0  # type: ignore[union-attr]


def test_admin_may_order_for_a_named_project(world: ExportWorld) -> None:
    body = {"name": "orders", "source_data": [], "project_id": world.project.id}
    answer = world.cloud.http("POST", "/v1/task", json=body, key=world.cloud.admin_key)
    assert world.shown(answer.json()["task_id"])["status"] == "pending"
    stranger = world.cloud.project()
    assert world.cloud.http("POST", "/v1/task", json=body, key=stranger.key).status == 404


def test_note_is_set_at_creation_changed_and_removed(world: ExportWorld) -> None:
    task_id = world.post(source_data=[{"id": 1}], note="for the audit").json()["task_id"]
    path, key = f"/v1/task?task_id={task_id}", world.project.key
    http = world.cloud.http
    assert http("GET", path, key=key).json()["note"] == "for the audit"
    changed = http("PATCH", path, json={"note": "another"}, key=key)
    assert (changed.status, changed.json()["note"]) == (200, "another")
    assert [task["note"] for task in http("GET", "/v1/tasks", key=key).json()["items"]] == ["another"]
    lines = http("GET", f"/v1/audit?record={task_id}", key=key).json()["items"]
    assert [line["why"] for line in lines if line["action"] == "export.change"] == ["note another"]
    assert http("PATCH", path, json={"note": None}, key=key).status == 200
    assert http("GET", path, key=key).json().get("note") is None
    assert http("PATCH", path, json={"note": "x" * 501}, key=key).status == 422
    assert http("PATCH", "/v1/task?task_id=exp-none", json={"note": "x"}, key=key).status == 404
