"""Files in the table: a record each, and one record per content within a project."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from tidegate.adapters.dynamo import keys
from tidegate.adapters.dynamo.table import ConditionFailed, Table
from tidegate.adapters.dynamo.writes import put_new, update
from tidegate.domain.files import READY, File
from tidegate.errors import WrongState
from tidegate.services.ports import Listed

_FIELDS = tuple(field.name for field in fields(File))


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


class FileRepository:
    def __init__(self, table: Table) -> None:
        self._table = table

    def add(self, file: File) -> None:
        self._table.write(put_new(file_item(file)))

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

    def finish(self, file: File, *, was: Sequence[str]) -> File:
        """Ends a file's coming, and makes its content known in the same transaction. The first to end it wins."""
        sets = {"state": file.state, "signature": file.signature, "size": file.size, "error": file.error}
        allowed: dict[str, Any] = {f"was{index}": state for index, state in enumerate(was)}
        writes = [
            update(
                keys.file(file.project_id, file.file_id),
                sets,
                condition=f"#state IN ({', '.join(f':{name}' for name in allowed)})",
                **allowed,
            )
        ]
        if file.state == READY and file.signature:
            writes.append(self._content(file))
        try:
            self._table.transact(writes)
        except ConditionFailed as error:
            now = self.get(file.project_id, file.file_id)
            if now is None or now.state != file.state or now.signature != file.signature:
                raise WrongState("the file was ended by someone else meanwhile") from error
            return now
        return file

    @staticmethod
    def _content(file: File) -> Any:
        signature = str(file.signature)
        return update(
            keys.content(file.project_id, signature),
            {"signature": signature, "size": file.size, "state": READY},
            condition="",
        )

    def has_content(self, project_id: str, signature: str) -> bool:
        item = self._table.get(keys.content(project_id, signature), consistent=True)
        return item is not None
