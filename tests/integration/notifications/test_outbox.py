"""A notice of a record's end may be late, but is never lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.integration.notifications.receiving import compensate, overdue
from tests.support.moto.cloud import MotoCloud, Project
from tidegate.errors import Busy
from tidegate.notifications.notices import Notice, notice_id_for, notice_write


def notice_about(project: Project, record_id: str = "req-1", **given: Any) -> Notice:
    kind = given.pop("kind", "task.completed")
    fields = {"status": "completed", "data": {"task_id": record_id, "rate": 0.1}, "callback": "http://127.0.0.1/hook"}
    made = project.cloud.clock()
    return Notice(notice_id_for(kind, record_id), project.id, kind, record_id, created_at=made, **(fields | given))


def listener(cloud: MotoCloud, policy: dict[str, Any] | None = None) -> str:
    sqs, name = cloud.client("sqs"), f"listener-{len(json.dumps(policy))}"
    url: str = sqs.create_queue(QueueName=name)["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    attributes = {"RawMessageDelivery": "true"} | ({"FilterPolicy": json.dumps(policy)} if policy else {})
    topic = cloud.names.refs["NotificationsTopic"]
    cloud.client("sns").subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes=attributes)
    return url


def heard(cloud: MotoCloud, url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while got := cloud.client("sqs").receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
        found += [json.loads(message["Body"]) for message in got]
    return found


def test_published_notice_leaves_the_outbox(cloud: MotoCloud, project: Project) -> None:
    url, notice = listener(cloud), notice_about(project)
    cloud.app.table.transact([notice_write(notice)])

    cloud.app.notifications.notifier.publish([notice])

    (message,) = heard(cloud, url)
    assert (message["type"], message["record_id"], message["data"]) == ("task.completed", "req-1", dict(notice.data))
    assert message["message_id"] == notice.message_id
    assert overdue(cloud) == []


def test_compensation_publishes_for_a_killed_publisher(cloud: MotoCloud, project: Project) -> None:
    url, notice = listener(cloud), notice_about(project)
    cloud.app.table.transact([notice_write(notice)])

    compensate(cloud, 31)

    assert [message["message_id"] for message in heard(cloud, url)] == [notice.message_id]
    assert overdue(cloud) == []


def test_unreachable_topic_fails_no_request_and_loses_no_notice(
    cloud: MotoCloud, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, notice = listener(cloud), notice_about(project)
    cloud.app.table.transact([notice_write(notice)])

    with monkeypatch.context() as patch:
        patch.setattr(cloud.app.notifications.topic, "publish", lambda _: (_ for _ in ()).throw(Busy("down")))
        cloud.app.notifications.notifier.publish([notice])
    compensate(cloud, 31)

    assert len(heard(cloud, url)) == 1


def test_many_and_large_notices_are_sent_in_batches_that_sns_takes(cloud: MotoCloud, project: Project) -> None:
    url = listener(cloud)
    notices = [notice_about(project, f"req-{n}", data={"text": "é" * 40_000}) for n in range(11)]
    notices.append(notice_about(project, "req-11", data={"request_id": "req-11", "text": "é" * 500_000}))

    cloud.app.table.transact([notice_write(notices[-1])])
    cloud.app.notifications.notifier.publish(notices)

    came = {message["record_id"]: message["data"] for message in heard(cloud, url)}
    assert set(came) == {f"req-{n}" for n in range(12)}
    assert came["req-11"] == {"request_id": "req-11", "status": "completed", "truncated": True}


def test_subscriber_to_status_failed_sees_only_those(cloud: MotoCloud, project: Project) -> None:
    url = listener(cloud, {"status": ["failed"]})

    cloud.app.notifications.notifier.publish(
        [
            notice_about(project, "req-1"),
            notice_about(project, "req-2", kind="task.failed", status="failed"),
            notice_about(project, "AsyncDownloadJob:1:1:a:7", kind="job.finished", status="Failed"),
        ]
    )

    assert {message["record_id"] for message in heard(cloud, url)} == {"req-2", "AsyncDownloadJob:1:1:a:7"}


def test_notice_id_is_stable_and_differs_by_project(cloud: MotoCloud) -> None:
    one, other = cloud.project(), cloud.project()

    assert notice_about(one).message_id == notice_about(one).message_id
    assert notice_about(one).message_id != notice_about(other).message_id
    assert notice_id_for("a", "b", "1") != notice_id_for("a", "b", "2")


def test_progress_costs_one_read_when_nobody_watches(
    cloud: MotoCloud, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    client = cloud.app.dynamodb
    client.meta.events.register("before-call.dynamodb", lambda model, **_: calls.append(model.name))
    url = listener(cloud)

    for _ in range(10):
        cloud.app.notifications.topic.publish_progress(
            project.id, "req-1", {"status": "running", "progress": {"rows": 1}}
        )

    assert calls == ["GetItem"]
    assert heard(cloud, url) == []
