"""Quotas of a project: the counts, the refusals, and that a crash leaves the counts right."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from botocore.exceptions import ClientError

from tests.support.calls import count_calls
from tests.support.queue import TestQueue, set_quotas
from tidegate.aws import keys
from tidegate.aws.table import update
from tidegate.errors import Conflict, NotFound, QuotaExceeded, ServiceUnavailable
from tidegate.files.library import Announcement
from tidegate.files.model import READY, upload_object
from tidegate.projects.audit import SYSTEM, act
from tidegate.projects.limits import AGENT
from tidegate.projects.model import AGENT_RATE
from tidegate.projects.projects import RATE_KEPT_SECONDS
from tidegate.queue.model import Request

NOTHING_USED: dict[str, Any] = {
    "stored_bytes": 0,
    "queued": 0,
    "export_schedules": 0,
    "batch_schedules": 0,
    "subscriptions": 0,
    "businesses": 0,
    "batches": 0,
    "unstarted_batches": 0,
    "open_uploads": 0,
    "runner_hours_per_day": 0,
    "egress_bytes_per_day": 0,
    "targets_per_day": 0,
    "outgoing_calls_per_day": 0,
    "running": {},
}


def usage(queue: TestQueue) -> dict[str, Any]:
    return queue.cloud.app.queue.project_usage(queue.project.id)


def test_queued_requests_over_the_quota_are_refused(queue: TestQueue) -> None:
    set_quotas(queue, queued=2)
    queue.cloud.http("POST", "/v1/queue/pause", json={}, key=queue.cloud.admin_key)
    made = [new_ingest(queue, number) for number in range(3)]

    assert [answer.status for answer in made] == [202, 202, 429]
    refused = made[2]
    assert refused.json()["code"] == "quota_exceeded"
    assert "queued is 2" in refused.json()["detail"]
    assert int(refused.headers["retry-after"]) > 0
    assert usage(queue)["queued"] == 2


def new_ingest(queue: TestQueue, number: int) -> Any:
    body = {"biz_id": 1, "app_id": 2, "file_path": f"/a/{number}", "source_url": "http://127.0.0.1:9/x"}
    return queue.cloud.http("POST", "/v1/files", json=body, key=queue.project.key)


def test_repeated_request_is_accepted_when_the_quota_is_used_up(queue: TestQueue) -> None:
    set_quotas(queue, queued=1)
    first = queue.submit(request_id="req-same")

    assert queue.submit(request_id="req-same").created_at == first.created_at
    with pytest.raises(QuotaExceeded):
        queue.submit(request_id="req-other")
    assert usage(queue)["queued"] == 1


def full_queue(queue: TestQueue) -> tuple[Request, Request, Request]:
    """A failed, a paused and a waiting request of a project that may have one waiting request."""
    failed = queue.submit()
    queue.admit()
    queue.finish(failed, error=NotFound("gone"))
    queue.cloud.http("POST", "/v1/queue/pause", json={}, key=queue.cloud.admin_key)
    paused = queue.submit()
    queue.act(paused, "pause")
    set_quotas(queue, queued=1)
    return failed, paused, queue.submit()


def test_retry_and_resume_over_the_quota_are_refused_and_can_be_repeated(queue: TestQueue) -> None:
    failed, paused, waiting = full_queue(queue)

    for request, action in ((failed, "retry"), (paused, "resume")):
        before = queue.now(request)
        refused = queue.act(request, action)
        assert (refused.status, refused.json()["code"]) == (429, "quota_exceeded")
        assert "queued is 1" in refused.json()["detail"]
        assert int(refused.headers["retry-after"]) > 0
        assert queue.now(request) == before
        assert queue.act(waiting, "retry").json()["code"] == "wrong_state"
    assert usage(queue)["queued"] == 1

    queue.act(waiting, "cancel")
    assert queue.act(paused, "resume").status == 200
    queue.act(paused, "cancel")
    assert queue.act(failed, "retry").status == 200
    assert usage(queue)["queued"] == 1


def test_bulk_retry_skips_requests_over_the_quota(queue: TestQueue) -> None:
    failed, _, waiting = full_queue(queue)
    body = {"action": "retry", "status": "failed"}

    skipped = queue.cloud.http("POST", "/v1/requests/bulk", json=body, key=queue.project.key)
    queue.act(waiting, "cancel")
    retried = queue.cloud.http("POST", "/v1/requests/bulk", json=body, key=queue.project.key)

    assert (skipped.status, skipped.json()["changed"], skipped.json()["skipped"]) == (200, 0, 1)
    assert retried.json()["changed"] == 1
    assert queue.now(failed).status == "pending"


def test_automatic_retry_and_other_changes_ignore_the_quota(queue: TestQueue) -> None:
    running = queue.submit(type="download")
    queue.admit()
    queue.cloud.http("POST", "/v1/queue/pause", json={}, key=queue.cloud.admin_key)
    waiting = queue.submit()
    set_quotas(queue, queued=1)

    assert queue.finish(running, error=ServiceUnavailable("503")).status == "pending"
    assert queue.act(waiting, "prioritize", {"priority": 1}).status == 200
    assert usage(queue)["queued"] == 2


def test_queued_count_follows_every_transition(queue: TestQueue) -> None:
    queue.capacity(no_cookie=1)
    first, second, third = (queue.submit(type="download") for _ in range(3))
    assert usage(queue) == NOTHING_USED | {"queued": 3}
    queue.admit()
    assert usage(queue) == NOTHING_USED | {"queued": 2, "running": {"no_cookie": 1}}

    queue.act(second, "prioritize", {"priority": 1})
    assert usage(queue)["queued"] == 2
    queue.act(second, "pause")
    assert usage(queue)["queued"] == 1
    queue.act(second, "resume")
    queue.act(third, "cancel")
    assert usage(queue)["queued"] == 1
    queue.finish(first, error=ServiceUnavailable("503"))
    assert usage(queue) == NOTHING_USED | {"queued": 2}


@pytest.mark.parametrize("step", ["before", "after"])
def test_counts_are_right_if_the_function_dies_at_the_write(queue: TestQueue, step: str) -> None:
    """The place and its counts are written in one transaction."""
    table = queue.cloud.app.table
    write = table.transact

    def dies(*args: Any, **kwargs: Any) -> None:
        if step == "after":
            write(*args, **kwargs)
        raise RuntimeError("the function died")

    with patch.object(table, "transact", dies), pytest.raises(RuntimeError):
        queue.submit()

    standing = queue.cloud.app.queue.channel_store.standing("no_cookie", queue.project.id)
    places = sum(map(len, queue.cloud.app.queue.channel_store.waiting("no_cookie", queue.project.id)))
    assert usage(queue)["queued"] == places == standing.waiting == (step == "after")


def upload(queue: TestQueue, content: bytes, path: str = "/a") -> Any:
    body = {"biz_id": 1, "app_id": 2, "file_path": path}
    made = queue.cloud.http("POST", "/v1/files", json=body, key=queue.project.key).json()
    key = upload_object(queue.project.id, made["file_id"])
    queue.cloud.client("s3").put_object(Bucket=queue.cloud.app.settings.files_bucket, Key=key, Body=content)
    return queue.cloud.http("POST", f"/v1/files/{made['file_id']}/complete", key=queue.project.key)


def test_stored_bytes_count_each_content_once_up_to_the_quota(queue: TestQueue) -> None:
    set_quotas(queue, stored_bytes=10)
    assert upload(queue, b"123456").status == 200
    assert upload(queue, b"123456", "/same").status == 200
    assert usage(queue)["stored_bytes"] == 6

    refused = upload(queue, b"abcdef")
    assert (refused.status, refused.json()["code"]) == (429, "quota_exceeded")
    assert "stored_bytes is 10" in refused.json()["detail"]
    announced = {"biz_id": 1, "app_id": 2, "file_path": "/b", "size": 5}
    assert queue.cloud.http("POST", "/v1/files", json=announced, key=queue.project.key).status == 429
    assert upload(queue, b"abcd").status == 200
    assert usage(queue)["stored_bytes"] == 10


def test_content_stored_by_a_concurrent_upload_is_counted_once(queue: TestQueue) -> None:
    store = queue.cloud.app.files.store
    signature = hashlib.sha256(b"same").hexdigest()
    first, second = (
        queue.cloud.app.files.uploads.announce(queue.project.id, Announcement(1, 2, f"/{name}", size=4))[0]
        for name in "ab"
    )
    ready = [replace(file, state=READY, signature=signature) for file in (first, second)]
    looked: list[bool] = []
    line = act(queue.project.id, first.file_id, queue.cloud.clock(), SYSTEM, "file.complete")

    def stale_once(project_id: str, wanted: str) -> bool:
        if not looked:
            looked.append(True)
            store.finish(lambda: (ready[0], None), was=("pending",), line=line)
            return False
        return bool(type(store).has_content(store, project_id, wanted))

    with patch.object(store, "has_content", stale_once):
        assert store.finish(lambda: (ready[1], None), was=("pending",), line=line).state == READY

    assert usage(queue)["stored_bytes"] == 4


def test_requests_over_the_rate_are_refused_for_a_second(queue: TestQueue) -> None:
    set_quotas(queue, requests_per_s=3)
    answers = [queue.cloud.http("GET", "/v1/queue", key=queue.project.key) for _ in range(5)]

    assert [answer.status for answer in answers] == [200, 200, 200, 429, 429]
    assert answers[3].json()["code"] == "rate_limited"
    assert "requests_per_s is 3" in answers[3].json()["detail"]
    assert answers[3].headers["retry-after"] == "1"
    other = queue.cloud.project()
    assert queue.cloud.http("GET", "/v1/queue", key=other.key).status == 200

    queue.cloud.clock.advance(1)
    assert queue.cloud.http("GET", "/v1/queue", key=queue.project.key).status == 200


def test_changed_rate_applies_within_seconds(queue: TestQueue) -> None:
    assert queue.cloud.http("GET", "/v1/queue", key=queue.project.key).status == 200
    set_quotas(queue, requests_per_s=1)
    queue.cloud.clock.advance(RATE_KEPT_SECONDS)

    statuses = [queue.cloud.http("GET", "/v1/queue", key=queue.project.key).status for _ in range(2)]

    assert statuses == [200, 429]


def test_rate_limit_costs_no_call_per_request(queue: TestQueue) -> None:
    set_quotas(queue, requests_per_s=1000)

    def calls_of(requests: int) -> Counter[str]:
        with count_calls(queue.cloud.app) as calls:
            for _ in range(requests):
                queue.cloud.http("GET", "/v1/queue", key=queue.project.key)
        return calls

    calls_of(1)
    limited = calls_of(40)
    # The key, and the list itself.
    assert limited == {"dynamodb.GetItem": 40, "dynamodb.Query": 40, "dynamodb.UpdateItem": 2}


def test_host_that_floods_the_api_is_limited_and_its_project_is_not(queue: TestQueue) -> None:
    cloud, limit = queue.cloud, int(AGENT_RATE * AGENT.burst_seconds)
    keys_of = {name: cloud.make_key(queue.project.id, ["agent"], name) for name in ("bad", "good")}
    limiter = cloud.app.projects.agent_rate_limiter
    answer = cloud.http("GET", "/v1/agents/bad/transfers", key=keys_of["bad"])
    assert answer.status == 200
    # The rest of its burst, without the time that 1,000 requests take.
    (share,) = limiter._shares.values()
    share.bucket.take(cloud.clock().timestamp(), limit - 1)

    refused = cloud.http("GET", "/v1/agents/bad/transfers", key=keys_of["bad"])
    assert (refused.status, refused.json()["code"]) == (429, "rate_limited")
    assert "a host may send 20 requests per second" in refused.json()["detail"]
    assert int(refused.headers["retry-after"]) > 0
    assert cloud.http("GET", "/v1/agents/good/transfers", key=keys_of["good"]).status == 200
    assert cloud.http("GET", "/v1/queue", key=queue.project.key).status == 200

    cloud.clock.advance(1)
    assert cloud.http("GET", "/v1/agents/bad/transfers", key=keys_of["bad"]).status == 200


def test_requests_pass_if_the_rate_limit_cannot_be_written(queue: TestQueue) -> None:
    set_quotas(queue, requests_per_s=1000)
    down = ClientError({"Error": {"Code": "InternalServerError"}}, "UpdateItem")
    with patch.object(queue.cloud.app.table, "write", side_effect=down):
        statuses = {queue.cloud.http("GET", "/v1/queue", key=queue.project.key).status for _ in range(25)}

    assert statuses == {200}


def test_ingest_over_the_quota_stores_nothing(queue: TestQueue) -> None:
    # A project from before limits had defaults: its uploads of unknown size take no room.
    queue.cloud.app.table.write(update(keys.project(queue.project.id), removes=("has_default_quotas",)))
    file = queue.cloud.app.files.uploads.announce(queue.project.id, Announcement(1, 2, "/a"))[0]
    set_quotas(queue, stored_bytes=3)
    queue.cloud.app.table.write(update(keys.file(queue.project.id, file.file_id), {"state": "coming"}))
    ready = replace(file, state=READY, signature="0" * 64, size=4)

    with pytest.raises(QuotaExceeded):
        queue.cloud.app.files.store.finish_writes(ready, was=("coming",))
    set_quotas(queue, stored_bytes=4)
    writes = queue.cloud.app.files.store.finish_writes(ready, was=("coming",))
    queue.cloud.app.table.write(update(keys.usage(queue.project.id), {"stored_bytes": 1}, condition=""))

    request = queue.submit()
    queue.admit()
    with pytest.raises(Conflict):
        queue.finish(request, result={}, extra_writes=writes)
    assert usage(queue)["stored_bytes"] == 1
