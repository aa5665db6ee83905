"""Interrupted downloads keep their parts, and never mix two versions."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from tests.support.ingest.running import Library
from tests.support.ingest.small_parts import small_parts
from tests.support.ingest.sources import FileSource, Hosted
from tidegate.aws import keys
from tidegate.aws.table import update
from tidegate.errors import WorkerLost
from tidegate.files import reading
from tidegate.files import reading as verify
from tidegate.files.model import content_object
from tidegate.ingest import fetch as ranged_parts
from tidegate.ingest.steps import work

PART = 64 * 1024


@pytest.fixture
def large() -> Iterator[bytes]:
    """Eight parts."""
    with small_parts(PART, parallel_from=3 * PART), patch.object(ranged_parts, "_FIRST_PAUSE", 0.01):
        yield os.urandom(8 * PART - 1234)


def sha(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def again(library: Library, seconds: float = 301) -> None:
    library.cloud.clock.advance(seconds)
    library.cloud.app.queue.admission_queue.trigger("no_cookie")
    library.run()


def ready(library: Library, asked: dict[str, Any], body: bytes) -> None:
    file = library.file(asked["file_id"])
    assert (file["state"], file["signature"]) == ("ready", sha(body)), library.request(asked["request_id"])
    assert library.objects() == {content_object(library.project.id, sha(body)): body}
    assert library.uploads() == []


@pytest.mark.parametrize("obeys", [True, False], ids=["412", "conditions ignored"])
@pytest.mark.parametrize("validator", ["strong", "weak", "date"])
def test_parts_of_a_changing_source_are_never_mixed(
    library: Library, source: FileSource, large: bytes, validator: str, obeys: bool
) -> None:
    hosted = source.files["/a.bin"] = Hosted(large, validator=validator, obeys=obeys)
    newer = os.urandom(len(large))
    parts, original = library.cloud.app.ingest.parts, library.cloud.app.ingest.parts.put_part

    def change(*args: Any) -> None:
        hosted.body, hosted.last_modified = newer, "Mon, 16 Nov 2020 06:00:00 GMT"
        original(*args)

    asked = library.ask(source.url("/a.bin"))
    with patch.object(parts, "put_part", change):
        library.run()
    for _ in range(3):
        again(library)

    signature = library.file(asked["file_id"])["signature"]
    assert signature in (sha(large), sha(newer))
    assert set(map(sha, library.objects().values())) == {signature}


def test_source_without_validators_is_fetched_as_one_stream(library: Library, source: FileSource, large: bytes) -> None:
    source.files["/a.bin"] = Hosted(large, validator="none")

    asked = library.ask(source.url("/a.bin"))
    library.run()

    ready(library, asked, large)
    assert source.seen == [("/a.bin", "")]


def test_announced_signature_allows_parts_of_a_source_without_validators(
    library: Library, source: FileSource, large: bytes
) -> None:
    source.files["/a.bin"] = Hosted(large, validator="none")

    asked = library.ask(source.url("/a.bin"), signature=sha(large))
    library.run()

    ready(library, asked, large)
    assert len(source.seen) == 9


def test_503_on_one_part_repeats_only_that_part(library: Library, source: FileSource, large: bytes) -> None:
    hosted = source.files["/a.bin"] = Hosted(large)
    last, count = f"bytes={7 * PART}-{len(large) - 1}", [0]

    def refuse_last(handler: Any) -> bool:
        refused = handler.headers.get("Range") == last and count[0] < 2
        count[0] += refused
        if refused:
            handler.answer(503)
        return refused

    source.hook = refuse_last
    asked = library.ask(source.url("/a.bin"))
    library.run()

    ready(library, asked, large)
    assert hosted.served == len(large)
    assert (count[0], len([wanted for _, wanted in source.seen if wanted])) == (2, 10)


def test_failed_attempt_leaves_its_parts_to_the_next(library: Library, source: FileSource, large: bytes) -> None:
    source.files["/a.bin"] = Hosted(large)
    asked = library.ask(source.url("/a.bin"))
    parts, original = library.cloud.app.ingest.parts, library.cloud.app.ingest.parts.put_part

    def die_at_6(*args: Any) -> None:
        if args[2] == 6:
            raise WorkerLost("the machine was lost")
        original(*args)

    with patch.object(parts, "put_part", die_at_6):
        library.run()
    assert library.request(asked["request_id"])["status"] == "pending"
    source.seen.clear()
    again(library)

    ready(library, asked, large)
    assert 1 <= len(source.seen) <= 3, "part 6, and those that were under way beside it"


def test_retried_request_continues_with_its_parts(library: Library, source: FileSource, large: bytes) -> None:
    source.files["/a.bin"] = Hosted(large)
    asked = library.ask(source.url("/a.bin"))
    parts, original = library.cloud.app.ingest.parts, library.cloud.app.ingest.parts.put_part

    def never_6(*args: Any) -> None:
        if args[2] == 6:
            raise WorkerLost("the machine was lost")
        original(*args)

    with patch.object(parts, "put_part", never_6):
        library.run()
        for _ in range(6):
            again(library)
    assert library.request(asked["request_id"])["status"] == "failed"
    kept = stored_parts(library)
    assert kept >= 5
    source.seen.clear()
    library.cloud.http("POST", f"/v1/requests/{asked['request_id']}/retry", key=library.project.key)
    library.run()

    ready(library, asked, large)
    # Part 6, and the parts that were being fetched when it failed for the last time.
    assert len(source.seen) == 8 - kept


def stored_parts(library: Library) -> int:
    (upload,) = library.uploads()
    bucket = library.cloud.app.files.bucket.name
    listed = library.cloud.client("s3").list_parts(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
    return len(listed.get("Parts", []))


def test_paused_download_resumes_where_it_was(library: Library, source: FileSource, large: bytes) -> None:
    source.files["/a.bin"] = Hosted(large)
    asked = library.ask(source.url("/a.bin"))
    path = f"/v1/requests/{asked['request_id']}"
    parts, original = library.cloud.app.ingest.parts, library.cloud.app.ingest.parts.put_part
    seconds = iter(range(10**6))
    library.cloud.app.queue.monotonic = lambda: float(next(seconds))

    stored: list[int] = []

    def pause_after_4(*args: Any) -> None:
        # Parts are brought side by side, in any order.
        original(*args)
        stored.append(args[2])
        if len(stored) == 4:
            library.cloud.http("POST", f"{path}/pause", key=library.project.key)

    with patch.object(parts, "put_part", pause_after_4):
        library.run()
    assert library.request(asked["request_id"])["status"] == "paused"
    source.seen.clear()
    library.cloud.http("POST", f"{path}/resume", key=library.project.key)
    library.run()

    ready(library, asked, large)
    assert len(source.seen) <= 4


@pytest.mark.parametrize("cuts", [1, 3])
def test_broken_stream_without_ranges_continues_after_the_received_bytes(
    library: Library, source: FileSource, large: bytes, cuts: int
) -> None:
    source.files["/a.bin"] = Hosted(large, ranges=False, cuts=cuts)

    asked = library.ask(source.url("/a.bin"))
    library.run()

    ready(library, asked, large)


def test_second_stream_with_other_bytes_is_refused(library: Library, source: FileSource, large: bytes) -> None:
    hosted = source.files["/a.bin"] = Hosted(large, ranges=False, validator="none", cuts=1)
    newer = os.urandom(len(large))

    def change(_handler: Any) -> bool:
        if len(source.seen) == 2:
            hosted.body = newer
        return False

    source.hook = change
    asked = library.ask(source.url("/a.bin"))
    library.run()
    assert library.request(asked["request_id"])["status"] == "pending"
    assert (library.objects(), library.uploads()) == ({}, [])
    again(library)

    ready(library, asked, newer)


def test_source_that_does_not_announce_ranges_is_fetched_in_parts(
    library: Library, source: FileSource, large: bytes
) -> None:
    source.files["/a.bin"] = Hosted(large, silent_about_ranges=True)

    asked = library.ask(source.url("/a.bin"))
    library.run()

    ready(library, asked, large)
    assert len(source.seen) == 10


def test_reading_again_for_the_digest_keeps_the_lease(library: Library, source: FileSource, large: bytes) -> None:
    source.files["/a.bin"] = Hosted(large)
    asked = library.ask(source.url("/a.bin"))
    bucket, original = library.cloud.app.files.bucket, library.cloud.app.files.bucket.read_range
    steps, seconds, beats = iter(range(10**6)), [0.0], [0]
    library.cloud.app.ingest.monotonic = lambda: next(steps) * 10.0
    library.cloud.app.queue.monotonic = lambda: seconds[0]
    queue = library.cloud.app.queue
    beat = queue.heartbeat

    def slowly(*args: Any) -> bytes:
        seconds[0] += 40
        return original(*args)

    def count(*args: Any, **more: Any) -> Any:
        beats[0] += 1
        return beat(*args, **more)

    # One range at a time, so that the clock moves between any two of them.
    with (
        patch.object(verify, "AHEAD", 1),
        patch.object(verify, "RANGE", PART),
        patch.object(bucket, "read_range", slowly),
        patch.object(queue, "heartbeat", count),
    ):
        library.run(seconds_left=110)

    ready(library, asked, large)
    assert beats[0] >= 8


@pytest.mark.slow
def test_ten_interruptions_transfer_at_most_a_tenth_twice(library: Library, source: FileSource) -> None:
    chance = random.Random(23)
    with small_parts(16 * 1024, parallel_from=64 * 1024):
        body = os.urandom(480 * 16 * 1024 - 99)
        hosted = source.files["/a.bin"] = Hosted(body)
        asked = library.ask(source.url("/a.bin"))
        parts, original = library.cloud.app.ingest.parts, library.cloud.app.ingest.parts.put_part
        left = [0]

        def interrupt(*args: Any) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise WorkerLost("the machine was lost")
            original(*args)

        with patch.object(parts, "put_part", interrupt):
            for number in range(11):
                left[0] = chance.randint(20, 50) if number < 10 else 0
                again(library)

        file = library.file(asked["file_id"])
        assert (file["state"], file["signature"]) == ("ready", sha(body))
        assert hosted.served <= 1.1 * len(body)


def test_file_that_does_not_fit_is_refused_before_it_is_fetched(
    library: Library, source: FileSource, large: bytes
) -> None:
    source.files["/a.bin"] = Hosted(large)
    quota = update(keys.project(library.project.id), {"quotas": {"stored_bytes": len(large) - 1}})
    library.cloud.app.table.write(quota)

    asked = library.ask(source.url("/a.bin"))
    library.run()

    request = library.request(asked["request_id"])
    assert (request["status"], request["error"]["code"]) == ("failed", "no_space")
    assert source.seen == [("/a.bin", "")]


def test_mirror_is_used_if_the_first_url_fails(library: Library, source: FileSource, large: bytes) -> None:
    source.files["/b.bin"] = Hosted(large)
    payload = {"source_url": source.url("/gone"), "mirrors": [source.url("/b.bin")], "file_path": "/m"}

    asked = library.submit("download", payload)
    library.run()

    assert library.request(asked["request_id"])["result"]["signature"] == sha(large)


def test_mirrors_of_a_file_request_are_used(library: Library, source: FileSource) -> None:
    source.files["/b.bin"] = Hosted(b"tide")

    asked = library.ask(source.url("/gone"), mirrors=[source.url("/b.bin")])
    library.run()

    assert library.file(asked["file_id"])["state"] == "ready"


def test_mirrors_that_agree_share_the_parts(library: Library, source: FileSource, large: bytes) -> None:
    source.files |= {"/a": Hosted(large), "/b": Hosted(large), "/other": Hosted(large[::-1])}
    mirrors = [source.url("/b"), source.url("/other")]

    asked = library.submit("download", {"source_url": source.url("/a"), "mirrors": mirrors, "file_path": "/m"})
    library.run()

    assert library.request(asked["request_id"])["result"]["signature"] == sha(large)
    ranges = [path for path, wanted in source.seen if wanted and wanted != "bytes=0-0"]
    assert (ranges.count("/a"), ranges.count("/b"), ranges.count("/other")) == (4, 4, 0)


def test_mirrors_with_other_etags_match_by_last_modified(library: Library, source: FileSource, large: bytes) -> None:
    source.files |= {path: Hosted(large, validator="date", obeys=False) for path in ("/a", "/b")}
    own_etags = {"/a": '"apache-1"', "/b": '"nginx-2"'}
    ranges: list[tuple[str, str]] = []

    def with_etag(handler: Any) -> bool:
        ranges.append((handler.path, handler.headers.get("If-Match", "")))
        if handler.headers.get("If-Match", own_etags[handler.path]) != own_etags[handler.path]:
            handler.answer(412)
            return True
        send, handler.etag = handler.end_headers, own_etags[handler.path]
        handler.end_headers = lambda: (handler.send_header("ETag", handler.etag), send())[1]
        return False

    source.hook = with_etag
    asked = library.submit(
        "download", {"source_url": source.url("/a"), "mirrors": [source.url("/b")], "file_path": "/m"}
    )
    library.run()

    assert library.request(asked["request_id"])["result"]["signature"] == sha(large)
    assert ranges.count(("/b", '"nginx-2"')) == 4


@pytest.mark.parametrize("status", [404, 412, 503])
def test_mirror_that_fails_midway_is_left_out(library: Library, source: FileSource, large: bytes, status: int) -> None:
    source.files |= {"/a": Hosted(large), "/b": Hosted(large)}

    def refuse(handler: Any) -> bool:
        refused = handler.path == "/b" and handler.headers.get("Range", "") not in ("", "bytes=0-0")
        if refused:
            handler.answer(status)
        return bool(refused)

    source.hook = refuse
    asked = library.submit(
        "download", {"source_url": source.url("/a"), "mirrors": [source.url("/b")], "file_path": "/m"}
    )
    library.run()

    request = library.request(asked["request_id"])
    assert (request["status"], request["attempts"]) == ("completed", 1)
    assert request["result"]["signature"] == sha(large)


def test_mirror_continues_if_the_first_url_fails_halfway(library: Library, source: FileSource, large: bytes) -> None:
    source.files |= {"/a": Hosted(large), "/b": Hosted(large)}
    payload = {"source_url": source.url("/a"), "mirrors": [source.url("/b")], "file_path": "/m"}
    parts, original = library.cloud.app.ingest.parts, library.cloud.app.ingest.parts.put_part

    def die_at_5(*args: Any) -> None:
        if args[2] == 5:
            raise WorkerLost("the machine was lost")
        original(*args)

    asked = library.submit("download", payload)
    with patch.object(parts, "put_part", die_at_5):
        library.run()
    assert library.request(asked["request_id"])["status"] == "pending"
    kept = stored_parts(library)
    del source.files["/a"]
    source.seen.clear()
    again(library)

    assert library.request(asked["request_id"])["result"]["signature"] == sha(large)
    fetched = [wanted for path, wanted in source.seen if path == "/b" and wanted != "bytes=0-0"]
    assert len(fetched) == 8 - kept


def test_digest_is_computed_in_the_next_invocation_if_time_is_short(
    library: Library, source: FileSource, large: bytes
) -> None:
    source.files["/a.bin"] = Hosted(large)
    asked = library.ask(source.url("/a.bin"))
    parts, original = library.cloud.app.ingest.parts, library.cloud.app.ingest.parts.put_part
    ingest = library.cloud.app.ingest
    now, reads = [0.0], []

    stored: list[int] = []

    def die_from_6_on(*args: Any) -> None:
        if args[2] >= 6:
            raise WorkerLost("the machine was lost")
        original(*args)

    def slowly(*args: Any) -> None:
        original(*args)
        stored.append(args[2])
        if len(stored) == 3:
            now[0] += 780.0

    def read(*args: Any) -> bytes:
        reads.append(now[0])
        return read_range(*args)

    bucket, read_range = library.cloud.app.files.bucket, library.cloud.app.files.bucket.read_range
    ingest.monotonic = lambda: now[0]
    with patch.object(parts, "put_part", die_from_6_on):
        library.run()
    with (
        patch.object(parts, "put_part", slowly),
        patch.object(verify, "RANGE", PART),
        patch.object(bucket, "read_range", read),
    ):
        again(library)

    ready(library, asked, large)
    log = library.cloud.http("GET", f"/v1/requests/{asked['request_id']}/log", key=library.project.key).json()["items"]
    second = [line["event"] for line in log if line["attempt"] == 2]
    assert second == ["begun", "goes on", "begun", "done"]
    assert len(reads) == 8


def test_digest_of_a_resumed_download_continues_in_another_invocation(
    library: Library, source: FileSource, large: bytes
) -> None:
    source.files["/a.bin"] = Hosted(large)
    asked = library.ask(source.url("/a.bin"))
    parts, original = library.cloud.app.ingest.parts, library.cloud.app.ingest.parts.put_part

    def die_from_6_on(*args: Any) -> None:
        if args[2] >= 6:
            raise WorkerLost("the machine was lost")
        original(*args)

    with patch.object(parts, "put_part", die_from_6_on):
        library.run()
    bucket, read_range, starts = library.cloud.app.files.bucket, library.cloud.app.files.bucket.read_range, list[int]()

    def read(*args: Any) -> bytes:
        starts.append(args[1])
        return read_range(*args)

    # No invocation has time for more than one range.
    with (
        patch.object(verify, "AHEAD", 1),
        patch.object(verify, "RANGE", 2 * PART),
        patch.object(reading, "LARGEST_SINGLE_UPLOAD", PART),
        patch.object(reading, "RESERVE_SECONDS", 10_000.0),
        patch.object(bucket, "read_range", read),
    ):
        again(library)

    ready(library, asked, large)
    assert starts == [0, 2 * PART, 4 * PART, 6 * PART]
    log = library.cloud.http("GET", f"/v1/requests/{asked['request_id']}/log", key=library.project.key).json()["items"]
    assert [line["event"] for line in log if line["attempt"] == 2].count("goes on") == 3


@pytest.mark.parametrize("stored", [True, False])
def test_killed_first_invocation_uses_a_retry_only_if_it_stored_nothing(
    library: Library, source: FileSource, large: bytes, stored: bool
) -> None:
    source.files["/a.bin"] = Hosted(large)
    asked = library.ask(source.url("/a.bin"))
    library.cloud.deliver("AdmissionQueue")
    library.cloud.app.table.write(update(keys.request(library.project.id, asked["request_id"]), {"retries": 2}))
    parts = library.cloud.app.ingest.parts
    original, made = parts.put_part, list[Any]()

    class Killed(BaseException):
        pass

    def dies(*args: Any) -> None:
        if len(made) >= 2 * stored:
            raise Killed
        made.append(args)
        original(*args)

    attempt = {"project_id": library.project.id, "request_id": asked["request_id"], "attempt": 1}
    ingest = library.cloud.app.ingest
    with patch.object(parts, "put_part", dies), pytest.raises(Killed):
        work(ingest, attempt, 800.0)
    work(ingest, attempt | {"failure": {"Error": "Lambda.Unknown", "Cause": "killed"}}, 800.0)

    request = library.cloud.app.queue.get(library.project.id, asked["request_id"])
    # An attempt that got further begins to count anew.
    assert (request.status, request.retries) == ("pending", 1 if stored else 3)
