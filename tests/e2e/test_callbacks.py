"""Callbacks and SNS on the deployed stack: permissions are enforced, and all traffic is real HTTP."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from standardwebhooks import Webhook

from tests.integration.notifications.receiving import Receiver, receiver
from tests.support.deployed import Deployed, DeployedProject, until
from tests.support.product import product_on
from tests.support.topic_subscriber import topic_subscriber
from tidegate.notifications.notices import Notice, notice_id_for, notice_write

pytestmark = pytest.mark.e2e


def export(project: DeployedProject, callback: str) -> str:
    body = {"name": "people", "source_data": [{"name": "Ada"}, {"name": "Grace"}], "callback": callback}
    answer = project.http("POST", "/v1/task", json=body)
    assert answer.status == 202, answer.body
    return str(answer.json()["task_id"])


def callback_of(project: DeployedProject, record_id: str) -> dict[str, Any]:
    items = project.http("GET", "/v1/callbacks", query={"task_id": record_id}).json()["items"]
    return items[0] if items else {"callback_state": "none"}


def notice(
    project: DeployedProject, record_id: str, callback: str | None = None, status: str = "completed", age: float = 0
) -> Notice:
    kind = "task.completed" if status == "completed" else "task.failed"
    data = {"task_id": record_id, "status": status}
    created_at = datetime.now(UTC) - timedelta(seconds=age)
    return Notice(notice_id_for(kind, record_id), project.id, kind, record_id, status, data, callback, created_at)


def wait_for_calls(server: Receiver, count: int, seconds: float = 40) -> None:
    until(lambda: len(server.seen), lambda count_seen: count_seen >= count, seconds)


def test_receiver_that_fails_is_called_again(project: DeployedProject) -> None:
    with receiver(500, 200) as at:
        task_id = export(project, at.url)
        wait_for_calls(at, 1)
        assert project.http("GET", "/v1/task", query={"task_id": task_id}).json()["status"] == "completed"
        wait_for_calls(at, 2)
        shown = until(
            lambda: callback_of(project, task_id), lambda callback: callback["callback_state"] == "delivered", 10
        )

        assert len(set(at.ids)) == 1
        for headers, body in at.seen:
            webhook = Webhook(project.callback_secret).verify(body, headers)
            assert (webhook["type"], webhook["data"]["task_id"]) == ("task.completed", task_id)
    assert [attempt["status"] for attempt in shown["attempts"]] == [500, 200]
    assert project.http("GET", "/v1/task", query={"task_id": task_id}).json()["status"] == "completed"


@pytest.mark.slow
def test_killed_publisher_does_not_lose_the_callback(deployed: Deployed, project: DeployedProject) -> None:
    with receiver() as at:
        # Compensation begins 30 s after the end of a record, so that it does not compete with its publisher.
        unpublished = notice(project, "req-killed", at.url, age=30)
        product_on(deployed).table.transact([notice_write(unpublished)])

        def trigger_compensation() -> int:
            triggered = deployed.http("POST", "/v1/compensation/trigger", key=deployed.admin_key)
            assert triggered.status == 200, triggered.body
            return len(at.seen)

        until(trigger_compensation, lambda seen: seen >= 1, seconds=90, every=1)
        assert at.ids == [unpublished.message_id]


def test_callback_url_at_a_private_address_is_refused_at_submission(deployed: Deployed) -> None:
    public = deployed.project(allow_private_urls=False)
    body = {"name": "people", "source_data": [{"a": 1}], "callback": "http://127.0.0.1/hook"}

    refused = public.http("POST", "/v1/task", json=body)

    assert (refused.status, refused.json()["code"]) == (422, "url_not_allowed")


def test_dead_letter_of_a_410_can_be_redelivered(deployed: Deployed, project: DeployedProject) -> None:
    with receiver(410, 200) as at:
        product_on(deployed).notifications.notifier.publish([notice(project, "req-gone", at.url)])
        dead = until(
            lambda: callback_of(project, "req-gone"), lambda callback: callback["callback_state"] == "dead", 30
        )
        assert dead_letter_about(deployed, dead["delivery_id"])

        again = project.http("POST", f"/v1/callbacks/{dead['delivery_id']}/redeliver")
        assert again.status == 202, again.body
        until(lambda: callback_of(project, "req-gone"), lambda callback: callback["callback_state"] == "delivered", 30)
        assert at.ids == [dead["delivery_id"]] * 2


def dead_letter_about(deployed: Deployed, delivery_id: str) -> bool:
    sqs = deployed.client("sqs")
    (url,) = [url for url in sqs.list_queues()["QueueUrls"] if "CallbacksDeadLetters" in url]

    def read() -> str:
        return str(sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1).get("Messages", []))

    return delivery_id in until(read, lambda text: delivery_id in text, 20)


def test_subscriber_to_status_failed_sees_only_those(deployed: Deployed, project: DeployedProject) -> None:
    with topic_subscriber(deployed, status=["failed"], project_id=[project.id]) as subscriber:
        notices = [notice(project, f"req-{n}", status="failed" if n % 2 else "completed") for n in range(6)]

        product_on(deployed).notifications.notifier.publish(notices)

        def received() -> set[str]:
            return {notification["record_id"] for notification in subscriber.received()}

        until(received, lambda seen: len(seen) >= 3, 20)
        time.sleep(1)
        assert received() == {"req-1", "req-3", "req-5"}
