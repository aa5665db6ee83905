"""Counts of a project's requests, by type and by the hour of their creation.

They are written in the same transaction as the requests that they count.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from tidegate.aws import keys
from tidegate.aws.table import Table
from tidegate.aws.writes import Write, update
from tidegate.queue.model import Request
from tidegate.queue.stats import change_of

# Longer than any ended request is kept.
_KEPT_SECONDS = 35 * 86400
_NOT_COUNTS = frozenset({"pk", "sk", "expires_at"})


def stats_writes(old: Request | None, new: Request) -> list[Write]:
    changes = change_of(old, new)
    if not changes:
        return []
    expires_at = int(datetime.fromisoformat(new.created_at).timestamp()) + _KEPT_SECONDS
    key = keys.request_stats(new.project_id, hour_of(new.created_at), new.type, new.request_id)
    return [update(key, {"expires_at": expires_at}, adds=changes, condition="")]


def hour_of(moment: str) -> str:
    """The hour of an ISO 8601 time in UTC, as `2026-11-16T21`."""
    return moment[:13]


class StatsStore:
    def __init__(self, table: Table) -> None:
        self._table = table

    def since(self, project_id: str, moment: str) -> Iterator[tuple[str, dict[str, int]]]:
        """(type, counts) of the requests that were created in the hour of this moment or later."""
        bounds = (hour_of(moment), "~")
        for item in self._table.query_all(keys.requests_stats(project_id), sk_between=bounds):
            counts = {name: int(value) for name, value in item.items() if name not in _NOT_COUNTS}
            yield keys.type_of_stats(item["sk"]), counts
