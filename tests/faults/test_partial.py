"""Batches of which SQS and SNS take only a part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from tests.faults.dying import dying
from tests.faults.modes import PARTIAL
from tests.support.fleet import Fleet
from tests.support.moto.cloud import MotoCloud
from tidegate import app as composition
from tidegate.aws.sqs import Message, SqsQueue
from tidegate.notifications.notice import Notice, notice_id_for
from tidegate.notifications.outbox import notice_write
from tidegate.notifications.topic import Topic


@pytest.fixture
def cloud() -> Iterator[MotoCloud]:
    with MotoCloud() as made:
        yield made


def test_messages_that_sqs_did_not_take_are_sent_again(cloud: MotoCloud) -> None:
    with dying(cloud, at=1, mode=PARTIAL):
        queue = SqsQueue(composition.app().sqs, cloud.names.queues["TargetsQueue"], lambda _: None)
        queue.send(*(Message({"number": number}) for number in range(5)))

        assert queue.size() == 5


def test_notices_that_the_topic_did_not_take_stay_in_the_outbox(cloud: MotoCloud) -> None:
    project = cloud.project()
    notices = [
        Notice(notice_id_for("t", str(n)), project.id, "t", str(n), "completed", {}, None, cloud.clock())
        for n in range(4)
    ]
    cloud.app.table.transact([notice_write(notice) for notice in notices])
    with dying(cloud, at=1, mode=PARTIAL):
        composition.app().notifications.notifier.publish(notices)

    left = cloud.client("dynamodb").scan(TableName=cloud.names.refs["Table"])["Items"]
    assert sum("#NOTICE#" in item["pk"]["S"] for item in left) == 2


def test_callbacks_that_the_topic_did_not_take_are_told_again(
    cloud: MotoCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(cloud)
    fleet.to_window_start()
    job_id = fleet.submit_many(["a-1", "a-2"], callback="http://127.0.0.1:9/told")["job_id"]
    fleet.run_until_dispatched(job_id)
    fleet.deliver_all(job_id)
    fleet.step("poll_transfer", job_id)
    told: set[str] = set()

    def publish(_: Topic, notices: Sequence[Notice]) -> list[Notice]:
        """The first time, of several only the first."""
        taken = list(notices if told else notices[:1])
        told.update(notice.record_id for notice in taken if notice.callback)
        return taken

    monkeypatch.setattr(Topic, "publish", publish)

    assert fleet.step("finish_job", job_id)["state"] == "more"
    assert len(told) == 1
    assert fleet.step("finish_job", job_id)["state"] == "ended"
    assert len(told) == 2
