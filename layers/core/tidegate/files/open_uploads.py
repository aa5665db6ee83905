"""Uploads that were announced and may still bring bytes into the bucket. They count towards the project's quotas.

An upload is open until its content counts as stored, or until its object is deleted and cannot come back. The object
goes first: after a crash in between, an upload counts for too long, but never too little.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime

from tidegate.aws import keys
from tidegate.aws.table import Table
from tidegate.aws.writes import Write, delete, put_new, update
from tidegate.files.model import UPLOAD_KEPT_SECONDS, File
from tidegate.projects.usage_store import UsageStore, upload_closed_write

# Abandoned uploads that one announcement looks for.
_MOST_READ, _MOST_ABANDONED = 1000, 200


@dataclass(frozen=True, slots=True)
class OpenUpload:
    project_id: str
    file_id: str
    # The size that counts. If none was announced: what was left of the quota, or 0 without one.
    size: int
    # In seconds since 1970. Not named `expires_at`: the table's TTL would delete the record, and it would stay counted.
    until: int
    upload_id: str | None = None
    # Longer than what was left: it may be completed while nobody else needs the room.
    refused: bool = False


class OpenUploads:
    def __init__(self, table: Table) -> None:
        self._table = table
        self._usage = UsageStore(table)

    def open_writes(self, file: File) -> list[Write]:
        """Counts an announced upload. QuotaExceeded if it does not fit."""
        until = int(datetime.fromisoformat(file.created_at).timestamp()) + UPLOAD_KEPT_SECONDS
        size, counted = self._usage.upload_opened_writes(file.project_id, file.size)
        opened = OpenUpload(file.project_id, file.file_id, size, until, file.upload_id)
        record = {name: value for name, value in asdict(opened).items() if value is not None}
        return [put_new(keys.open_upload(file.project_id, file.file_id) | record), *counted]

    def are_limited(self, project_id: str) -> bool:
        """Whether the project has a quota of stored bytes."""
        return self._usage.stored_bytes_limit(project_id) is not None

    def refuse(self, opened: OpenUpload) -> None:
        """Lets the next announcement that needs its room have it."""
        key = keys.open_upload(opened.project_id, opened.file_id)
        self._table.try_write(update(key, {"refused": True}))

    def get(self, project_id: str, file_id: str) -> OpenUpload | None:
        """None if it is not open, or was announced before open uploads were counted."""
        item = self._table.get(keys.open_upload(project_id, file_id), consistent=True)
        return _open_upload(item) if item else None

    def close(self, project_id: str, file_id: str) -> None:
        """Stops counting an upload whose object is gone. Does nothing if it is not open."""
        if opened := self.get(project_id, file_id):
            self._table.try_write(closed_record(opened), upload_closed_write(project_id, opened.size))

    def abandoned(self, project_id: str, now: datetime) -> list[OpenUpload]:
        """The oldest of those that were not ended in time, or were refused."""
        page = self._table.query(keys.open_uploads(project_id), limit=_MOST_READ, consistent=True)
        found = [opened for opened in map(_open_upload, page.items) if opened.refused or opened.until < now.timestamp()]
        return found[:_MOST_ABANDONED]


def closed_record(opened: OpenUpload) -> Write:
    """Goes with the write that stops counting it, so that this happens once: refused if it is not open any more."""
    return delete(keys.open_upload(opened.project_id, opened.file_id), "attribute_exists(#pk)")


def _open_upload(item: dict[str, object]) -> OpenUpload:
    names = ("project_id", "file_id", "size", "until", "upload_id", "refused")
    return OpenUpload(**{name: item[name] for name in names if name in item})  # type: ignore[arg-type]
