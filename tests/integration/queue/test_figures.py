"""What the queue's upkeep costs, and that it goes through everything."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from tests.support.calls import count_calls
from tests.support.moto.cloud import MotoCloud
from tests.support.queue import TestQueue
from tidegate.aws import keys
from tidegate.aws.table import ItemPage, Table

DAY = 86400


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every query answers two items a page, as one of 1 MB answers a thousand."""
    query = Table.query

    def two(table: Table, pk: str, *, limit: int | None = None, **options: Any) -> ItemPage:
        return query(table, pk, limit=min(limit or 2, 2), **options)

    monkeypatch.setattr(Table, "query", two)


def test_cleanup_goes_through_all_pages(queue: TestQueue, small_pages: None) -> None:
    for _ in range(5):
        queue.act(queue.submit(), "cancel")
    queue.cloud.clock.advance(31 * DAY)

    cleaned = queue.cloud.app.queue.retention.clean()

    assert (cleaned.removed, cleaned.more) == (5, False)


def test_schedule_fires_what_lies_on_later_pages(cloud: MotoCloud, small_pages: None) -> None:
    project = cloud.project()
    body = {"name": "hourly", "source_url": "https://example.com/list.json", "schedule": "rate(1 hour)"}
    with patch.object(type(cloud.app.http), "check_url"):
        for _ in range(5):
            assert cloud.http("POST", "/v1/subscriptions", json=body, key=project.key).status == 201
    cloud.clock.advance(3601)

    assert cloud.invoke("scan_subscriptions", {}) == {"fired": 5}
    assert cloud.invoke("scan_subscriptions", {}) == {"fired": 0}


def test_calls_of_healing_do_not_grow_with_the_slots(queue: TestQueue) -> None:
    queue.capacity(no_cookie=30)
    counts = []
    for _ in range(2):
        for _ in range(10):
            queue.submit(type="download")
        queue.admit()
        with count_calls(queue.cloud.app) as calls:
            queue.cloud.app.queue.recovery.heal("no_cookie")
        counts.append(calls.total())

    assert counts[0] == counts[1] < 10


def test_deleting_a_subscription_with_many_requests_goes_on_after_the_call(
    queue: TestQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud, app = queue.cloud, queue.cloud.app
    body = {"name": "large", "source_url": "https://example.com/list.json"}
    with patch.object(type(app.http), "check_url"):
        made = cloud.http("POST", "/v1/subscriptions", json=body, key=queue.project.key).json()
    name = made["subscription_id"]
    cloud.http("POST", "/v1/queue/pause", key=cloud.admin_key)
    requests = [queue.submit(subscription_id=name) for _ in range(6)]
    seconds = iter(range(0, 1000, 2))
    monkeypatch.setattr(app.ingest.subscriptions, "_monotonic", lambda: float(next(seconds)))

    assert cloud.http("DELETE", f"/v1/subscriptions/{name}", key=queue.project.key).status in (200, 204)
    assert queue.statuses(*requests).count("cancelled") == 2
    assert cloud.http("GET", f"/v1/subscriptions/{name}", key=queue.project.key).status == 404

    for _ in range(3):
        queue.compensate(61)
    assert queue.statuses(*requests) == ["cancelled"] * 6
    assert app.ingest.store.get(queue.project.id, name) is None


def test_admission_that_fails_once_is_tried_again_within_seconds(queue: TestQueue) -> None:
    """Left to itself, SQS would hide the message, and with it the channel's group, for its visibility time-out."""
    cloud = queue.cloud
    asked: list[int] = []
    queue.submit()
    (message,) = cloud._receive("AdmissionQueue", 1)
    record = {"messageId": message["MessageId"], "receiptHandle": message["ReceiptHandle"], "body": message["Body"]}

    def ask(params: Any, **_: Any) -> None:
        asked.extend(entry["VisibilityTimeout"] for entry in json.loads(params["body"])["Entries"])

    cloud.app.sqs.meta.events.register("before-call.sqs.ChangeMessageVisibilityBatch", ask)
    with patch.object(cloud.app.queue.channel_store, "ensure", side_effect=RuntimeError("throttled")):
        answers = [
            cloud.invoke("admit", {"Records": [record | {"attributes": {"ApproximateReceiveCount": str(count)}}]})
            for count in (1, 2, 9)
        ]

    assert answers == [{"batchItemFailures": [{"itemIdentifier": message["MessageId"]}]}] * 3
    assert asked == [3, 6, 60]


def test_records_to_be_removed_are_spread_over_partitions_of_the_index(queue: TestQueue) -> None:
    requests = [queue.submit() for _ in range(12)]
    for request in requests:
        queue.act(request, "cancel")
    table = queue.cloud.app.table
    items = [table.get(keys.request(request.project_id, request.request_id)) or {} for request in requests]

    assert len({item["due_pk"] for item in items}) > 3
    queue.cloud.clock.advance(31 * DAY)
    assert queue.cloud.app.queue.retention.clean().removed == 12


def test_notice_of_a_stopped_batch_has_the_status_of_the_batch(queue: TestQueue) -> None:
    requests = queue.cloud.app.queue.queue
    request = queue.submit(type="batch", payload={"batch_id": "bat-1"})
    with patch.object(requests, "_views", {"batch": lambda _: {"batch_id": "bat-1", "status": "stopped"}}):
        notice = requests._notice(replace(request, status="completed"), queue.cloud.clock())

    assert (notice.status, notice.record_id, notice.kind) == ("stopped", "bat-1", "batch.finished")
