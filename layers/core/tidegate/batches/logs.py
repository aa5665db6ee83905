"""Log lines of a batch: added by its business, listed, exported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from tidegate.batches.batches import Batches
from tidegate.batches.model import LogLine
from tidegate.batches.store import BatchStore
from tidegate.common.ids import Clock, iso, new_id
from tidegate.common.listing import Listed

MOST_LOGS_EXPORTED = 50_000


class BatchLogs:
    def __init__(self, batches: Batches, store: BatchStore, clock: Clock) -> None:
        self._batches = batches
        self._store = store
        self._clock = clock

    def add(self, project_id: str, batch_id: str, lines: Sequence[Mapping[str, Any]]) -> int:
        self._batches.get(project_id, batch_id)
        now = self._clock()
        made = [LogLine(new_id("log", now), iso(now), **line) for line in lines]
        self._store.add_logs(project_id, batch_id, made, now.timestamp())
        return len(made)

    def list(
        self, project_id: str, batch_id: str, *, index: int | None, limit: int, cursor: str | None
    ) -> Listed[LogLine]:
        self._batches.get(project_id, batch_id)
        return self._store.logs(project_id, batch_id, index=index, limit=limit, cursor=cursor)

    def rows(self, project_id: str, batch_id: str) -> Sequence[dict[str, Any]]:
        """Returns the newest lines, in order of time, as rows of an export. A first row says if others are left out."""
        self._batches.get(project_id, batch_id)
        lines = list(islice(self._store.newest_logs(project_id, batch_id), MOST_LOGS_EXPORTED + 1))
        if len(lines) > MOST_LOGS_EXPORTED:
            oldest = lines[MOST_LOGS_EXPORTED]
            message = f"older lines are left out: an export holds the newest {MOST_LOGS_EXPORTED}"
            lines[MOST_LOGS_EXPORTED] = LogLine(oldest.log_id, oldest.time, message, level="warning")
        lines.reverse()
        return [{name: getattr(line, name) for name in ("time", "index", "level", "message")} for line in lines]
