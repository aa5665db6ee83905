"""Batches of which SQS, SNS and S3 accept only a part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import pytest

from tests.faults.injection import inject_faults
from tests.faults.modes import PARTIAL
from tests.support.fleet import Fleet
from tests.support.moto.cloud import MotoCloud
from tidegate import app as composition
from tidegate.aws.clients import Message, SqsQueue
from tidegate.errors import Busy
from tidegate.notifications.notices import Notice, Topic, notice_id_for, notice_write


@pytest.fixture
def cloud() -> Iterator[MotoCloud]:
    with MotoCloud() as made:
        yield made


def test_messages_that_sqs_refused_are_sent_again(cloud: MotoCloud) -> None:
    with inject_faults(cloud, at=1, mode=PARTIAL):
        queue = SqsQueue(composition.app().sqs, cloud.names.queues["TargetsQueue"], lambda _: None)
        queue.send(*(Message({"number": number}) for number in range(5)))

        assert queue.size() == 5


def test_objects_that_s3_did_not_delete_are_deleted_again(cloud: MotoCloud) -> None:
    """A staged page that stayed would be part of the export that is retried."""
    bucket = composition.app().files.bucket
    keys = [f"staging/prj-1/exp-1/pages/{number}" for number in range(5)]
    for key in keys:
        bucket.put(key, b"rows")
    with inject_faults(cloud, at=1, mode=PARTIAL):
        composition.app().files.bucket.delete(*keys)

    assert [key for key in keys if bucket.head(key)] == []


def test_objects_that_s3_refuses_to_delete_are_an_error(cloud: MotoCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = composition.app().files.bucket
    denied = [{"Key": "content/a", "Code": "AccessDenied", "Message": "no"}]
    monkeypatch.setattr(bucket, "_client", SimpleNamespace(delete_objects=lambda **_: {"Errors": denied}))
    monkeypatch.setattr("tidegate.aws.s3.time.sleep", lambda _: None)

    with pytest.raises(Busy, match="S3 did not delete 1 objects"):
        bucket.delete("content/a")


def test_notices_that_the_topic_refused_stay_in_the_outbox(cloud: MotoCloud) -> None:
    project = cloud.project()
    notices = [
        Notice(notice_id_for("t", str(n)), project.id, "t", str(n), "completed", {}, None, cloud.clock())
        for n in range(4)
    ]
    cloud.app.table.transact([notice_write(notice) for notice in notices])
    with inject_faults(cloud, at=1, mode=PARTIAL):
        composition.app().notifications.notifier.publish(notices)

    left = cloud.client("dynamodb").scan(TableName=cloud.names.refs["Table"])["Items"]
    assert sum("#NOTICE#" in item["pk"]["S"] for item in left) == 2


def test_callback_notices_that_the_topic_refused_are_sent_again(
    cloud: MotoCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(cloud)
    fleet.to_window_start()
    job_id = fleet.submit_many(["a-1", "a-2"], callback="http://127.0.0.1:9/told")["job_id"]
    fleet.run_until_dispatched(job_id)
    fleet.deliver_all(job_id)
    fleet.step("poll_transfer", job_id)
    accepted: set[str] = set()

    def publish(_: Topic, notices: Sequence[Notice]) -> list[Notice]:
        """Accepts only the first notice at the first call."""
        taken = list(notices if accepted else notices[:1])
        accepted.update(notice.record_id for notice in taken if notice.callback)
        return taken

    monkeypatch.setattr(Topic, "publish", publish)

    assert fleet.step("finish_job", job_id)["state"] == "more"
    assert len(accepted) == 1
    assert fleet.step("finish_job", job_id)["state"] == "ended"
    assert len(accepted) == 2
