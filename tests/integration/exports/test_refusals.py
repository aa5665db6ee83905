"""Orders that could only fail later are refused with the field named; valid ones keep their values."""

from __future__ import annotations

import gzip
import io
import json
from typing import Any

import openpyxl
import pytest

from tests.support.exports.paged_source import numbered
from tests.support.exports.running import ExportWorld, read_csv, read_sheet
from tests.support.exports.samples import SEED_TEMPLATE


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"template": [{"title": "Order", "columns": [{"key": "id"}]}]}, "template[0] has no field columns"),
        ({"template": [{"title": "t", "children": [{"key": "id"}]}]}, "template[0].children[0] has no field key"),
        ({"template": [{"name": "a", "style": {"colour": "red"}}]}, "template[0].style has no field colour"),
        ({"template": [{"name": "a", "style": {"format": "0\n0"}}]}, "template[0].style.format is not an Excel"),
        ({"source_data": [{f"k{n}": 1 for n in range(16_385)}]}, "16385 different keys"),
        ({"source_data": [{"_row_head_": "sales"}], "template": SEED_TEMPLATE}, "row head 'sales' is not"),
        ({"source_data": [{"a": 1}], "template": SEED_TEMPLATE}, "a row has no _row_head_"),
        ({"compression": "gzip"}, "compression is for csv and jsonl"),
        ({"type": "csv", "delimiter": "ab"}, "delimiter"),
        ({"type": "csv", "encoding": "latin-1"}, "encoding"),
    ],
)
def test_bad_order_is_refused_and_the_field_named(world: ExportWorld, fields: dict[str, Any], message: str) -> None:
    answer = world.post(**{"type": "excel", "source_data": [], **fields})
    assert answer.status == 422
    assert message in answer.body.decode()


def test_column_that_no_row_has_is_a_warning(world: ExportWorld) -> None:
    world.source.rows = numbered(2)
    shown, _ = world.export(type="excel", template={"id": "No", "nmae": "Name"})
    assert shown["warnings"] == ["template: no row has nmae, so these columns are empty"]


def test_cut_cells_are_a_warning(world: ExportWorld) -> None:
    shown, _ = world.export(type="excel", source_data=[{"a": "x" * 32_768}, {"a": "x" * 32_767}])
    assert shown["warnings"] == ["1 cell was cut: an Excel cell has at most 32,767 characters"]


def test_given_decimals_keep_their_digits(world: ExportWorld) -> None:
    raw = '{"name": "orders", "source_data": [{"a": 12345678901234567.89, "b": 100.00}]}'
    answer = world.cloud.http("POST", "/v1/task", body=raw, key=world.project.key)
    task_id = answer.json()["task_id"]
    world.run(task_id)
    assert world.file(task_id) == b"a,b\n12345678901234567.89,100.00\n"
    synchronous = world.get("/v1/download/sync", name="now", source_data='[{"b": 100.00}]')
    assert synchronous.body == b"b\n100.00\n"
    raw = '{"source_data": [{"a": 12345678901234567891e0, "b": 5E2}]}'
    posted = world.cloud.http("POST", "/v1/download/sync", body=raw, key=world.project.key)
    assert posted.body == b"a,b\n12345678901234567891e0,5E2\n"


def test_row_counts_of_a_template_count_toward_the_sync_limit(world: ExportWorld) -> None:
    template = {"col": {"a": "A"}, "row": [{"title": "r", "row_count": 50_001}]}
    fields = {"type": "excel", "source_data": {"r": [{"a": 1}]}, "template": template}
    answer = world.cloud.http("POST", "/v1/download/sync", json=fields, key=world.project.key)
    assert (answer.status, answer.json()["code"]) == (413, "use_async")


def test_given_data_may_be_in_the_format_of_a_source(world: ExportWorld) -> None:
    _, data = world.export(source_data={"data": [{"a": 1}], "total": 1})
    assert data == b"a\n1\n"


def test_pulled_and_given_table_in_one_file(world: ExportWorld) -> None:
    world.source.rows = numbered(1)
    task_id = world.submit(
        "/v1/task/multiple",
        type="excel",
        multi_type="tab",
        source_url=[None, world.source.url],
        source_data=[[{"a": 1}]],
    )
    world.run(task_id)
    book = world.file(task_id)
    assert (read_sheet(book), read_sheet(book, 1)[1][0]) == ([("a",), (1,)], 0)


@pytest.mark.parametrize("merchant_id", [7, "7", "007"])
def test_merchant_id_keeps_its_type(world: ExportWorld, merchant_id: Any) -> None:
    task_id = world.submit(source_data=[], merchant_id=merchant_id)
    assert world.shown(task_id)["merchant_id"] == merchant_id
    (task,) = world.get("/v1/tasks", merchant_id=str(merchant_id)).json()["items"]
    assert task["task_id"] == task_id


