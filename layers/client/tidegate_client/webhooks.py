"""For receivers of callbacks: checks the signature and the time stamp, as Standard Webhooks defines them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Mapping

from tidegate_client.errors import TidegateError

TOLERANCE_SECONDS = 300
SECRET_PREFIX = "whsec_"  # noqa: S105


class NotVerified(TidegateError):
    """The callback is not from Tidegate, was changed, or is too old. Do not act on it."""


def signature_of(secret: str, message_id: str, timestamp: str, body: bytes) -> str:
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except ValueError as error:
        raise NotVerified("the secret is not base64: give the whole callback secret of the project, whsec_…") from error
    if not key:
        # Anybody could sign with an empty key.
        raise NotVerified("the secret is empty: give the callback secret of the project, whsec_…")
    signed = f"{message_id}.{timestamp}.".encode() + body
    return base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def verify(secret: str, headers: Mapping[str, str], body: bytes, *, now: float | None = None) -> str:
    """Returns the message id, by which a receiver recognises repeated deliveries. Raises `NotVerified`.

    `body` is the body as it was received, before any parsing."""
    given = {name.lower(): value for name, value in headers.items()}
    try:
        message_id, timestamp = given["webhook-id"], given["webhook-timestamp"]
        signatures = given["webhook-signature"].split()
        sent_at = int(timestamp)
    except KeyError as error:
        raise NotVerified(f"the header {error.args[0]} is missing") from error
    except ValueError as error:
        raise NotVerified(f"webhook-timestamp {timestamp[:20]!r} is not a number") from error
    if abs(int(time.time() if now is None else now) - sent_at) > TOLERANCE_SECONDS:
        raise NotVerified(
            f"webhook-timestamp {timestamp[:20]} is more than five minutes from this machine's clock: check the clock"
        )
    expected = signature_of(secret, message_id, timestamp, body)
    # There are two signatures while a secret is being rotated; one that matches is enough.
    candidates = [value for version, _, value in (one.partition(",") for one in signatures) if version == "v1"]
    if not any(hmac.compare_digest(expected.encode(), candidate.encode()) for candidate in candidates):
        raise NotVerified(
            "no signature fits the secret and the body: is it the project's secret, and the body as it was received?"
        )
    return message_id
