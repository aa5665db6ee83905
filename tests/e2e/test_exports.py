"""Exports over HTTP on the deployed stack: permissions are sufficient, links work, files are right."""

from __future__ import annotations

import io
import random
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import openpyxl
import pytest
import time_machine
from botocore.config import Config
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from tests.support.deployed import Deployed, DeployedProject, until
from tests.support.exports.paged_source import PagedSource, numbered
from tests.support.exports.running import read_csv, read_sheet
from tests.support.exports.samples import SEED_TABLE, SEED_TEMPLATE, mixed_rows, seed_rows

pytestmark = pytest.mark.e2e
OVER = ("completed", "failed", "cancelled")


@pytest.fixture
def source(httpserver: HTTPServer) -> PagedSource:
    return PagedSource(httpserver)


def submit(project: DeployedProject, path: str = "/v1/task", **fields: Any) -> str:
    answer = project.http("POST", path, json={"name": "e2e", **fields})
    assert answer.status == 202, answer.body
    return str(answer.json()["task_id"])


def wait_until_ended(project: DeployedProject, task_id: str, seconds: float = 60) -> dict[str, Any]:
    def read() -> dict[str, Any]:
        shown: dict[str, Any] = project.http("GET", "/v1/task", query={"task_id": task_id}).json()
        return shown

    return until(read, lambda shown: shown["status"] in OVER, seconds)


def download(deployed: Deployed, project: DeployedProject, task_id: str) -> bytes:
    link = project.http("GET", "/v1/download/url", query={"task_id": task_id}).json()
    answer = deployed.pool.request("GET", link["url"])
    assert answer.status == 200
    return bytes(answer.data)


def test_paged_source_becomes_a_csv_file(deployed: Deployed, project: DeployedProject, source: PagedSource) -> None:
    source.rows = list(mixed_rows(3500))
    task_id = submit(project, source_url=source.url, file_name="订单")
    shown = wait_until_ended(project, task_id)

    assert (shown["status"], shown["progress"]["rows"]) == ("completed", 3500), shown
    data = download(deployed, project, task_id)
    assert [int(row["id"]) for row in read_csv(data)] == list(range(3500))
    assert shown["size"] == len(data)
    assert source.pages == {0: 1, 1: 1, 2: 1, 3: 1}


def test_permanent_url_needs_a_key_and_changed_link_is_refused(deployed: Deployed, project: DeployedProject) -> None:
    task_id = submit(project, source_data=[{"a": 1}])
    shown = wait_until_ended(project, task_id)
    permanent = shown["download_url"]
    assert deployed.pool.request("GET", permanent, redirect=False).status == 401
    key = {"authorization": f"Bearer {project.key}"}
    redirected = deployed.pool.request("GET", permanent, headers=key, redirect=False)
    assert redirected.status == 302

    link = redirected.headers["location"]
    downloaded = deployed.pool.request("GET", link)
    assert (downloaded.status, downloaded.data) == (200, b"a\n1\n")
    assert "attachment" in downloaded.headers["content-disposition"]
    assert deployed.pool.request("GET", link.replace("X-Amz-Expires=300", "X-Amz-Expires=301")).status == 403


def test_temporary_url_expires_after_300_s(deployed: Deployed, project: DeployedProject) -> None:
    task_id = submit(project, source_data=[{"a": 1}])
    wait_until_ended(project, task_id)
    link = project.http("GET", "/v1/download/url", query={"task_id": task_id}).json()["url"]
    bucket, key = urlsplit(link).path.lstrip("/").split("/", 1)

    def signed(seconds_ago: int) -> str:
        with time_machine.travel(datetime.now(UTC) - timedelta(seconds=seconds_ago)):
            config = Config(signature_version="s3v4", s3={"addressing_style": "path"})
            params = {"Bucket": bucket, "Key": key}
            s3 = deployed.client("s3", config=config)
            return str(s3.generate_presigned_url("get_object", Params=params, ExpiresIn=300))

    assert deployed.pool.request("GET", signed(250)).status == 200
    assert deployed.pool.request("GET", signed(301)).status == 403


