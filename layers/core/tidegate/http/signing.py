"""Standard Webhooks signatures of callbacks, batch items and requests for pages (with an empty body)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache

from standardwebhooks import Webhook


@lru_cache(maxsize=256)
def _signer(secret: str) -> Webhook:
    return Webhook(secret)


def signed_headers(secrets: Sequence[str], message_id: str, now: datetime, body: bytes = b"") -> dict[str, str]:
    """The headers, with one signature for each secret: during a rotation a receiver may have the old or the new one."""
    text = body.decode()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(_signer(secret).sign(message_id, now, text) for secret in secrets),
    }
