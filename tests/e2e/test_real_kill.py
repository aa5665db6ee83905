"""A worker process that gets SIGKILL in the middle of its work: the work completes and is notified once."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from pytest_httpserver import HTTPServer

from tests import exact
from tests.support.deployed import Deployed, DeployedProject, until
from tests.support.exports.paged_source import PagedSource, honest, numbered
from tests.support.exports.running import read_csv, read_sheet
from tests.support.http_servers import Handler, serve
from tests.support.ingest.sources import Hosted, gated_source
from tests.support.patience import idle_clock
from tests.support.topic_subscriber import TopicSubscriber, topic_subscriber
from tests.support.workers import freeze, kill, thaw

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
OVER = ("completed", "failed", "cancelled", "finished", "stopped")


@pytest.fixture
def listener(deployed: Deployed, project: DeployedProject) -> Iterator[TopicSubscriber]:
    with topic_subscriber(deployed, project_id=[project.id]) as subscriber:
        yield subscriber


@pytest.fixture
def source() -> Iterator[PagedSource]:
    with HTTPServer(threaded=True) as server:
        yield PagedSource(server)


def bucket(deployed: Deployed) -> dict[str, str]:
    return {"Bucket": deployed.outputs["FilesBucketName"]}


def stored_parts(deployed: Deployed, prefix: str) -> int:
    """Returns the number of parts of unfinished uploads."""
    s3, here = deployed.client("s3"), bucket(deployed)
    uploads = s3.list_multipart_uploads(**here, Prefix=prefix).get("Uploads", [])
    return sum(
        len(s3.list_parts(**here, Key=upload["Key"], UploadId=upload["UploadId"]).get("Parts", []))
        for upload in uploads
    )


def objects(deployed: Deployed, prefix: str) -> list[str]:
    listing = deployed.client("s3").list_objects_v2(**bucket(deployed), Prefix=prefix)
    return [entry["Key"] for entry in listing.get("Contents", [])]


def shown(project: DeployedProject, path: str, **query: str) -> dict[str, Any]:
    answer = project.http("GET", path, query=query or None)
    assert answer.status == 200, answer.body
    return dict(answer.json())


def assert_notified_once(listener: TopicSubscriber, record_id: str, status: str) -> None:
    """Waits for the notification of the end. It may be repeated, but only with the same id."""

    def ends() -> list[tuple[str, str]]:
        notifications = [
            notification
            for notification in listener.received()
            if notification["record_id"] == record_id and notification["status"] in OVER
        ]
        return sorted({(notification["status"], notification["message_id"]) for notification in notifications})

    until(ends, bool, 20)
    time.sleep(1)
    assert [end for end, _ in ends()] == [status]


def assert_no_slot_is_taken(project: DeployedProject, channel: str) -> None:
    def read() -> dict[str, Any]:
        return dict(shown(project, "/v1/queue/stats")["channels"][channel])

    until(read, lambda stats: stats["running"] == stats["queued"] == 0, 10)


def test_ingest_killed_in_mid_transfer_stores_the_whole_file(
    deployed: Deployed, project: DeployedProject, listener: TopicSubscriber
) -> None:
    body = os.urandom(1024 * 1024) * 40
    with gated_source() as origin:
        origin.files["/large"] = Hosted(body)
        order = {"biz_id": 1, "app_id": 2, "file_path": "/in/large", "source_url": origin.url("/large")}
        accepted = project.http("POST", "/v1/files", json=order).json()
        request_id, content = accepted["request_id"], f"content/{project.id}/{accepted['request_id']}"
        until(lambda: origin.reading, lambda reading: reading >= 3)
        until(lambda: stored_parts(deployed, content), bool)

        kill(deployed, "IngestFunction")

        assert shown(project, f"/v1/requests/{request_id}")["status"] in ("running", "pending")
        until(lambda: origin.reading, lambda reading: reading == 0, 10)
        origin.gate.set()
        ended = until(lambda: shown(project, f"/v1/requests/{request_id}"), lambda request: request["status"] in OVER)

    assert (ended["status"], ended["attempts"]) == ("completed", 2), ended
    link = shown(project, f"/v1/files/{accepted['file_id']}/url")["url"]
    fetched = deployed.pool.request("GET", link).data
    assert hashlib.sha256(fetched).digest() == hashlib.sha256(body).digest()
    assert len(shown(project, "/v1/files", biz_id="1", app_id="2", file_path="/in/large")["items"]) == 1
    assert len(objects(deployed, content)) == 1, "one object, that of the completed attempt"
    assert_no_slot_is_taken(project, "no_cookie")
    assert_notified_once(listener, request_id, "completed")


def test_frozen_ingest_is_replaced_and_may_not_write_when_it_wakes(
    deployed: Deployed, project: DeployedProject, listener: TopicSubscriber
) -> None:
    body = os.urandom(1024 * 1024) * 40
    with gated_source() as origin:
        origin.files["/large"] = Hosted(body)
        order = {"biz_id": 1, "app_id": 2, "file_path": "/in/frozen", "source_url": origin.url("/large")}
        accepted = project.http("POST", "/v1/files", json=order).json()
        path, content = f"/v1/requests/{accepted['request_id']}", f"content/{project.id}/{accepted['request_id']}"
        until(lambda: origin.reading, lambda reading: reading >= 3)

        frozen, frozen_at = freeze(deployed, "IngestFunction"), idle_clock()
        try:
            until(lambda: shown(project, path)["attempts"], lambda attempts: attempts == 2, 90)
            replaced_after = idle_clock() - frozen_at
            origin.gate.set()
            ended = until(lambda: shown(project, path), lambda request: request["status"] in OVER)
        finally:
            thaw(frozen)
        time.sleep(5)

    assert (ended["status"], ended["attempts"]) == ("completed", 2), ended
    assert replaced_after <= 70
    assert shown(project, path) == ended, "the worker that woke changed nothing"
    link = shown(project, f"/v1/files/{accepted['file_id']}/url")["url"]
    assert hashlib.sha256(deployed.pool.request("GET", link).data).digest() == hashlib.sha256(body).digest()
    assert len(objects(deployed, content)) == 1, "one object, that of the completed attempt"
    assert_no_slot_is_taken(project, "no_cookie")
    assert_notified_once(listener, accepted["request_id"], "completed")


def submit(project: DeployedProject, source: PagedSource, **more: Any) -> str:
    answer = project.http("POST", "/v1/task", json={"name": "killed", "source_url": source.url, **more})
    assert answer.status == 202, answer.body
    return str(answer.json()["task_id"])


def test_export_killed_in_mid_pull_has_every_row_once(
    deployed: Deployed, project: DeployedProject, listener: TopicSubscriber, source: PagedSource
) -> None:
    gate = threading.Event()

    def hold_from_page_3(source: PagedSource, page: int, size: int) -> Any:
        if page >= 3:
            gate.wait(40)
        return honest(source, page, size)

    source.rows, source.answer = numbered(8000), hold_from_page_3
    task_id = submit(project, source)
    pages = f"staging/{project.id}/{task_id}/pages/000/"
    # The first three pages are staged, and the worker waits for the next.
    until(lambda: len(objects(deployed, pages)), lambda count: count == 3)
    until(lambda: source.pages[3], bool)

    kill(deployed, "PullPagesFunction")

    assert shown(project, "/v1/task", task_id=task_id)["status"] not in OVER
    gate.set()
    ended = until(lambda: shown(project, "/v1/task", task_id=task_id), lambda task: task["status"] in OVER)
    assert (ended["status"], ended["attempts"]) == ("completed", 2), ended
    rows = read_csv(deployed.pool.request("GET", shown(project, "/v1/download/url", task_id=task_id)["url"]).data)
    assert [int(row["id"]) for row in rows] == list(range(8000))
    assert [source.pages[page] for page in range(3)] == [1, 1, 1], "staged pages are not pulled again"
    assert_clean_and_notified(deployed, project, listener, task_id)


def test_export_whose_range_workers_are_killed_has_every_row_once(
    deployed: Deployed, project: DeployedProject, listener: TopicSubscriber, source: PagedSource
) -> None:
    gate = threading.Event()

    def hold_from_page_30(source: PagedSource, page: int, size: int) -> Any:
        if page >= 30:
            gate.wait(40)
        return honest(source, page, size)

    source.rows, source.answer = numbered(40_000), hold_from_page_30
    task_id = submit(project, source, parallel=8)
    ranges = f"staging/{project.id}/{task_id}/pages/ranges/"
    # The first of two workers has ended its range, the other waits in the middle of its own.
    until(lambda: [key for key in objects(deployed, ranges) if key.endswith("0000000.json")], bool)
    until(lambda: source.pages[30], bool)

    kill(deployed, "RenderRangesFunction")

    assert shown(project, "/v1/task", task_id=task_id)["status"] not in OVER
    gate.set()
    ended = until(lambda: shown(project, "/v1/task", task_id=task_id), lambda task: task["status"] in OVER)
    assert (ended["status"], ended["attempts"]) == ("completed", 1), ended
    rows = read_csv(deployed.pool.request("GET", shown(project, "/v1/download/url", task_id=task_id)["url"]).data)
    assert [int(row["id"]) for row in rows] == list(range(40_000))
    assert [source.pages[page] for page in range(20)] == [1] * 20, "a recorded range is not pulled again"
    assert_clean_and_notified(deployed, project, listener, task_id)


def test_export_killed_in_mid_render_has_every_row_once(
    deployed: Deployed, project: DeployedProject, listener: TopicSubscriber, source: PagedSource
) -> None:
    source.rows = [{"id": number, "noise": base64.b64encode(os.urandom(750)).decode()} for number in range(30_000)]
    task_id = submit(project, source, type="excel", step=5000)
    output = f"exports/{project.id}/{task_id}/"
    until(lambda: stored_parts(deployed, output), bool, every=0.02)
    freeze(deployed, "RenderExportFunction")
    assert stored_parts(deployed, output), "the upload was not finished when its worker was frozen"

    kill(deployed, "RenderExportFunction")

    assert shown(project, "/v1/task", task_id=task_id)["status"] not in OVER
    ended = until(lambda: shown(project, "/v1/task", task_id=task_id), lambda task: task["status"] in OVER)
    assert (ended["status"], ended["attempts"]) == ("completed", 2), ended
    sheet = read_sheet(deployed.pool.request("GET", shown(project, "/v1/download/url", task_id=task_id)["url"]).data)
    assert [tuple(row) for row in sheet[1:]] == [(row["id"], row["noise"]) for row in source.rows]
    assert max(source.pages.values()) == 1, "rendering again pulls no page again"
    assert_clean_and_notified(deployed, project, listener, task_id)


def assert_clean_and_notified(
    deployed: Deployed, project: DeployedProject, listener: TopicSubscriber, task_id: str
) -> None:
    output = f"exports/{project.id}/{task_id}/"
    assert (len(objects(deployed, output)), stored_parts(deployed, output)) == (1, 0)
    until(lambda: objects(deployed, f"staging/{project.id}/{task_id}/"), lambda left: not left, 10)
    assert_no_slot_is_taken(project, "export")
    assert_notified_once(listener, task_id, "completed")


def test_batch_with_killed_runners_agrees_with_the_ledger(deployed: Deployed, project: DeployedProject) -> None:
    """A small `make exact`."""
    found = exact.run(deployed, project, items=1200, kills=2, runners=2, rate=200, seed=7)

    assert not found.faults
    assert len(found.kills) == 2
    assert found.repeats_a_kill <= exact.MOST_REPEATS * 2, "a runner has more of the rate than in the long run"


def test_batch_killed_in_a_slice_repeats_one_second_at_most(
    deployed: Deployed, project: DeployedProject, listener: TopicSubscriber
) -> None:
    calls: list[tuple[float, int]] = []

    def business(request: Handler) -> None:
        calls.append((idle_clock(), json.loads(request.body())["index"]))
        request.answer(200, b'{"result": "ok"}')

    def indexes() -> Counter[int]:
        return Counter(index for _, index in calls)

    with serve(business) as port:
        biz = project.http("POST", "/v1/biz", json={"name": "b", "process_url": f"http://127.0.0.1:{port}/item"})
        order = {"biz_id": biz.json()["biz_id"], "name": "killed", "total": 300, "rate": 50}
        batch_id = project.http("POST", "/v1/batches", json=order).json()["batch_id"]
        assert project.http("POST", f"/v1/batches/{batch_id}/start").status == 202
        until(lambda: len(calls), lambda count: count > 100, every=0.05)

        kill(deployed, "RunBatchSliceFunction")

        killed_at, before = idle_clock(), len(calls)
        assert shown(project, f"/v1/batches/{batch_id}")["status"] == "running"
        time.sleep(1)
        assert len(calls) <= before + 4, "nothing runs without the lease"
        ended = until(lambda: shown(project, f"/v1/batches/{batch_id}"), lambda batch: batch["status"] in OVER)

    assert (ended["status"], ended["progress"]["processed"], ended["progress"]["errors"]) == ("finished", 300, 0)
    assert sorted(indexes()) == list(range(300))
    repeated = {index for index, count in indexes().items() if count > 1}
    assert max(indexes().values()) <= 2
    first = {index: at for at, index in reversed(calls)}
    assert all(killed_at - first[index] < 2.5 for index in repeated), (
        "only items whose progress was not saved are repeated"
    )
    assert_no_slot_is_taken(project, "batch")
    assert_notified_once(listener, batch_id, "finished")
