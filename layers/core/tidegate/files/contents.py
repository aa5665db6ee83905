"""Contents as distribution sees them: here, on its way, or neither."""

from __future__ import annotations

from typing import NamedTuple

from tidegate.aws import keys
from tidegate.aws.table import Table
from tidegate.aws.writes import update


class Content(NamedTuple):
    state: str
    size: int
    checked_etag: str | None


class ContentStore:
    def __init__(self, table: Table) -> None:
        self._table = table

    def get(self, project_id: str, signature: str) -> Content | None:
        item = self._table.get(keys.content(project_id, signature), consistent=True)
        return Content(item["state"], item.get("size", 0), item.get("checked_etag")) if item else None

    def checked(self, project_id: str, signature: str, etag: str) -> None:
        """The object of that ETag was read and has this signature."""
        self._table.try_write(update(keys.content(project_id, signature), {"checked_etag": etag}))
