"""The entries of exports in lists, and the state of their mails. The state of an export is that of its request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime, timedelta
from secrets import token_hex
from typing import Any

from tidegate.aws import keys
from tidegate.aws.table import ConditionFailed, Table
from tidegate.aws.writes import Write, delete, put, put_new, update
from tidegate.common.listing import Listed
from tidegate.errors import WrongState
from tidegate.exports.model import Export
from tidegate.projects.audit import AuditLine
from tidegate.projects.audit_store import audit_write
from tidegate.queue.items import request_from
from tidegate.queue.model import TERMINAL, Request

_FIELDS = tuple(field.name for field in fields(Export))
_LISTED = timedelta(days=31)
MAIL_UNKNOWN = {
    "state": "unknown",
    "error": "the function that sent it ended before the outcome was stored; it is not sent again",
}


class ExportStore:
    def __init__(self, table: Table) -> None:
        self._table = table

    def write(self, export: Export) -> Write:
        order = f"{export.created_at}#{export.task_id}"
        place = {"gsi1pk": keys.exports_list(export.project_id), "gsi1sk": order}
        return put(keys.export(export.project_id, export.task_id) | asdict(export) | place)

    def ending(self, ended: Request) -> list[Write]:
        """Writes for the transaction that ends the request: the list entry expires a day after the request."""
        if ended.finish_time is None:
            return []
        gone = datetime.fromisoformat(ended.finish_time) + _LISTED
        key = keys.export(ended.project_id, ended.request_id)
        return [update(key, {"expires_at": int(gone.timestamp())}, condition="")]

    def begin_mail(self, request: Request, address: str, now: datetime) -> dict[str, Any] | None:
        """Returns None if this caller is to send the mail, else the state of the mail that another began."""
        token, key = token_hex(8), keys.export_mail(request.project_id, request.request_id, address)
        gone = int((now + _LISTED).timestamp())
        if self._table.try_write(put_new(key | {"begun_by": token, "expires_at": gone})):
            return None
        begun = self._table.get(key, consistent=True) or {}
        if begun.get("begun_by") == token:
            # The response to the write was lost, and the SDK wrote again.
            return None
        return dict(begun.get("outcome") or MAIL_UNKNOWN)

    def end_mail(self, request: Request, address: str, outcome: Mapping[str, Any]) -> None:
        key = keys.export_mail(request.project_id, request.request_id, address)
        self._table.write(update(key, {"outcome": dict(outcome)}, condition=""))

    def page(
        self, project_id: str, limit: int, cursor: str | None, wanted: Mapping[str, Any]
    ) -> Listed[tuple[Export, Request | None]]:
        found = self._table.find(keys.exports_list(project_id), limit=limit, cursor=cursor, wanted=wanted)
        exports = [_export_from(item) for item in found.items]
        states = {each.request_id: each for each in self.requests(project_id, [one.task_id for one in exports])}
        return Listed([(export, states.get(export.task_id)) for export in exports], found.cursor)

    def requests(self, project_id: str, task_ids: Sequence[str]) -> list[Request]:
        items = self._table.batch_get(keys.request(project_id, task_id) for task_id in task_ids)
        return [request_from(item) for item in items]

    def remove(self, project_id: str, task_id: str, line: AuditLine) -> None:
        """Deletes the list entry and the request. WrongState while the export runs, because it holds a slot."""
        over = {f"over{number}": status for number, status in enumerate(sorted(TERMINAL))}
        ended = f"attribute_not_exists(#pk) OR #status IN ({', '.join(f':{name}' for name in over)})"
        try:
            self._table.transact(
                [
                    delete(keys.export(project_id, task_id)),
                    delete(keys.request(project_id, task_id), ended, **over),
                    audit_write(line),
                ]
            )
        except ConditionFailed as error:
            raise WrongState("the export has not ended yet: cancel it first") from error


def _export_from(item: Mapping[str, Any]) -> Export:
    return Export(**{name: item[name] for name in _FIELDS if name in item})
