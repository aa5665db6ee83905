"""Callbacks over real HTTP: retried, given up after a day, without effect on the work itself."""

from __future__ import annotations

import pytest
from standardwebhooks import WebhookVerificationError

from tests.integration.notifications.receiving import callbacks, compensate, pass_time, receiver, send_notice, verified
from tests.support.http_servers import Handler
from tests.support.moto.cloud import MotoCloud, Project
from tidegate.notifications.notices import notice_write


def secret_of(project: Project) -> str:
    return project.cloud.callback_secret(project.id)


def dead_letters(cloud: MotoCloud) -> int:
    url = cloud.names.queues["CallbacksDeadLetters"]
    return len(cloud.client("sqs").receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", []))


def test_failing_receiver_gets_one_more_attempt_after_each_failure(cloud: MotoCloud, project: Project) -> None:
    with receiver(500, 500, "hang", 200) as at:
        notice = send_notice(project, at.url, rows=3)
        cloud.deliver("CallbacksQueue")
        for delay in (7, 40, 150):
            pass_time(cloud, delay)
        pass_time(cloud, 4000)

        assert at.ids == [notice.message_id] * 4
        bodies = [verified(secret_of(project), headers, body) for headers, body in at.seen]
        assert {body["type"] for body in bodies} == {"task.completed"}
        assert all(body["data"] == {"task_id": "req-1", "status": "completed", "rows": 3} for body in bodies)
    (shown,) = callbacks(project, task_id="req-1")
    assert shown["callback_state"] == "delivered"
    assert [attempt.get("status") for attempt in shown["attempts"]] == [500, 500, None, 200]
    assert shown["attempts"][2]["error"] == "fetch_timeout"


def test_publisher_killed_between_ending_and_publishing_still_calls_back(cloud: MotoCloud, project: Project) -> None:
    with receiver() as at:
        notice = send_notice(project, at.url, "req-0")
        cloud.app.table.write(notice_write(notice))
        cloud.deliver("CallbacksQueue")
        assert len(at.seen) == 1

        compensate(cloud, 31)

        assert at.ids == [notice.message_id], "a notice that was published twice is delivered once"


def test_unpublished_end_is_delivered_after_the_publisher_died(
    cloud: MotoCloud, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiver() as at:
        with monkeypatch.context() as killed:
            killed.setattr(cloud.app.notifications.notifier, "publish", lambda _: None)
            notice = send_notice(project, at.url)
        compensate(cloud, 31)

        assert at.ids == [notice.message_id]


def test_tampered_body_or_a_stale_timestamp_fails_verification(cloud: MotoCloud, project: Project) -> None:
    with receiver() as at:
        send_notice(project, at.url)
        cloud.deliver("CallbacksQueue")
        ((headers, body),) = at.seen

    verified(secret_of(project), headers, body)
    with pytest.raises(WebhookVerificationError):
        verified(secret_of(project), headers, body.replace("completed", "failed"))
    with pytest.raises(WebhookVerificationError, match="too old"):
        verified(secret_of(project), headers, body, late=600)


def test_every_duplicate_of_a_message_is_delivered_once(cloud: MotoCloud, project: Project) -> None:
    with receiver() as at:
        notice = send_notice(project, at.url)
        cloud.app.notifications.notifier.publish([notice, notice])
        cloud.deliver("CallbacksQueue")

        assert len(at.seen) == 1


def test_duplicate_message_during_the_back_off_calls_nobody(cloud: MotoCloud, project: Project) -> None:
    with receiver(500, 200) as at:
        notice = send_notice(project, at.url)
        cloud.deliver("CallbacksQueue")
        cloud.app.notifications.notifier.publish([notice, notice])
        cloud.deliver("CallbacksQueue")
        assert len(at.seen) == 1, "before its time"

        pass_time(cloud, 600)
        assert len(at.seen) == 2


def test_gone_stops_at_once_and_is_dead(cloud: MotoCloud, project: Project) -> None:
    with receiver(410) as at:
        send_notice(project, at.url)
        cloud.deliver("CallbacksQueue")
        pass_time(cloud, 7200)

        assert len(at.seen) == 1
    (shown,) = callbacks(project, state="dead")
    assert shown["callback_state"] == "dead"
    assert dead_letters(cloud) == 1


def test_retry_after_is_honoured(cloud: MotoCloud, project: Project) -> None:
    def busy(request: Handler) -> None:
        request.answer(429, Retry_After="300")

    with receiver(busy, 200) as at:
        send_notice(project, at.url)
        cloud.deliver("CallbacksQueue")
        pass_time(cloud, 290)
        assert len(at.seen) == 1
        pass_time(cloud, 15)
        assert len(at.seen) == 2


def test_callback_is_given_up_after_a_day_with_a_dead_letter(cloud: MotoCloud, project: Project) -> None:
    with receiver(404) as at:
        send_notice(project, at.url)
        cloud.deliver("CallbacksQueue")
        pass_time(cloud, 28 * 3600, step=3700)

        assert 12 <= len(at.seen) <= 30
    (shown,) = callbacks(project)
    assert shown["callback_state"] == "dead"
    assert len(shown["attempts"]) == len(at.seen)
    assert dead_letters(cloud) == 1


def test_redirect_is_not_followed(cloud: MotoCloud, project: Project) -> None:
    def away(request: Handler) -> None:
        request.answer(307, Location="/elsewhere")

    with receiver(away) as at:
        send_notice(project, at.url)
        cloud.deliver("CallbacksQueue")

        assert len(at.seen) == 1
    (shown,) = callbacks(project)
    assert shown["attempts"][0]["error"] == "redirect_refused"


@pytest.mark.parametrize("first", [410, 500], ids=["dead", "in back-off"])
def test_redeliver_sends_it_once_more_under_the_same_id(cloud: MotoCloud, project: Project, first: int) -> None:
    with receiver(first, 200) as at:
        notice = send_notice(project, at.url)
        cloud.deliver("CallbacksQueue")
        answer = cloud.http("POST", f"/v1/callbacks/{notice.message_id}/redeliver", key=project.key)
        assert (answer.status, answer.json()["callback_state"]) == (202, "pending")
        cloud.deliver("CallbacksQueue")
        assert at.ids == [notice.message_id] * 2

        pass_time(cloud, 7200)
        assert len(at.ids) == 2, "the message of the back-off finds it delivered"
    shown = cloud.http("GET", f"/v1/callbacks/{notice.message_id}", key=project.key).json()
    assert shown["callback_state"] == "delivered"
    assert len(shown["attempts"]) == 2
    assert shown["body"].startswith('{"type":"task.completed"')


def test_another_projects_callback_is_404(cloud: MotoCloud, project: Project) -> None:
    with receiver() as at:
        notice = send_notice(project, at.url)
        cloud.deliver("CallbacksQueue")
    other = cloud.project()

    assert cloud.http("GET", f"/v1/callbacks/{notice.message_id}", key=other.key).status == 404
    assert cloud.http("POST", f"/v1/callbacks/{notice.message_id}/redeliver", key=other.key).status == 404
    assert callbacks(other) == []
