"""A compressed archive in S3 of the requests that retention removes from the table."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Sequence
from datetime import date
from typing import Any

from tidegate.aws.s3_listing import BucketListing
from tidegate.common.ids import Clock, digest
from tidegate.common.listing import Listed
from tidegate.errors import Invalid
from tidegate.queue.model import Request


def _prefix(project_id: str, day: date) -> str:
    return f"archive/{project_id}/{day.isoformat().replace('-', '/')}/"


class Archive:
    def __init__(self, store: BucketListing, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def keep(self, requests: Sequence[Request]) -> None:
        """Writes one object per project, named by its content: the same records, archived again, replace it."""
        by_project: dict[str, list[Request]] = defaultdict(list)
        for request in requests:
            by_project[request.project_id].append(request)
        today = self._clock().date()
        for project_id, group in by_project.items():
            lines = "".join(json.dumps(request.shown(), ensure_ascii=False) + "\n" for request in group)
            name = digest(*(request.request_id for request in group), length=24)
            self._store.put(f"{_prefix(project_id, today)}{name}.ndjson.gz", gzip.compress(lines.encode(), mtime=0))

    def read(self, project_id: str, day: date, limit: int, cursor: str | None, **wanted: str) -> Listed[dict[str, Any]]:
        """Requests that left the table on a day and have the `wanted` values, by id. `cursor` is the last id before."""
        if cursor is not None and not cursor.isprintable():
            raise Invalid(
                "the cursor does not belong to this list: leave it out to start again",
                errors=[{"loc": ["query", "cursor"], "msg": "unknown"}],
            )
        page: dict[str, dict[str, Any]] = {}
        for key in self._store.keys(_prefix(project_id, day)):
            for record in map(json.loads, gzip.decompress(self._store.get(key)).splitlines()):
                if record["request_id"] > (cursor or "") and wanted.items() <= record.items():
                    page[record["request_id"]] = record
            # Objects are not sorted, so all are read; only the page and one more record are kept in memory.
            page = dict(sorted(page.items())[: limit + 1])
        records = list(page.values())
        return Listed(records[:limit], records[limit - 1]["request_id"] if len(records) > limit else None)
