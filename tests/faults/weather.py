"""Conditions that hold for a whole run, such as stale reads everywhere."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tests.support.clock import Clock
from tests.support.moto.cloud import MotoCloud
from tests.support.moto.dynamodb import LOCK

_SKEW_MILLISECONDS = 2000


@dataclass(frozen=True)
class Weather:
    """`stale`: every eventually consistent read answers from before the last second. `small_pages`: every Query ends
    after one item, with a cursor. `skew`: the clocks of functions differ by up to 2 s either way. `expired`: what has
    expired is removed at once; without it, never, as on a table whose TTL is 48 h late. `blocked`: a message that
    failed comes again when its visibility ends, and its FIFO group waits for it."""

    stale: bool = False
    small_pages: bool = False
    skew: bool = False
    expired: bool = False
    blocked: bool = False


CALM = Weather()
WEATHERS = {
    "all stale": Weather(stale=True),
    "small pages": Weather(small_pages=True),
    "skew": Weather(skew=True),
    "expired": Weather(expired=True),
    "blocked": Weather(blocked=True),
}
STORM = Weather(stale=True, small_pages=True, skew=True, expired=True, blocked=True)


class SkewedClock:
    """The clock that the running function reads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.running = ""

    def __call__(self) -> datetime:
        spread = int(hashlib.sha256(self.running.encode()).hexdigest(), 16) % (2 * _SKEW_MILLISECONDS + 1)
        return self._clock() + timedelta(milliseconds=spread - _SKEW_MILLISECONDS)


def one_item_a_page(operation: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """A page may always end before its limit: 1 MB was read."""
    return {**arguments, "Limit": 1} if operation == "Query" else arguments


def remove_expired(cloud: MotoCloud) -> None:
    from moto.dynamodb.models import dynamodb_backends

    now = cloud.clock().timestamp()
    with LOCK:
        table = dynamodb_backends["123456789012"]["us-east-1"].get_table(cloud.names.refs["Table"])
        for items in table.items.values():
            gone = [key for key, item in items.items() if _expires_at(item) < now]
            for key in gone:
                del items[key]


def _expires_at(item: Any) -> float:
    held = item.attrs.get("expires_at")
    return float(held.value) if held is not None else float("inf")
