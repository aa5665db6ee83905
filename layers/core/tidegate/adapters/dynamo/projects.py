"""Projects and keys in the table."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tidegate.adapters.dynamo import keys
from tidegate.adapters.dynamo.audit import audit_write
from tidegate.adapters.dynamo.table import ConditionFailed, Table
from tidegate.adapters.dynamo.writes import delete, put_new, update
from tidegate.domain.audit import AuditLine
from tidegate.domain.projects import ApiKey, Project
from tidegate.errors import ProjectExists
from tidegate.services.ports import Listed


def _project(item: dict[str, Any]) -> Project:
    return Project(
        project_id=item["project_id"],
        name=item["name"],
        group=item.get("group"),
        allow_private_urls=item["allow_private_urls"],
        created_at=item["created_at"],
        callback_secrets=tuple(item["callback_secrets"]),
    )


class ProjectRepository:
    def __init__(self, table: Table) -> None:
        self._table = table

    def create(self, project: Project, line: AuditLine) -> None:
        record = keys.project(project.project_id) | asdict(project)
        listing = {"gsi1pk": keys.projects_list(), "gsi1sk": project.project_id}
        name = keys.project_name(project.name) | {"project_id": project.project_id}
        try:
            self._table.transact([put_new(record | listing), put_new(name), audit_write(line)])
        except ConditionFailed as error:
            raise ProjectExists(f"a project is named {project.name}") from error

    def get(self, project_id: str) -> Project | None:
        item = self._table.get(keys.project(project_id))
        return _project(item) if item else None

    def set_callback_secrets(
        self, project_id: str, was: tuple[str, ...], now: tuple[str, ...], line: AuditLine
    ) -> None:
        changed = update(
            keys.project(project_id),
            {"callback_secrets": list(now)},
            condition="#callback_secrets = :was",
            was=list(was),
        )
        self._table.transact([changed, audit_write(line)])

    def list(self, limit: int, cursor: str | None) -> Listed[Project]:
        page = self._table.query(keys.projects_list(), index="gsi1", newest_first=True, limit=limit, cursor=cursor)
        return Listed([_project(item) for item in page.items], page.cursor)

    def add_key(self, key: ApiKey, line: AuditLine) -> None:
        self._table.transact([put_new(keys.api_key(key.key_id) | asdict(key)), audit_write(line)])

    def get_key(self, key_id: str, *, consistent: bool = False) -> ApiKey | None:
        item = self._table.get(keys.api_key(key_id), consistent=consistent)
        if item is None:
            return None
        return ApiKey(
            key_id=item["key_id"],
            project_id=item["project_id"],
            scopes=tuple(item["scopes"]),
            agent_id=item.get("agent_id"),
            key_sha256=item["key_sha256"],
            created_at=item["created_at"],
        )

    def remove_key(self, key_id: str, line: AuditLine) -> bool:
        try:
            self._table.transact([delete(keys.api_key(key_id), "attribute_exists(#pk)"), audit_write(line)])
        except ConditionFailed:
            return False
        return True
