"""Large uploads that one invocation cannot verify: the next ones continue, whatever happens in between."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from botocore.client import BaseClient
from moto.s3 import models

from tests.integration.files.test_multipart import PART, announce, complete, send
from tests.support.ingest.running import Library
from tests.support.moto.cloud import MotoCloud, Project
from tests.support.template import functions
from tidegate.aws.s3 import UploadBucket
from tidegate.files import library as library_module
from tidegate.files import reading
from tidegate.files import reading as verify_module
from tidegate.files import upload as upload_module
from tidegate.files.model import LARGEST_FILE, MIB, seconds_to_read, upload_object
from tidegate.files.reading import PieceDigests, blocks_object, pieces_object, saved_for_request
from tidegate.ingest.steps import work
from tidegate.queue.model import POLICIES
from tidegate.queue.retention import MARKER, sweep

CONTENT = random.Random(2).randbytes(10 * MIB + 321)
SHA = hashlib.sha256(CONTENT).hexdigest()
# The seconds of an invocation: for one range, and for all.
SHORT, LONG, RANGE = 1.0, 800.0, 3 * MIB
TURNS = -(-len(CONTENT) // RANGE)
WRITES = ("PutObject", "DeleteObjects", "TransactWriteItems", "UpdateItem")


class Killed(BaseException):
    """Not an Exception, because no handler of the product may catch it."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (library_module, upload_module, reading):
        monkeypatch.setattr(module, "LARGEST_SINGLE_UPLOAD", MIB)
    monkeypatch.setattr(upload_module, "part_size_for", lambda size: PART)
    monkeypatch.setattr(verify_module, "RANGE", RANGE)
    monkeypatch.setattr(models, "S3_UPLOAD_PART_MIN_SIZE", PART)


@pytest.fixture
def library(cloud: MotoCloud, project: Project) -> Library:
    return Library(cloud, project)


def uploaded(library: Library, **more: Any) -> tuple[dict[str, Any], str]:
    """The announced file, and the id of the request that verifies it."""
    made = announce(library, size=len(CONTENT), signature=SHA, **more)
    return made, str(complete(library, made, send(library, made, CONTENT)).json()["request_id"])


def lists() -> dict[str, bytes]:
    digests = PieceDigests(len(CONTENT))
    digests.update(CONTENT)
    whole = digests.finish()
    return {"pieces": whole.digests, "blocks": whole.blocks}


def assert_verified(library: Library, made: dict[str, Any]) -> None:
    file = library.file(made["file_id"])
    assert (file["state"], file["signature"], file["size"]) == ("ready", SHA, len(CONTENT)), file
    key, project_id = upload_object(library.project.id, made["file_id"]), library.project.id
    found, expected = library.objects(), lists()
    assert found == {
        key: CONTENT,
        pieces_object(project_id, SHA): expected["pieces"],
        blocks_object(project_id, SHA): expected["blocks"],
    }


class Invocations:
    """The steps of the request, one invocation after another, as the state machine runs them."""

    def __init__(self, library: Library, request_id: str) -> None:
        self._library, self._request_id = library, request_id
        self.made = 0
        library.cloud.deliver("AdmissionQueue")

    def run(self, seconds: float = SHORT, most: int = 100) -> None:
        event: dict[str, Any] = self._begun()
        for _ in range(most):
            self.made += 1
            try:
                event = work(self._library.cloud.app.ingest, event, seconds)
            except Killed as killed:
                work(self._library.cloud.app.ingest, event | {"failure": {"Error": str(killed)}}, seconds)
                event = self._next_attempt()
                continue
            if not event["more"]:
                return

    def _begun(self) -> dict[str, Any]:
        request = self._library.cloud.app.queue.get(self._library.project.id, self._request_id)
        return {"project_id": request.project_id, "request_id": request.request_id, "attempt": request.attempt}

    def _next_attempt(self) -> dict[str, Any]:
        self._library.cloud.clock.advance(400)
        self._library.cloud.app.queue.admission_queue.trigger("no_cookie")
        self._library.cloud.deliver("AdmissionQueue")
        return self._begun()


def test_file_is_verified_in_several_invocations(library: Library) -> None:
    made, request_id = uploaded(library)
    invocations, read = Invocations(library, request_id), ranges_read()

    with read as starts:
        invocations.run()

    assert invocations.made == TURNS >= 3
    # Ranges that were read ahead at the end of a turn are read again; none before what was saved.
    assert {0, RANGE, 2 * RANGE} <= set(starts)
    assert starts.count(0) == 1
    assert_verified(library, made)
    assert library.request(request_id)["attempts"] == 1


@contextmanager
def ranges_read() -> Iterator[list[int]]:
    starts: list[int] = []
    read = UploadBucket.read_range

    def noted(self: UploadBucket, key: str, start: int, last: int, etag: str) -> bytes:
        starts.append(start)
        return read(self, key, start, last, etag)

    with patch.object(UploadBucket, "read_range", noted):
        yield starts


def test_wrong_content_is_found_in_the_last_invocation(library: Library) -> None:
    wrong = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
    made = announce(library, size=len(CONTENT), signature=SHA)
    request_id = complete(library, made, send(library, made, wrong)).json()["request_id"]
    invocations = Invocations(library, request_id)

    invocations.run()

    assert invocations.made == TURNS
    file = library.file(made["file_id"])
    assert (file["state"], file["error"]) == (
        "failed",
        f"the content's SHA-256 is {hashlib.sha256(wrong).hexdigest()}, but {SHA} was announced",
    )
    assert library.objects() == {}


