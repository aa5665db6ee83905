"""Each odd value that once was a 5xx: what it is answered now."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from tests.integration.notifications.watching import Line
from tests.support.fuzz import odd_values
from tests.support.moto.cloud import MotoCloud, Project

SOURCE = "https://source.invalid/x"


@pytest.mark.parametrize("path", ["/v1/files", "/v1/jobs"])
@pytest.mark.parametrize("name", ["biz_id", "app_id"])
def test_a_filter_of_40_digits_is_422_and_named(cloud: MotoCloud, project: Project, path: str, name: str) -> None:
    answer = cloud.http("GET", path, query={name: "9" * 40}, key=project.key)

    assert (answer.status, answer.json()["errors"][0]["loc"]) == (422, ["query", name])


def test_a_payload_size_of_40_digits_is_422_and_named(cloud: MotoCloud, project: Project) -> None:
    payload = {"source_url": SOURCE, "file_path": "/a", "size": 10**40}
    answer = cloud.http("POST", "/v1/requests", json={"type": "download", "payload": payload}, key=project.key)

    assert (answer.status, answer.json()["errors"][0]["loc"]) == (422, ["body", "payload", "size"])


@pytest.mark.parametrize("since", odd_values.MOMENTS[:2])
def test_a_moment_outside_the_calendar_is_422_and_named(cloud: MotoCloud, project: Project, since: str) -> None:
    answer = cloud.http("GET", "/v1/stats", query={"since": since}, key=project.key)

    assert (answer.status, answer.json()["errors"][0]["loc"]) == (422, ["query", "since"])


def test_figures_since_an_early_year_hold_everything(cloud: MotoCloud, project: Project) -> None:
    """Moments are compared as texts: the year 999 must not sort after 2026."""
    payload = {"source_url": "http://127.0.0.1:9/x", "file_path": "/a"}
    cloud.http("POST", "/v1/requests", json={"type": "download", "payload": payload}, key=project.key)
    answer = cloud.http("GET", "/v1/stats", query={"since": "0999-06-01T00:00:00Z"}, key=project.key).json()

    assert (answer["since"], answer["types"]["download"]["count"]) == ("0999-06-01T00:00:00.000Z", 1)


@pytest.mark.parametrize("text", ["x" * 2049, "长" * 700], ids=["ascii", "wide"])
def test_an_id_longer_than_a_key_is_404(cloud: MotoCloud, project: Project, text: str) -> None:
    for kind in ("files", "requests", "batches", "biz", "subscriptions", "downloads", "jobs"):
        answer = cloud.http("GET", f"/v1/{kind}/{quote(text)}", key=project.key)
        assert (answer.status, answer.json()["code"]) == (404, "not_found"), kind


def test_the_test_world_refuses_long_keys_as_aws_does(cloud: MotoCloud) -> None:
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
def test_a_message_that_names_no_id_is_answered_as_an_error(
    cloud: MotoCloud, project: Project, action: str, odd: Any
) -> None:
    line = Line(cloud)
    client = line.joined(project)

    (told,) = line.say(client, action=action, task_ids=["req-1", odd])
    assert (told["type"], told["data"]["code"]) == ("error", "invalid")
