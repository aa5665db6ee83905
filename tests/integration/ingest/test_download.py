"""Downloads into the library: complete, correct, and stored once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any
from unittest.mock import patch

import pytest

from tests.support.deployed import until
from tests.support.ingest.running import BIZ, Library
from tests.support.ingest.small_parts import small_parts
from tests.support.ingest.sources import FileSource, Hosted, gated_source
from tests.support.patience import idle_clock
from tidegate.aws import keys
from tidegate.aws.table import update
from tidegate.files.model import content_object
from tidegate.ingest import model as ingest
from tidegate.queue import control

SMALL = b"tide" * 1000
PART = 256 * 1024


@pytest.fixture
def large() -> Iterator[bytes]:
    """Six parts and a bit."""
    with small_parts(PART, parallel_from=3 * PART):
        yield os.urandom(6 * PART + 12345)


def sha(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def test_source_becomes_a_file(library: Library, source: FileSource) -> None:
    source.files["/a.bin"] = Hosted(SMALL)

    asked = library.ask(source.url("/a.bin"))
    assert library.file(asked["file_id"])["state"] == "coming"
    library.run()

    file = library.file(asked["file_id"])
    assert (file["state"], file["signature"], file["size"]) == ("ready", sha(SMALL), len(SMALL))
    assert file["request_id"] == asked["request_id"]
    assert library.objects() == {content_object(library.project.id, sha(SMALL)): SMALL}
    request = library.request(asked["request_id"])
    assert (request["status"], request["type"], request["channel"]) == ("completed", "download", "no_cookie")


def test_statistics_show_cpu_memory_and_bytes_by_type(library: Library, source: FileSource, large: bytes) -> None:
    source.files["/a.bin"] = Hosted(large)
    asked = library.ask(source.url("/a.bin"))
    with patch("tidegate.ingest.fetch._RESERVE_SECONDS", 0.0):
        library.run()

    figures = library.cloud.http("GET", "/v1/stats", key=library.project.key).json()["types"]["download"]
    log = library.cloud.http("GET", f"/v1/requests/{asked['request_id']}/log", key=library.project.key).json()["items"]

    assert figures["bytes"] == len(large)
    assert 0 < figures["mean_cpu_s"] < 60
    assert 20 < figures["peak_memory_mb"] < 5000
    done = next(line for line in log if line["event"] == "done")
    assert f"{len(large)} bytes)" in done["detail"]
    assert "CPU " in done["detail"]


def test_running_download_shows_its_bytes_and_speed(library: Library, source: FileSource, large: bytes) -> None:
    source.files["/a.bin"] = Hosted(large)
    asked = library.ask(source.url("/a.bin"))
    parts, original = library.cloud.app.ingest.parts, library.cloud.app.ingest.parts.put_part
    # Each look at this clock is eleven seconds later: every report is a heartbeat.
    seconds = iter(range(0, 10**7, 11))
    library.cloud.app.queue.monotonic = lambda: float(next(seconds))
    shown: list[dict[str, Any]] = []

    def look(*args: Any) -> None:
        original(*args)
        shown.append(library.request(asked["request_id"])["progress"] or {})

    with patch.object(parts, "put_part", look):
        library.run()

    live = [progress for progress in shown if 0 < progress.get("bytes", 0) < len(large)]
    assert live, shown
    assert {progress["total"] for progress in live} == {len(large)}
    assert min(progress["bytes_per_s"] for progress in live) > 0


def test_failed_attempt_counts_what_it_used(library: Library, source: FileSource) -> None:
    source.files["/a.bin"] = Hosted(SMALL)
    library.ask(source.url("/a.bin"), signature="0" * 64)
    library.run()

    figures = library.cloud.http("GET", "/v1/stats", key=library.project.key).json()["types"]["download"]

    assert (figures["by_status"], figures["bytes"]) == ({"failed": 1}, len(SMALL))
    assert figures["peak_memory_mb"] > 20


def test_large_file_is_fetched_in_parallel_ranges_and_hashed_meanwhile(
    library: Library, source: FileSource, large: bytes
) -> None:
    source.files["/a.bin"] = Hosted(large)

    asked = library.ask(source.url("/a.bin"), signature=sha(large), size=len(large))
    library.run()

    assert library.file(asked["file_id"])["state"] == "ready"
    assert library.objects() == {content_object(library.project.id, sha(large)): large}
    assert len([wanted for _, wanted in source.seen if wanted]) == 7
    assert library.uploads() == []


@pytest.mark.parametrize("other_run", ["took it away", "put its own there"])
def test_step_that_runs_twice_at_once_stores_the_right_bytes(
    library: Library, source: FileSource, large: bytes, other_run: str
) -> None:
    source.files["/a.bin"] = Hosted(large)
    asked = library.ask(source.url("/a.bin"))
    bucket, s3, ours, met = (
        library.cloud.app.files.bucket.name,
        library.cloud.client("s3"),
        library.cloud.app.s3,
        list[str](),
    )

    def meet(params: dict[str, Any], **_: Any) -> None:
        key = params["url_path"].lstrip("/")
        # Only the HEAD request of the object that was just completed.
        if met or asked["request_id"] not in key:
            return
        met.append(key)
        if other_run == "took it away":
            s3.delete_object(Bucket=bucket, Key=key)
        else:
            s3.put_object(Bucket=bucket, Key=key, Body=b"other bytes")

    ours.meta.events.register("before-call.s3.HeadObject", meet)
    library.run()
    ours.meta.events.unregister("before-call.s3.HeadObject", meet)
    waiting = library.request(asked["request_id"])
    assert (waiting["status"], waiting["error"]["code"]) == ("pending", "worker_lost")

    library.cloud.clock.advance(61)
    library.cloud.app.queue.admission_queue.trigger("no_cookie")
    library.run()

    assert library.file(asked["file_id"])["signature"] == sha(large)
    # The other run, or the sweep, deletes what the other run stored.
    content = {key: body for key, body in library.objects().items() if key not in met}
    assert content == {content_object(library.project.id, sha(large)): large}


@pytest.mark.parametrize("ranges", [True, False])
def test_identical_content_has_one_object(library: Library, source: FileSource, large: bytes, ranges: bool) -> None:
    source.files["/a.bin"] = source.files["/b.bin"] = Hosted(large, ranges=ranges)
    copied: list[str] = []
    for call in ("CopyObject", "UploadPartCopy"):
        library.cloud.app.s3.meta.events.register(f"before-call.s3.{call}", lambda **_: copied.append("a copy"))
    first = library.ask(source.url("/a.bin"))
    library.run()
    kept = library.objects()
    second = library.ask(source.url("/b.bin"), file_path="/in/other.bin")
    library.run()

    assert copied == []
    assert library.objects() == kept == {content_object(library.project.id, sha(large)): large}
    assert {library.file(each["file_id"])["state"] for each in (first, second)} == {"ready"}


def test_ingested_object_survives_the_sweep_until_its_last_file(
    library: Library, source: FileSource, large: bytes
) -> None:
    source.files["/a.bin"] = Hosted(large)
    asked = library.ask(source.url("/a.bin"))
    library.run()
    library.cloud.clock.advance(3 * 86400)
    library.cloud.invoke("clean_up", {"source": "aws.events"})
    assert list(library.objects().values()) == [large]

    gone = library.cloud.http("DELETE", f"/v1/files/{asked['file_id']}", key=library.project.key)

    assert gone.status == 204, gone.body
    assert library.objects() == {}


@pytest.mark.parametrize("hosted", [{"ranges": False}, {"ranges": False, "tell_length": False}])
def test_large_file_of_a_source_without_ranges_is_one_stream(
    library: Library, source: FileSource, large: bytes, hosted: dict[str, bool]
) -> None:
    source.files["/a.bin"] = Hosted(large, **hosted)  # type: ignore[arg-type]

    asked = library.ask(source.url("/a.bin"))
    library.run()

    assert library.file(asked["file_id"])["signature"] == sha(large)
    assert library.objects() == {content_object(library.project.id, sha(large)): large}


@pytest.mark.parametrize("parallel", [True, False])
def test_connection_broken_halfway_resumes_with_the_right_bytes(
    library: Library, source: FileSource, large: bytes, parallel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not parallel:
        monkeypatch.setattr(ingest, "PARALLEL_FROM", 10**12)
    source.files["/a.bin"] = Hosted(large, cuts=2)

    asked = library.ask(source.url("/a.bin"))
    library.run()

    assert library.file(asked["file_id"])["state"] == "ready"
    assert library.objects() == {content_object(library.project.id, sha(large)): large}


def test_source_that_always_breaks_off_is_retried_and_leaves_nothing(library: Library, source: FileSource) -> None:
    source.files["/a.bin"] = Hosted(SMALL, ranges=False, cuts=6)
    asked = library.ask(source.url("/a.bin"))
    library.run()
    waiting = library.request(asked["request_id"])
    assert (waiting["status"], waiting["error"]["code"]) == ("pending", "connection_failed")
    assert library.objects() == {}

    library.cloud.clock.advance(61)
    library.cloud.app.queue.admission_queue.trigger("no_cookie")
    library.run()

    assert library.file(asked["file_id"])["signature"] == sha(SMALL)


def test_content_other_than_announced_is_refused(library: Library, source: FileSource, large: bytes) -> None:
    source.files["/small"], source.files["/large"] = Hosted(SMALL), Hosted(large)

    wrong = [library.ask(source.url(path), signature="0" * 64) for path in ("/small", "/large")]
    library.run()

    for asked in wrong:
        assert library.request(asked["request_id"])["error"]["code"] == "signature_mismatch"
        file = library.file(asked["file_id"])
        assert file["state"] == "failed"
        assert "SHA-256" in file["error"]
    assert library.objects() == {}
    assert library.uploads() == []


def test_late_deletion_spares_content_that_was_ingested_again(library: Library, source: FileSource) -> None:
    source.files["/a.bin"] = Hosted(SMALL)
    first = library.ask(source.url("/a.bin"))
    library.run()
    bucket = library.cloud.app.files.bucket
    delete, again = bucket.delete, []

    def comes_again_before_the_object_goes(*keys: str) -> None:
        again.append(library.ask(source.url("/a.bin")))
        library.run()
        delete(*keys)

    with patch.object(bucket, "delete", comes_again_before_the_object_goes):
        deleted = library.cloud.http("DELETE", f"/v1/files/{first['file_id']}", key=library.project.key)

    assert deleted.status == 204
    assert library.file(again[0]["file_id"])["state"] == "ready"
    assert list(library.objects().values()) == [SMALL]


def test_same_content_arriving_twice_is_stored_once(library: Library, source: FileSource) -> None:
    source.files["/a.bin"], source.files["/b.bin"] = Hosted(SMALL), Hosted(SMALL)
    first = library.ask(source.url("/a.bin"))
    library.run()

    second = library.ask(source.url("/b.bin"), file_path="/in/other.bin")
    known = library.ask(source.url("/c.bin"), file_path="/in/third.bin", signature=sha(SMALL))
    library.run()

    assert {library.file(asked["file_id"])["signature"] for asked in (first, second, known)} == {sha(SMALL)}
    assert list(library.objects()) == [content_object(library.project.id, sha(SMALL))]
    assert ("/c.bin", "") not in source.seen, "content that is here is not fetched"


def content_state(library: Library) -> str:
    content = library.cloud.app.files.contents.get(library.project.id, sha(SMALL))
    assert content is not None
    return content.state


def ask_twice(library: Library, source: FileSource) -> list[Any]:
    paths = ("/in/1.bin", "/in/2.bin")
    return [library.ask(source.url("/a.bin"), file_path=path, signature=sha(SMALL)) for path in paths]


def cancel(library: Library, asked: Any) -> None:
    control.cancel(library.cloud.app.queue, library.project.id, asked["request_id"], "me")


@pytest.mark.parametrize("lost", [0, 1], ids=["the earlier one fails", "the later one fails"])
def test_content_is_coming_while_another_ingest_brings_it(library: Library, source: FileSource, lost: int) -> None:
    source.files["/a.bin"] = Hosted(SMALL)
    asked = ask_twice(library, source)

    cancel(library, asked[lost])
    assert content_state(library) == "coming"

    library.run()
    assert content_state(library) == "ready"
    assert library.file(asked[1 - lost]["file_id"])["state"] == "ready"


def test_content_has_failed_when_nobody_brings_it_any_more(library: Library, source: FileSource) -> None:
    asked = ask_twice(library, source)
    library.cloud.clock.advance(1)
    for one in asked:
        cancel(library, one)
    assert content_state(library) == "failed"

    library.ask(source.url("/a.bin"), file_path="/in/3.bin", signature=sha(SMALL))
    assert content_state(library) == "coming"


def test_content_has_failed_if_both_ingests_end_at_the_same_moment(library: Library, source: FileSource) -> None:
    """Each reads the content's record before the other has written its end."""
    first, second = ask_twice(library, source)
    files, table = library.cloud.app.files.store, library.cloud.app.table
    ends = [files.lost_writes(library.project.id, asked["file_id"], "gone") for asked in (first, second)]
    for writes in ends:
        table.transact(writes)
    assert content_state(library) == "failed"


