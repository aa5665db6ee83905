"""GET /v1/overview needs a bounded number of reads."""

from __future__ import annotations

from tests.support.calls import count_calls
from tests.support.console_seed import items_of_a_busy_hour
from tests.support.moto.cloud import MotoCloud, Project


def test_overview_of_an_empty_project_has_channels_only(cloud: MotoCloud, project: Project) -> None:
    answer = cloud.http("GET", "/v1/overview", key=project.key)

    assert answer.status == 200, answer.body
    shown = answer.json()
    assert (shown["jobs"], shown["requests"], shown["stats"], shown["complete"]) == ([], [], [], True)
    assert {"export", "batch", "no_cookie", "requires_cookie"} <= {lane["channel"] for lane in shown["channels"]}
    assert {"interval_s", "queue_size", "next_poll"} <= shown["compensation"].keys()


def test_overview_shows_only_requests_of_the_project(cloud: MotoCloud, project: Project) -> None:
    submitted = cloud.app.queue.submit(project.id, "check", payload={})

    mine = cloud.http("GET", "/v1/overview", key=project.key).json()
    other = cloud.http("GET", "/v1/overview", key=cloud.project().key).json()

    assert [request["request_id"] for request in mine["requests"]] == [submitted.request_id]
    assert other["requests"] == []


def test_busy_hour_needs_as_many_reads_as_an_empty_one(cloud: MotoCloud, project: Project) -> None:
    # Before counting: the first use of a key in an hour is written, and the authorizer caches the project's rate.
    cloud.http("GET", "/v1/overview", key=project.key)
    with count_calls(cloud.app) as empty:
        cloud.http("GET", "/v1/overview", key=project.key)
    cloud.app.table.batch_put(items_of_a_busy_hour(project.id, cloud.clock(), requests=220, jobs=30, files=0))

    with count_calls(cloud.app) as busy:
        shown = cloud.http("GET", "/v1/overview", key=project.key).json()

    # The records that the three lists found are read once more, consistently.
    assert busy - empty == {"dynamodb.BatchGetItem": 3}
    assert not empty - busy
    assert busy["dynamodb.Scan"] == 0
    assert shown["complete"] is False
    assert sum(entry["count"] for entry in shown["stats"]) > 200
    assert {entry["type"] for entry in shown["stats"]} >= {"job", "export", "download"}
