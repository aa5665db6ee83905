"""What may be shown of stored credentials: names and origins, never a header's value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

from tidegate.aws import keys
from tidegate.aws.table import Table
from tidegate.aws.writes import Write, delete, put
from tidegate.errors import QuotaExceeded
from tidegate.projects.audit import AuditLine
from tidegate.projects.audit_store import audit_write


@dataclass(frozen=True, slots=True)
class CredentialRecord:
    """`headers` are the names of its headers, without their values."""

    name: str
    origins: Sequence[str]
    headers: Sequence[str]
    updated_at: str
    updated_by: str


_FIELDS = tuple(field.name for field in fields(CredentialRecord))
# Of one project. Each is a secret that AWS bills, and the list of them is one answer.
MOST_CREDENTIALS = 500
_RETRY_SECONDS = 3600
# 500 records of the largest size are 4 MB; a page has 1 MB.
_PAGES = 8


class CredentialRecords:
    """Written before the secret: a crash in between leaves a listed credential, which a repeated PUT completes."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def put(self, project_id: str, record: CredentialRecord, line: AuditLine) -> None:
        """Stores or replaces a record. Raises QuotaExceeded for a new one beyond the limit.

        Requests at the same moment may exceed the limit by a few: it bounds costs and the size of the list.
        """
        self._require_room(project_id, record.name)
        self._write(put(keys.credential(project_id, record.name) | asdict(record)), line)

    def delete(self, project_id: str, name: str, line: AuditLine) -> None:
        self._write(delete(keys.credential(project_id, name)), line)

    def _require_room(self, project_id: str, name: str) -> None:
        if self._table.get(keys.credential(project_id, name)) is not None:
            return
        stored, _ = self._table.count(keys.credentials(project_id), pages=_PAGES)
        if stored >= MOST_CREDENTIALS:
            raise QuotaExceeded(
                f"the project has {stored} credentials, and {MOST_CREDENTIALS} are allowed: delete an unused one "
                "with DELETE /v1/credentials/{name}",
                retry_after=_RETRY_SECONDS,
            )

    def _write(self, write: Write, line: AuditLine) -> None:
        self._table.transact([write, audit_write(line)])

    def list(self, project_id: str) -> list[CredentialRecord]:
        """Sorted by name. Credentials stored before this list existed are missing."""
        found = self._table.query_all(keys.credentials(project_id))
        return [CredentialRecord(**{name: item[name] for name in _FIELDS}) for item in found]