def test_content_that_an_older_version_announced_fails_with_its_ingest(library: Library, source: FileSource) -> None:
    asked = library.ask(source.url("/a.bin"), signature=sha(SMALL))
    key = keys.content(library.project.id, sha(SMALL))
    library.cloud.app.table.write(update(key, {"brought_by": asked["file_id"]}, removes=("bringing",)))
    assert content_state(library) == "coming"

    cancel(library, asked)

    assert content_state(library) == "failed"


def test_announced_content_that_is_stored_is_not_fetched(library: Library, source: FileSource) -> None:
    source.files["/a.bin"] = Hosted(SMALL)
    library.ask(source.url("/a.bin"))
    library.run()
    source.seen.clear()

    asked = library.ask(source.url("/a.bin"), file_path="/in/again.bin", signature=sha(SMALL))
    library.run()

    file = library.file(asked["file_id"])
    assert (file["state"], file["size"], source.seen) == ("ready", len(SMALL), [])


def test_versions_of_a_changing_source_are_not_mixed(library: Library, source: FileSource, large: bytes) -> None:
    hosted = source.files["/a.bin"] = Hosted(large)
    parts, original = library.cloud.app.ingest.parts, library.cloud.app.ingest.parts.put_part

    def change(*args: Any) -> None:
        hosted.body = large[::-1]
        original(*args)

    asked = library.ask(source.url("/a.bin"))
    with patch.object(parts, "put_part", change):
        library.run()

    assert library.request(asked["request_id"])["status"] == "pending"
    assert library.objects() == {}
    assert library.uploads() == []


