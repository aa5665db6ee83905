"""Which URLs may be called back, and with which secrets the calls are signed."""

from __future__ import annotations

import pytest

from tests.integration.notifications.receiving import callbacks, compensate, receiver, send_notice, verified
from tests.support.moto.cloud import MotoCloud, Project
from tidegate.errors import UrlNotAllowed

PRIVATE = [
    "http://10.0.0.1/x",
    "http://127.0.0.1/x",
    "http://169.254.169.254/x",
    "http://[::1]/x",
    "ftp://a.example/x",
    "x",
]


def test_callback_url_at_a_private_address_is_refused_at_submission(cloud: MotoCloud) -> None:
    public = cloud.project(allow_private_urls=False)

    for url in PRIVATE:
        with pytest.raises(UrlNotAllowed) as refused:
            cloud.app.notifications.callbacks.check(public.id, {"callback": url})
        assert refused.value.status == 422
        assert refused.value.errors[0]["loc"] == ["body", "callback"]


def test_private_callbacks_reach_private_addresses_but_not_metadata(cloud: MotoCloud, project: Project) -> None:
    cloud.app.notifications.callbacks.check(project.id, {"callback": "http://127.0.0.1:8080/hook"})
    cloud.app.notifications.callbacks.check(project.id, {"callback": None})
    with pytest.raises(UrlNotAllowed):
        cloud.app.notifications.callbacks.check(project.id, {"callback": "http://169.254.169.254/latest"})


def test_private_address_is_refused_at_delivery_too(cloud: MotoCloud) -> None:
    public = cloud.project(allow_private_urls=False)
    with receiver() as at:
        send_notice(public, at.url)
        cloud.deliver("CallbacksQueue")

        assert at.seen == []


def test_two_secrets_are_valid_during_a_rotation_and_both_sign(cloud: MotoCloud, project: Project) -> None:
    path = f"/v1/projects/{project.id}/callback-secrets"
    old = cloud.callback_secret(project.id)
    rotated = cloud.http("POST", path, key=cloud.admin_key)
    assert rotated.status == 201
    new = rotated.json()["callback_secret"]

    with receiver() as at:
        send_notice(project, at.url, "req-1")
        cloud.deliver("CallbacksQueue")
        ((headers, body),) = at.seen
        # One of each secret, shared and of the receiver.
        assert len(headers["webhook-signature"].split()) == 4
        assert verified(old, headers, body) == verified(new, headers, body)

        assert cloud.http("POST", path, key=cloud.admin_key).json()["code"] == "wrong_state"
        assert cloud.http("DELETE", f"{path}/previous", key=cloud.admin_key).status == 204
        send_notice(project, at.url, "req-2")
        cloud.deliver("CallbacksQueue")
        headers, body = at.seen[1]
        assert len(headers["webhook-signature"].split()) == 2
        verified(new, headers, body)
    assert cloud.http("DELETE", f"{path}/previous", key=cloud.admin_key).status == 409


def test_rotation_needs_the_admin_scope(cloud: MotoCloud, project: Project) -> None:
    path = f"/v1/projects/{project.id}/callback-secrets"

    assert cloud.http("POST", path, key=project.key).status == 403
    assert cloud.http("POST", "/v1/projects/prj-none/callback-secrets", key=cloud.admin_key).status == 404


def test_attempt_of_a_killed_function_is_repeated(
    cloud: MotoCloud, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiver() as at:
        with monkeypatch.context() as killed:
            killed.setattr(
                cloud.app.notifications.deliverer._store, "settle", lambda *_: (_ for _ in ()).throw(SystemExit)
            )
            send_notice(project, at.url)
            with pytest.raises(SystemExit):
                cloud.deliver("CallbacksQueue")
        compensate(cloud, 60)

        assert len(set(at.ids)) == 1
        assert len(at.ids) == 2


def test_callback_to_a_paused_host_is_dead_a_day_after_its_attempt(cloud: MotoCloud, project: Project) -> None:
    with receiver(503) as at:
        for number in range(4):
            send_notice(project, at.url, f"req-{number}")
            cloud.deliver("CallbacksQueue")
        assert callbacks(project, task_id="req-3")[0]["attempts"] == []
        cloud.clock.advance(24 * 3600)
        cloud.app.notifications.deliverer._circuit_breaker._store.pause(
            project.id, at.url.split("/")[2], cloud.clock().timestamp() + 60
        )
        cloud.deliver("CallbacksQueue")

        (tried,), (never_tried,) = (callbacks(project, task_id=name) for name in ("req-0", "req-3"))
        assert tried["callback_state"] == "dead"
        assert tried["attempts"][-1]["error"] == "host_in_trouble"
        assert (never_tried["callback_state"], never_tried["attempts"]) == ("pending", [])
        assert len(at.seen) == 3