def test_documented_table_becomes_an_excel_file(
    deployed: Deployed, project: DeployedProject, source: PagedSource
) -> None:
    source.rows = seed_rows()
    task_id = submit(
        project,
        source_url=source.url,
        type="excel",
        template=SEED_TEMPLATE,
        title=SEED_TABLE.title,
        summary=SEED_TABLE.summary,
        header=SEED_TABLE.header,
        footer=SEED_TABLE.footer,
    )
    assert wait_until_ended(project, task_id)["status"] == "completed"
    sheet: Any = openpyxl.load_workbook(io.BytesIO(download(deployed, project, task_id))).active
    assert {"A1:L1", "A4:C8", "B18:B22", "A23:L23"} <= {str(merged) for merged in sheet.merged_cells.ranges}


def test_callback_has_the_reason_of_a_failed_source(
    deployed: Deployed, project: DeployedProject, source: PagedSource, httpserver: HTTPServer
) -> None:
    source.answer = lambda *_: {"status": 500, "msg": "closed for today"}
    received: list[Any] = []

    def receive(request: Request) -> Response:
        received.append(request.get_json())
        return Response("ok")

    httpserver.expect_request("/hook").respond_with_handler(receive)
    task_id = submit(project, source_url=source.url, callback=httpserver.url_for("/hook"))
    shown = wait_until_ended(project, task_id)

    assert shown["status"] == "failed"
    assert "closed for today" in shown["failed_reason"]
    until(lambda: received, bool, 30)
    assert received[0]["type"] == "task.failed"
    assert received[0]["data"]["failed_reason"] == shown["failed_reason"]


@pytest.mark.parametrize("kind", ["csv", "excel"])
def test_large_export_is_made_by_several_workers(
    deployed: Deployed, project: DeployedProject, source: PagedSource, kind: str
) -> None:
    """60,000 rows with text that compresses badly, so that fragments are large enough to be copied on S3."""
    noise = [random.Random(n).randbytes(150).hex() for n in range(1000)]
    source.rows = [{"id": n, "noise": noise[n % 997] + noise[n % 991]} for n in range(60_000)]
    task_id = submit(project, source_url=source.url, type=kind, parallel=16)
    shown = wait_until_ended(project, task_id, 120)

    assert (shown["status"], shown["attempts"], shown["progress"]["rows"]) == ("completed", 1, 60_000), shown
    data = download(deployed, project, task_id)
    assert shown["size"] == len(data)
    ids = [int(row["id"]) for row in read_csv(data)] if kind == "csv" else [row[0] for row in read_sheet(data)[1:]]
    assert ids == list(range(60_000))
    assert max(source.pages.values()) == 1


def test_exports_are_made_synchronously_listed_and_deleted(
    deployed: Deployed, project: DeployedProject, source: PagedSource
) -> None:
    source.rows = numbered(250)
    synchronous = project.http(
        "GET", "/v1/download/sync", query={"name": "now", "type": "excel", "source_url": source.url, "step": 100}
    )
    assert synchronous.status == 200
    assert len(read_sheet(synchronous.body)) == 251

    task_id = submit(project, "/v1/task/multiple", type="excel", source_data=[[{"a": 1}], [{"b": 2}]])
    assert wait_until_ended(project, task_id)["status"] == "completed"
    items = project.http("GET", "/v1/tasks", query={"status": "completed"}).json()["items"]
    assert [item["task_id"] for item in items] == [task_id]
    link = project.http("GET", "/v1/download/url", query={"task_id": task_id}).json()["url"]
    assert project.http("POST", "/v1/tasks/delete", json={"task_ids": [task_id]}).json() == {"deleted": 1}
    assert deployed.pool.request("GET", link).status == 404
    assert urlsplit(link).path.count(project.id) == 1


