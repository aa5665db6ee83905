"""Counts what all functions together send to one address, in one item of the table for each time window."""

from __future__ import annotations

from tidegate.aws import keys
from tidegate.aws.table import ConditionFailed, Table, update
from tidegate.common.ids import Clock

# Longer than any window; then the table's TTL removes the item.
_KEPT_SECONDS = 600
_TRIES = 5


class HostUsage:
    def __init__(self, table: Table, clock: Clock) -> None:
        self._table = table
        self._clock = clock

    def add(self, address: str, kind: str, window: int, amount: int) -> int:
        """Adds to a counter and returns its new value.

        If a retry makes AWS get the write twice, the amount counts twice. That only makes the limit stricter.
        """
        until = int(self._clock().timestamp()) + _KEPT_SECONDS
        key = keys.host_usage(address, kind, window)
        item = self._table.write(update(key, {"expires_at": until}, adds={"used": amount}, condition=""))
        return int(item["used"])

    def reserve(self, address: str, seconds: float, now: float, latest: float) -> float | None:
        """Reserves the next free period of `seconds` at an address for the caller.

        Returns the time when this period starts. None if no period before `latest` could be reserved. A retried write
        may reserve two periods, which only makes the pace slower.
        """
        key, span, at = keys.host_usage(address, "pace", 0), round(seconds * 1e6), round(now * 1e6)
        kept = {"expires_at": int(latest + seconds) + _KEPT_SECONDS}
        for _ in range(_TRIES):
            try:
                write = update(
                    key,
                    kept,
                    adds={"next_us": span},
                    condition="#next_us > :now AND #next_us < :latest",
                    now=at,
                    latest=round(latest * 1e6),
                )
                return (int(self._table.write(write)["next_us"]) - span) / 1e6
            except ConditionFailed as busy:
                if busy.item and int(busy.item.get("next_us", 0)) > at:
                    return None
            # No caller has reserved the present time.
            idle = "attribute_not_exists(#next_us) OR #next_us <= :now"
            if self._table.try_write(update(key, {**kept, "next_us": at + span}, condition=idle, now=at)):
                return now
        return None
