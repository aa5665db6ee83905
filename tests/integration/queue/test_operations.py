"""Statistics, lists and retention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.support.calls import count_calls
from tests.support.queue import TestQueue
from tidegate.aws import keys
from tidegate.aws.table import delete
from tidegate.common.ids import iso
from tidegate.errors import NotFound
from tidegate.exports.store import output_object
from tidegate.queue.store import place_item, standing_write

DAY = 24 * 3600


def get(queue: TestQueue, path: str, **query: Any) -> Any:
    answer = queue.cloud.http("GET", path, key=queue.project.key, query=query)
    assert answer.status == 200, answer.body
    return answer.json()


def clean(queue: TestQueue) -> Any:
    return queue.cloud.http("POST", "/v1/cleanup", key=queue.cloud.admin_key).json()


def test_queue_stats_by_channel(queue: TestQueue) -> None:
    queue.capacity(no_cookie=1)
    for _ in range(3):
        queue.submit()
    queue.admit()
    queue.cloud.clock.advance(10)

    stats = get(queue, "/v1/queue/stats")["channels"]

    assert {"requires_cookie", "no_cookie", "export", "batch"} <= set(stats)
    waited = stats["no_cookie"].pop("oldest_wait_s")
    assert stats["no_cookie"] == {"capacity": 1, "running": 1, "queued": 2, "paused": False}
    assert 10 <= waited < 11


def test_stats_of_a_long_queue_read_only_counts_and_the_oldest_place(queue: TestQueue) -> None:
    oldest = queue.submit(priority=9)
    queue.cloud.clock.advance(10)
    for priority in (1, 5):
        queue.submit(priority=priority)
    many = [replace(oldest, request_id=f"req-{number}", priority=5) for number in range(2000)]
    later = [place_item(replace(one, created_at=iso(queue.cloud.clock()))) | {"padding": "x" * 600} for one in many]
    queue.cloud.app.table.batch_put(later)
    queue.cloud.app.table.write(standing_write(oldest.channel, oldest.project_id, waiting=len(many)))
    queue.cloud.clock.advance(30)

    with count_calls(queue.cloud.app) as calls:
        stats = queue.cloud.app.queue.channels.stats()

    (lane,) = [one for one in stats if one.channel == oldest.channel]
    assert (lane.queued, 40 <= lane.oldest_wait_s < 41) == (2003, True)
    # The channels, the counts of each, and the oldest place of the one with waiting requests.
    assert calls == {"dynamodb.Query": 1 + len(stats) + 1}


def test_queue_is_listed_by_channel_and_status_newest_first(queue: TestQueue) -> None:
    queue.capacity(no_cookie=1)
    requests = [queue.submit() for _ in range(3)]
    other = queue.submit(channel="requires_cookie")
    queue.admit()

    queued = get(queue, "/v1/queue", channel="no_cookie", status="queued")["items"]
    everything = get(queue, "/v1/queue", limit=2)

    assert [item["request_id"] for item in queued] == [request.request_id for request in reversed(requests[1:])]
    assert {item["last_wait_reason"] for item in queued} == {"capacity"}
    assert [item["request_id"] for item in everything["items"]] == [other.request_id, requests[2].request_id]
    rest = get(queue, "/v1/queue", cursor=everything["next_cursor"])["items"]
    assert [item["request_id"] for item in rest] == [requests[1].request_id, requests[0].request_id]
    theirs = queue.cloud.http("GET", "/v1/queue", key=queue.cloud.project().key).json()
    assert theirs["items"] == []


def test_stats_by_type_have_success_rate_mean_and_p95(queue: TestQueue) -> None:
    queue.capacity(no_cookie=10)
    for seconds in (1, 2, 3, 10):
        request = queue.submit()
        queue.admit()
        queue.cloud.clock.advance(seconds)
        queue.finish(request, **({"error": NotFound()} if seconds == 10 else {}))

    stats = get(queue, "/v1/stats")["types"]["check"]

    assert stats["count"] == 4
    assert stats["success_rate"] == 0.75
    assert (stats["mean_s"], stats["p95_s"]) == (4.0, 10.0)
    assert get(queue, "/v1/stats", since="2999-01-01T00:00:00Z")["types"] == {}


def test_stats_follow_a_request_through_its_states(queue: TestQueue) -> None:
    queue.capacity(no_cookie=1)
    first, second = queue.submit(), queue.submit()
    by_status = []

    def read() -> None:
        by_status.append(get(queue, "/v1/stats")["types"]["check"]["by_status"])

    read()
    queue.admit()
    read()
    queue.finish(first, error=NotFound("gone"))
    read()
    queue.act(second, "cancel")
    queue.act(first, "retry")
    read()

    assert by_status == [
        {"pending": 2},
        {"running": 1, "queued": 1},
        {"failed": 1, "queued": 1},
        {"cancelled": 1, "pending": 1},
    ]
    # The duration of the failed attempt is not counted any more.
    assert get(queue, "/v1/stats")["types"]["check"].get("mean_s") is None


def test_stats_of_requests_from_before_the_counts_are_not_negative(queue: TestQueue) -> None:
    request = queue.submit()
    counts = keys.request_stats(queue.project.id, request.created_at[:13], request.type, request.request_id)
    queue.cloud.app.table.write(delete(counts))
    queue.admit()

    stats = get(queue, "/v1/stats")["types"]["check"]
    assert (stats["count"], stats["by_status"]) == (1, {"running": 1})


def test_stats_count_a_repeated_request_once(queue: TestQueue) -> None:
    submit = queue.cloud.app.queue.submit
    for _ in range(3):
        submit(queue.project.id, "check", payload={}, request_id="req-same")

    assert get(queue, "/v1/stats")["types"]["check"]["count"] == 1


def test_completed_requests_are_kept_7_days_and_failed_ones_30(queue: TestQueue) -> None:
    done, failed = queue.submit(type="export"), queue.submit(type="export")
    queue.admit()
    s3, bucket = queue.cloud.client("s3"), queue.cloud.app.files.bucket.name
    for request in (done, failed):
        s3.put_object(Bucket=bucket, Key=output_object(queue.project.id, request.request_id, 1), Body=b"left over")
    queue.finish(done)
    queue.finish(failed, error=NotFound("gone"))

    queue.cloud.clock.advance(7 * DAY - 60)
    assert clean(queue) == {"removed": 0, "objects": 0, "more": False, "stopped": None}
    queue.cloud.clock.advance(120)
    assert clean(queue)["removed"] == 1
    kept = [queue.cloud.app.queue.store.get(queue.project.id, one.request_id) for one in (done, failed)]
    # The record of an expired export stays, so that its link can answer that it has expired.
    assert [request and bool(request.expired_at) for request in kept] == [True, False]
    assert s3.list_objects_v2(Bucket=bucket, Prefix="exports/")["KeyCount"] == 1

    queue.cloud.clock.advance(23 * DAY)
    assert queue.cloud.invoke("clean_up", {})["removed"] == 1
    assert s3.list_objects_v2(Bucket=bucket, Prefix="exports/")["KeyCount"] == 0


def test_retried_request_is_not_removed_after_its_former_end(queue: TestQueue) -> None:
    request = queue.submit()
    queue.admit()
    queue.finish(request, error=NotFound("gone"))
    queue.act(request, "retry")

    queue.cloud.clock.advance(31 * DAY)
    clean(queue)

    assert queue.now(request).status == "pending"


def test_expired_export_is_shown_as_expired(queue: TestQueue) -> None:
    request = queue.submit(type="export")
    queue.admit()
    queue.finish(request, result={})

    queue.cloud.clock.advance(8 * DAY)
    clean(queue)

    assert queue.now(request).expired_at is not None
    assert clean(queue)["removed"] == 0
