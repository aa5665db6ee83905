"""Ingest and the queue over HTTP on the deployed stack, with its permissions and in real time."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.deployed import Deployed, DeployedProject, until
from tests.support.http_servers import Handler
from tests.support.ingest.sources import FileSource, Hosted, file_source
from tests.support.patience import idle_clock

pytestmark = pytest.mark.e2e
OVER = ("completed", "failed", "cancelled")


class SlowSource(FileSource):
    """Sends five megabytes a second under /slow for as long as clients read; `reading` counts them."""

    reading = 0

    def answer(self, handler: Handler) -> None:
        if handler.path != "/slow":
            super().answer(handler)
            return
        handler.send_response(200)
        handler.send_header("Content-Length", str(600 * 1024 * 1024))
        handler.end_headers()
        self.reading += 1
        try:
            for _ in range(600):
                handler.wfile.write(b"s" * 1024 * 1024)
                time.sleep(0.2)
        except OSError:
            handler.close_connection = True
        finally:
            self.reading -= 1


@pytest.fixture
def source() -> Iterator[FileSource]:
    with file_source(SlowSource()) as new_source:
        yield new_source


def ingest(project: DeployedProject, url: str, **more: Any) -> dict[str, Any]:
    body = {"biz_id": 1, "app_id": 2, "file_path": "/in/file.bin", "source_url": url, **more}
    answer = project.http("POST", "/v1/files", json=body)
    assert answer.status == 202, answer.body
    return dict(answer.json())


def request(project: DeployedProject, request_id: str) -> dict[str, Any]:
    return dict(project.http("GET", f"/v1/requests/{request_id}").json())


def wait_until_ended(project: DeployedProject, request_id: str) -> dict[str, Any]:
    return until(lambda: request(project, request_id), lambda shown: shown["status"] in OVER)


def new_channel(deployed: Deployed, name: str, capacity: int) -> None:
    """Creates a channel for this test, because other tests run at the same time."""
    assert deployed.http("POST", "/v1/queue/capacity", json={name: capacity}, key=deployed.admin_key).status == 200


def test_large_source_becomes_a_file(deployed: Deployed, project: DeployedProject, source: FileSource) -> None:
    body = os.urandom(1024 * 1024) * 40
    source.files["/large.bin"] = Hosted(body, cuts=1)
    signature = hashlib.sha256(body).hexdigest()

    accepted = ingest(project, source.url("/large.bin"), signature=signature, size=len(body))
    ended = wait_until_ended(project, accepted["request_id"])

    assert ended["status"] == "completed", ended
    link = project.http("GET", f"/v1/files/{accepted['file_id']}/url").json()["url"]
    fetched = deployed.pool.request("GET", link).data
    assert hashlib.sha256(fetched).hexdigest() == signature


def test_subscription_uses_its_credentials(project: DeployedProject, source: FileSource) -> None:
    source.files["/list.json"] = Hosted(b'["/a", "/b"]', content_type="application/json", needs_cookie="k=v")
    source.files |= {f"/{name}": Hosted(name.encode(), needs_cookie="k=v") for name in "ab"}
    credential = {"headers": {"Cookie": "k=v"}, "origins": [source.url("")]}
    assert project.http("PUT", "/v1/credentials/shop", json=credential).status == 204
    body = {"name": "s", "source_url": source.url("/list.json"), "credentials": "shop", "schedule": "rate(1 hour)"}
    subscription = project.http("POST", "/v1/subscriptions", json=body).json()["subscription_id"]

    scan = project.http("POST", f"/v1/subscriptions/{subscription}/download").json()
    assert wait_until_ended(project, scan["request_id"])["result"]["queued"] == 2
    tasks = project.http("GET", f"/v1/subscriptions/{subscription}/tasks").json()["items"]
    ends = [wait_until_ended(project, task["request_id"]) for task in tasks]

    assert {(end["status"], end["channel"]) for end in ends} == {("completed", "requires_cookie")}
    assert project.http("DELETE", f"/v1/subscriptions/{subscription}").status == 204


def test_cancelled_request_stops_within_5_s_and_releases_its_slot(
    deployed: Deployed, project: DeployedProject, source: SlowSource
) -> None:
    new_channel(deployed, "cancel_lane", 1)
    source.files["/next"] = Hosted(b"next")
    slow = ingest(project, source.url("/slow"), channel="cancel_lane")
    waiting = ingest(project, source.url("/next"), channel="cancel_lane")
    until(lambda: source.reading, lambda reading: reading == 1)

    cancelled = idle_clock()
    assert project.http("POST", f"/v1/requests/{slow['request_id']}/cancel").json()["status"] == "cancelled"
    until(lambda: source.reading, lambda reading: reading == 0)
    stopped = idle_clock() - cancelled

    assert stopped < 5
    assert wait_until_ended(project, waiting["request_id"])["status"] == "completed"


def test_parallel_requests_stay_within_the_capacity_and_all_end(
    deployed: Deployed, project: DeployedProject, source: FileSource
) -> None:
    new_channel(deployed, "crowd_lane", 3)
    source.files["/a"] = Hosted(b"a")
    # With more callers the test would mostly measure how fast the emulator starts processes.
    with ThreadPoolExecutor(4) as callers:
        accepted = list(callers.map(lambda _: ingest(project, source.url("/a"), channel="crowd_lane"), range(16)))
    running = []

    def read() -> Any:
        stats = project.http("GET", "/v1/queue/stats").json()["channels"]["crowd_lane"]
        running.append(stats["running"])
        return stats

    until(read, lambda stats: stats["queued"] == stats["running"] == 0)

    assert max(running) <= 3
    assert {request(project, entry["request_id"])["status"] for entry in accepted} == {"completed"}
