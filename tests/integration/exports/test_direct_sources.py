"""Sources without an endpoint: an S3 object, a DynamoDB query, Athena SQL."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.support.exports.killing import Killed, killed_at
from tests.support.exports.running import ExportWorld, read_csv, read_sheet
from tidegate.exports import direct as s3_object
from tidegate.exports import pull as range_plan
from tidegate.exports import steps

BUCKET, TABLE, WORKGROUP = "acme-data-1", "acme-orders", "acme-exports"


@pytest.fixture
def world(world: ExportWorld) -> ExportWorld:
    allowed = world.cloud.app.exports.allowed_sources
    allowed.bucket, allowed.table, allowed.workgroup = "acme-data-*", TABLE, WORKGROUP
    world.s3.create_bucket(Bucket=BUCKET)
    grant(world, f"s3://{BUCKET}/*", f"dynamodb://{TABLE}", f"athena://{WORKGROUP}")
    return world


def grant(world: ExportWorld, *patterns: str) -> None:
    path = f"/v1/projects/{world.project.id}"
    answer = world.cloud.http("PATCH", path, json={"read_from": list(patterns)}, key=world.cloud.admin_key)
    assert answer.status == 200, answer.body
    assert answer.json()["read_from"] == list(patterns)


def put(world: ExportWorld, key: str, body: bytes) -> dict[str, Any]:
    world.s3.put_object(Bucket=BUCKET, Key=key, Body=body)
    return {"s3": {"bucket": BUCKET, "key": key}}


@pytest.fixture(params=["staged", "fused"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs the test twice: with staged pages, and with pages rendered as they arrive."""
    monkeypatch.setattr(range_plan, "MIN_PAGES", 2 if request.param == "fused" else 10**9)
    return str(request.param)


def test_csv_object_is_read_row_by_row(world: ExportWorld, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_object, "WINDOW", 700)
    lines = ["id,name,note", *(f'{n},名字{n},"a ""b"",\nline {n}"' for n in range(450))]
    source = put(world, "in/orders.csv", ("\ufeff" + "\r\n".join(lines) + "\r\n").encode())
    shown, data = world.export(source=source, step=100)
    rows = read_csv(data)
    assert [int(row["id"]) for row in rows] == list(range(450))
    assert rows[7] == {"id": "7", "name": "名字7", "note": 'a "b",\nline 7'}
    assert shown.get("warnings") is None, way