def test_fetch_longer_than_one_invocation_continues_in_the_next(
    library: Library, source: FileSource, large: bytes
) -> None:
    source.files["/a.bin"] = Hosted(large)
    steps = iter(range(10**6))
    # The clock moves ten seconds with each read, so a step has time for a few parts only.
    library.cloud.app.ingest.monotonic = lambda: next(steps) * 10.0

    asked = library.ask(source.url("/a.bin"), signature=sha(large))
    library.run(seconds_left=110)

    assert library.file(asked["file_id"])["state"] == "ready"
    assert library.objects() == {content_object(library.project.id, sha(large)): large}


@pytest.mark.parametrize(("status", "code"), [(404, "upstream_not_found"), (403, "upstream_forbidden")])
def test_refused_source_fails_the_file_with_its_reason(
    library: Library, source: FileSource, status: int, code: str
) -> None:
    source.files["/a.bin"] = Hosted(SMALL, refusals=[(status, None)])

    asked = library.ask(source.url("/a.bin"))
    library.run()

    assert library.request(asked["request_id"])["error"]["code"] == code
    assert library.file(asked["file_id"])["state"] == "failed"


def test_retry_after_of_the_source_is_honoured(library: Library, source: FileSource) -> None:
    source.files["/a.bin"] = Hosted(SMALL, refusals=[(429, "200")])

    asked = library.ask(source.url("/a.bin"))
    library.run()

    request = library.cloud.app.queue.get(library.project.id, asked["request_id"])
    assert (request.status, request.last_wait_reason) == ("pending", "backoff")
    assert request.not_before == pytest.approx(library.cloud.clock().timestamp() + 200)


