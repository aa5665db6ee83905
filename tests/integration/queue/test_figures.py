"""The cost of the queue's periodic work, and that it covers all pages and records."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from tests.support.calls import count_calls
from tests.support.moto.bulk import multiply
from tests.support.moto.cloud import MotoCloud
from tests.support.queue import TestQueue
from tidegate.aws import keys
from tidegate.aws.table import ItemPage, Table
from tidegate.common.sequences import Listed
from tidegate.errors import ServiceUnavailable
from tidegate.ingest.subscriptions import finish_delete
from tidegate.queue.control import repair_counts
from tidegate.queue.model import Request
from tidegate.queue.retention import clean
from tidegate.queue.store import RequestStore, standing_write

DAY = 86400


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits every page of a query to two items; in AWS a page of 1 MB has about a thousand."""
    query = Table.query

    def two(table: Table, pk: str, *, limit: int | None = None, **options: Any) -> ItemPage:
        return query(table, pk, limit=min(limit or 2, 2), **options)

    monkeypatch.setattr(Table, "query", two)


def test_cleanup_reads_all_pages(queue: TestQueue, small_pages: None) -> None:
    for _ in range(5):
        queue.act(queue.submit(), "cancel")
    queue.cloud.clock.advance(31 * DAY)

    cleaned = clean(queue.cloud.app.queue)

    assert (cleaned.removed, cleaned.more) == (5, False)


def test_schedules_on_later_pages_fire(cloud: MotoCloud, small_pages: None) -> None:
    project = cloud.project()
    body = {"name": "hourly", "source_url": "https://example.com/list.json", "schedule": "rate(1 hour)"}
    with patch.object(type(cloud.app.http), "refused_urls", return_value={}):
        for _ in range(5):
            assert cloud.http("POST", "/v1/subscriptions", json=body, key=project.key).status == 201
    cloud.clock.advance(3601)

    assert cloud.invoke("scan_subscriptions", {}) == {"fired": 5}
    assert cloud.invoke("scan_subscriptions", {}) == {"fired": 0}


def test_calls_of_a_recount_do_not_grow_with_the_slots(queue: TestQueue) -> None:
    queue.capacity(no_cookie=30)
    counts = []
    for _ in range(2):
        for _ in range(10):
            queue.submit(type="download")
        queue.admit()
        with count_calls(queue.cloud.app) as calls:
            repair_counts(queue.cloud.app.queue, "no_cookie")
        counts.append(calls.total())

    assert counts[0] == counts[1] < 10


def _subscription(queue: TestQueue) -> str:
    body = {"name": "large", "source_url": "https://example.com/list.json"}
    with patch.object(type(queue.cloud.app.http), "refused_urls", return_value={}):
        made = queue.cloud.http("POST", "/v1/subscriptions", json=body, key=queue.project.key).json()
    return str(made["subscription_id"])


def _deletes(queue: TestQueue, name: str) -> Counter[str]:
    with count_calls(queue.cloud.app) as calls:
        answer = queue.cloud.http("DELETE", f"/v1/subscriptions/{name}", key=queue.project.key)
    assert answer.status in (200, 204)
    return calls


def test_calls_of_deleting_a_subscription_do_not_grow_with_its_requests(queue: TestQueue) -> None:
    cloud = queue.cloud
    cloud.http("POST", "/v1/queue/pause", key=cloud.admin_key)
    totals = []
    for count in (6, 30):
        name = _subscription(queue)
        requests = [queue.submit(subscription_id=name) for _ in range(count)]
        totals.append(_deletes(queue, name).total())
        assert cloud.http("GET", f"/v1/subscriptions/{name}", key=queue.project.key).status == 404

    assert totals[1] <= totals[0] < 50
    queue.compensate(31)
    assert queue.statuses(*requests) == ["cancelled"] * 30
    assert cloud.app.ingest.store.get(queue.project.id, name) is None


def test_subscription_with_few_requests_is_deleted_at_once(queue: TestQueue) -> None:
    name = _subscription(queue)
    requests = [queue.submit(subscription_id=name) for _ in range(2)]

    _deletes(queue, name)

    assert queue.statuses(*requests) == ["cancelled"] * 2
    assert queue.cloud.app.ingest.store.get(queue.project.id, name) is None


