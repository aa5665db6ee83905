"""Conditions that last for a whole run, such as stale reads everywhere."""

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
class Conditions:
    """Faults that last for a whole run.

    `stale`: every eventually consistent read returns the state of a second ago. `small_pages`: every Query returns one
    item and a cursor. `skew`: the clocks of functions differ by up to 2 s from the real time. `expired`: expired items
    are removed at once; otherwise never, as if TTL were 48 h late. `blocked`: a failed message is delivered again when
    its visibility time-out ends, and blocks its FIFO group until then.
    """

    stale: bool = False
    small_pages: bool = False
    skew: bool = False
    expired: bool = False
    blocked: bool = False


NORMAL = Conditions()
CONDITIONS = {
    "all stale": Conditions(stale=True),
    "small pages": Conditions(small_pages=True),
    "skew": Conditions(skew=True),
    "expired": Conditions(expired=True),
    "blocked": Conditions(blocked=True),
}
ALL_CONDITIONS = Conditions(stale=True, small_pages=True, skew=True, expired=True, blocked=True)


class SkewedClock:
    """A clock with another offset for each function."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.running = ""

    def __call__(self) -> datetime:
        spread = int(hashlib.sha256(self.running.encode()).hexdigest(), 16) % (2 * _SKEW_MILLISECONDS + 1)
        return self._clock() + timedelta(milliseconds=spread - _SKEW_MILLISECONDS)


def one_item_a_page(operation: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """A page may end before its limit, because DynamoDB ends it after 1 MB."""
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
