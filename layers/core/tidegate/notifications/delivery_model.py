"""Deliveries of callbacks: when they are retried, and when they are given up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from tidegate.common.ids import iso
from tidegate.errors import FetchTimeout

PENDING, DELIVERED, DEAD = "pending", "delivered", "dead"

BACK_OFF_SECONDS = (5, 30, 120, 600, 1800)
HOURLY_SECONDS = 3600
GIVE_UP_SECONDS = 24 * 3600
KEPT_SECONDS = 7 * 24 * 3600
KEPT_ATTEMPTS = 100
JITTER = 0.2
GONE = 410


@dataclass(frozen=True, slots=True)
class Attempt:
    """One call of the receiver: the status it answered, or the error if there was no answer."""

    at: str
    duration_ms: int
    status: int | None = None
    error: str | None = None
    detail: str | None = None

    @property
    def succeeded(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def blames_host(self) -> bool:
        """Whether other callbacks to the same host should wait: it is down, or asks for fewer requests."""
        return self.status is None or self.status >= 500 or self.status == 429

    @property
    def timed_out(self) -> bool:
        return self.status is None and self.error == FetchTimeout.code


@dataclass(frozen=True, slots=True)
class Delivery:
    """`tries` counts since the start or the latest redelivery; `next_attempt_at`, `gives_up_at` are epoch seconds."""

    delivery_id: str
    project_id: str
    record_id: str
    kind: str
    url: str
    body: str
    state: str
    created_at: str
    gives_up_at: float
    next_attempt_at: float
    tries: int = 0
    attempts: tuple[Attempt, ...] = ()
    delivered_at: str | None = None

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc.lower()


def new_delivery(message: Mapping[str, Any], body: str, now: datetime) -> Delivery:
    """A delivery for a message of the notifications topic."""
    at = now.timestamp()
    return Delivery(
        delivery_id=message["message_id"],
        project_id=message["project_id"],
        record_id=message["record_id"],
        kind=message["type"],
        url=message["callback"],
        body=body,
        state=PENDING,
        created_at=iso(now),
        gives_up_at=at + GIVE_UP_SECONDS,
        next_attempt_at=at,
    )


def back_off(tries: int, chance: float) -> float:
    """Seconds to wait after that many tries. `chance` in [0, 1) spreads the retries."""
    base = BACK_OFF_SECONDS[tries - 1] if tries <= len(BACK_OFF_SECONDS) else HOURLY_SECONDS
    return base * (1 + JITTER * chance)


def after(delivery: Delivery, attempt: Attempt, now: datetime, *, retry_after: float | None, chance: float) -> Delivery:
    """The delivery after an attempt. The last attempt is at the end of its day, even if Retry-After asks for longer."""
    at = now.timestamp()
    tried = replace(
        delivery, tries=delivery.tries + 1, attempts=(*delivery.attempts, attempt)[-KEPT_ATTEMPTS:], next_attempt_at=at
    )
    if attempt.succeeded:
        return replace(tried, state=DELIVERED, delivered_at=iso(now))
    if attempt.status == GONE or at >= delivery.gives_up_at:
        return replace(tried, state=DEAD)
    wait = max(back_off(tried.tries, chance), retry_after or 0)
    return replace(tried, next_attempt_at=min(at + wait, delivery.gives_up_at))


def redelivered(delivery: Delivery, now: datetime) -> Delivery:
    at = now.timestamp()
    return replace(
        delivery, state=PENDING, tries=0, gives_up_at=at + GIVE_UP_SECONDS, next_attempt_at=at, delivered_at=None
    )
