"""Counts what all functions together send to one address, with one item for each time window."""

from __future__ import annotations

from tidegate.aws import keys
from tidegate.aws.table import Table, update
from tidegate.common.ids import Clock

# Longer than any window; then the table's TTL removes the item.
_KEPT_SECONDS = 600


class HostUsage:
    def __init__(self, table: Table, clock: Clock) -> None:
        self._table = table
        self._clock = clock

    def add(self, address: str, kind: str, window: int, amount: int) -> int:
        """Adds to a counter and returns its new value.

        A retried write may count twice, which only makes the limit stricter.
        """
        until = int(self._clock().timestamp()) + _KEPT_SECONDS
        key = keys.host_usage(address, kind, window)
        item = self._table.write(update(key, {"expires_at": until}, adds={"used": amount}, condition=""))
        return int(item["used"])
