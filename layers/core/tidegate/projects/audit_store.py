"""The audit trail: a line goes into the transaction of the change that it tells of."""

from __future__ import annotations

import secrets
from dataclasses import asdict, fields
from datetime import datetime, timedelta
from typing import Any

from tidegate.aws import keys
from tidegate.aws.table import Table
from tidegate.aws.writes import Write, put
from tidegate.common.listing import Listed
from tidegate.projects.audit import AuditLine

_KEPT = timedelta(days=60)
_FIELDS = tuple(field.name for field in fields(AuditLine))


def audit_write(line: AuditLine) -> Write:
    order = f"{line.at}#{line.version:08d}#{secrets.token_hex(4)}"
    expires_at = datetime.fromisoformat(line.at) + _KEPT
    return put(
        {"pk": keys.audit_trail(line.project_id, line.record_id), "sk": order}
        | asdict(line)
        | {"gsi1pk": keys.audit_list(line.project_id), "gsi1sk": order, "expires_at": int(expires_at.timestamp())}
    )


def _line(item: dict[str, Any]) -> AuditLine:
    return AuditLine(**{name: item.get(name) for name in _FIELDS})  # type: ignore[arg-type]


class AuditStore:
    def __init__(self, table: Table) -> None:
        self._table = table

    def list(self, project_id: str, record_id: str | None, limit: int, cursor: str | None) -> Listed[AuditLine]:
        """Newest first: of one record, or of the whole project."""
        if record_id:
            pk, index = keys.audit_trail(project_id, record_id), None
        else:
            pk, index = keys.audit_list(project_id), "gsi1"
        page = self._table.query(pk, index=index, newest_first=True, limit=limit, cursor=cursor)
        return Listed([_line(item) for item in page.items], page.cursor)
