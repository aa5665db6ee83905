"""Projects in the table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from tidegate.aws import keys
from tidegate.aws.table import ConditionFailed, Table
from tidegate.aws.writes import delete, put_new, update
from tidegate.common.listing import Listed
from tidegate.errors import ProjectExists
from tidegate.projects.audit import AuditLine
from tidegate.projects.audit_store import audit_write
from tidegate.projects.model import Project, Quotas


def _project(item: dict[str, Any]) -> Project:
    return Project(
        project_id=item["project_id"],
        name=item["name"],
        group=item.get("group"),
        allow_private_urls=item["allow_private_urls"],
        created_at=item["created_at"],
        secret_generations=tuple(int(generation) for generation in item.get("secret_generations", ())),
        callback_secrets=tuple(item.get("callback_secrets", ())),
        quotas=Quotas(**item.get("quotas", {})),
        swarm=item.get("swarm", "auto"),
        deliver_to=tuple(item.get("deliver_to", ())),
        read_from=tuple(item.get("read_from", ())),
        revision=int(item.get("revision", 0)),
    )


def _exists(project: Project) -> ProjectExists:
    return ProjectExists(f"a project named {project.name} exists already: choose another name")


class ProjectStore:
    def __init__(self, table: Table) -> None:
        self._table = table

    def create(self, project: Project, line: AuditLine) -> None:
        record = keys.project(project.project_id) | asdict(project) | {"quotas": project.quotas.set_limits()}
        del record["callback_secrets"]
        listing = {"gsi1pk": keys.projects_list(), "gsi1sk": project.project_id}
        try:
            self._table.transact([put_new(record | listing), put_new(self._name_of(project)), audit_write(line)])
        except ConditionFailed as error:
            raise _exists(project) from error

    @staticmethod
    def _name_of(project: Project) -> dict[str, str]:
        return keys.project_name(project.name) | {"project_id": project.project_id}

    def get(self, project_id: str, *, consistent: bool = False) -> Project | None:
        item = self._table.get(keys.project(project_id), consistent=consistent)
        return _project(item) if item else None

    def quotas(self, project_id: str) -> Quotas:
        item = self._table.get(keys.project(project_id)) or {}
        return Quotas(**item.get("quotas", {}))

    def quotas_of(self, project_ids: Iterable[str]) -> dict[str, Quotas]:
        """Quotas by project id. A project that is not in the table is missing."""
        found = self._table.batch_get(keys.project(project_id) for project_id in project_ids)
        return {item["project_id"]: Quotas(**item.get("quotas", {})) for item in found}

    def change(self, was: Project, now: Project, line: AuditLine) -> bool:
        """Writes what an operator may change. False if the project changed since `was` was read."""
        changed = update(
            keys.project(was.project_id),
            {
                "name": now.name,
                "group": now.group,
                "allow_private_urls": now.allow_private_urls,
                "quotas": now.quotas.set_limits(),
                "deliver_to": list(now.deliver_to),
                "read_from": list(now.read_from),
                # Only if it changes: another route sets it too.
                **({"swarm": now.swarm} if now.swarm != was.swarm else {}),
                "revision": was.revision + 1,
            },
            removes=["group"] if now.group is None else [],
            # Old items have no revision.
            condition="attribute_exists(#pk) AND (attribute_not_exists(#revision) OR #revision = :was)",
            was=was.revision,
        )
        renamed = [] if was.name == now.name else [put_new(self._name_of(now)), delete(keys.project_name(was.name))]
        try:
            self._table.transact([changed, *renamed, audit_write(line)])
        except ConditionFailed as error:
            if renamed and 1 in error.failed:
                raise _exists(now) from error
            return False
        return True

    def set_secrets(self, was: Project, now: Project, line: AuditLine) -> bool:
        """False if the secrets were changed meanwhile."""
        sets: dict[str, Any] = {}
        values: dict[str, Any] = {}
        removes: list[str] = []
        conditions = ["attribute_exists(#pk)"]
        for name in ("secret_generations", "callback_secrets"):
            before, after = list(getattr(was, name)), list(getattr(now, name))
            conditions.append(f"#{name} = :{name}" if before else f"attribute_not_exists(#{name})")
            values |= {name: before} if before else {}
            sets |= {name: after} if after else {}
            removes += [] if after else [name]
        condition = " AND ".join(conditions)
        changed = update(keys.project(was.project_id), sets, removes=removes, condition=condition, **values)
        return self._table.try_write(changed, audit_write(line))

    def list(self, limit: int, cursor: str | None) -> Listed[Project]:
        page = self._table.query(keys.projects_list(), index="gsi1", newest_first=True, limit=limit, cursor=cursor)
        return Listed([_project(item) for item in page.items], page.cursor)
