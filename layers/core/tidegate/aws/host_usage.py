"""Counters of what all functions send to one address, one item for each window of time."""

from __future__ import annotations

from tidegate.aws import keys
from tidegate.aws.table import Table
from tidegate.aws.writes import update
from tidegate.common.ids import Clock

# Long after any window has ended; the table's TTL removes them.
_KEPT_SECONDS = 600


class HostUsage:
    def __init__(self, table: Table, clock: Clock) -> None:
        self._table = table
        self._clock = clock

    def add(self, address: str, kind: str, window: int, amount: int) -> int:
        """Returns the new value. A retried write may count twice: the limit then errs on the safe side."""
        until = int(self._clock().timestamp()) + _KEPT_SECONDS
        key = keys.host_usage(address, kind, window)
        item = self._table.write(update(key, {"expires_at": until}, adds={"used": amount}, condition=""))
        return int(item["used"])
