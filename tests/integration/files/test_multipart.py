"""Large files: uploaded in parts, verified by a queued request, never copied, deleted when unused."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from moto.s3 import models

from tests.support.ingest.running import Library
from tests.support.moto.cloud import MotoCloud, Project
from tidegate.aws.s3 import BucketListing, UploadBucket
from tidegate.common.ids import iso
from tidegate.errors import Busy
from tidegate.files import library as library_module
from tidegate.files import reading as verify_module
from tidegate.files import upload as upload_module
from tidegate.files.model import MIB, MOST_PARTS, part_count, part_size_for, upload_object
from tidegate.files.reading import blocks_object, pieces_object
from tidegate.queue.retention import sweep

BODY = {"biz_id": 1, "app_id": 2, "file_path": "/big.bin"}
CONTENT = bytes(range(256)) * 40_000
SHA = hashlib.sha256(CONTENT).hexdigest()
PART = 4_000_000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten megabytes count as large here."""
    for module in (library_module, upload_module):
        monkeypatch.setattr(module, "LARGEST_SINGLE_UPLOAD", MIB)
    monkeypatch.setattr(upload_module, "part_size_for", lambda size: PART)
    monkeypatch.setattr(verify_module, "RANGE", 300_000)
    monkeypatch.setattr(models, "S3_UPLOAD_PART_MIN_SIZE", PART)


@pytest.fixture
def library(cloud: MotoCloud, project: Project) -> Library:
    return Library(cloud, project)


def announce(library: Library, **more: Any) -> dict[str, Any]:
    body = {**BODY, "size": len(CONTENT), "signature": SHA, **more}
    answer = library.cloud.http(
        "POST", "/v1/files", json={k: v for k, v in body.items() if v is not None}, key=library.project.key
    )
    assert answer.status == 201, answer.body
    return dict(answer.json())


def send(library: Library, made: dict[str, Any], content: bytes = CONTENT) -> list[dict[str, Any]]:
    """PUTs every part to its presigned address, as moto understands it."""
    numbers = list(range(1, part_count(len(content), PART) + 1))
    path = f"/v1/files/{made['file_id']}/parts"
    answer = library.cloud.http("POST", path, json={"numbers": numbers}, key=library.project.key)
    assert answer.status == 200, answer.body
    sent = []
    for part in answer.json()["parts"]:
        query = dict(parse_qsl(urlsplit(part["url"]).query))
        assert (int(query["partNumber"]), "X-Amz-Signature" in query) == (part["number"], True)
        done = library.cloud.client("s3").upload_part(
            Bucket=library.cloud.app.files.bucket.name,
            Key=upload_object(library.project.id, made["file_id"]),
            UploadId=query["uploadId"],
            PartNumber=part["number"],
            Body=content[(part["number"] - 1) * PART : part["number"] * PART],
        )
        sent.append({"number": part["number"], "etag": done["ETag"]})
    return sent


def complete(library: Library, made: dict[str, Any], parts: list[dict[str, Any]]) -> Any:
    path = f"/v1/files/{made['file_id']}/complete"
    return library.cloud.http("POST", path, json={"parts": parts}, key=library.project.key)


def test_large_upload_is_verified_by_the_queue_and_never_copied(library: Library) -> None:
    made = announce(library)
    assert made["upload"] == {"part_size": PART, "parts": 3}
    assert "upload_url" not in made

    done = complete(library, made, send(library, made))
    assert (done.status, done.json()["state"]) == (202, "verifying")
    library.run()

    file = library.file(made["file_id"])
    assert (file["state"], file["signature"], file["size"]) == ("ready", SHA, len(CONTENT))
    key = upload_object(library.project.id, made["file_id"])
    found = library.objects()
    lists = {pieces_object(library.project.id, SHA), blocks_object(library.project.id, SHA)}
    assert set(found) == {key, *lists}
    assert found[key] == CONTENT
    pieces = [hashlib.sha256(CONTENT[at : at + MIB]).digest() for at in range(0, len(CONTENT), MIB)]
    assert found[pieces_object(library.project.id, SHA)] == b"".join(pieces)
    content = library.cloud.app.files.contents.get(library.project.id, SHA)
    assert content
    assert (content.object, content.piece_size) == (key, MIB)
    assert content.checked_etag, "distribution does not read it a second time"


def test_wrong_content_fails_the_file_and_is_deleted(library: Library) -> None:
    made = announce(library)
    complete(library, made, send(library, made, CONTENT[:-1] + b"?"))
    library.run()

    file = library.file(made["file_id"])
    assert file["state"] == "failed"
    assert file["error"].startswith("the content's SHA-256 is ")
    assert library.objects() == {}


