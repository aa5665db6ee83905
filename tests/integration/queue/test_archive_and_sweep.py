"""The archive of removed requests, and the sweep of objects that crashed functions left in the bucket."""

from __future__ import annotations

import gzip
import json
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import Mock, patch

import pytest

from tests.support.moto.cloud import MotoCloud, Project, load_function
from tidegate.aws import keys
from tidegate.aws.table import update
from tidegate.files.model import content_object
from tidegate.queue.retention import MARKER, clean, sweep

DAY = 86400


def _object(cloud: MotoCloud, key: str) -> None:
    cloud.client("s3").put_object(Bucket=cloud.app.files.bucket.name, Key=key, Body=b"x")


def _objects(cloud: MotoCloud) -> list[str]:
    found = cloud.client("s3").list_objects_v2(Bucket=cloud.app.files.bucket.name).get("Contents", [])
    return [entry["Key"] for entry in found if entry["Key"] != MARKER]


def _ended(cloud: MotoCloud, project: Project) -> str:
    made = cloud.app.queue.submit(project.id, "check", payload={"file_id": "none"})
    assert cloud.http("POST", f"/v1/requests/{made.request_id}/cancel", key=project.key).status == 200
    return made.request_id


def test_removed_record_can_be_read_from_the_archive(cloud: MotoCloud, project: Project) -> None:
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


def test_archive_is_filtered_by_type_status_and_id(cloud: MotoCloud, project: Project) -> None:
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


def test_archive_of_another_project_is_not_shown(cloud: MotoCloud, project: Project) -> None:
    _ended(cloud, project)
    cloud.clock.advance(31 * DAY)
    cloud.invoke("clean_up", {"source": "aws.events"})

    day = cloud.clock().date().isoformat()
    theirs = cloud.http("GET", f"/v1/archive?day={day}", key=cloud.project().key)

    assert theirs.json() == {"items": [], "next_cursor": None}