def test_header_rows_of_few_objects_are_remembered(world: ExportWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that lives for hours would else keep those of all objects that it read."""
    monkeypatch.setattr(s3_object, "_MOST_HEADS", 2)
    monkeypatch.setattr(s3_object, "_heads", {})
    for number in range(5):
        _, data = world.export(source=put(world, f"{number}.csv", f"c{number}\n1\n".encode()))
        assert data == f"c{number}\n1\n".encode()

    assert len(s3_object._heads) <= 2
    wide = put(world, "wide.csv", ",".join(map(str, range(16_385))).encode())
    assert "more than 16384 columns" in world.run(world.submit(source=wide))["failed_reason"]


def test_csv_field_of_any_length_is_read(world: ExportWorld) -> None:
    text = "long " * 40_000
    _, data = world.export(source=put(world, "long.csv", f"id,{text}\n1,{text}\n".encode()), type="jsonl")
    assert json.loads(data) == {"id": "1", text: text}


def test_types_of_a_template_make_numbers_of_csv_text(world: ExportWorld) -> None:
    source = put(world, "n.csv", b"id;amount\n1;12.50\n")
    source["s3"] |= {"delimiter": ";"}
    template = [{"title": "Amount", "name": "amount", "style": {"type": "number"}}]
    _, data = world.export(source=source, type="excel", template=template)
    assert read_sheet(data)[1:] == [(12.5,)]


@pytest.mark.parametrize(
    ("body", "wrong", "right"),
    [
        (b"id;name\n1;Ann\n", {}, {"delimiter": ";"}),
        ("id,名称\n1,安\n".encode(), {"encoding": "gb18030"}, {"encoding": "utf-8"}),
    ],
)
def test_corrected_option_is_used_for_the_header_too(
    world: ExportWorld, body: bytes, wrong: dict[str, str], right: dict[str, str]
) -> None:
    source = put(world, "n.csv", body)
    world.run(world.submit(source={"s3": source["s3"] | wrong}))

    _, data = world.export(source={"s3": source["s3"] | right})

    assert [*read_csv(data)[0].values()] in (["1", "Ann"], ["1", "安"])
    assert "".join(read_csv(data)[0]) in ("idname", "id名称")


@pytest.mark.parametrize("end", [b"\r", b"\n", b"\r\n"])
def test_lines_may_end_in_any_way(world: ExportWorld, end: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_object, "WINDOW", 40)
    lines = [b"id,name", *(b'%d,"a\rb"' % n for n in range(250))]
    shown, data = world.export(source=put(world, "m.csv", end.join(lines) + end), type="jsonl", step=100)
    assert shown["progress"]["rows"] == 250
    assert [json.loads(line) for line in data.splitlines()] == [{"id": str(n), "name": "a\rb"} for n in range(250)]


def test_row_of_empty_fields_is_a_row_with_any_delimiter(world: ExportWorld) -> None:
    for delimiter in (",", "\t"):
        source = put(world, "t.csv", f"id{delimiter}name\n1{delimiter}Ann\n{delimiter}\n\n".encode())
        source["s3"] |= {"delimiter": delimiter}
        shown, _ = world.export(source=source)
        assert shown["progress"]["rows"] == 2


def test_json_lines_object_keeps_its_digits(world: ExportWorld, way: str) -> None:
    lines = [b'{"id": %d, "amount": %d.00}' % (n, n) for n in range(250)]
    _, data = world.export(source=put(world, "in/orders.jsonl", b"\n".join(lines)), step=100)
    assert data.splitlines()[:2] == [b"id,amount", b"0,0.00"], way
    assert len(data.splitlines()) == 251


@pytest.mark.parametrize("body", [b"", b"id,name\n", b"id,name"])
def test_object_without_rows_makes_a_file(world: ExportWorld, body: bytes) -> None:
    shown, _ = world.export(source=put(world, "none.csv", body))
    assert shown["progress"]["rows"] == 0


@pytest.mark.parametrize(
    ("name", "body", "reason"),
    [
        ("a.csv", b"id,name\n1,2,3\n", "3 fields"),
        ("b.csv", b"id,id\n1,2\n", "twice"),
        ("c.csv", b"id\n\xff\xfe\n", "utf-8"),
        ("d.jsonl", b'{"id": 1}\n[2]\n', "not a JSON object"),
        ("e.jsonl", b'{"id": 1\n', "not a JSON object"),
    ],
)
def test_unreadable_object_fails_with_the_reason(world: ExportWorld, name: str, body: bytes, reason: str) -> None:
    shown = world.run(world.submit(source=put(world, name, body)))
    assert (shown["status"], reason in shown["failed_reason"]) == ("failed", True), shown


def test_missing_object_fails_with_the_reason(world: ExportWorld) -> None:
    shown = world.run(world.submit(source={"s3": {"bucket": BUCKET, "key": "gone.csv"}}))
    assert (shown["status"], shown["attempts"], "404" in shown["failed_reason"]) == ("failed", 1, True)


def test_object_replaced_while_it_is_read_is_not_mixed(world: ExportWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_object, "WINDOW", 1000)
    old = b"id\n" + b"".join(b"%d\n" % n for n in range(1000))
    source = put(world, "moving.csv", old)
    task_id = world.submit(source=source, step=100)
    records, offsets = s3_object._Reading.records, list[int]()

    def replace_at_fourth_read(self: Any, offset: int, most: int) -> Any:
        offsets.append(offset)
        if len(offsets) == 4:
            put(world, "moving.csv", old.replace(b"1", b"2"))
        return records(self, offset, most)

    monkeypatch.setattr(s3_object._Reading, "records", replace_at_fourth_read)
    shown = world.run(task_id)
    assert (shown["status"], "replaced" in shown["failed_reason"]) == ("failed", True), shown


def test_crash_at_any_call_loses_and_duplicates_no_row(world: ExportWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_plan, "MIN_PAGES", 2)
    monkeypatch.setattr(s3_object, "WINDOW", 500)
    source = put(world, "in/orders.csv", b"id\n" + b"".join(b"%d\n" % n for n in range(350)))
    for calls in range(1, 100, 3):
        task_id = world.submit(source=source, step=100)
        state = world.admit(task_id)
        with killed_at(calls) as died:
            try:
                state = steps.pull(world.cloud.app.exports, state, 900)
                world.lanes(state)
                state = steps.render(world.cloud.app.exports, state)
            except Killed:
                failure = {"Error": "Lambda.Unknown", "Cause": "the sandbox is gone"}
                state = {**state, "failure": failure}
        world.cloud.invoke("publish_export", state)
        world.run(task_id)
        assert [int(row["id"]) for row in read_csv(world.file(task_id))] == list(range(350)), calls
        if not died():
            assert calls > 10
            return
    raise AssertionError("every run was killed: the loop needs a higher limit")


@pytest.fixture
def orders(world: ExportWorld) -> Any:
    dynamodb = world.cloud.client("dynamodb")
    dynamodb.create_table(
        TableName=TABLE,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[
            {"AttributeName": "shop", "AttributeType": "S"},
            {"AttributeName": "at", "AttributeType": "N"},
        ],
        KeySchema=[{"AttributeName": "shop", "KeyType": "HASH"}, {"AttributeName": "at", "KeyType": "RANGE"}],
    )
    for n in range(250):
        amount = "12345678901234567.89" if n == 3 else f"{n}.50"
        item = {"shop": {"S": "a"}, "at": {"N": str(n)}, "amount": {"N": amount}, "tags": {"SS": ["y", "x"]}}
        dynamodb.put_item(TableName=TABLE, Item=item)
    dynamodb.put_item(TableName=TABLE, Item={"shop": {"S": "b"}, "at": {"N": "1"}})
    return dynamodb


def query(**more: Any) -> dict[str, Any]:
    return {"dynamodb": {"table": TABLE, "key_condition": "shop = :s", "values": {":s": "a"}, **more}}


@pytest.mark.usefixtures("orders")
def test_rows_of_a_dynamodb_query_in_order_with_their_digits(world: ExportWorld, way: str) -> None:
    _, data = world.export(source=query(), step=100, template=["at", "amount", "tags"])
    rows = read_csv(data)
    assert [int(row["at"]) for row in rows] == list(range(250)), way
    assert rows[3]["amount"] == "12345678901234567.89"
    assert json.loads(rows[0]["tags"]) == ["x", "y"]


@pytest.mark.usefixtures("orders")
def test_query_with_filter_attributes_and_order(world: ExportWorld) -> None:
    more = {
        "key_condition": "shop = :s AND #at BETWEEN :low AND :high",
        "values": {":s": "a", ":low": 10, ":high": 200.5, ":amount": 100},
        "names": {"#at": "at"},
        "filter": "amount > :amount",
        "attributes": ["at"],
        "newest_first": True,
    }
    _, data = world.export(source=query(**more), step=100)
    assert data.split() == [b"at", *(b"%d" % n for n in range(200, 99, -1))]


@pytest.mark.usefixtures("orders")
def test_query_that_dynamodb_refuses_fails_with_its_reason(world: ExportWorld) -> None:
    shown = world.run(world.submit(source=query(key_condition="amount = :s")))
    assert (shown["status"], shown["attempts"]) == ("failed", 1)
    assert "ValidationException" in shown["failed_reason"]


class Athena:
    """The documented behaviour of Athena; moto only returns prepared results."""

    names = ("id", "paid", "sum", "note")

    def __init__(self, rows: int, states: list[str]) -> None:
        self.rows, self.states = rows, states
        self.tokens: dict[str, str] = {}
        self.failed: set[str] = set()
        self.requests: list[dict[str, Any]] = []

    def start_query_execution(self, **request: Any) -> dict[str, str]:
        self.requests.append(request)
        token = request["ClientRequestToken"]
        return {"QueryExecutionId": self.tokens.setdefault(token, f"q-{len(self.tokens)}")}

    def get_query_execution(self, QueryExecutionId: str) -> dict[str, Any]:
        if QueryExecutionId in self.failed:
            state = "FAILED"
        else:
            state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
            if state == "FAILED":
                self.failed.add(QueryExecutionId)
        return {"QueryExecution": {"Status": {"State": state, "StateChangeReason": "line 1:8: no such column"}}}

    def get_query_results(self, QueryExecutionId: str, MaxResults: int, NextToken: str = "0") -> dict[str, Any]:
        assert MaxResults <= 1000
        first = int(NextToken)
        head: list[dict[str, Any]] = [{"Data": [{"VarCharValue": name} for name in self.names]}]
        table = head + [
            {"Data": [{"VarCharValue": str(n)}, {"VarCharValue": "true"}, {"VarCharValue": f"{n}.10"}, {}]}
            for n in range(self.rows)
        ]
        columns = zip(self.names, ("bigint", "boolean", "decimal", "varchar"), strict=True)
        page: dict[str, Any] = {
            "ResultSet": {
                "Rows": table[first : first + MaxResults],
                "ResultSetMetadata": {"ColumnInfo": [{"Name": name, "Type": kind} for name, kind in columns]},
            }
        }
        return page | ({"NextToken": str(first + MaxResults)} if first + MaxResults < len(table) else {})


def sql(text: str = "SELECT * FROM orders") -> dict[str, Any]:
    return {"athena": {"workgroup": WORKGROUP, "database": "shop", "sql": text}}


def with_athena(world: ExportWorld, athena: Athena) -> None:
    world.cloud.app.exports.athena = athena


def test_rows_of_sql_with_their_types(world: ExportWorld, way: str) -> None:
    athena = Athena(450, ["QUEUED", "RUNNING", "SUCCEEDED"])
    with_athena(world, athena)
    _, data = world.export(source=sql(), step=100, type="excel")
    rows = read_sheet(data)
    assert rows[:2] == [("id", "paid", "sum", "note"), (0, True, 0.1, None)]
    assert [row[0] for row in rows[1:]] == list(range(450)), way
    assert len(athena.tokens) == 1
    assert athena.requests[0]["QueryExecutionContext"] == {"Database": "shop"}


def test_query_with_two_columns_of_one_name_fails_with_the_reason(world: ExportWorld) -> None:
    athena = Athena(3, ["SUCCEEDED"])
    athena.names = ("id", "paid", "id", "note")
    with_athena(world, athena)
    shown = world.run(world.submit(source=sql("SELECT o.id, paid, c.id, note FROM o JOIN c ON o.c = c.id")))
    assert (shown["status"], "with AS" in shown["failed_reason"]) == ("failed", True), shown


def test_retry_starts_a_failed_query_again(world: ExportWorld) -> None:
    athena = Athena(5, ["RUNNING", "FAILED"])
    with_athena(world, athena)
    task_id = world.submit(source=sql(), step=100)
    shown = world.run(task_id)
    assert (shown["status"], "no such column" in shown["failed_reason"]) == ("failed", True)
    athena.states = ["SUCCEEDED"]
    assert world.cloud.http("POST", f"/v1/requests/{task_id}/retry", key=world.project.key).status == 200
    assert world.run(task_id)["status"] == "completed"
    assert len(athena.tokens) == 2


def test_slow_query_continues_in_the_next_attempt(world: ExportWorld) -> None:
    athena = Athena(5, ["RUNNING"])
    with_athena(world, athena)
    task_id = world.submit(source=sql(), step=100)
    assert world.attempt(task_id)["status"] == "pending"
    athena.states = ["SUCCEEDED"]
    assert world.run(task_id)["status"] == "completed"
    assert len(athena.tokens) == 1, "the query was not started again"


def test_source_timeout_holds_for_queries_and_objects(world: ExportWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    with_athena(world, Athena(5, ["RUNNING"]))
    shown = world.run(world.submit(source=sql(), source_timeout=7))
    assert "did not end within 7 s" in shown["failed_reason"]

    read = s3_object._Reading._bytes

    def slow(reading: s3_object._Reading, offset: int, count: int) -> bytes:
        if offset < 3:
            time.sleep(1.1)
        return read(reading, offset, count)

    source = put(world, "slow.csv", b"id\n1\n2\n")
    monkeypatch.setattr(s3_object._Reading, "_bytes", slow)
    assert "within the source_timeout" in world.run(world.submit(source=source, source_timeout=1))["failed_reason"]
    assert world.export(source=source, source_timeout=600)[1] == b"id\n1\n2\n"


def test_sql_may_begin_with_comments(world: ExportWorld) -> None:
    with_athena(world, Athena(1, ["SUCCEEDED"]))
    text = "/* a * b */ -- c\n" + "/**/" * 400 + "\nselect 1"
    assert world.run(world.submit(source=sql(text)))["status"] == "completed"


@pytest.mark.parametrize(
    "text",
    [
        "DROP TABLE orders",
        "-- SELECT\nINSERT INTO x SELECT 1",
        "UNLOAD (SELECT 1) TO 's'",
        # Trino ends a comment at the carriage return.
        "-- x\rDROP TABLE orders --\nSELECT 1",
    ],
)
def test_sql_that_writes_is_refused(world: ExportWorld, text: str) -> None:
    answer = world.post(source=sql(text))
    assert answer.status == 422
    assert "must be a read-only statement" in str(answer.json())


@pytest.mark.parametrize(
    ("given", "parameter"),
    [
        ({"s3": {"bucket": "elsewhere", "key": "x.csv"}}, "SourceBucket"),
        ({"dynamodb": {"table": "other", "key_condition": "a = :a", "values": {":a": 1}}}, "SourceTable"),
        ({"athena": {"workgroup": "primary", "sql": "SELECT 1"}}, "SourceWorkgroup"),
    ],
)
def test_source_that_the_operator_does_not_allow_is_403(
    world: ExportWorld, given: dict[str, Any], parameter: str
) -> None:
    refused = world.post(source=given)
    assert (refused.status, refused.json()["code"]) == (403, "source_not_granted")
    assert parameter in refused.json()["detail"]
    kind, options = next(iter(given.items()))
    (error,) = refused.json()["errors"]
    assert error["loc"][:3] == ["body", "source", kind], "the form shows it at its field"
    assert error["loc"][3] in options


def test_own_table_and_bucket_are_never_a_source(world: ExportWorld) -> None:
    """A pattern that is too wide does not give access to other projects' records."""
    allowed, settings = world.cloud.app.exports.allowed_sources, world.cloud.app.settings
    allowed.bucket = allowed.table = "*"
    assert world.post(source={"s3": {"bucket": settings.files_bucket, "key": "x.csv"}}).status == 403
    own = {"table": settings.table_name, "key_condition": "pk = :p", "values": {":p": "x"}}
    assert world.post(source={"dynamodb": own}).status == 403


def test_project_reads_only_what_an_admin_allows(world: ExportWorld) -> None:
    source = put(world, "shop/x.csv", b"id\n1\n")
    task_id = world.submit(source=source)
    grant(world, f"s3://{BUCKET}/bank/*")
    refused = world.post(source=source)
    assert (refused.status, "read_from" in refused.json()["detail"]) == (403, True)
    shown = world.run(task_id)
    assert (shown["status"], "read_from" in shown["failed_reason"]) == ("failed", True)


def test_grant_of_a_database_allows_no_other(world: ExportWorld) -> None:
    with_athena(world, Athena(1, ["SUCCEEDED"]))
    task_id = world.submit(source=sql("SELECT * FROM bank.accounts"))
    grant(world, f"athena://{WORKGROUP}/shop", f"athena://{WORKGROUP}/crm")
    for allowed in ("SELECT * FROM orders", "SELECT o.id FROM shop.orders o JOIN crm.people p ON o.id = p.id"):
        assert world.run(world.submit(source=sql(allowed)))["status"] == "completed"
    for place in (
        {"sql": "SELECT * FROM orders, bank.accounts"},
        {"sql": "SHOW TABLES IN bank"},
        {"database": "bank"},
        {"catalog": "lambda:bank"},
        {"database": None},
    ):
        refused = world.post(source={"athena": {k: v for k, v in (sql()["athena"] | place).items() if v}})
        assert (refused.status, "read_from" in refused.json()["detail"]) == (403, True), place
    # Also an order that was accepted before.
    shown = world.run(task_id)
    assert (shown["status"], "bank.accounts" in shown["failed_reason"]) == ("failed", True)


def test_grant_names_its_bucket_and_table_in_full(world: ExportWorld) -> None:
    path = f"/v1/projects/{world.project.id}"
    for pattern in (
        "s3://*/x",
        "s3://acme-*/x",
        "dynamodb://*",
        "athena://a*",
        "athena://a/*",
        "athena://a/b/c",
        "s3://bucket",
        "http://x/y",
    ):
        refused = world.cloud.http("PATCH", path, json={"read_from": [pattern]}, key=world.cloud.admin_key)
        assert refused.status == 422, pattern


@pytest.mark.parametrize(
    "fields",
    [
        {"source": {}},
        {"source": {"s3": {"bucket": BUCKET, "key": "noformat"}}},
        {"source": {"s3": {"bucket": BUCKET, "key": "x.csv"}}, "source_url": "https://shop.example/"},
        {"source_url": 'direct:{"s3": {"bucket": "acme-data-1", "key": "x.csv"}}'},
    ],
)
def test_malformed_source_is_refused(world: ExportWorld, fields: dict[str, Any]) -> None:
    assert world.post(**fields).status == 422


def test_direct_source_beside_a_url_and_data(world: ExportWorld) -> None:
    world.source.rows = [{"id": 2}]
    fields = {
        "source": [put(world, "x.csv", b"id\n1\n")],
        "source_url": [None, world.source.url],
        "source_data": [None, None, [{"id": 3}]],
    }
    _, data = world.export("/v1/task/multiple", type="excel", multi_type="tab", **fields)
    assert [read_sheet(data, number)[1] for number in range(3)] == [("1",), (2,), (3,)]


def test_sync_export_reads_no_direct_source(world: ExportWorld) -> None:
    order = {"source": put(world, "x.csv", b"id\n1\n")}
    refused = world.cloud.http("POST", "/v1/download/sync", json=order, key=world.project.key)
    assert (refused.status, refused.json()["code"]) == (413, "use_async")
