from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError

from tidegate.projects.secrets import signed_headers

OLD = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NEW = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
BODY = '{"type":"task.completed","name":"报表"}'.encode()


def test_library_verifies_what_was_signed() -> None:
    headers = signed_headers([OLD], "msg_1", datetime.now(UTC), BODY)
    assert Webhook(OLD).verify(BODY, headers)["type"] == "task.completed"


def test_during_rotation_either_secret_verifies() -> None:
    headers = signed_headers([OLD, NEW], "msg_1", datetime.now(UTC), BODY)
    assert len(headers["webhook-signature"].split()) == 2
    for secret in (OLD, NEW):
        Webhook(secret).verify(BODY, headers)


def test_get_is_signed_with_an_empty_body() -> None:
    headers = signed_headers([OLD], "msg_1", datetime.now(UTC))
    Webhook(OLD).verify(b"", headers, json_parse=False)


def test_tampered_body_or_a_stale_timestamp_fails() -> None:
    headers = signed_headers([OLD], "msg_1", datetime.now(UTC), BODY)
    with pytest.raises(WebhookVerificationError):
        Webhook(OLD).verify(BODY.replace(b"completed", b"failed"), headers)
    stale = signed_headers([OLD], "msg_1", datetime.now(UTC) - timedelta(minutes=6), BODY)
    with pytest.raises(WebhookVerificationError):
        Webhook(OLD).verify(BODY, stale)
