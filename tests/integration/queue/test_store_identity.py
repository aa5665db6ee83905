"""The clean-up with an empty, another or a restored table: it deletes nothing that it should not."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import pytest

from local.undelete import undelete
from tests.support.moto.cloud import MotoCloud, Project
from tidegate.aws import keys
from tidegate.aws.table import delete, put, update
from tidegate.files.model import content_object
from tidegate.queue import retention
from tidegate.queue.retention import MARKER

DAY = 86400


def store(cloud: MotoCloud, *names: str) -> None:
    for name in names:
        cloud.client("s3").put_object(Bucket=cloud.app.files.bucket.name, Key=name, Body=b"x")


def stored(cloud: MotoCloud) -> list[str]:
    found = cloud.client("s3").list_objects_v2(Bucket=cloud.app.files.bucket.name).get("Contents", [])
    return [entry["Key"] for entry in found if entry["Key"] != MARKER]


def library(cloud: MotoCloud, project: Project, count: int) -> list[str]:
    """Content with its records. Returns the keys of the objects."""
    digests = [f"{number:064x}" for number in range(count)]
    cloud.app.table.batch_put(keys.content(project.id, one) | {"signature": one} for one in digests)
    names = [content_object(project.id, one) for one in digests]
    store(cloud, *names)
    return names


def empty_the_table(cloud: MotoCloud) -> None:
    table = cloud.app.table
    items = cloud.client("dynamodb").scan(TableName=table.name)["Items"]
    table.batch_delete({"pk": item["pk"]["S"], "sk": item["sk"]["S"]} for item in items)


def run(cloud: MotoCloud) -> dict[str, Any]:
    return dict(cloud.invoke("clean_up", {"source": "aws.events"}))


def clean(cloud: MotoCloud, **body: Any) -> Any:
    return cloud.http("POST", "/v1/cleanup", key=cloud.admin_key, json=body or None)


@pytest.mark.parametrize("first_run", [True, False])
def test_empty_table_deletes_no_object(cloud: MotoCloud, project: Project, first_run: bool) -> None:
    names = library(cloud, project, 301)
    if not first_run:
        assert run(cloud)["orphans"] == 0
    empty_the_table(cloud)
    cloud.clock.advance(2 * DAY)

    done = run(cloud)

    assert (done["orphans"], "stopped" in done, stored(cloud)) == (0, True, names)
    refused = clean(cloud)
    assert (refused.status, done["stopped"] in refused.json()["detail"]) == (409, True)


def test_table_of_another_stack_deletes_no_object(cloud: MotoCloud, project: Project) -> None:
    names = library(cloud, project, 3)
    run(cloud)
    cloud.app.table.write(update(keys.store_identity(), {"identity": "tide-another"}))
    cloud.app.table.batch_delete(keys.content(project.id, f"{number:064x}") for number in range(3))
    cloud.clock.advance(2 * DAY)

    assert run(cloud)["orphans"] == 0
    assert stored(cloud) == names


def test_foreign_bucket_is_not_adopted(cloud: MotoCloud, project: Project) -> None:
    run(cloud)
    cloud.client("s3").delete_object(Bucket=cloud.app.files.bucket.name, Key=MARKER)
    other = content_object("prj-of-another-stack", "0" * 64)
    store(cloud, other)
    cloud.clock.advance(2 * DAY)

    assert run(cloud)["orphans"] == 0
    assert stored(cloud) == [other]


@pytest.mark.parametrize("dies_after", ["table", "bucket"])
def test_first_run_that_died_is_completed_by_the_next(cloud: MotoCloud, project: Project, dies_after: str) -> None:
    orphan = content_object(project.id, "f" * 64)
    library(cloud, project, 2)
    store(cloud, orphan)
    cloud.clock.advance(2 * DAY)
    objects = cloud.app.queue.bucket
    died = "put_new" if dies_after == "table" else "list"
    with patch.object(objects, died, side_effect=RuntimeError("died")), pytest.raises(RuntimeError):
        run(cloud)

    assert run(cloud)["orphans"] == 1
    marker = cloud.app.table.get(keys.store_identity())
    assert marker
    assert json.loads(objects.get(MARKER)) == {"identity": marker["identity"]}


def lose_records(cloud: MotoCloud, project: Project, numbers: range) -> None:
    cloud.app.table.batch_delete(keys.content(project.id, f"{number:064x}") for number in numbers)


def test_run_that_would_delete_too_much_waits_for_its_confirmation(cloud: MotoCloud, project: Project) -> None:
    names = library(cloud, project, 300)
    run(cloud)
    lose_records(cloud, project, range(110))
    cloud.clock.advance(2 * DAY)

    stopped = run(cloud)["stopped"]

    assert stored(cloud) == names
    shown = clean(cloud).json()["stopped"]
    assert (shown["run_id"], shown["examined"], shown["orphans"]) == (stopped, 300, 110)
    assert clean(cloud, confirm="sweep-another").status == 409
    assert clean(cloud, confirm=stopped).json()["stopped"]["confirmed_by"]
    assert run(cloud) | {"removed": 0} == {"removed": 0, "objects": 0, "uploads": 0, "orphans": 110}
    assert stored(cloud) == names[110:]
    # It cannot be used again.
    assert clean(cloud, confirm=stopped).status == 409
    lose_records(cloud, project, range(110, 290))
    assert "stopped" in run(cloud)
    assert len(stored(cloud)) == 190


def test_confirmation_does_not_cover_more_than_its_run_named(cloud: MotoCloud, project: Project) -> None:
    library(cloud, project, 400)
    run(cloud)
    lose_records(cloud, project, range(110))
    cloud.clock.advance(2 * DAY)
    first = run(cloud)["stopped"]
    assert clean(cloud, confirm=first).status == 200
    lose_records(cloud, project, range(110, 390))

    second = run(cloud)["stopped"]

    assert (second != first, len(stored(cloud))) == (True, 400)


def test_few_orphans_are_deleted_whatever_their_share(cloud: MotoCloud, project: Project) -> None:
    library(cloud, project, 100)
    lose_records(cloud, project, range(100))
    cloud.clock.advance(2 * DAY)
    assert run(cloud)["orphans"] == 100


def test_confirmed_table_is_marked_again(cloud: MotoCloud, project: Project) -> None:
    names = library(cloud, project, 2)
    run(cloud)
    # Restored from a time before it had a marker.
    cloud.app.table.write(delete(keys.store_identity()))
    stopped = run(cloud)["stopped"]
    assert clean(cloud, confirm=stopped).status == 200
    assert "stopped" not in run(cloud)
    assert stored(cloud) == names


def test_object_that_got_its_record_meanwhile_is_kept(cloud: MotoCloud, project: Project) -> None:
    names = library(cloud, project, 2)
    lose_records(cloud, project, range(2))
    cloud.clock.advance(2 * DAY)
    scan = retention._scan

    def then_stored(*given: Any) -> Any:
        found = scan(*given)
        cloud.app.table.write(put(keys.content(project.id, "0" * 64)))
        return found

    with patch.object(retention, "_scan", then_stored):
        assert retention.sweep(cloud.app.queue).orphans == 1
    assert stored(cloud) == names[:1]


def test_objects_that_a_restored_table_needs_are_brought_back(cloud: MotoCloud, project: Project) -> None:
    bucket, s3 = cloud.app.files.bucket.name, cloud.client("s3")
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    names = library(cloud, project, 5)
    run(cloud)
    lose_records(cloud, project, range(3))
    cloud.clock.advance(2 * DAY)
    assert run(cloud)["orphans"] == 3
    s3.delete_object(Bucket=bucket, Key=names[0])
    assert stored(cloud) == names[3:]

    # The table as it was, but for one record that was deleted on purpose before.
    cloud.app.table.batch_put(keys.content(project.id, f"{number:064x}") for number in (0, 1))
    assert undelete(cloud.app, only_try=True) == (2, [])
    assert stored(cloud) == names[3:]
    assert undelete(cloud.app) == (2, [])

    assert stored(cloud) == [*names[:2], *names[3:]]
    assert s3.get_object(Bucket=bucket, Key=names[0])["Body"].read() == b"x"
    assert undelete(cloud.app) == (0, [])


def announce(cloud: MotoCloud, project: Project, count: int) -> list[str]:
    made = []
    for number in range(count):
        # As fast as the default rate allows.
        cloud.clock.advance(1)
        body = {"biz_id": 1, "app_id": 1, "file_path": f"/a/{number}", "size": 1}
        answer = cloud.http("POST", "/v1/files", json=body, key=project.key)
        assert answer.status == 201, answer.body
        made.append(answer.json()["file_id"])
    return made


def test_deleted_uploads_of_one_project_do_not_stop_the_sweep(cloud: MotoCloud, project: Project) -> None:
    run(cloud)
    for file_id in announce(cloud, project, 101):
        assert cloud.http("DELETE", f"/v1/files/{file_id}", key=project.key).status == 204
    # Empty objects, so that the presigned URLs bring nothing back.
    assert len(stored(cloud)) == 101
    cloud.clock.advance(2 * DAY)

    done = run(cloud)

    assert (done["orphans"], "stopped" in done, stored(cloud)) == (101, False, [])


def test_abandoned_uploads_of_one_project_do_not_stop_the_sweep(cloud: MotoCloud, project: Project) -> None:
    run(cloud)
    uploads = announce(cloud, project, 101)
    store(cloud, *(f"content/{project.id}/{file_id}" for file_id in uploads))
    cloud.clock.advance(30 * DAY)
    # As the table's TTL does.
    for file_id in uploads:
        cloud.app.table.batch_delete([keys.file(project.id, file_id), keys.content(project.id, file_id)])

    done = run(cloud)

    assert (done["orphans"], "stopped" in done, stored(cloud)) == (101, False, [])


def test_project_with_too_many_losses_holds_up_no_other(cloud: MotoCloud, project: Project) -> None:
    lost, other = library(cloud, project, 120), cloud.project()
    run(cloud)
    lose_records(cloud, project, range(110))
    orphan = content_object(other.id, "f" * 64)
    store(cloud, orphan)
    cloud.clock.advance(2 * DAY)

    done = run(cloud)

    assert (done["orphans"], stored(cloud)) == (1, lost)
    shown = clean(cloud).json()["stopped"]
    assert (project.id in shown["reason"], other.id in shown["reason"], shown["orphans"]) == (True, False, 110)
    assert clean(cloud, confirm=done["stopped"]).status == 200
    assert (run(cloud)["orphans"], stored(cloud)) == (110, lost[110:])


def test_losses_spread_over_many_small_projects_stop_the_sweep(cloud: MotoCloud) -> None:
    projects = [cloud.project() for _ in range(3)]
    names = sorted(name for project in projects for name in library(cloud, project, 50))
    run(cloud)
    for project in projects:
        lose_records(cloud, project, range(50))
    cloud.clock.advance(2 * DAY)

    done = run(cloud)

    assert (done["orphans"], "stopped" in done, stored(cloud)) == (0, True, names)


def test_confirmed_run_begins_where_the_stopped_one_began(cloud: MotoCloud, project: Project) -> None:
    library(cloud, project, 120)
    run(cloud)
    lose_records(cloud, project, range(110))
    cloud.clock.advance(2 * DAY)
    stopped = run(cloud)["stopped"]
    # A later run, which had no time for all objects, ended behind those.
    cloud.app.table.write(update(keys.sweep_cursor(), {"after": "staging/"}, condition=""))
    assert clean(cloud, confirm=stopped).status == 200

    assert (run(cloud)["orphans"], len(stored(cloud))) == (110, 10)