def test_download_missing_in_a_stale_index_is_cancelled_too(queue: TestQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A running scan has just queued it, and the index is eventually consistent."""
    queue.cloud.http("POST", "/v1/queue/pause", key=queue.cloud.admin_key)
    name = _subscription(queue)
    scan, download = (queue.submit(type=kind, subscription_id=name) for kind in ("scan", "download"))
    read = RequestStore.of_subscription

    def stale(store: RequestStore, *where: Any) -> Listed[Request]:
        page = read(store, *where)
        return replace(page, items=[request for request in page.items if request.type == "scan"])

    with monkeypatch.context() as patched:
        patched.setattr(RequestStore, "of_subscription", stale)
        _deletes(queue, name)
    queue.compensate(31)

    assert queue.statuses(scan, download) == ["cancelled", "cancelled"]
    assert queue.cloud.app.ingest.store.get(queue.project.id, name) is None


def test_deleting_many_requests_continues_in_the_next_run(queue: TestQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud, app = queue.cloud, queue.cloud.app
    cloud.http("POST", "/v1/queue/pause", key=cloud.admin_key)
    monkeypatch.setattr("tidegate.ingest.subscriptions._PAGE", 4)
    name = _subscription(queue)
    requests = [queue.submit(subscription_id=name) for _ in range(20)]
    seconds = iter(range(0, 1000, 15))
    monkeypatch.setattr(app.ingest, "monotonic", lambda: float(next(seconds)))
    _deletes(queue, name)
    cancelled = [queue.statuses(*requests).count("cancelled")]

    for _ in range(4):
        finish_delete(app.ingest, queue.project.id, name)
        cancelled.append(queue.statuses(*requests).count("cancelled"))

    assert cancelled == [5, 9, 13, 17, 20]
    assert app.ingest.store.get(queue.project.id, name) is None


def test_stats_cost_the_same_with_3_and_1_000_000_waiting(queue: TestQueue) -> None:
    """10,000 places exist and the count is a million. Of the lane only the oldest place is read."""
    cloud, costs = queue.cloud, []
    queue.capacity(no_cookie=1)
    requests = [queue.submit(type="download") for _ in range(3)]
    queue.admit()
    asked: list[tuple[str, Any]] = []
    # From now on the key is cached.
    assert cloud.http("GET", "/v1/stats", key=queue.project.key).status == 200

    def note(params: Any, **_: Any) -> None:
        request = json.loads(params["body"])
        asked.append((request["ExpressionAttributeValues"][":h"]["S"], request.get("Limit")))

    for waiting in (0, 999_998):
        if waiting:
            multiply(cloud, requests[-1].request_id, 10_000, by_sort_key=True)
            cloud.app.table.write(standing_write("no_cookie", queue.project.id, waiting=waiting))
        asked.clear()
        cloud.app.dynamodb.meta.events.register("before-call.dynamodb.Query", note)
        with count_calls(cloud.app) as calls:
            shown = cloud.http("GET", "/v1/queue/stats", key=queue.project.key).json()
            assert cloud.http("GET", "/v1/stats", key=queue.project.key).status == 200
        cloud.app.dynamodb.meta.events.unregister("before-call.dynamodb.Query", note)
        costs.append((calls.total(), sorted(asked, key=str)))
        assert shown["channels"]["no_cookie"]["queued"] == 2 + waiting
        assert shown["channels"]["no_cookie"]["oldest_wait_s"] is not None

    assert costs[0] == costs[1]
    # The channels, the counts of each, the oldest place of the one with waiting requests, and the counts by hour.
    assert len(asked) == 1 + len(shown["channels"]) + 1 + 1
    assert [limit for pk, limit in asked if pk == keys.waiting_by_age("no_cookie")] == [1]
    assert keys.waiting("no_cookie", queue.project.id) not in [pk for pk, _ in asked]


def test_recount_does_not_read_a_long_lane_to_its_end(queue: TestQueue) -> None:
    """10,000 places of about 400 bytes are four pages of 1 MB, of which the first two are read."""
    cloud = queue.cloud
    queue.capacity(no_cookie=1)
    _, waits = (queue.submit(type="download") for _ in range(2))
    queue.admit()
    multiply(cloud, waits.request_id, 10_000, by_sort_key=True)
    cloud.app.table.write(standing_write("no_cookie", queue.project.id, waiting=10_000))

    with count_calls(cloud.app) as calls:
        repair_counts(cloud.app.queue, "no_cookie")

    assert calls.total() < 10
    assert cloud.app.queue.channel_store.count_waiting("no_cookie") == 10_001

    # A count that is lower than the places read is corrected at once, however long the lane is.
    cloud.app.table.write(standing_write("no_cookie", queue.project.id, waiting=-10_000))
    repair_counts(cloud.app.queue, "no_cookie")
    assert 2000 < cloud.app.queue.channel_store.count_waiting("no_cookie") <= 10_001


def test_cleanup_costs_one_call_for_each_record(queue: TestQueue) -> None:
    requests = [queue.submit() for _ in range(20)]
    for request in requests:
        queue.act(request, "cancel")
    queue.cloud.clock.advance(31 * DAY)

    with count_calls(queue.cloud.app) as calls:
        cleaned = clean(queue.cloud.app.queue)

    assert (cleaned.removed, cleaned.more) == (20, False)
    # One archive object, one conditional delete a record, one query for each of the 16 partitions.
    assert calls == {"dynamodb.Query": 16, "s3.PutObject": 1, "dynamodb.DeleteItem": 20}


def test_more_than_100_scans_fire_in_one_minute(cloud: MotoCloud) -> None:
    project = cloud.project()
    body = {"name": "hourly", "source_url": "https://example.com/list.json", "schedule": "rate(1 hour)"}
    with patch.object(type(cloud.app.http), "refused_urls", return_value={}):
        made = cloud.http("POST", "/v1/subscriptions", json=body, key=project.key).json()
    multiply(cloud, made["subscription_id"], 149)
    cloud.clock.advance(3601)

    assert cloud.invoke("scan_subscriptions", {}) == {"fired": 150}


def test_failed_admission_is_tried_again_within_seconds(queue: TestQueue) -> None:
    """Otherwise SQS would hide the message, and block the channel's group, for its visibility time-out."""
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


def test_retained_records_use_several_partitions_of_the_index(queue: TestQueue) -> None:
    requests = [queue.submit() for _ in range(12)]
    for request in requests:
        queue.act(request, "cancel")
    table = queue.cloud.app.table
    items = [table.get(keys.request(request.project_id, request.request_id)) or {} for request in requests]

    assert len({item["due_pk"] for item in items}) > 3
    queue.cloud.clock.advance(31 * DAY)
    assert clean(queue.cloud.app.queue).removed == 12


@pytest.mark.parametrize("status", ["stopped", "finished"])
def test_notice_of_a_batch_has_the_status_of_the_batch(queue: TestQueue, status: str) -> None:
    """Subscribers of the topic filter by it, and GET, WebSocket and the data say the same."""
    requests = queue.cloud.app.queue
    request = queue.submit(type="batch", payload={"batch_id": "bat-1"})
    with patch.object(requests, "views", {"batch": lambda _: {"batch_id": "bat-1", "status": status}}):
        notice = requests._notice(replace(request, status="completed"), queue.cloud.clock())

    assert (notice.status, notice.record_id, notice.kind) == (status, "bat-1", "batch.finished")


def test_statistics_time_all_attempts(queue: TestQueue) -> None:
    request = queue.submit()
    queue.admit()
    queue.cloud.clock.advance(20)
    queue.finish(request, error=ServiceUnavailable("busy"))
    queue.cloud.clock.advance(60)
    queue.cloud.deliver("WakeupsQueue")
    queue.admit()
    assert queue.now(request).attempt == 2
    queue.cloud.clock.advance(10)
    queue.finish(request, result={})

    shown = queue.cloud.http("GET", "/v1/stats", key=queue.project.key).json()["types"]["check"]
    assert shown["mean_s"] == pytest.approx(30, abs=0.1)
