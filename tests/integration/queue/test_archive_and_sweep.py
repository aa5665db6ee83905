"""What leaves the table is kept in the archive; what a death left in the bucket is found and removed."""

from __future__ import annotations

import gzip
import json

import pytest

from tests.support.moto.cloud import MotoCloud, Project
from tidegate.files.model import content_object

DAY = 86400


def _object(cloud: MotoCloud, key: str) -> None:
    cloud.client("s3").put_object(Bucket=cloud.app.files.bucket.name, Key=key, Body=b"x")


def _objects(cloud: MotoCloud) -> list[str]:
    found = cloud.client("s3").list_objects_v2(Bucket=cloud.app.files.bucket.name).get("Contents", [])
    return [entry["Key"] for entry in found]


def _ended(cloud: MotoCloud, project: Project) -> str:
    made = cloud.app.queue.queue.submit(project.id, "check", payload={"file_id": "none"})
    assert cloud.http("POST", f"/v1/requests/{made.request_id}/cancel", key=project.key).status == 200
    return made.request_id


def test_a_record_past_its_retention_is_read_back_from_the_archive(cloud: MotoCloud, project: Project) -> None:
    ended = sorted(_ended(cloud, project) for _ in range(3))
    cloud.clock.advance(31 * DAY)

    cloud.invoke("clean_up", {"source": "aws.events"})

    assert cloud.http("GET", f"/v1/requests/{ended[0]}", key=project.key).status == 404
    day = cloud.clock().date().isoformat()
    first = cloud.http("GET", f"/v1/archive?day={day}&limit=2", key=project.key).json()
    rest = cloud.http("GET", f"/v1/archive?day={day}&cursor={first['next_cursor']}", key=project.key).json()
    assert [record["request_id"] for record in first["items"] + rest["items"]] == ended
    assert first["items"][0]["status"] == "cancelled"
    assert rest["next_cursor"] is None


def test_the_archive_is_filtered_by_type_status_and_id(cloud: MotoCloud, project: Project) -> None:
    first, second = sorted(_ended(cloud, project) for _ in range(2))
    cloud.clock.advance(31 * DAY)
    cloud.invoke("clean_up", {"source": "aws.events"})

    def ids(**wanted: str) -> list[str]:
        query = {"day": cloud.clock().date().isoformat(), **wanted}
        answer = cloud.http("GET", "/v1/archive", query=query, key=project.key)
        return [record["request_id"] for record in answer.json()["items"]]

    assert ids(type="check", status="cancelled") == [first, second]
    assert ids(request_id=second) == [second]
    assert ids(type="export") == ids(status="completed") == ids(request_id="req-none") == []


def test_the_archive_belongs_to_its_project(cloud: MotoCloud, project: Project) -> None:
    _ended(cloud, project)
    cloud.clock.advance(31 * DAY)
    cloud.invoke("clean_up", {"source": "aws.events"})

    day = cloud.clock().date().isoformat()
    theirs = cloud.http("GET", f"/v1/archive?day={day}", key=cloud.project().key)

    assert theirs.json() == {"items": [], "next_cursor": None}


def test_a_cleanup_that_dies_before_removing_archives_the_same_once_more(
    cloud: MotoCloud, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = _ended(cloud, project)
    cloud.clock.advance(31 * DAY)

    def dies(*_: object) -> bool:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr("tidegate.queue.retention.store.RetentionStore.remove", dies)
        with pytest.raises(MemoryError):
            cloud.invoke("clean_up", {"source": "aws.events"})
    cloud.invoke("clean_up", {"source": "aws.events"})

    (key,) = [key for key in _objects(cloud) if key.startswith("archive/")]
    stored = cloud.client("s3").get_object(Bucket=cloud.app.files.bucket.name, Key=key)["Body"].read()
    assert [json.loads(line)["request_id"] for line in gzip.decompress(stored).splitlines()] == [ended]


def test_orphans_and_stale_uploads_go_and_nothing_else(cloud: MotoCloud, project: Project) -> None:
    known = cloud.app.queue.queue.submit(project.id, "check", payload={"file_id": "none"}).request_id
    keep = f"staging/{project.id}/{known}/spec.json"
    orphans = [
        content_object(project.id, "0" * 64),
        f"exports/{project.id}/exp-gone/1",
        f"staging/{project.id}/exp-gone/a",
    ]
    orphans.append(f"rows/{project.id}/{'0' * 64}.csv")
    for key in (keep, *orphans):
        _object(cloud, key)
    cloud.client("s3").create_multipart_upload(Bucket=cloud.app.files.bucket.name, Key="staging/half")

    first = cloud.app.queue.sweep.sweep()
    assert first.orphans == 0, "what is young may be in the making"
    cloud.clock.advance(2 * DAY)
    swept = cloud.app.queue.sweep.sweep()

    # moto begins every upload in 2010, so the first sweep took it.
    assert (first.uploads + swept.uploads, swept.orphans) == (1, len(orphans))
    assert _objects(cloud) == [keep]
    left = cloud.client("s3").list_multipart_uploads(Bucket=cloud.app.files.bucket.name)
    assert not left.get("Uploads")


@pytest.mark.parametrize("day", ["", "yesterday", "2026-13-01"])
def test_a_day_that_is_none_is_422(cloud: MotoCloud, project: Project, day: str) -> None:
    assert cloud.http("GET", "/v1/archive", query={"day": day}, key=project.key).status == 422