def test_cleanup_that_died_before_removing_replaces_its_archive(
    cloud: MotoCloud, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = _ended(cloud, project)
    cloud.clock.advance(31 * DAY)

    def dies(*_: object) -> bool:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr("tidegate.queue.retention.RetentionStore.remove", dies)
        with pytest.raises(SystemExit):
            cloud.invoke("clean_up", {"source": "aws.events"})
    cloud.invoke("clean_up", {"source": "aws.events"})

    (key,) = [key for key in _objects(cloud) if key.startswith("archive/")]
    stored = cloud.client("s3").get_object(Bucket=cloud.app.files.bucket.name, Key=key)["Body"].read()
    assert [json.loads(line)["request_id"] for line in gzip.decompress(stored).splitlines()] == [ended]


def test_record_that_cannot_be_removed_does_not_stop_the_cleanup(cloud: MotoCloud, project: Project) -> None:
    """One has no readable payload, one is of a type that this version does not have."""
    unreadable, unknown, good = (_ended(cloud, project) for _ in range(3))
    for request_id, change in (
        (unreadable, {"payload": "not JSON"}),
        (unknown, {"type": "former", "status": "completed"}),
    ):
        cloud.app.table.write(update(keys.request(project.id, request_id), change))
    _object(cloud, f"exports/{project.id}/exp-gone/1")
    cloud.clock.advance(31 * DAY)

    cleaned = cloud.invoke("clean_up", {"source": "aws.events"})

    assert (cleaned["removed"], cleaned["orphans"]) == (1, 1)
    left = [request_id for request_id in (unreadable, unknown, good) if _is_stored(cloud, project, request_id)]
    assert left == [unreadable, unknown]


def test_malformed_records_do_not_count_towards_the_limit_of_a_cleanup(cloud: MotoCloud, project: Project) -> None:
    for request_id in [_ended(cloud, project) for _ in range(4)][:2]:
        cloud.app.table.write(update(keys.request(project.id, request_id), {"payload": "not JSON"}))
    cloud.clock.advance(31 * DAY)

    cleaned = [clean(cloud.app.queue, limit=1) for _ in range(3)]

    assert [(one.removed, one.more) for one in cleaned] == [(1, True), (1, True), (0, False)]


def test_cleanup_ends_if_it_can_remove_nothing(cloud: MotoCloud, project: Project) -> None:
    former = {"type": "former", "status": "completed"}
    for _ in range(3):
        cloud.app.table.write(update(keys.request(project.id, _ended(cloud, project)), former))
    cloud.clock.advance(31 * DAY)

    assert clean(cloud.app.queue, limit=2).more is False


def _is_stored(cloud: MotoCloud, project: Project, request_id: str) -> bool:
    return cloud.app.table.get(keys.request(project.id, request_id), consistent=True) is not None


def test_object_with_an_unknown_kind_of_key_does_not_stop_the_sweep(cloud: MotoCloud, project: Project) -> None:
    odd, orphan = "exports/put-here-by-hand", f"exports/{project.id}/exp-gone/1"
    for key in (odd, orphan):
        _object(cloud, key)
    cloud.clock.advance(2 * DAY)

    assert sweep(cloud.app.queue).orphans == 1
    assert _objects(cloud) == [odd]


def test_sweep_removes_only_orphans_and_stale_uploads(cloud: MotoCloud, project: Project) -> None:
    known = cloud.app.queue.submit(project.id, "check", payload={"file_id": "none"}).request_id
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

    first = sweep(cloud.app.queue)
    assert first.orphans == 0, "a young object may belong to a function that is still working"
    cloud.clock.advance(2 * DAY)
    swept = sweep(cloud.app.queue)

    # In moto every upload is from 2010, so the first sweep removed it.
    assert (first.uploads + swept.uploads, swept.orphans) == (1, len(orphans))
    assert _objects(cloud) == [keep]
    left = cloud.client("s3").list_multipart_uploads(Bucket=cloud.app.files.bucket.name)
    assert not left.get("Uploads")


def test_sweep_without_time_is_continued_by_the_next(
    cloud: MotoCloud, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = cloud.app.queue.submit(project.id, "check", payload={"file_id": "none"}).request_id
    keep = [f"exports/{project.id}/{known}/{part}" for part in range(3)]
    orphans = [content_object(project.id, str(digit) * 64) for digit in range(3)]
    orphans += [f"rows/{project.id}/{'0' * 64}.csv", f"staging/{project.id}/exp-gone/a"]
    for key in (*keep, *orphans):
        _object(cloud, key)
    cloud.clock.advance(2 * DAY)
    queue = cloud.app.queue
    monkeypatch.setattr("tidegate.queue.retention._GROUP", 2)
    with patch.object(queue.bucket, "list", wraps=queue.bucket.list) as listed:
        # Time for one group of two objects each night: two nights for content/, one for rows/, two for exports/ …
        removed = [sweep(queue, Mock(side_effect=[True, False])).orphans for _ in range(5)]
        removed.append(sweep(queue).orphans)

    assert removed == [2, 1, 1, 0, 0, 1]
    assert _objects(cloud) == keep
    assert [call.args[0] for call in listed.mock_calls].count("content/") == 2


def test_clean_up_ends_before_its_time_is_over(cloud: MotoCloud, project: Project) -> None:
    content = content_object(project.id, "0" * 64)
    _object(cloud, content)
    cloud.clock.advance(2 * DAY)
    clean_up = load_function("clean_up").handler
    short = SimpleNamespace(get_remaining_time_in_millis=lambda: 20_000)

    assert clean_up({}, short)["orphans"] == 0
    assert cloud.invoke("clean_up", {})["orphans"] == 1


@pytest.mark.parametrize("day", ["", "yesterday", "2026-13-01"])
def test_invalid_day_is_422(cloud: MotoCloud, project: Project, day: str) -> None:
    assert cloud.http("GET", "/v1/archive", query={"day": day}, key=project.key).status == 422


@pytest.mark.parametrize("fails", [False, True])
def test_clean_up_that_fails_raises_its_alarm(
    cloud: MotoCloud, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, fails: bool
) -> None:
    clean_up = load_function("clean_up")
    if fails:
        monkeypatch.setattr(clean_up, "clean", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError) if fails else nullcontext():
        cloud.invoke("clean_up", {"source": "aws.events"})
    [told] = [line for line in capsys.readouterr().out.splitlines() if '"CleanUpStopped":' in line]
    assert json.loads(told)["CleanUpStopped"] == [1.0 if fails else 0.0]