def test_object_replaced_between_invocations_fails_with_the_reason(library: Library) -> None:
    made, request_id = uploaded(library)
    invocations = Invocations(library, request_id)
    invocations.run(most=2)
    key, bucket = upload_object(library.project.id, made["file_id"]), library.cloud.app.files.bucket.name
    # The end is as announced, and so is the size: only the whole file differs.
    library.cloud.client("s3").put_object(Bucket=bucket, Key=key, Body=bytes(RANGE) + CONTENT[RANGE:])

    invocations.run()

    request, file = library.request(request_id), library.file(made["file_id"])
    assert (request["status"], request["error"]["code"]) == ("failed", "conflict")
    assert file["state"] == "failed"
    assert file["error"].startswith("the uploaded object was replaced while it was read: its ETag was ")
    assert set(library.objects()) == {key}, "nothing is left of the first object's digests"


def test_killed_after_any_write_the_file_is_verified(cloud: MotoCloud) -> None:
    writes = killed = 0
    while writes == killed:
        writes += 1
        library = Library(cloud, cloud.project())
        made, request_id = uploaded(library)
        invocations = Invocations(library, request_id)
        with kill_after(writes) as done:
            invocations.run()
        killed += bool(done)
        cloud.clock.advance(2 * 86400)
        # After its last write the function cannot delete the saved digests; the sweep does.
        sweep(cloud.app.queue)
        assert_verified(library, made)
        cloud.app.files.bucket.delete(*library.objects())

    assert killed > TURNS


@contextmanager
def kill_after(number: int) -> Iterator[list[str]]:
    """Kills the function after its write with this number. Yields its name, if there were so many."""
    call: Callable[..., Any] = BaseClient._make_api_call  # type: ignore[attr-defined]
    killed: list[str] = []
    made = 0

    def counted(self: Any, operation: str, arguments: Any) -> Any:
        nonlocal made
        answer = call(self, operation, arguments)
        made += operation in WRITES
        if operation in WRITES and made == number:
            killed.append(f"{number}: {operation}")
            raise Killed(operation)
        return answer

    with patch.object(BaseClient, "_make_api_call", counted):
        yield killed


def test_killed_invocations_that_got_further_do_not_use_up_the_retries(library: Library) -> None:
    made, request_id = uploaded(library)
    invocations = Invocations(library, request_id)
    die = False
    put = UploadBucket.put

    def killed_every_other_time(self: UploadBucket, key: str, data: bytes) -> str:
        nonlocal die
        die = not die
        if die or not key.startswith("verifying/"):
            return put(self, key, data)
        raise Killed("PutObject")

    # More deaths than the policy has retries: each attempt saves one range, then dies at the next.
    with patch.object(verify_module, "RANGE", MIB), patch.object(UploadBucket, "put", killed_every_other_time):
        invocations.run()

    assert library.request(request_id)["attempts"] > POLICIES["verify"].retries + 1
    assert_verified(library, made)


def test_cancelled_request_leaves_no_digests(library: Library) -> None:
    _, request_id = uploaded(library)
    invocations = Invocations(library, request_id)
    invocations.run(most=2)
    saved = saved_for_request(library.project.id, request_id)
    assert saved in {key["Key"] for key in stored(library)}
    library.cloud.http("POST", f"/v1/requests/{request_id}/cancel", key=library.project.key)

    library.cloud.clock.advance(2 * 86400)
    sweep(library.cloud.app.queue)

    assert saved not in {key["Key"] for key in stored(library)}


def test_sweep_keeps_digests_of_a_paused_request(library: Library) -> None:
    made, request_id = uploaded(library)
    Invocations(library, request_id).run(most=2)
    library.cloud.http("POST", f"/v1/requests/{request_id}/pause", key=library.project.key)
    library.cloud.clock.advance(3 * 86400)
    sweep(library.cloud.app.queue)
    library.cloud.http("POST", f"/v1/requests/{request_id}/resume", key=library.project.key)

    with ranges_read() as starts:
        Invocations(library, request_id).run(LONG)

    assert min(starts) == 2 * RANGE
    assert_verified(library, made)


def stored(library: Library) -> list[Any]:
    found = library.cloud.client("s3").list_objects_v2(Bucket=library.cloud.app.files.bucket.name)
    return [entry for entry in found.get("Contents", []) if entry["Key"] != MARKER]


def test_request_may_run_as_long_as_reading_its_file_takes(library: Library) -> None:
    _, request_id = uploaded(library)
    request = library.cloud.app.queue.get(library.project.id, request_id)

    assert request.timeout == POLICIES["verify"].timeout + seconds_to_read(len(CONTENT))
    assert seconds_to_read(LARGEST_FILE) > 100 * functions()["IngestFunction"]["Timeout"]


def test_check_of_a_large_file_continues_in_another_invocation(library: Library) -> None:
    made, request_id = uploaded(library)
    Invocations(library, request_id).run(LONG)
    request_id = library.submit("check", {"file_id": made["file_id"]})["request_id"]
    invocations = Invocations(library, request_id)

    invocations.run()

    assert invocations.made == TURNS
    assert library.request(request_id)["result"]["signature"] == SHA
    assert_verified(library, made)
