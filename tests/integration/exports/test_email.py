"""Mail that a file is there."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.exports.paged_source import numbered
from tests.support.exports.running import ExportWorld


@pytest.fixture
def mailing(world: ExportWorld, monkeypatch: pytest.MonkeyPatch) -> tuple[ExportWorld, list[dict[str, Any]]]:
    world.source.rows, sent = numbered(150), list[dict[str, Any]]()
    ses = world.cloud.client("sesv2")
    ses.create_email_identity(EmailIdentity="reports@acme.example")
    mail = world.cloud.app.exports.mail
    mail.sender, mail.recipients = "reports@acme.example", "*@acme.example"

    def noted(**options: Any) -> Any:
        answer = ses.send_email(**options)
        sent.append(options)
        return answer

    class Client:
        send_email = staticmethod(noted)

    monkeypatch.setattr(mail, "_ses", Client)
    return world, sent


def test_mail_has_a_link_to_the_file(mailing: tuple[ExportWorld, list[dict[str, Any]]]) -> None:
    world, sent = mailing
    shown, data = world.export(step=100, file_name="订单", email=["Ann@acme.example", "bob@acme.example"])
    assert [(each["to"], each["state"]) for each in shown["emails"]] == [
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
    refused = world.order(email=["ann@acme.example", address])
    assert refused.status == 422
    assert refused.json()["errors"][0]["loc"] == ["body", "email", 1]
    assert sent == []


def test_without_the_parameters_nobody_is_written_to(world: ExportWorld) -> None:
    assert world.order(email=["ann@acme.example"]).status == 422


def test_recipient_taken_out_meanwhile_gets_no_mail(mailing: tuple[ExportWorld, list[dict[str, Any]]]) -> None:
    world, sent = mailing
    task_id = world.submit(step=100, email=["ann@acme.example"])
    world.cloud.app.exports.mail.recipients = "-"
    assert world.run(task_id)["emails"][0]["state"] == "failed"
    assert sent == []
