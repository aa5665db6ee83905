"""Verifies requests that Tidegate sends to your server: signature and time stamp, as Standard Webhooks defines them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from tidegate_client.errors import TidegateError

TOLERANCE_SECONDS = 300
SECRET_PREFIX = "whsec_"  # noqa: S105


class NotVerified(TidegateError):
    """The request is not from Tidegate, was changed, is for another server, or is too old. Do not act on it."""


def signature_of(secret: str, message_id: str, timestamp: str, body: bytes) -> str:
    """Returns the base64 signature of a message, as Standard Webhooks defines it."""
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except ValueError as error:
        raise NotVerified("the secret is not base64: give the whole callback secret, whsec_…") from error
    if not key:
        # Anybody could sign with an empty key.
        raise NotVerified("the secret is empty: give the callback secret, whsec_…")
    signed = f"{message_id}.{timestamp}.".encode() + body
    return base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def verify(
    secret: str, headers: Mapping[str, str], body: bytes, *, url: str | None = None, now: float | None = None
) -> str:
    """Checks a request's signature and age. Returns the message id, which is the same for repeated deliveries.

    Raises `NotVerified` if the request is not from Tidegate. `secret`: the secret of your origin (`tidegate webhook
    secret --origin https://…`), or the project's shared secret. `body`: the bytes as received, before any parsing.
    `url`: the public URL of your server, with the path and the query as received; needed only for requests without a
    body."""
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
    # The shared secret signs the empty body. A secret of an origin never does, so trying both weakens neither.
    contents = [body] if body or url is None else [b"GET " + signed_url(url).encode(), body]
    expected = [signature_of(secret, message_id, timestamp, content).encode() for content in contents]
    # There can be four signatures: by the origin's and by the shared secret, each old and new during a rotation.
    candidates = [value for version, _, value in (one.partition(",") for one in signatures) if version == "v1"]
    if not any(hmac.compare_digest(one, candidate.encode()) for candidate in candidates for one in expected):
        raise NotVerified(
            "no signature fits the secret and the body: is it the secret of this origin, or the project's, and are "
            "the body and the URL as they were received?"
        )
    return message_id


def signed_url(url: str) -> str:
    """Returns the URL in the form that is signed: lower-case scheme and host, no default port, no fragment."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise NotVerified(f"{url[:200]!r} is not the URL of the request: {error}") from error
    host = f"[{host}]" if ":" in host else host
    own_port = "" if port in (None, {"https": 443, "http": 80}.get(parts.scheme)) else f":{port}"
    # Not rebuilt from its parsed parts: that would drop an empty query, which is part of the URL.
    target = url.partition("#")[0].partition("//")[2][len(parts.netloc) :]
    return f"{parts.scheme}://{host}{own_port}{'' if target.startswith('/') else '/'}{target}"
