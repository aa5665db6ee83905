"""Quotas of uploads: a project stores no more than `stored_bytes`, whatever is done with its upload URLs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch
from urllib.parse import parse_qsl, urlsplit

import pytest
from botocore.exceptions import ClientError
from moto.s3 import models

from tests.support.ingest.running import Library
from tests.support.moto.cloud import MotoCloud, Project
from tidegate.aws import keys
from tidegate.aws.s3 import UploadBucket
from tidegate.aws.table import delete, update
from tidegate.errors import Busy, QuotaExceeded
from tidegate.files import library as library_module
from tidegate.files import upload as upload_module
from tidegate.files.model import length_of_part, upload_object
from tidegate.projects.limits import UsageStore
from tidegate.queue.retention import sweep

BODY = {"biz_id": 1, "app_id": 2, "file_path": "/a"}
PART = 400
DAY = 86400


@pytest.fixture
def library(cloud: MotoCloud, project: Project) -> Library:
    return Library(cloud, project)


def set_quotas(library: Library, **quotas: int) -> None:
    library.cloud.app.table.write(update(keys.project(library.project.id), {"quotas": quotas}))


def announce(library: Library, **more: Any) -> Any:
    return library.cloud.http("POST", "/v1/files", json={**BODY, **more}, key=library.project.key)


def put(library: Library, file_id: str, content: bytes) -> bool:
    """PUTs with the headers of `upload_headers`. Returns whether S3 took it, which checks no signature here."""
    key = upload_object(library.project.id, file_id)
    try:
        library.cloud.client("s3").put_object(
            Bucket=library.cloud.app.files.bucket.name, Key=key, Body=content, IfNoneMatch="*"
        )
    except ClientError as error:
        if error.response["Error"]["Code"] != "PreconditionFailed":
            raise
        return False
    return True


def complete(library: Library, file_id: str, parts: list[dict[str, Any]] | None = None) -> Any:
    body = {"parts": parts} if parts else {}
    return library.cloud.http("POST", f"/v1/files/{file_id}/complete", json=body, key=library.project.key)


def remove(library: Library, file_id: str) -> int:
    return int(library.cloud.http("DELETE", f"/v1/files/{file_id}", key=library.project.key).status)


def upload(library: Library, content: bytes, **more: Any) -> str:
    file_id = str(announce(library, size=len(content), **more).json()["file_id"])
    assert put(library, file_id, content)
    assert complete(library, file_id).status == 200
    return file_id


def in_bucket(library: Library) -> int:
    return sum(map(len, library.objects().values()))


def counted(library: Library) -> tuple[int, int, int]:
    """(stored bytes, announced bytes, open uploads)."""
    table, project_id = library.cloud.app.table, library.project.id
    usage = library.cloud.app.queue.project_usage(project_id)
    item = table.get(keys.upload_usage(project_id), consistent=True) or {}
    assert len(table.query(keys.open_uploads(project_id), consistent=True).items) == usage["open_uploads"]
    return usage["stored_bytes"], int(item.get("announced_bytes", 0)), usage["open_uploads"]


def test_upload_without_size_takes_all_the_room_until_it_ends(library: Library) -> None:
    set_quotas(library, stored_bytes=1000)
    assert announce(library, size=300).status == 201

    file_id = announce(library).json()["file_id"]

    assert [announce(library).status, announce(library, size=1).status] == [429, 429]
    assert counted(library) == (0, 1000, 2)
    put(library, file_id, b"x" * 700)
    assert complete(library, file_id).status == 200
    assert counted(library) == (700, 300, 1)


def test_refused_upload_without_size_keeps_its_object_until_its_room_is_needed(library: Library) -> None:
    set_quotas(library, stored_bytes=1000)
    first, second = announce(library).json()["file_id"], b"y" * 900
    put(library, first, b"x" * 1200)
    assert complete(library, first).status == 429

    set_quotas(library, stored_bytes=1200)
    assert complete(library, first).status == 200, "the quota was raised"
    remove(library, first)
    set_quotas(library, stored_bytes=1000)
    third = announce(library).json()["file_id"]
    put(library, third, b"z" * 1300)
    assert complete(library, third).status == 429

    fourth = announce(library).json()["file_id"]
    put(library, fourth, second)
    assert complete(library, fourth).status == 200
    assert complete(library, third).status == 404
    assert counted(library) == (900, 0, 0)


GIB = 1024**3


def parts_of(library: Library, file_id: str, numbers: list[int], **more: Any) -> Any:
    body = {"numbers": numbers, **more}
    return library.cloud.http("POST", f"/v1/files/{file_id}/parts", json=body, key=library.project.key)


def send_part(library: Library, file_id: str, number: int, content: bytes) -> dict[str, Any]:
    file = library.cloud.app.files.library.get(library.project.id, file_id)
    sent = library.cloud.client("s3").upload_part(
        Bucket=library.cloud.app.files.bucket.name,
        Key=upload_object(library.project.id, file_id),
        UploadId=str(file.upload_id),
        PartNumber=number,
        Body=content,
    )
    return {"number": number, "etag": sent["ETag"]}


def test_upload_in_parts_without_size_counts_each_part_asked_for(library: Library) -> None:
    """As a client of the contract sends it: no size, and only the numbers of parts."""
    set_quotas(library, stored_bytes=100 * GIB)
    made = announce(library, multipart=True)
    assert (made.status, counted(library)) == (201, (0, 0, 1))
    file_id = made.json()["file_id"]

    assert parts_of(library, file_id, [1, 2]).status == 200
    assert counted(library) == (0, 10 * GIB, 1)
    first = send_part(library, file_id, 1, b"a" * 5 * 1024**2)
    library.cloud.clock.advance(1801)
    # The URLs have ended: the first part counts with its size, the second cannot arrive any more.
    links = parts_of(library, file_id, [2]).json()["parts"]
    assert counted(library) == (0, 5 * GIB + 5 * 1024**2, 1)
    assert "content-length" not in links[0]["url"]
    last = send_part(library, file_id, 2, b"b" * 10)

    assert complete(library, file_id, [first, last]).status == 200
    assert counted(library) == (5 * 1024**2 + 10, 0, 0)


def test_parts_with_their_lengths_count_exactly(library: Library) -> None:
    set_quotas(library, stored_bytes=1000)
    file_id = announce(library, multipart=True).json()["file_id"]

    links = parts_of(library, file_id, [1, 2], sizes=[600, 300]).json()["parts"]

    assert (["content-length" in link["url"] for link in links], counted(library)) == ([True, True], (0, 900, 1))
    # All the room that is left, as for one PUT of unknown length.
    assert (parts_of(library, file_id, [3], sizes=[200]).status, counted(library)) == (200, (0, 1000, 1))
    assert parts_of(library, file_id, [4], sizes=[1]).status == 429
    assert announce(library, size=1).status == 429
    assert remove(library, file_id) == 204
    assert counted(library) == (0, 0, 0)


def test_shorter_length_for_a_part_does_not_free_its_first_url(library: Library) -> None:
    set_quotas(library, stored_bytes=1000)
    file_id = announce(library, multipart=True).json()["file_id"]
    for length in (800, 1):
        assert parts_of(library, file_id, [1], sizes=[length]).status == 200
    assert counted(library) == (0, 800, 1)


def test_parts_without_lengths_take_what_is_left_once(library: Library) -> None:
    set_quotas(library, stored_bytes=1000)
    first, second = (announce(library, multipart=True).json()["file_id"] for _ in range(2))

    assert parts_of(library, first, [1]).status == 200
    assert [parts_of(library, file_id, [2]).status for file_id in (first, second)] == [429, 429]
    assert counted(library) == (0, 1000, 2)


def test_few_parts_of_a_file_without_size_are_open_at_once(library: Library) -> None:
    file_id = announce(library, multipart=True).json()["file_id"]
    set_quotas(library, stored_bytes=10**15)
    for start in (1, 101):
        assert parts_of(library, file_id, [*range(start, start + 100)], sizes=[1] * 100).status == 200
    refused = parts_of(library, file_id, [201], sizes=[1])
    assert (refused.status, refused.json()["code"], 0 < int(refused.headers["retry-after"]) <= 4500) == (
        429,
        "quota_exceeded",
        True,
    )
    library.cloud.clock.advance(4501)
    assert parts_of(library, file_id, [201], sizes=[1]).status == 200
    assert counted(library)[1] == 1


@pytest.mark.parametrize("body", [{"sizes": [1]}, {"sizes": [1, 0]}, {"sizes": [1, 2, 3]}])
def test_lengths_that_do_not_fit_the_numbers_are_refused(library: Library, body: dict[str, Any]) -> None:
    file_id = announce(library, multipart=True).json()["file_id"]
    assert parts_of(library, file_id, [1, 2], **body).status == 422


def test_announced_uploads_count_towards_the_storage_quota(library: Library) -> None:
    set_quotas(library, stored_bytes=1000)
    made = [announce(library, size=400) for _ in range(3)]

    assert [answer.status for answer in made] == [201, 201, 429]
    assert made[2].json()["code"] == "quota_exceeded"
    assert "announced uploads hold 800" in made[2].json()["detail"]
    for answer, letter in zip(made[:2], (b"a", b"b"), strict=True):
        put(library, answer.json()["file_id"], letter * 400)
        assert complete(library, answer.json()["file_id"]).status == 200
    assert counted(library) == (800, 0, 0)
    assert announce(library, size=200).status == 201
    assert announce(library, size=1).status == 429


def test_open_uploads_are_limited_without_any_quota_set(library: Library) -> None:
    table, project_id = library.cloud.app.table, library.project.id
    table.write(update(keys.upload_usage(project_id), {"open_uploads": 999}, condition=""))

    made = [announce(library) for _ in range(2)]

    assert [answer.status for answer in made] == [201, 429]
    assert "open_uploads is 1000" in made[1].json()["detail"]


def test_open_uploads_over_the_quota_are_refused_until_one_ends(library: Library) -> None:
    set_quotas(library, open_uploads=2)
    first, second = (announce(library).json()["file_id"] for _ in range(2))
    assert announce(library).status == 429

    put(library, first, b"content")
    complete(library, first)
    assert counted(library) == (7, 0, 1)
    assert remove(library, second) == 204
    assert counted(library) == (7, 0, 0)


def refused_by_complete(library: Library) -> str:
    file_id = str(announce(library, size=400).json()["file_id"])
    put(library, file_id, b"x" * 300)
    assert complete(library, file_id).status == 422
    return file_id


def deleted_while_pending(library: Library) -> str:
    file_id = str(announce(library, size=400).json()["file_id"])
    assert remove(library, file_id) == 204
    return file_id


def deleted_when_ready(library: Library) -> str:
    file_id = upload(library, b"r" * 400)
    assert remove(library, file_id) == 204
    return file_id


def stored_before(library: Library) -> str:
    first = upload(library, b"s" * 400)
    second = upload(library, b"s" * 400)
    remove(library, first)
    remove(library, second)
    return second


@pytest.mark.parametrize("ended", [refused_by_complete, deleted_while_pending, deleted_when_ready, stored_before])
def test_upload_url_takes_nothing_after_its_upload_ended(library: Library, ended: Callable[[Library], str]) -> None:
    set_quotas(library, stored_bytes=1000)

    for _ in range(4):
        file_id = ended(library)
        assert not put(library, file_id, b"y" * 400)

    assert in_bucket(library) == 0
    assert counted(library) == (0, 0, 0)
    library.cloud.clock.advance(3 * DAY)
    sweep(library.cloud.app.queue)
    assert library.objects() == {}


def test_old_upload_is_deleted_without_an_empty_object(library: Library) -> None:
    file_id = upload(library, b"r" * 400)
    library.cloud.clock.advance(DAY + 1)

    assert remove(library, file_id) == 204
    assert library.objects() == {}


def test_upload_over_a_lowered_quota_completes_when_there_is_room(library: Library) -> None:
    set_quotas(library, stored_bytes=1000)
    other = upload(library, b"o" * 400)
    file_id = announce(library, size=600).json()["file_id"]
    put(library, file_id, b"x" * 600)
    set_quotas(library, stored_bytes=700)

    assert complete(library, file_id).status == 429
    assert counted(library) == (400, 600, 1)
    remove(library, other)
    assert complete(library, file_id).status == 200
    assert counted(library) == (600, 0, 0)


def test_upload_without_size_from_before_the_quota_must_fit(library: Library) -> None:
    early = [announce(library).json()["file_id"] for _ in range(2)]
    set_quotas(library, stored_bytes=1000)
    assert announce(library, size=500).status == 201
    for file_id, letter in zip(early, (b"a", b"b"), strict=True):
        put(library, file_id, letter * 400)

    assert [complete(library, file_id).status for file_id in early] == [200, 429]
    assert counted(library) == (400, 500, 2)


def test_fetched_content_leaves_the_room_of_announced_uploads(library: Library) -> None:
    set_quotas(library, stored_bytes=1000)
    announce(library, size=600)
    usage = UsageStore(library.cloud.app.table)

    with pytest.raises(QuotaExceeded):
        usage.new_content_writes(library.project.id, 401)
    writes = usage.new_content_writes(library.project.id, 300)
    announce(library, size=100)
    assert not library.cloud.app.table.try_write(*writes), "more was announced since the room was read"
    assert library.cloud.app.table.try_write(*usage.new_content_writes(library.project.id, 300))
    assert counted(library) == (300, 700, 2)


def test_announcements_at_once_do_not_pass_the_quota(library: Library) -> None:
    set_quotas(library, stored_bytes=1000)
    read, before = UsageStore.upload_opened_writes, [400, 400]

    def late(self: UsageStore, project_id: str, size: int) -> Any:
        writes = read(self, project_id, size)
        if before:
            announce(library, size=before.pop())
        return writes

    with patch.object(UsageStore, "upload_opened_writes", late):
        assert announce(library, size=300).status == 429
    assert counted(library)[1] <= 1000


def test_content_stored_during_an_announcement_does_not_pass_the_quota(library: Library) -> None:
    set_quotas(library, stored_bytes=1000)
    read, project_id = UsageStore.upload_opened_writes, library.project.id
    stored: list[bool] = []

    def late(self: UsageStore, project: str, size: int) -> Any:
        writes = read(self, project, size)
        if not stored:
            stored.append(self._table.try_write(*self.new_content_writes(project_id, 900)))
        return writes

    with patch.object(UsageStore, "upload_opened_writes", late):
        assert announce(library, size=300).status == 429
    assert counted(library) == (900, 0, 0)


def test_abandoned_uploads_make_room_when_it_is_needed(library: Library) -> None:
    set_quotas(library, stored_bytes=1000)
    lost = [announce(library, size=300).json()["file_id"] for _ in range(3)]
    put(library, lost[0], b"l" * 300)
    # The table's TTL has deleted one of them.
    for key in (keys.file(library.project.id, lost[2]), keys.content(library.project.id, lost[2])):
        library.cloud.app.table.write(delete(key))
    library.cloud.clock.advance(2 * DAY - 60)
    assert announce(library, size=600).status == 429

    library.cloud.clock.advance(120)
    assert announce(library, size=600).status == 201
    assert counted(library) == (0, 600, 1)
    assert in_bucket(library) == 0
    assert complete(library, lost[0]).status == 404


def test_upload_counts_until_its_object_is_deleted(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """The function dies, or S3 fails, between the deletion of the record and that of the object."""
    set_quotas(library, stored_bytes=1000)
    file_id = announce(library, size=800).json()["file_id"]
    put(library, file_id, b"x" * 800)

    def down(*_: object) -> None:
        raise Busy("S3 does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(UploadBucket, "put", down)
        assert remove(library, file_id) == 503
    assert announce(library, size=800).status == 429
    library.cloud.clock.advance(2 * DAY + 1)
    assert announce(library, size=800).status == 201
    assert (counted(library), in_bucket(library)) == ((0, 800, 1), 0)


def test_duplicate_counts_until_its_object_is_deleted(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    set_quotas(library, stored_bytes=1000)
    upload(library, b"s" * 400)
    file_id = announce(library, size=400).json()["file_id"]
    put(library, file_id, b"s" * 400)

    def down(*_: object) -> None:
        raise Busy("S3 does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(UploadBucket, "put", down)
        assert complete(library, file_id).status == 503
    assert (counted(library), in_bucket(library)) == ((400, 400, 1), 800)
    library.cloud.clock.advance(2 * DAY + 1)
    assert announce(library, size=600).status == 201
    assert (counted(library), in_bucket(library)) == ((400, 600, 1), 400)
    assert library.file(file_id)["state"] == "ready"


def test_upload_announced_by_an_earlier_version_completes(library: Library) -> None:
    file_id = announce(library, size=5).json()["file_id"]
    app, project_id = library.cloud.app, library.project.id
    app.table.write(delete(keys.open_upload(project_id, file_id)))
    app.table.write(delete(keys.upload_usage(project_id)))
    put(library, file_id, b"early")

    assert complete(library, file_id).status == 200
    assert counted(library) == (5, 0, 0)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (library_module, upload_module):
        monkeypatch.setattr(module, "LARGEST_SINGLE_UPLOAD", 500)
    monkeypatch.setattr(upload_module, "part_size_for", lambda size: PART)
    monkeypatch.setattr(models, "S3_UPLOAD_PART_MIN_SIZE", 1)


def send_parts(library: Library, file_id: str, content: bytes) -> list[dict[str, Any]]:
    file = library.cloud.app.files.store.require(library.project.id, file_id)
    sent = []
    for number in range(1, -(-len(content) // PART) + 1):
        done = library.cloud.client("s3").upload_part(
            Bucket=library.cloud.app.files.bucket.name,
            Key=upload_object(library.project.id, file_id),
            UploadId=str(file.upload_id),
            PartNumber=number,
            Body=content[(number - 1) * PART : number * PART],
        )
        sent.append({"number": number, "etag": done["ETag"]})
    return sent


@pytest.mark.usefixtures("small_parts")
def test_upload_in_parts_counts_until_it_is_verified(library: Library) -> None:
    set_quotas(library, stored_bytes=1000)
    file_id = announce(library, size=900).json()["file_id"]
    assert announce(library, size=900).status == 429

    assert complete(library, file_id, send_parts(library, file_id, b"p" * 900)).status == 202
    assert counted(library) == (0, 900, 1)
    library.cloud.clock.advance(2 * DAY + 1)
    assert announce(library, size=900).status == 429, "what is being verified is not abandoned"
    library.run()

    assert library.file(file_id)["state"] == "ready"
    assert counted(library) == (900, 0, 0)


@pytest.mark.usefixtures("small_parts")
def test_wrong_content_in_parts_is_not_counted_any_more(library: Library) -> None:
    set_quotas(library, stored_bytes=1000)
    file_id = announce(library, size=900, signature="0" * 64).json()["file_id"]
    complete(library, file_id, send_parts(library, file_id, b"p" * 900))
    library.run()

    assert library.file(file_id)["state"] == "failed"
    assert (counted(library), in_bucket(library)) == ((0, 0, 0), 0)


@pytest.mark.usefixtures("small_parts")
def test_cancelled_verification_counts_until_the_file_is_deleted(library: Library) -> None:
    set_quotas(library, stored_bytes=1000)
    file_id = announce(library, size=900).json()["file_id"]
    request_id = complete(library, file_id, send_parts(library, file_id, b"p" * 900)).json()["request_id"]
    library.cloud.http("POST", f"/v1/requests/{request_id}/cancel", key=library.project.key)

    assert library.file(file_id)["state"] == "failed"
    assert counted(library) == (0, 900, 1)
    assert remove(library, file_id) == 204
    assert (counted(library), in_bucket(library)) == ((0, 0, 0), 0)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(("announced", "signs"), [({"size": 900}, True), ({"multipart": True}, False)])
def test_length_of_a_part_is_signed_if_the_size_is_known(
    library: Library, announced: dict[str, Any], signs: bool
) -> None:
    file_id = announce(library, **announced).json()["file_id"]
    path = f"/v1/files/{file_id}/parts"
    answer = library.cloud.http("POST", path, json={"numbers": [1, 2, 3]}, key=library.project.key).json()

    signed = {dict(parse_qsl(urlsplit(part["url"]).query))["X-Amz-SignedHeaders"] for part in answer["parts"]}
    assert signed == {"content-length;host" if signs else "host"}


@pytest.mark.parametrize("in_parts", [True, False])
def test_length_of_an_empty_upload_is_signed(library: Library, in_parts: bool) -> None:
    set_quotas(library, stored_bytes=1000)
    made = announce(library, size=0, multipart=in_parts).json()
    url = made.get("upload_url")
    if in_parts:
        path = f"/v1/files/{made['file_id']}/parts"
        one, two = (
            library.cloud.http("POST", path, json={"numbers": [number]}, key=library.project.key) for number in (1, 2)
        )
        assert two.status == 422, "it has one part"
        url = one.json()["parts"][0]["url"]

    assert "content-length" in dict(parse_qsl(urlsplit(url).query))["X-Amz-SignedHeaders"]


def test_parts_have_the_announced_size_together() -> None:
    assert [length_of_part(number, 900, PART) for number in (1, 2, 3)] == [400, 400, 100]
    assert length_of_part(2, 800, PART) == 400


def test_five_uploads_over_the_quota_store_at_most_one(library: Library) -> None:
    """Before, none of them was counted, and five million bytes stayed in the bucket."""
    set_quotas(library, stored_bytes=1000)
    made = [announce(library, **size) for size in ({}, {"size": 10**6}) for _ in range(5)]

    for answer in made:
        if answer.status == 201:
            put(library, answer.json()["file_id"], b"x" * 10**6)
            complete(library, answer.json()["file_id"])
    assert in_bucket(library) <= 10**6, "one upload of unknown size, while nobody needs its room"
