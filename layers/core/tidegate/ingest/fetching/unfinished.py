"""Unfinished downloads: what a later invocation or attempt needs to continue them.

The parts are in S3, which also lists them, so nothing is written here for a single part.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from tidegate.aws import keys
from tidegate.aws.table import ConditionFailed, Table
from tidegate.aws.writes import Write, delete, put
from tidegate.common.ids import Clock
from tidegate.ingest.model import Source
from tidegate.queue.model import Request

# A paused or failed request can be resumed for this long.
_KEPT_SECONDS = 30 * 86400


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A multipart upload, and the version of the source that its parts belong to."""

    key: str
    upload_id: str
    url: str
    size: int | None
    etag: str | None
    last_modified: str | None
    ranges: bool

    @property
    def source(self) -> Source:
        return Source(self.size, self.etag, self.ranges, self.last_modified)


_FIELDS = tuple(field.name for field in fields(Unfinished))


class UnfinishedStore:
    def __init__(self, table: Table, clock: Clock) -> None:
        self._table = table
        self._clock = clock

    def get(self, request: Request) -> Unfinished | None:
        item = self._table.get(keys.unfinished(request.project_id, request.request_id), consistent=True)
        return _from(item) if item else None

    def begin(self, request: Request, begun: Unfinished) -> Unfinished:
        """Stores `begun`. Returns the download to continue: that of another run of the same step, if it was first."""
        key = keys.unfinished(request.project_id, request.request_id)
        item = key | asdict(begun) | {"expires_at": int(self._clock().timestamp()) + _KEPT_SECONDS}
        try:
            self._table.write(put(item, "attribute_not_exists(#pk)"))
        except ConditionFailed as error:
            return _from(error.item) if error.item else begun
        return begun

    def forget(self, request: Request, begun: Unfinished) -> None:
        """Removes this download; a newer one stays."""
        key = keys.unfinished(request.project_id, request.request_id)
        try:
            self._table.write(delete(key, "#upload_id = :mine", mine=begun.upload_id))
        except ConditionFailed:
            return

    def forget_write(self, request: Request) -> Write:
        return delete(keys.unfinished(request.project_id, request.request_id))


def _from(item: dict[str, Any]) -> Unfinished:
    return Unfinished(**{name: item.get(name) for name in _FIELDS})  # type: ignore[arg-type]
