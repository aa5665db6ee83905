"""Values that were once answered with a 5xx."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from tests.integration.notifications.watching import Line
from tests.support.fuzz import odd_values
from tests.support.moto.cloud import MotoCloud, Project
from tidegate.aws import keys
from tidegate.aws.table import update

SOURCE = "https://source.invalid/x"
SYNC = "/v1/download/sync"
BLANK = {"name": "orders", "source_data": " "}


@pytest.mark.parametrize("path", ["/v1/files", "/v1/jobs"])
@pytest.mark.parametrize("name", ["biz_id", "app_id"])
def test_filter_of_40_digits_is_422_and_named(cloud: MotoCloud, project: Project, path: str, name: str) -> None:
    answer = cloud.http("GET", path, query={name: "9" * 40}, key=project.key)

    assert (answer.status, answer.json()["errors"][0]["loc"]) == (422, ["query", name])


def test_payload_size_of_40_digits_is_422_and_named(cloud: MotoCloud, project: Project) -> None:
    payload = {"source_url": SOURCE, "file_path": "/a", "size": 10**40}
    answer = cloud.http("POST", "/v1/requests", json={"type": "download", "payload": payload}, key=project.key)

    assert (answer.status, answer.json()["errors"][0]["loc"]) == (422, ["body", "payload", "size"])


@pytest.mark.parametrize("since", odd_values.MOMENTS[:2])
def test_time_outside_the_calendar_is_422_and_named(cloud: MotoCloud, project: Project, since: str) -> None:
    answer = cloud.http("GET", "/v1/stats", query={"since": since}, key=project.key)

    assert (answer.status, answer.json()["errors"][0]["loc"]) == (422, ["query", "since"])


def test_stats_since_year_999_include_everything(cloud: MotoCloud, project: Project) -> None:
    """Times are compared as texts: the year 999 must not sort after 2026."""
    payload = {"source_url": "http://127.0.0.1:9/x", "file_path": "/a"}
    cloud.http("POST", "/v1/requests", json={"type": "download", "payload": payload}, key=project.key)
    answer = cloud.http("GET", "/v1/stats", query={"since": "0999-06-01T00:00:00Z"}, key=project.key).json()

    assert (answer["since"], answer["types"]["download"]["count"]) == ("0999-06-01T00:00:00.000Z", 1)


@pytest.mark.parametrize("text", ["x" * 2049, "长" * 700], ids=["ascii", "wide"])
def test_id_longer_than_a_table_key_is_404(cloud: MotoCloud, project: Project, text: str) -> None:
    for kind in ("files", "requests", "batches", "biz", "subscriptions", "downloads", "jobs"):
        answer = cloud.http("GET", f"/v1/{kind}/{quote(text)}", key=project.key)
        assert (answer.status, answer.json()["code"]) == (404, "not_found"), kind


def test_moto_refuses_long_keys_like_aws(cloud: MotoCloud) -> None:
    client, table = cloud.client("dynamodb"), cloud.names.refs["Table"]
    long, short = {"S": "x" * 2049}, {"S": "x"}
    refused = client.exceptions.ClientError
    with pytest.raises(refused, match="Size of hashkey has exceeded the maximum size limit of2048 bytes"):
        client.get_item(TableName=table, Key={"pk": long, "sk": short})
    with pytest.raises(refused, match="Aggregated size of all range keys has exceeded the size limit of 1024 bytes"):
        client.delete_item(TableName=table, Key={"pk": short, "sk": {"S": "x" * 1025}})
    with pytest.raises(refused, match="hashkey"):
        client.update_item(TableName=table, Key={"pk": long, "sk": short}, UpdateExpression="REMOVE a")
    with pytest.raises(refused, match="hashkey"):
        client.query(TableName=table, KeyConditionExpression="pk = :h", ExpressionAttributeValues={":h": long})
    with pytest.raises(refused, match="SerializationException"):
        client.get_item(TableName=table, Key={"pk": {"S": "\ud800"}, "sk": short})


@pytest.mark.parametrize("action", ["watch", "unwatch"])
@pytest.mark.parametrize("odd", ["\ud800", "req-\udfff", "x" * 2049, "", 7, None], ids=ascii)
def test_websocket_message_with_invalid_id_is_answered_as_error(
    cloud: MotoCloud, project: Project, action: str, odd: Any
) -> None:
    line = Line(cloud)
    client = line.joined(project)

    (message,) = line.say(client, action=action, task_ids=["req-1", odd])
    assert (message["type"], message["data"]["code"]) == ("error", "invalid")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/task", BLANK | {"source_url": SOURCE}),
        ("/v1/task/multiple", BLANK | {"source_url": [SOURCE]}),
        ("/v1/task/multiple", {"name": "orders", "source_data": [" "], "source_url": [SOURCE]}),
        ("/v1/export-schedules", BLANK | {"source_url": SOURCE, "schedule": "rate(1 day)"}),
    ],
    ids=["task", "multiple", "one of several", "schedule"],
)
def test_blank_source_data_counts_as_none(cloud: MotoCloud, project: Project, path: str, body: dict[str, Any]) -> None:
    assert cloud.http("POST", path, json=body, key=project.key).status in (201, 202)


@pytest.mark.parametrize(("tail", "source"), [("", SOURCE), ("/multiple", f'["{SOURCE}"]')])
def test_blank_source_data_in_query_counts_as_none(cloud: MotoCloud, project: Project, tail: str, source: str) -> None:
    answer = cloud.http("GET", SYNC + tail, query={"source_data": "  ", "source_url": source}, key=project.key)

    assert (answer.status, answer.json()["code"]) == (502, "connection_failed"), "the source was asked for its rows"


def test_body_of_sync_get_is_ignored(cloud: MotoCloud, project: Project) -> None:
    rows = {"source_data": '[{"a": 1}]'}
    for body in (["source_data", 1.5], {"source_data": [{"a": 1.5}]}):
        answer = cloud.http("GET", SYNC, query=rows, json=body, key=project.key)
        assert (answer.status, answer.body) == (200, b"a\n1\n")


@pytest.mark.parametrize("logs", [["x" * 900_000], [{"message": "x" * 500_000}], ["x" * 20_000] * 40])
def test_long_logs_of_an_async_result_are_cut(cloud: MotoCloud, project: Project, logs: list[Any]) -> None:
    biz_id = cloud.http("POST", "/v1/biz", key=project.key, json={"name": "b", "process_url": SOURCE}).json()["biz_id"]
    batch = {"biz_id": biz_id, "name": "n", "total": 5, "rate": 1, "ack": "async"}
    batch_id = cloud.http("POST", "/v1/batches", key=project.key, json=batch).json()["batch_id"]
    # As if a runner had called its first items.
    cloud.app.table.write(update(keys.batch_called(project.id, batch_id), {"reach": 2}, condition=""))
    result = {"result": "ok", "logs": logs}
    answer = cloud.http("POST", f"/v1/batches/{batch_id}/items/1/result", key=project.key, json=result)

    assert (answer.status, answer.json()) == (202, {"accepted": True})


def test_credential_larger_than_a_secret_is_422_and_not_listed(cloud: MotoCloud, project: Project) -> None:
    """Secrets Manager stores at most 65,536 bytes; moto stores any size."""
    body = {"headers": {f"h{number}": "v" * 16_384 for number in range(4)}, "origins": ["https://source.test"]}
    answer = cloud.http("PUT", "/v1/credentials/large", json=body, key=project.key)

    assert (answer.status, answer.json()["code"]) == (422, "invalid")
    assert "65,536" in answer.json()["errors"][0]["msg"]
    assert "vvv" not in answer.body.decode()
    assert cloud.http("GET", "/v1/credentials", key=project.key).json()["items"] == []
