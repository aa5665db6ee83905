"""Files in the table: a record each, and one record per content within a project."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from tidegate.aws import keys
from tidegate.aws.table import ConditionFailed, Table
from tidegate.aws.writes import Write, put_new, update
from tidegate.common.listing import Listed
from tidegate.errors import Busy, WrongState
from tidegate.files.model import COMING, FAILED, READY, File
from tidegate.projects.audit import AuditLine
from tidegate.projects.audit_store import audit_write
from tidegate.projects.usage_store import UsageStore

_FIELDS = tuple(field.name for field in fields(File))

_TRIES = 4

# Within the repository `list` is a method.
Writes = list[Write]


def file_from(item: dict[str, Any]) -> File:
    return File(**{name: item[name] for name in _FIELDS if name in item})


def file_item(file: File) -> dict[str, Any]:
    place = keys.files_at_path(file.project_id, str(file.biz_id), str(file.app_id), file.file_path)
    return (
        keys.file(file.project_id, file.file_id)
        | asdict(file)
        | {
            "gsi1pk": keys.files_list(file.project_id),
            "gsi1sk": file.file_id,
            "gsi2pk": place,
            "gsi2sk": file.file_id,
        }
    )


class FileStore:
    def __init__(self, table: Table) -> None:
        self._table = table
        self._usage = UsageStore(table)

    def require_room(self, project_id: str, size: int) -> None:
        """QuotaExceeded if the project may not store as much."""
        self._usage.require_room(project_id, size)

    def add(self, file: File, line: AuditLine) -> None:
        self._table.transact([put_new(file_item(file)), audit_write(line)])

    def get(self, project_id: str, file_id: str) -> File | None:
        item = self._table.get(keys.file(project_id, file_id), consistent=True)
        return file_from(item) if item else None

    def find(self, project_id: str, place: tuple[int, int, str], limit: int, cursor: str | None) -> Listed[File]:
        biz_id, app_id, path = place
        partition = keys.files_at_path(project_id, str(biz_id), str(app_id), path)
        page = self._table.query(partition, index="gsi2", newest_first=True, limit=limit, cursor=cursor)
        return Listed([file_from(item) for item in page.items], page.cursor)

    def list(self, project_id: str, limit: int, cursor: str | None, **wanted: object) -> Listed[File]:
        page = self._table.find(keys.files_list(project_id), limit=limit, cursor=cursor, wanted=wanted)
        return Listed([file_from(item) for item in page.items], page.cursor)

    def finish_writes(self, file: File, *, was: Sequence[str]) -> Writes:
        """The end of a file's coming and the knowledge of its content, as parts of one transaction."""
        names = ("state", "signature", "size", "error", "source_etag")
        allowed: dict[str, Any] = {f"was{index}": state for index, state in enumerate(was)}
        writes = [
            update(
                keys.file(file.project_id, file.file_id),
                {name: getattr(file, name) for name in names},
                removes=() if file.error else ("error",),
                condition=f"#state IN ({', '.join(f':{name}' for name in allowed)})",
                **allowed,
            )
        ]
        if file.state == READY and file.signature:
            writes += self._content_writes(file)
        return writes

    def coming_writes(self, file: File, *, brings_content: bool = True) -> Writes:
        """A file that an ingest is to bring; its content counts as coming, unless it is known already."""
        return [put_new(file_item(file)), *(self._content_coming_writes(file) if brings_content else [])]

    def _content_coming_writes(self, file: File) -> Writes:
        if not file.signature or self.has_content(file.project_id, file.signature):
            return []
        content = {"signature": file.signature, "state": COMING, "brought_by": file.file_id}
        not_here = "attribute_not_exists(#state) OR #state <> :ready"
        return [update(keys.content(file.project_id, file.signature), content, condition=not_here, ready=READY)]

    def lost_writes(self, project_id: str, file_id: str, error: str) -> Writes:
        """A file that will not come. Its content is not coming any more either, if nobody else brought it."""
        file = self.get(project_id, file_id)
        if file is None or file.state == READY:
            return []
        writes = self.finish_writes(replace(file, state=FAILED, error=error), was=(COMING, FAILED))
        content = self._table.get(keys.content(project_id, file.signature), consistent=True) if file.signature else None
        if content and content.get("state") == COMING and content.get("brought_by") == file_id:
            key = keys.content(project_id, str(file.signature))
            writes.append(update(key, {"state": FAILED}, condition="#state = :coming", coming=COMING))
        return writes

    def again_writes(self, project_id: str, file_id: str, *, brings_content: bool) -> Writes:
        """A file that did not come is on its way again."""
        file = self.get(project_id, file_id)
        if file is None or file.state != FAILED:
            return []
        again = replace(file, state=COMING, error=None)
        return [
            *self.finish_writes(again, was=(FAILED,)),
            *(self._content_coming_writes(again) if brings_content else []),
        ]

    def finish(self, file: File, *, was: Sequence[str], line: AuditLine) -> File:
        """Ends a file's coming, and makes its content known in the same transaction. The first to end it wins."""
        for _ in range(_TRIES):
            try:
                self._table.transact([*self.finish_writes(file, was=was), audit_write(line)])
            except ConditionFailed as error:
                now = self.get(file.project_id, file.file_id)
                if now is not None and now.state == file.state and now.signature == file.signature:
                    return now
                if 0 in error.failed:
                    raise WrongState("the file was ended by someone else meanwhile") from error
                # The content, or the room for it, changed meanwhile: look again.
            else:
                return file
        raise Busy("the project's contents are being changed by many at once")

    def _content_writes(self, file: File) -> Writes:
        """New content counts towards the project's stored bytes once, however many files have it."""
        signature = str(file.signature)
        known = self.has_content(file.project_id, signature)
        content = update(
            keys.content(file.project_id, signature),
            {"signature": signature, "size": file.size, "state": READY},
            condition="#state = :ready" if known else "attribute_not_exists(#state) OR #state <> :ready",
            ready=READY,
        )
        return [content] if known else [content, self._usage.new_content_write(file.project_id, file.size or 0)]

    def has_content(self, project_id: str, signature: str) -> bool:
        item = self._table.get(keys.content(project_id, signature), consistent=True)
        return item is not None and item.get("state") == READY
