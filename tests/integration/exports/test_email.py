"""Mails about finished files."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError

from tests.support.exports.killing import Killed, killed_at
from tests.support.exports.paged_source import numbered
from tests.support.exports.running import ExportWorld
from tidegate.exports import steps


@pytest.fixture
def mailing(world: ExportWorld, monkeypatch: pytest.MonkeyPatch) -> tuple[ExportWorld, list[dict[str, Any]]]:
    world.source.rows, sent = numbered(150), list[dict[str, Any]]()
    ses = world.cloud.client("sesv2")
    ses.create_email_identity(EmailIdentity="reports@acme.example")
    mail = world.cloud.app.exports.mail
    mail.sender, mail.recipients = "reports@acme.example", "*@acme.example"

    def send_and_record(**options: Any) -> Any:
        answer = ses.send_email(**options)
        sent.append(options)
        return answer

    class Client:
        send_email = staticmethod(send_and_record)

    monkeypatch.setattr(mail, "_ses", Client)
    return world, sent


def test_mail_has_a_link_to_the_file(mailing: tuple[ExportWorld, list[dict[str, Any]]]) -> None:
    world, sent = mailing
    shown, data = world.export(step=100, file_name="订单", email=["Ann@acme.example", "bob@acme.example"])
    assert [(mail["to"], mail["state"]) for mail in shown["emails"]] == [
        ("Ann@acme.example", "sent"),
        ("bob@acme.example", "sent"),
    ]
    first = sent[0]
    assert first["Destination"] == {"ToAddresses": ["Ann@acme.example"]}
    assert first["Content"]["Simple"]["Subject"]["Data"] == "订单.csv is ready"
    text = first["Content"]["Simple"]["Body"]["Text"]["Data"]
    assert f"150 rows, {len(data):,} bytes" in text
    assert f"/#/exports/{shown['task_id']}" in text
    assert "X-Amz-Expires=3600" in text


def test_mail_that_fails_does_not_fail_the_export(mailing: tuple[ExportWorld, list[dict[str, Any]]]) -> None:
    world, _ = mailing
    world.cloud.app.exports.mail.sender = "unknown@acme.example"
    shown, _ = world.export(step=100, email=["ann@acme.example"])
    assert (shown["status"], shown["emails"][0]["state"]) == ("completed", "failed")
    assert shown["emails"][0]["error"]


@pytest.mark.parametrize(
    "address", ["ann@elsewhere.example", "ann@acme.example@elsewhere.example", "no address", "a\r\nBcc: x@acme.example"]
)
def test_recipient_that_the_operator_does_not_allow_is_422(
    mailing: tuple[ExportWorld, list[dict[str, Any]]], address: str
) -> None:
    world, sent = mailing
    refused = world.post(email=["ann@acme.example", address])
    assert refused.status == 422
    assert refused.json()["errors"][0]["loc"] == ["body", "email", 1]
    assert sent == []


def test_without_the_parameters_no_mail_is_allowed(world: ExportWorld) -> None:
    assert world.post(email=["ann@acme.example"]).status == 422


def test_withdrawn_recipient_gets_no_mail(mailing: tuple[ExportWorld, list[dict[str, Any]]]) -> None:
    world, sent = mailing
    task_id = world.submit(step=100, email=["ann@acme.example"])
    world.cloud.app.exports.mail.recipients = "-"
    assert world.run(task_id)["emails"][0]["state"] == "failed"
    assert sent == []


def rendered(world: ExportWorld, addresses: list[str]) -> dict[str, Any]:
    """Runs an export up to its publish step. Returns that step's input."""
    state = world.admit(world.submit(step=100, email=addresses))
    state = world.cloud.invoke("pull_pages", state)
    return dict(world.cloud.invoke("render_export", state))


def test_publish_that_runs_twice_mails_once(mailing: tuple[ExportWorld, list[dict[str, Any]]]) -> None:
    world, sent = mailing
    state, exports = rendered(world, ["ann@acme.example"]), world.cloud.app.exports
    end, steps.end = steps.end, lambda *_, **__: "running"
    steps.publish(exports, state)
    steps.end = end
    steps.publish(exports, state)
    assert len(sent) == 1
    assert world.shown(state["request_id"])["emails"][0]["state"] == "sent"


def test_retried_export_mails_once(mailing: tuple[ExportWorld, list[dict[str, Any]]]) -> None:
    world, sent = mailing
    state, exports = rendered(world, ["ann@acme.example"]), world.cloud.app.exports
    end, steps.end = steps.end, lambda *_, **__: "running"
    steps.publish(exports, state)
    steps.end = end
    failure = {"Error": "Lambda.Unknown", "Cause": "the sandbox is gone"}
    assert world.cloud.invoke("publish_export", {**state, "failure": failure})["status"] == "pending"
    shown = world.attempt(state["request_id"])
    assert (shown["status"], shown["attempts"], shown["emails"][0]["state"]) == ("completed", 2, "sent")
    assert len(sent) == 1


def test_crash_at_any_call_of_publish_mails_at_most_once(
    mailing: tuple[ExportWorld, list[dict[str, Any]]],
) -> None:
    world, sent = mailing
    addresses, states = ["ann@acme.example", "bob@acme.example"], set[str]()
    for call in range(1, 60):
        sent.clear()
        state, exports = rendered(world, addresses), world.cloud.app.exports
        with killed_at(call) as died, suppress(Killed):
            steps.publish(exports, state)
        steps.publish(exports, state)
        shown = world.shown(state["request_id"])
        assert shown["status"] == "completed", call
        for mail in shown["emails"]:
            mails = sum(call_options["Destination"]["ToAddresses"] == [mail["to"]] for call_options in sent)
            assert mails <= 1, call
            assert mails == 1 or mail["state"] == "unknown", call
            states.add(mail["state"])
        if not died():
            assert states == {"sent", "unknown"}
            return
    raise AssertionError("every run was killed: the loop needs a higher limit")


@pytest.mark.parametrize(
    ("error", "state", "calls"),
    [
        (ReadTimeoutError(endpoint_url="https://ses"), "unknown", 1),
        (EndpointConnectionError(endpoint_url="https://ses"), "failed", 3),
        (ClientError({"Error": {"Code": "TooManyRequestsException"}}, "SendEmail"), "failed", 3),
        (ClientError({"Error": {"Code": "MessageRejected"}}, "SendEmail"), "failed", 1),
        (
            ClientError({"Error": {"Code": "X"}, "ResponseMetadata": {"HTTPStatusCode": 500}}, "SendEmail"),  # type: ignore[typeddict-item]
            "unknown",
            1,
        ),
    ],
)
def test_mail_is_retried_only_if_ses_did_not_accept_it(
    mailing: tuple[ExportWorld, list[dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    state: str,
    calls: int,
) -> None:
    world, _ = mailing
    mail, tries = world.cloud.app.exports.mail, list[Any]()

    class Client:
        @staticmethod
        def send_email(**options: Any) -> Any:
            tries.append(options)
            raise error

    monkeypatch.setattr(mail, "_ses", Client)
    monkeypatch.setattr(mail, "_sleep", lambda _: None)
    shown, _ = world.export(step=100, email=["ann@acme.example"])
    assert (shown["emails"][0]["state"], len(tries)) == (state, calls)