def test_object_and_table_are_exported_without_endpoint(deployed: Deployed, project: DeployedProject) -> None:
    """Reads with the permissions that the template's parameters give, and no others."""
    name = f"tidegate-e2e-source-{project.id[-8:]}"
    s3, dynamodb = deployed.client("s3"), deployed.client("dynamodb")
    s3.create_bucket(Bucket=name)
    s3.put_object(Bucket=name, Key="orders.csv", Body=b"id,name\n" + b"".join(b"%d,x\n" % n for n in range(250)))
    dynamodb.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[
            {"AttributeName": "shop", "AttributeType": "S"},
            {"AttributeName": "id", "AttributeType": "N"},
        ],
        KeySchema=[{"AttributeName": "shop", "KeyType": "HASH"}, {"AttributeName": "id", "KeyType": "RANGE"}],
    )
    for number in range(3):
        dynamodb.put_item(TableName=name, Item={"shop": {"S": "a"}, "id": {"N": str(number)}})
    query = {"table": name, "key_condition": "shop = :s", "values": {":s": "a"}, "attributes": ["id"]}
    sources = {250: {"s3": {"bucket": name, "key": "orders.csv"}}, 3: {"dynamodb": query}}
    grant = {"read_from": [f"s3://{name}/*", f"dynamodb://{name}"]}
    assert deployed.http("PATCH", f"/v1/projects/{project.id}", json=grant, key=deployed.admin_key).status == 200
    tasks = {count: submit(project, source=source, step=100) for count, source in sources.items()}
    for count, task_id in tasks.items():
        shown = wait_until_ended(project, task_id)
        assert shown["status"] == "completed", shown
        assert [int(row["id"]) for row in read_csv(download(deployed, project, task_id))] == list(range(count))
    own = {"s3": {"bucket": deployed.outputs["FilesBucketName"], "key": "x.csv"}}
    assert project.http("POST", "/v1/task", json={"name": "own", "source": own}).status == 403


def test_recurring_export_is_ordered_when_it_is_due(
    deployed: Deployed, project: DeployedProject, source: PagedSource
) -> None:
    source.rows = numbered(150)
    order = {"name": "daily", "source_url": source.url, "step": 100, "schedule": "rate(1 day)"}
    created = project.http("POST", "/v1/export-schedules", json=order)
    assert created.status == 201, created.body
    schedule_id = created.json()["schedule_id"]
    functions = deployed.client("lambda").list_functions()["Functions"]
    (function,) = {entry["FunctionName"] for entry in functions if "StartScheduledExports" in entry["FunctionName"]}
    _make_due(deployed, schedule_id)
    for _ in range(2):
        answer = deployed.client("lambda").invoke(FunctionName=function, Payload=b"{}")
        assert "FunctionError" not in answer, answer["Payload"].read()

    def runs() -> list[Any]:
        return list(project.http("GET", f"/v1/export-schedules/{schedule_id}/runs").json()["items"])

    (run,) = until(runs, bool, 20)
    assert wait_until_ended(project, run["task_id"])["status"] == "completed"
    assert len(read_csv(download(deployed, project, run["task_id"]))) == 150
    assert project.http("DELETE", f"/v1/export-schedules/{schedule_id}").status == 204


def _make_due(deployed: Deployed, schedule_id: str) -> None:
    """Sets the schedule back, as if a day had passed."""
    dynamodb = deployed.client("dynamodb")
    for table in dynamodb.list_tables()["TableNames"]:
        schedules = dynamodb.scan(
            TableName=table,
            FilterExpression="schedule_id = :s AND attribute_exists(due_at)",
            ExpressionAttributeValues={":s": {"S": schedule_id}},
        )
        for item in schedules["Items"]:
            dynamodb.update_item(
                TableName=table,
                Key={"pk": item["pk"], "sk": item["sk"]},
                UpdateExpression="SET due_at = :past",
                ExpressionAttributeValues={":past": {"N": "1800000"}},
            )