def test_csv_without_rows_has_its_head_line(world: ExportWorld) -> None:
    _, data = world.export(template={"id": "编号", "name": "姓名"})
    assert data == b"id,name\n"
    _, titled = world.export(template={"id": "编号"}, csv_header="titles")
    assert titled.decode() == "编号\n"


def test_csv_uses_the_delimiter_encoding_and_line_end_of_the_order(world: ExportWorld) -> None:
    rows = [{"名": "一;二", "n": 1.50}]
    _, data = world.export(source_data=rows, delimiter=";", encoding="gb18030", line_end="crlf")
    assert data.decode("gb18030") == '名;n\r\n"一;二";1.5\r\n'
    _, marked = world.export(source_data=rows, encoding="utf-8-sig")
    assert marked.startswith(b"\xef\xbb\xbf\xe5\x90\x8d,n\n")


def test_json_lines_and_gzip_have_their_content_and_extension(world: ExportWorld) -> None:
    world.source.rows = [{"id": 1, "x": "甲"}, {"id": 2.50}]
    shown, data = world.export(type="jsonl")
    assert data.decode() == '{"id":1,"x":"甲"}\n{"id":2.5}\n'
    assert shown["file_name"].endswith(".jsonl")

    packed, zipped = world.export(type="csv", compression="gzip", file_name="报表.csv")
    assert packed["file_name"] == "报表.csv.gz"
    assert [row["id"] for row in read_csv(gzip.decompress(zipped))] == ["1", "2.5"]


def test_sheet_is_frozen_filtered_and_measured_by_default(world: ExportWorld) -> None:
    rows = [{"name": "x" * 30, "n": 1}]
    _, data = world.export(type="excel", title="T", source_data=rows)
    sheet: Any = openpyxl.load_workbook(io.BytesIO(data)).active
    assert (sheet.freeze_panes, sheet.auto_filter.ref) == ("A3", "A2:B3")
    assert sheet.column_dimensions["A"].width == 32

    _, plain = world.export(type="excel", source_data=rows, freeze=False, autofilter=False, auto_width=False)
    sheet = openpyxl.load_workbook(io.BytesIO(plain)).active
    assert (sheet.freeze_panes, sheet.auto_filter.ref, dict(sheet.column_dimensions)) == (None, None, {})


@pytest.mark.parametrize("rows", [20, 2050])
def test_total_leaves_out_texts_with_a_warning(world: ExportWorld, rows: int) -> None:
    """In one step and, with more rows, in ranges of several workers."""
    world.source.rows = [{"id": number, "amount": "0.25"} for number in range(rows)]
    world.source.rows[-1]["amount"] = "n/a"
    template = [{"name": "id"}, {"name": "amount", "style": {"total": True}}]
    shown, data = world.export(type="excel", template=template, step=100, parallel=8)
    assert shown["warnings"] == ["the total of amount leaves out 1 value that is not a number"]
    assert read_sheet(data)[-1] == ("Total", 0.25 * (rows - 1))
    order = {"type": "excel", "source_url": world.source.url, "template": template, "step": 100}
    synchronous = world.cloud.http("POST", "/v1/download/sync", json=order, key=world.project.key)
    assert synchronous.status == 200, synchronous.body
    assert read_sheet(synchronous.body)[-1] == ("Total", 0.25 * (rows - 1))
    assert json.loads(synchronous.headers["x-warnings"]) == shown["warnings"]


def test_header_and_footer_keep_their_digits(world: ExportWorld) -> None:
    fields = '"header": {"sum": 100.00, "n": 7}, "footer": "{\\"total\\": 12345678901234567.89}"'
    for path, tables in (
        ("/v1/task", f'"source_data": [{{"a": 1}}], {fields}'),
        ("/v1/task/multiple", '"source_data": [[{"a": 1}]], "header": [{"sum": 100.00}], "footer": [{"t": 1.10}]'),
    ):
        raw = f'{{"name": "orders", "type": "excel", {tables}}}'
        task_id = world.cloud.http("POST", path, body=raw, key=world.project.key).json()["task_id"]
        world.run(task_id)
        sheet = read_sheet(world.file(task_id))
        assert "sum：100.00" in sheet[0][0]
        assert sheet[-1][0] in ("total：12345678901234567.89", "t：1.10")
    raw = f'{{"type": "excel", "source_data": [{{"a": 1}}], {fields}}}'
    posted = world.cloud.http("POST", "/v1/download/sync", body=raw, key=world.project.key)
    query = {"type": "excel", "source_data": '[{"a": 1}]', "header": '{"sum": 100.00, "n": 7}'}
    for answer in (posted, world.get("/v1/download/sync", **query)):
        assert read_sheet(answer.body)[0][0] == "sum：100.00        n：7"


