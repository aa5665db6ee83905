"""Projects and keys in the table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from tidegate.adapters.dynamo import keys
from tidegate.adapters.dynamo.table import ConditionFailed, Table
from tidegate.adapters.dynamo.writes import delete, put, put_new, update
from tidegate.domain.projects import ApiKey, Project, Quotas
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
        quotas=Quotas(**item.get("quotas", {})),
    )


class ProjectRepository:
    def __init__(self, table: Table) -> None:
        self._table = table

    def create(self, project: Project) -> None:
        record = keys.project(project.project_id) | asdict(project)
        listing = {"gsi1pk": keys.projects_list(), "gsi1sk": project.project_id}
        name = keys.project_name(project.name) | {"project_id": project.project_id}
        try:
            self._table.transact([put_new(record | listing), put_new(name)])
        except ConditionFailed as error:
            raise ProjectExists(f"a project is named {project.name}") from error

    def get(self, project_id: str) -> Project | None:
        item = self._table.get(keys.project(project_id))
        return _project(item) if item else None

    def quotas(self, project_id: str) -> Quotas:
        item = self._table.get(keys.project(project_id)) or {}
        return Quotas(**item.get("quotas", {}))

    def quotas_of(self, project_ids: Iterable[str]) -> dict[str, Quotas]:
        """By project; one that is not in the table has no limits, and is not in the answer."""
        found = self._table.batch_get(keys.project(project_id) for project_id in project_ids)
        return {item["project_id"]: Quotas(**item.get("quotas", {})) for item in found}

    def set_callback_secrets(self, project_id: str, was: tuple[str, ...], now: tuple[str, ...]) -> None:
        changed = update(
            keys.project(project_id),
            {"callback_secrets": list(now)},
            condition="#callback_secrets = :was",
            was=list(was),
        )
        self._table.write(changed)

    def list(self, limit: int, cursor: str | None) -> Listed[Project]:
        page = self._table.query(keys.projects_list(), index="gsi1", newest_first=True, limit=limit, cursor=cursor)
        return Listed([_project(item) for item in page.items], page.cursor)

    def add_key(self, key: ApiKey) -> None:
        self._table.write(put(keys.api_key(key.key_id) | asdict(key), "attribute_not_exists(#pk)"))

    def get_key(self, key_id: str) -> ApiKey | None:
        item = self._table.get(keys.api_key(key_id))
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

    def remove_key(self, key_id: str) -> bool:
        return bool(self._table.write(delete(keys.api_key(key_id))))
