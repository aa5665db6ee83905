"""Standard Webhooks signatures of callbacks, batch items and requests for pages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache

from standardwebhooks import Webhook


@lru_cache(maxsize=1024)
def _signer(secret: str) -> Webhook:
    return Webhook(secret)


def signed_headers(
    secrets: Sequence[str],
    message_id: str,
    now: datetime,
    body: bytes = b"",
    *,
    of_origin: Sequence[str] = (),
    url: str = "",
) -> dict[str, str]:
    """The headers, with one signature for each secret: during a rotation a receiver may have the old or the new one.

    `of_origin`: the secrets of the receiver alone. They sign `GET {url}` if there is no body. The shared secrets come
    first, for receivers that read one signature only.
    """
    text = body.decode()
    own = text or f"GET {url}"
    signatures = [_signer(secret).sign(message_id, now, text) for secret in secrets]
    signatures += [_signer(secret).sign(message_id, now, own) for secret in of_origin]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(signatures),
    }