def test_private_url_is_refused_at_submission(library: Library, source: FileSource) -> None:
    strict = library.cloud.project(allow_private_urls=False)
    body = {**BIZ, "file_path": "/x", "source_url": source.url("/a.bin")}

    for private in (source.url("/a.bin"), "http://169.254.169.254/latest/", "file:///etc/passwd", "http://[::1]/"):
        refused = library.cloud.http("POST", "/v1/files", json={**body, "source_url": private}, key=strict.key)
        assert (refused.status, refused.json()["code"]) == (422, "url_not_allowed"), private


def test_private_url_is_refused_at_the_fetch(library: Library, source: FileSource) -> None:
    source.files["/a.bin"] = Hosted(SMALL)
    asked = library.ask(source.url("/a.bin"))
    forbid = update(keys.project(library.project.id), {"allow_private_urls": False})
    library.cloud.app.table.write(forbid)

    library.run()

    request = library.request(asked["request_id"])
    assert (request["status"], request["error"]["code"]) == ("failed", "url_not_allowed")
    assert library.objects() == {}


@pytest.mark.slow
@pytest.mark.parametrize("ranges", [True, False])
def test_cancel_stops_a_part_within_5_s(library: Library, large: bytes, ranges: bool) -> None:
    with gated_source() as slow, ThreadPoolExecutor(1) as worker:
        slow.free_bytes = PART
        slow.files["/a.bin"] = Hosted(large, ranges=ranges)
        asked = library.ask(slow.url("/a.bin"))
        run = worker.submit(library.run)
        until(lambda: slow.reading, bool, every=0.05)

        library.cloud.http("POST", f"/v1/requests/{asked['request_id']}/cancel", key=library.project.key)
        cancelled = idle_clock()
        wait([run], timeout=60)
        heard = idle_clock() - cancelled
        slow.gate.set()

    assert heard < 5
    assert library.request(asked["request_id"])["status"] == "cancelled"
    assert (library.objects(), library.uploads()) == ({}, [])


def test_cancelled_download_stops_within_5_s_and_leaves_nothing(
    library: Library, source: FileSource, large: bytes
) -> None:
    source.files["/a.bin"] = Hosted(large)
    asked = library.ask(source.url("/a.bin"))
    parts, original = library.cloud.app.ingest.parts, library.cloud.app.ingest.parts.put_part
    seconds = iter(range(10**6))
    library.cloud.app.queue.monotonic = lambda: float(next(seconds))

    def cancel_first(*args: Any) -> None:
        path = f"/v1/requests/{asked['request_id']}/cancel"
        library.cloud.http("POST", path, key=library.project.key)
        original(*args)

    with patch.object(parts, "put_part", cancel_first):
        library.run()

    assert library.request(asked["request_id"])["status"] == "cancelled"
    assert library.file(asked["file_id"])["state"] == "failed"
    assert library.objects() == {}
    assert library.uploads() == []
