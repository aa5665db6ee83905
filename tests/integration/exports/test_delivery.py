"""Copies of exports in the caller's bucket."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from tests.support.exports.paged_source import numbered
from tests.support.exports.running import ExportWorld
from tidegate.projects.model import Project

BUCKET = "acme-reports-1"


@pytest.fixture
def allowed(world: ExportWorld) -> ExportWorld:
    world.s3.create_bucket(Bucket=BUCKET)
    world.cloud.app.exports.deliveries.allowed = "acme-reports-*"
    grant(world, f"{BUCKET}/*", "acme-reports-none/*")
    world.source.rows = numbered(150)
    return world


def grant(world: ExportWorld, *patterns: str) -> None:
    path = f"/v1/projects/{world.project.id}"
    answer = world.cloud.http("PATCH", path, json={"deliver_to": list(patterns)}, key=world.cloud.admin_key)
    assert answer.status == 200, answer.body
    assert answer.json()["deliver_to"] == list(patterns)


def test_copy_is_in_the_bucket_when_the_export_ends(allowed: ExportWorld) -> None:
    targets = [{"bucket": BUCKET, "key": "daily/"}, {"bucket": BUCKET, "key": "last.csv"}]
    shown, data = allowed.export(step=100, file_name="订单", deliver=targets)
    delivered = {"bucket": BUCKET, "state": "delivered", "error": None}
    assert shown["deliveries"] == [{**delivered, "key": "daily/订单.csv"}, {**delivered, "key": "last.csv"}]
    for delivery in shown["deliveries"]:
        copy = allowed.s3.get_object(Bucket=BUCKET, Key=delivery["key"])
        assert copy["Body"].read() == data
        assert copy["ContentType"] == "text/csv; charset=utf-8"
        assert "filename" in copy["ContentDisposition"]


def test_missing_bucket_does_not_fail_the_export(allowed: ExportWorld) -> None:
    shown, data = allowed.export(step=100, deliver=[{"bucket": "acme-reports-none", "key": "x"}])
    (delivery,) = shown["deliveries"]
    assert delivery["state"] == "failed"
    assert "NoSuchBucket" in delivery["error"]
    assert data.count(b"\n") == 151


def test_bucket_that_the_operator_does_not_allow_is_422(allowed: ExportWorld) -> None:
    refused = allowed.post(deliver=[{"bucket": BUCKET, "key": "x"}, {"bucket": "elsewhere", "key": "x"}])
    assert refused.status == 422
    assert refused.json()["errors"][0]["loc"] == ["body", "deliver", 1, "bucket"]


def test_without_the_parameter_no_bucket_is_allowed(world: ExportWorld) -> None:
    assert world.post(deliver=[{"bucket": BUCKET, "key": "x"}]).status == 422


@pytest.mark.parametrize("key", ["shop/daily.csv", "shop/", "shop/2026/11/daily.csv"])
def test_project_writes_only_where_an_admin_allows_it(allowed: ExportWorld, key: str) -> None:
    assert allowed.post(deliver=[{"bucket": BUCKET, "key": key}]).status == 202
    grant(allowed, f"{BUCKET}/bank/*")
    refused = allowed.post(deliver=[{"bucket": BUCKET, "key": key}])
    assert refused.status == 422
    assert "deliver_to" in refused.json()["detail"]
    grant(allowed)
    assert allowed.post(deliver=[{"bucket": BUCKET, "key": "bank/x"}]).status == 422


def test_pattern_never_allows_the_bucket_of_the_stack(allowed: ExportWorld) -> None:
    allowed.cloud.app.exports.deliveries.allowed = "*"
    grant(allowed, f"{allowed.bucket}/*")
    refused = allowed.post(deliver=[{"bucket": allowed.bucket, "key": "content/other-project/file"}])
    assert refused.status == 422


def test_withdrawn_grant_gets_no_copy(allowed: ExportWorld) -> None:
    task_id = allowed.submit(step=100, deliver=[{"bucket": BUCKET, "key": "x"}])
    grant(allowed)
    assert allowed.run(task_id)["deliveries"][0]["state"] == "failed"
    assert "Contents" not in allowed.s3.list_objects_v2(Bucket=BUCKET)


def test_stale_project_record_gives_no_copy(allowed: ExportWorld) -> None:
    task_id = allowed.submit(step=100, deliver=[{"bucket": BUCKET, "key": "x"}])
    store = allowed.cloud.app.projects.projects._store
    old_record, read = store.get(allowed.project.id), store.get
    grant(allowed)

    def stale_read(project_id: str, *, consistent: bool = False) -> Project | None:
        return read(project_id, consistent=True) if consistent else old_record

    with patch.object(store, "get", stale_read):
        assert allowed.run(task_id)["deliveries"][0]["state"] == "failed"


def test_withdrawn_bucket_gets_no_copy(allowed: ExportWorld) -> None:
    task_id = allowed.submit(step=100, deliver=[{"bucket": BUCKET, "key": "x"}])
    allowed.cloud.app.exports.deliveries.allowed = "-"
    assert allowed.run(task_id)["deliveries"][0]["state"] == "failed"
    assert "Contents" not in allowed.s3.list_objects_v2(Bucket=BUCKET)


def test_publish_that_runs_twice_delivers_the_same_copy(allowed: ExportWorld) -> None:
    task_id = allowed.submit(step=100, deliver=[{"bucket": BUCKET, "key": "x"}])
    state = allowed.cloud.invoke("pull_pages", allowed.admit(task_id))
    state = allowed.cloud.invoke("render_export", state)
    for _ in range(2):
        allowed.cloud.invoke("publish_export", state)
    assert allowed.shown(task_id)["status"] == "completed"
    assert allowed.s3.get_object(Bucket=BUCKET, Key="x")["Body"].read() == allowed.file(task_id)
