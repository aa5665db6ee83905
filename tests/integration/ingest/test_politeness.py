"""Limits of a source are kept, and all requests of a project respect a pause that a host asks for."""

from __future__ import annotations

import os
import re
import threading
import time
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.ingest.running import Library
from tests.support.ingest.small_parts import small_parts
from tests.support.ingest.sources import FileSource, Hosted
from tidegate.errors import NotSent
from tidegate.ingest.download import host_slot
from tidegate.queue.model import Request


def go_on(library: Library, seconds: float) -> None:
    library.cloud.clock.advance(seconds)
    library.cloud.app.queue.admission_queue.trigger("no_cookie")
    library.run()


def test_retry_after_of_one_download_postpones_others_of_that_host(library: Library, source: FileSource) -> None:
    source.files["/busy"] = Hosted(b"busy", refusals=[(503, "600")])
    source.files["/fine"] = Hosted(b"fine")
    busy = library.ask(source.url("/busy"), file_path="/busy")
    library.run()
    fine = library.ask(source.url("/fine"), file_path="/fine")
    library.run()

    assert all(path != "/fine" for path, _ in source.seen), "its host rests"
    waiting = library.request(fine["request_id"])
    assert waiting["last_wait_reason"] == "backoff"

    go_on(library, 700)
    assert {library.request(asked["request_id"])["status"] for asked in (busy, fine)} == {"completed"}


def test_pause_of_a_host_uses_up_no_retry(library: Library, source: FileSource) -> None:
    source.files["/busy"] = Hosted(b"busy", refusals=[(503, "80000")])
    source.files["/fine"] = Hosted(b"fine")
    library.ask(source.url("/busy"), file_path="/busy")
    library.run()
    fine = library.ask(source.url("/fine"), file_path="/fine")
    for _ in range(8):
        go_on(library, 20_000)
    assert library.request(fine["request_id"])["status"] == "completed"


def test_requests_to_a_host_that_always_pauses_fail_finally(library: Library, source: FileSource) -> None:
    for name in ("/a", "/b"):
        source.files[name] = Hosted(b"never", refusals=[(503, "600")] * 50)
    asked = [library.ask(source.url(name), file_path=name)["request_id"] for name in ("/a", "/b")]
    library.run()
    for _ in range(40):
        go_on(library, 200)
    assert [library.request(request_id)["status"] for request_id in asked] == ["failed", "failed"]


def test_pause_does_not_affect_another_project(library: Library, source: FileSource) -> None:
    source.files["/busy"] = Hosted(b"busy", refusals=[(429, "600")])
    source.files["/fine"] = Hosted(b"fine")
    library.ask(source.url("/busy"), file_path="/busy")
    library.run()
    other = Library(library.cloud, library.cloud.project(allow_private_urls=True))
    fine = other.ask(source.url("/fine"), file_path="/fine")
    other.run()
    assert other.request(fine["request_id"])["status"] == "completed"


def test_politeness_of_a_subscription_reaches_its_downloads(library: Library, source: FileSource) -> None:
    wanted: dict[str, Any] = {"connections": 1, "bytes_per_s": 50_000_000, "delay_s": 0.01}
    source.files["/list.json"] = Hosted(b'{"files": [{"url": "/a"}]}', content_type="application/json")
    source.files["/a"] = Hosted(b"a" * 1000)
    made = library.cloud.http(
        "POST",
        "/v1/subscriptions",
        json={"name": "gently", "source_url": source.url("/list.json"), "politeness": wanted},
        key=library.project.key,
    )
    assert made.status == 201, made.body
    assert made.json()["politeness"] == wanted
    where = f"/v1/subscriptions/{made.json()['subscription_id']}"
    assert library.cloud.http("POST", f"{where}/download", key=library.project.key).status == 202
    library.run()
    requests = library.cloud.http("GET", f"{where}/tasks", key=library.project.key).json()["items"]
    downloads = [request for request in requests if request["type"] == "download"]
    assert [request["status"] for request in downloads] == ["completed"]
    record = library.cloud.app.queue.store.get(library.project.id, downloads[0]["request_id"])
    assert record is not None
    assert dict(record.payload["politeness"]) == wanted


PART = 64 * 1024


def fetched_politely(library: Library, source: FileSource, **politeness: Any) -> list[tuple[float, int]]:
    """Fetches a file of eight parts. Returns (time, requests being answered then) for each request."""
    at: list[tuple[float, int]] = []
    lock, open_now = threading.Lock(), [0]

    def noted(handler: Any) -> bool:
        with lock:
            open_now[0] += 1
            at.append((time.monotonic(), open_now[0]))
        time.sleep(0.05)
        with lock:
            open_now[0] -= 1
        return False

    source.files["/large"], source.hook = Hosted(os.urandom(8 * PART)), noted
    payload = {"source_url": source.url("/large"), "file_path": "/large", "politeness": politeness}
    with small_parts(PART, parallel_from=2 * PART):
        asked = library.submit("download", payload)
        library.run()
    assert library.request(asked["request_id"])["status"] == "completed"
    # The first request asks for the whole file, and is given up for its parts.
    return at[1:]


