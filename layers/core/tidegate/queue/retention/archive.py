"""Records past their retention leave the table for a compressed archive, from which they can still be read."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
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
        """One object a project. Named by what it holds: the same records archived again replace themselves."""
        by_project: dict[str, list[Request]] = defaultdict(list)
        for request in requests:
            by_project[request.project_id].append(request)
        today = self._clock().date()
        for project_id, together in by_project.items():
            lines = "".join(json.dumps(request.shown(), ensure_ascii=False) + "\n" for request in together)
            name = digest(*(request.request_id for request in together), length=24)
            self._store.put(f"{_prefix(project_id, today)}{name}.ndjson.gz", gzip.compress(lines.encode(), mtime=0))

    def read(self, project_id: str, day: date, limit: int, cursor: str | None, **wanted: str) -> Listed[dict[str, Any]]:
        """What left the table on a day, those whose fields are as wanted. `cursor` is the id of the last one given."""
        records = (record for record in self._records(project_id, day) if wanted.items() <= record.items())
        found = sorted({record["request_id"]: record for record in records}.items())
        if cursor is not None and not cursor.isprintable():
            raise Invalid(
                "the cursor was not made by this list: leave it out to start again",
                errors=[{"loc": ["query", "cursor"], "msg": "unknown"}],
            )
        rest = [record for request_id, record in found if request_id > (cursor or "")]
        last = rest[limit - 1]["request_id"] if len(rest) > limit else None
        return Listed(rest[:limit], last)

    def _records(self, project_id: str, day: date) -> Iterator[dict[str, Any]]:
        for key in self._store.keys(_prefix(project_id, day)):
            yield from map(json.loads, gzip.decompress(self._store.get(key)).splitlines())