def test_retried_verification_makes_the_file_ready(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    made = announce(library)
    request_id = complete(library, made, send(library, made)).json()["request_id"]

    def unavailable(*_: object) -> bytes:
        raise Busy("S3 sent too few bytes")

    with monkeypatch.context() as patched:
        patched.setattr(UploadBucket, "read_range", unavailable)
        for _ in range(5):
            library.run()
            library.cloud.clock.advance(600)
            library.cloud.app.queue.admission_queue.trigger("no_cookie")
    assert library.request(request_id)["status"] == "failed"
    assert library.file(made["file_id"])["state"] == "failed"

    answer = library.cloud.http("POST", f"/v1/requests/{request_id}/retry", key=library.project.key)
    assert (answer.status, library.file(made["file_id"])["state"]) == (200, "verifying")
    library.run()

    assert library.file(made["file_id"])["state"] == "ready"
    library.cloud.clock.advance(2 * 86400)
    assert sweep(library.cloud.app.queue).orphans == 0


def test_wrong_size_is_refused_immediately(library: Library) -> None:
    made = announce(library)
    done = complete(library, made, send(library, made, CONTENT[:-7]))

    assert (done.status, done.json()["code"]) == (422, "signature_mismatch")
    assert library.objects() == {}


@pytest.fixture
def begun_now(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """In moto every upload is from 2010: here, from the beginning of the test."""
    begun_at, listed = library.cloud.clock(), BucketListing.uploads
    monkeypatch.setattr(
        BucketListing, "uploads", lambda self: (upload._replace(begun_at=begun_at) for upload in listed(self))
    )


@pytest.mark.usefixtures("begun_now")
def test_parts_may_arrive_within_seven_days(library: Library) -> None:
    """5 TiB do not arrive in a day."""
    made = announce(library)
    assert made["expires_at"] == iso(library.cloud.clock() + timedelta(days=7))
    library.cloud.clock.advance(7 * 86400 - 3600)
    assert sweep(library.cloud.app.queue).uploads == 0

    assert complete(library, made, send(library, made)).status == 202
    sweep(library.cloud.app.queue)
    library.run()
    assert library.file(made["file_id"])["state"] == "ready"


@pytest.mark.usefixtures("begun_now")
def test_parts_that_nobody_completes_are_removed_after_seven_days(library: Library) -> None:
    made = announce(library)
    send(library, made)
    library.cloud.clock.advance(7 * 86400 + 60)

    assert sweep(library.cloud.app.queue).uploads == 1


def test_identical_uploads_keep_one_object(library: Library) -> None:
    files = [announce(library, file_path=path, signature=None) for path in ("/a", "/b")]
    for made in files:
        complete(library, made, send(library, made))
        library.run()

    assert [library.file(made["file_id"])["state"] for made in files] == ["ready", "ready"]
    assert [key for key in library.objects() if key.startswith("content/")] == [
        upload_object(library.project.id, files[0]["file_id"])
    ]


def test_repeated_complete_queues_one_verification(library: Library) -> None:
    made = announce(library)
    parts = send(library, made)

    first, second = complete(library, made, parts), complete(library, made, parts)

    assert (first.status, second.status) == (202, 202)
    assert first.json()["request_id"] == second.json()["request_id"]


def test_complete_with_missing_parts_can_be_repeated(library: Library) -> None:
    made = announce(library)
    parts = send(library, made)

    wrong = complete(library, made, [*parts[:2], {"number": 3, "etag": '"0123"'}])
    assert wrong.status == 422
    assert complete(library, made, parts).status == 202


def test_part_numbers_beyond_the_last_are_refused(library: Library) -> None:
    made = announce(library)
    path = f"/v1/files/{made['file_id']}/parts"
    answer = library.cloud.http("POST", path, json={"numbers": [4]}, key=library.project.key)

    assert answer.status == 422
    assert "1 to 3" in answer.json()["detail"]


def test_small_upload_in_parts_is_checked_within_the_call(library: Library) -> None:
    small = b"small" * 1000
    made = announce(library, multipart=True, size=len(small), signature=hashlib.sha256(small).hexdigest())

    done = complete(library, made, send(library, made, small))

    assert (done.status, done.json()["state"]) == (200, "ready")


def test_failed_range_is_read_again(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    made = announce(library)
    complete(library, made, send(library, made))
    read, cut = UploadBucket.read_range, {0, 1}

    def sometimes(self: UploadBucket, key: str, start: int, last: int, etag: str) -> bytes:
        return read(self, key, start, last, etag)[: 10 if cut and cut.pop() is not None else None]

    monkeypatch.setattr(UploadBucket, "read_range", sometimes)
    library.run()

    assert library.file(made["file_id"])["state"] == "ready"


def test_reading_stops_when_the_lease_is_lost(library: Library) -> None:
    made = announce(library)
    complete(library, made, send(library, made))

    def stop(done: int) -> None:
        if done > len(CONTENT) // 2:
            raise Busy("the lease was lost")

    with pytest.raises(Busy):
        library.cloud.app.files.uploads.verify(
            library.project.id,
            made["file_id"],
            lambda key, found: verify_module.check(library.cloud.app.files.bucket, key, found, stop),
        )
    assert library.file(made["file_id"])["state"] == "verifying"


def test_callback_is_sent_after_verification(library: Library) -> None:
    made = announce(library, callback="http://93.184.216.34/told")
    request_id = complete(library, made, send(library, made)).json()["request_id"]
    library.run()

    path = f"/v1/callbacks?task_id={request_id}"
    library.cloud.deliver("CallbacksQueue")
    assert library.request(request_id)["status"] == "completed"
    callbacks = library.cloud.http("GET", path, key=library.project.key).json()["items"]
    assert [item["type"] for item in callbacks] == ["request.finished"]


def test_last_file_is_deleted_with_its_content(library: Library) -> None:
    files = [announce(library, file_path=path) for path in ("/a", "/b")]
    for made in files:
        complete(library, made, send(library, made))
        library.run()
    usage = library.cloud.app.projects.usage

    assert delete(library, files[0]["file_id"]).status == 204
    assert usage.of_project(library.project.id, [], library.cloud.clock())["stored_bytes"] == len(CONTENT)
    assert library.cloud.http("GET", f"/v1/files/{files[1]['file_id']}/url", key=library.project.key).status == 200
    # The content, and the lists of its pieces and blocks.
    assert len(library.objects()) == 3
    assert delete(library, files[1]["file_id"]).status == 204

    assert usage.of_project(library.project.id, [], library.cloud.clock())["stored_bytes"] == 0
    assert library.objects() == {}
    assert delete(library, files[1]["file_id"]).status == 404


def test_delete_is_refused_while_a_job_may_need_the_file(library: Library) -> None:
    made = announce(library)
    complete(library, made, send(library, made))
    library.run()
    body = {**BODY, "file_name": "big.bin", "target_agent_id": "host-1", "target_user": "root"}
    body |= {"target_file_dir": "/srv", "file_signature": SHA}
    assert library.cloud.http("POST", "/v1/downloads", json=body, key=library.project.key).status == 202

    refused = delete(library, made["file_id"])
    assert (refused.status, refused.json()["code"]) == (409, "in_use")
    library.cloud.clock.advance(3600)
    assert delete(library, made["file_id"]).status == 204


def test_delete_of_a_pending_upload_aborts_it(library: Library) -> None:
    made = announce(library)
    send(library, made)

    assert delete(library, made["file_id"]).status == 204
    assert library.uploads() == []
    assert complete(library, made, []).status == 404


def test_sweep_removes_only_uncompleted_uploads(library: Library) -> None:
    wanted = announce(library)
    complete(library, wanted, send(library, wanted))
    library.run()
    forgotten = announce(library, multipart=False, size=5, signature=None)
    key = upload_object(library.project.id, forgotten["file_id"])
    library.cloud.client("s3").put_object(Bucket=library.cloud.app.files.bucket.name, Key=key, Body=b"never")
    library.cloud.clock.advance(3 * 24 * 3600)
    library.cloud.app.table.batch_delete(expired(library))

    swept = sweep(library.cloud.app.queue)

    assert swept.orphans == 1
    assert key not in library.objects()
    assert upload_object(library.project.id, wanted["file_id"]) in library.objects()


def expired(library: Library) -> list[dict[str, str]]:
    """What DynamoDB's time to live would delete by now."""
    now = library.cloud.clock().timestamp()
    scanned = library.cloud.client("dynamodb").scan(TableName=library.cloud.app.settings.table_name)["Items"]
    gone = [item for item in scanned if "expires_at" in item and int(item["expires_at"]["N"]) < now]
    return [{"pk": item["pk"]["S"], "sk": item["sk"]["S"]} for item in gone]


def delete(library: Library, file_id: str) -> Any:
    return library.cloud.http("DELETE", f"/v1/files/{file_id}", key=library.project.key)


@pytest.mark.parametrize("size", [1, 64 * MIB + 1, 10**11, 5 * 1024**4])
def test_parts_fit_into_s3s_limits(size: int) -> None:
    part = part_size_for(size)
    assert 5 * MIB <= part <= 5 * 1024**3
    assert part % MIB == 0
    assert part_count(size, part) <= MOST_PARTS