def test_file_is_read_over_as_many_connections_as_wanted(library: Library, source: FileSource) -> None:
    assert max(most for _, most in fetched_politely(library, source)) > 1
    assert max(most for _, most in fetched_politely(library, source, connections=1)) == 1


def test_requests_of_one_file_keep_their_delay(library: Library, source: FileSource) -> None:
    at = [when for when, _ in fetched_politely(library, source, delay_s=0.2)]
    assert len(at) == 8
    assert min(later - earlier for earlier, later in pairwise(at)) > 0.15


def test_file_is_not_read_faster_than_wanted(library: Library, source: FileSource) -> None:
    at = [when for when, _ in fetched_politely(library, source, bytes_per_s=4 * PART)]
    assert at[-1] - at[0] > 1


def test_mirror_is_used_while_the_first_host_pauses(library: Library, source: FileSource) -> None:
    source.files |= {"/busy": Hosted(b"b", refusals=[(503, "120")]), "/a": Hosted(b"a")}
    other_name = source.url("/a").replace("127.0.0.1", "localhost")
    library.ask(source.url("/busy"))
    library.run()
    source.seen.clear()

    payload = {"source_url": source.url("/a"), "mirrors": [other_name], "file_path": "/in/a"}
    asked = library.submit("download", payload)
    library.run()

    assert library.request(asked["request_id"])["status"] == "completed"
    assert [path for path, _ in source.seen] == ["/a"]
    assert source.headers[-1]["host"].startswith("localhost")


def test_downloads_from_a_host_stay_within_the_limit(library: Library, source: FileSource) -> None:
    names = [f"/f{number}" for number in range(3)]
    source.files |= {name: Hosted(b"x") for name in names}
    asked = [
        library.submit(
            "download", {"source_url": source.url(name), "file_path": name, "politeness": {"host_downloads": 1}}
        )
        for name in names
    ]
    outcomes: list[str] = []

    def start_another(_handler: Any) -> bool:
        """While the first is read, the second is started by another function."""
        if not outcomes:
            outcomes.append("begun")
            second = next(name for name, arn in library._executions() if arn != running[0])
            library._run(dict(library._executions())[second], 800.0)
            outcomes.extend(library.request(one["request_id"])["status"] for one in asked)
        return False

    library.cloud.deliver("AdmissionQueue")
    running = [library._executions()[0][1]]
    source.hook = start_another
    library._run(running[0], 800.0)

    assert sorted(outcomes[1:]) == ["pending", "running", "running"], "the second was put off"
    assert len(source.seen) == 1
    for _ in range(4):
        go_on(library, 100)
    assert {library.request(one["request_id"])["status"] for one in asked} == {"completed"}


def at_work(library: Library, name: str) -> Request:
    return Request(name, library.project.id, "download", "no_cookie", 5, "running", "2026-11-16T05:00:00Z", attempt=1)


def test_slot_of_a_download_that_died_is_free_after_its_lease(library: Library, source: FileSource) -> None:
    source.files["/a"] = Hosted(b"a")
    ingest = library.cloud.app.ingest
    # A reference is kept, so that the slot is not released.
    dead = host_slot(ingest, at_work(library, "req-dead"), source.url("/a"), 1, lambda _progress: None)
    dead.__enter__()
    payload = {"source_url": source.url("/a"), "file_path": "/a", "politeness": {"host_downloads": 1}}
    asked = library.submit("download", payload)
    library.run()

    waiting = library.request(asked["request_id"])
    assert (waiting["status"], waiting["error"]["code"]) == ("pending", "not_sent")
    go_on(library, 181)
    assert library.request(asked["request_id"])["status"] == "completed"


def test_download_ends_if_its_slot_was_taken_during_a_freeze(library: Library) -> None:
    ingest = library.cloud.app.ingest
    mine, other = at_work(library, "req-1"), at_work(library, "req-2")

    def frozen() -> None:
        with host_slot(ingest, mine, "https://a.example/f", 1, lambda _progress: None) as heartbeat:
            library.cloud.clock.advance(200)
            with host_slot(ingest, other, "https://a.example/g", 1, lambda _progress: None):
                heartbeat({})

    with pytest.raises(NotSent):
        frozen()


def test_pause_is_of_the_origin_and_can_be_ended(library: Library, source: FileSource) -> None:
    source.files |= {"/busy": Hosted(b"b", refusals=[(503, "7200")]), "/a": Hosted(b"a")}
    library.ask(source.url("/busy"))
    library.run()
    pauses = library.cloud.app.ingest.host_pauses
    project = library.project.id
    origin = source.url("/a").removesuffix("/a")
    other_port = re.sub(r":\d+$", ":9", origin)

    assert pauses.not_pausing(project, [f"{other_port}/a"])
    with pytest.raises(NotSent):
        pauses.not_pausing(project, [source.url("/a")])
    listed = library.cloud.http("GET", "/v1/host-pauses", key=library.project.key).json()["items"]
    assert [one["origin"] for one in listed] == [origin]

    path = f"/v1/host-pauses/{quote(origin.replace('//', ''), safe='')}"
    assert library.cloud.http("DELETE", path, key=library.project.key).status == 204
    assert library.cloud.http("DELETE", path, key=library.project.key).status == 404
    assert pauses.not_pausing(project, [source.url("/a")])