@pytest.mark.parametrize("text", ["[draft] North", "[1", "{not json", '["a"]'])
def test_header_text_may_begin_with_a_bracket(world: ExportWorld, text: str) -> None:
    order = {"type": "excel", "source_data": [{"a": 1}], "header": text, "footer": text}
    sheet = read_sheet(world.post("/v1/download/sync", **order).body)
    assert (sheet[0][0], sheet[-1][0]) == (text, text)
    several = {"type": "excel", "source_data": [[{"a": 1}]], "header": [text]}
    assert read_sheet(world.post("/v1/download/sync/multiple", **several).body)[0][0] == text

    def answer(source: Any, page: int, size: int) -> Any:
        return {"status": 200, "data": {"data": [{"a": 1}], "total": 1, "header": text}}

    world.source.answer = answer
    assert read_sheet(world.export(type="excel")[1])[0][0] == text


def test_schedule_keeps_the_digits_of_header_and_footer(world: ExportWorld) -> None:
    raw = '{"name": "orders", "schedule": "rate(1 day)", "source_data": [{"a": 1}], "header": {"sum": 100.00}}'
    made = world.cloud.http("POST", "/v1/export-schedules", body=raw, key=world.project.key).json()
    path = f"/v1/export-schedules/{made['schedule_id']}"
    assert world.get(path).json()["order"]["header"] == {"sum": "100.00"}
    changed = world.cloud.http("PATCH", path, body='{"footer": {"tax": 19.00}}', key=world.project.key)
    assert changed.status == 200, changed.body
    order = world.get(path).json()["order"]
    assert (order["header"], order["footer"]) == ({"sum": "100.00"}, {"tax": "19.00"})


@pytest.mark.parametrize("total", [-1, 250.0, None, "", "250", "-1"])
def test_total_is_a_hint(world: ExportWorld, total: Any) -> None:
    def answer(source: Any, page: int, size: int) -> Any:
        rows = source.rows[page * size : (page + 1) * size]
        return {"status": 200, "data": {"data": rows, "total": total}}

    world.source.rows, world.source.answer = numbered(250), answer
    shown, data = world.export(step=100)
    assert [int(row["id"]) for row in read_csv(data)] == list(range(250))
    assert shown["attempts"] == 1


def test_total_that_is_no_number_fails_the_export(world: ExportWorld) -> None:
    world.source.answer = lambda *_: {"status": 200, "data": {"data": [{"id": 1}], "total": "many"}}
    shown = world.run(world.submit())
    assert (shown["status"], "total is 'many'" in shown["failed_reason"]) == ("failed", True)


def test_rows_of_a_php_array_with_gaps_are_rows(world: ExportWorld) -> None:
    world.source.answer = lambda source, page, size: {
        "status": 200,
        "data": {"data": {"0": {"id": 1}, "2": {"id": 3}} if page == 0 else [], "total": 2},
    }
    assert world.export()[1] == b"id\n1\n3\n"
    for given in ({"1": {"id": 1}, "5": {"id": 3}}, {"a": {"id": 1}, "b": {"id": 3}}):
        assert world.export(source_data=given, source_url=None)[1] == b"id\n1\n3\n"
    template = {"col": {"id": "No"}, "row": [{"title": "x"}, {"title": "y"}]}
    groups = {"x": {"0": {"id": 1}, "2": {"id": 3}}, "y": {"1": {"id": 4}}}
    _, data = world.export(source_data=groups, source_url=None, template=template, type="excel")
    assert [row[1] for row in read_sheet(data)[1:]] == [1, 3, 4]


@pytest.mark.parametrize(
    "name", ["a/b", "[1]", "x" * 32, "🎉" * 16, "'quoted'", " a", "History", "a\nb", "a\x01b", "what?"]
)
def test_sheet_name_that_excel_refuses_is_422(world: ExportWorld, name: str) -> None:
    fields = {"name": "names", "type": "excel", "source_data": [{"a": 1}], "sheet_name": name}
    answer = world.cloud.http("POST", "/v1/task", json=fields, key=world.project.key)

    assert (answer.status, answer.json()["errors"][0]["loc"]) == (422, ["body", "sheet_name"])


def test_sheet_names_that_are_not_unique_are_422(world: ExportWorld) -> None:
    def answer(names: list[str | None], titles: list[str | None], multi_type: str = "tab") -> int:
        fields: dict[str, Any] = {"name": "names", "type": "excel", "multi_type": multi_type, "title": titles}
        fields |= {"source_data": [[], []], "sheet_name": names}
        return world.cloud.http("POST", "/v1/task/multiple", json=fields, key=world.project.key).status

    assert answer(["Orders", "orders"], []) == 422
    assert answer(["Orders", None], [None, "ORDERS"]) == 422
    assert answer(["Orders", None], ["a", "ORDERS"], "page") == 202
    assert answer(["Orders", "Items"], ["same", "same"]) == 202
