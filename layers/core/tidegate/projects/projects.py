"""Creates, lists, reads and changes projects, which are the tenants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tidegate.aws import keys
from tidegate.aws.table import ConditionFailed, Store, delete, noted, put_new, update
from tidegate.common.ids import Clock, iso, new_id
from tidegate.common.sequences import Listed
from tidegate.errors import Conflict, ProjectExists, RecordNotFound
from tidegate.projects.audit import NO_PROJECT, SYSTEM, AuditLine, act, audit_write
from tidegate.projects.model import LEGACY, GseGrant, Project, Quotas
from tidegate.records import declared, item_of, record_from


def quotas_from(item: Mapping[str, Any]) -> Quotas:
    """The quotas of a project's record."""
    limits, legacy = item.get("quotas", {}), not item.get("has_default_quotas")
    return Quotas(**{**(LEGACY if legacy else {}), **limits}, named=frozenset(limits), legacy=legacy)


def _project(item: dict[str, Any]) -> Project:
    return record_from(Project, item, quotas=quotas_from(item))


def _changeable() -> list[str]:
    return [field.name for field in declared(Project).values() if field.f.changes]


def _exists(project: Project) -> ProjectExists:
    return ProjectExists(f"a project named {project.name} exists already: choose another name")


class ProjectStore(Store):
    """Projects in the table."""

    def create(self, project: Project, line: AuditLine) -> None:
        quotas = {"quotas": project.quotas.set_limits(), "has_default_quotas": True}
        record = keys.project(project.project_id) | item_of(project) | quotas
        listing = {"gsi1pk": keys.projects_list(), "gsi1sk": project.project_id}
        try:
            new = [put_new(record | listing), put_new(self._name_of(project)), audit_write(line)]
            self._table.transact([*new, *noted(project_id=project.project_id)])
        except ConditionFailed as error:
            raise _exists(project) from error

    @staticmethod
    def _name_of(project: Project) -> dict[str, str]:
        return keys.project_name(project.name) | {"project_id": project.project_id}

    def get(self, project_id: str, *, consistent: bool = False) -> Project | None:
        item = self._table.get(keys.project(project_id), consistent=consistent)
        return _project(item) if item else None

    def gse_grant(self, project_id: str) -> GseGrant:
        """Returns where the project may send files through GSE, from a consistent read.

        Nowhere if there is no such project.
        """
        item = self._table.get(keys.project(project_id), consistent=True) or {}
        return record_from(GseGrant, item.get("gse", {}))

    def quotas(self, project_id: str) -> Quotas:
        """Returns the project's quotas.

        If the project does not exist, most limits are None, because an admin may act without a project.
        """
        return quotas_from(self._table.get(keys.project(project_id)) or {})

    def change(self, was: Project, now: Project, line: AuditLine) -> bool:
        """Writes the fields that an operator may change. False if the project changed since `was` was read."""
        # `swarm` only if it changes, because another route sets it, too.
        names = [name for name in _changeable() if name != "swarm" or now.swarm != was.swarm]
        stored = item_of(now) | {"quotas": now.quotas.set_limits()}
        changed = update(
            keys.project(was.project_id),
            {name: stored.get(name) for name in names} | {"revision": was.revision + 1},
            removes=[name for name in names if name not in stored],
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
        """Stores the project's callback secrets. False if the secrets were changed since `was` was read."""
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
        return self._table.try_write(changed, audit_write(line), *noted(project_id=was.project_id))

    def list(self, limit: int, cursor: str | None) -> Listed[Project]:
        page = self._table.page(keys.projects_list(), index="gsi1", newest_first=True, limit=limit, cursor=cursor)
        return Listed([_project(item) for item in page.items], page.cursor)


_TRIES = 5
# A changed rate takes effect after this time; in exchange, a warm authorizer seldom reads the project.
RATE_KEPT_SECONDS = 10
_PROJECTS_KEPT = 10_000


class Projects:
    """Creates, lists, reads and changes projects."""

    def __init__(self, store: ProjectStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        # By project: until when its rate is kept, and the rate.
        self._known_rates: dict[str, tuple[float, tuple[int | None, bool]]] = {}

    def create(
        self, name: str, group: str | None = None, *, allow_private_urls: bool = False, who: str = SYSTEM
    ) -> Project:
        now = self._clock()
        project = Project(
            project_id=new_id("prj", now),
            name=name,
            group=group,
            allow_private_urls=allow_private_urls,
            created_at=iso(now),
            secret_generations=(1,),
        )
        self._store.create(project, act(NO_PROJECT, project.project_id, now, who, "project.create", name))
        return project

    def list(self, limit: int, cursor: str | None) -> Listed[Project]:
        return self._store.list(limit, cursor)

    def get(self, project_id: str, *, consistent: bool = False) -> Project:
        project = self._store.get(project_id, consistent=consistent)
        if project is None:
            raise RecordNotFound(f"no project has the id {project_id}")
        return project

    def request_rate(self, project_id: str) -> tuple[int | None, bool]:
        """Returns (requests per second of the project, whether this is the default). (None, False) without a limit."""
        now = self._clock().timestamp()
        until, rate = self._known_rates.get(project_id, (0.0, (None, False)))
        if now < until:
            return rate
        if len(self._known_rates) >= _PROJECTS_KEPT:
            self._known_rates.clear()
        quotas = self._store.quotas(project_id)
        limit = quotas.requests_per_s
        rate = limit, limit is not None and "requests_per_s" not in quotas.named
        self._known_rates[project_id] = (now + RATE_KEPT_SECONDS, rate)
        return rate

    def change(
        self,
        project_id: str,
        fields: Mapping[str, Any],
        limits: Mapping[str, Any],
        who: str = SYSTEM,
        *,
        gse: Mapping[str, Sequence[str]] | None = None,
    ) -> Project:
        """Changes the given fields and quotas, and the given lists of the GSE grant.

        A quota of None is set to its default.
        """
        lists = {name: tuple(listed) for name, listed in (gse or {}).items()}
        for _ in range(_TRIES):
            project = self.get(project_id, consistent=True)
            quotas, grant = project.quotas.changed(limits), replace(project.gse, **lists)
            changed = replace(project, **fields, quotas=quotas, gse=grant)
            if changed == project:
                return project
            granted = [f"gse.{name} = {' '.join(listed) or 'none'}" for name, listed in sorted(lists.items())]
            if "aws_roles" in fields:
                roles = [f"{role.account}/{role.role}" for role in changed.aws_roles]
                granted.append(f"roles = {' '.join(roles) or 'none'}")
            named = ", ".join([*sorted([*fields, *limits]), *granted])
            line = act(project_id, project_id, self._clock(), who, "project.change", named)
            if self._store.change(project, changed, line):
                return replace(changed, revision=project.revision + 1)
        raise Conflict(f"the project {project_id} is being changed by other requests: try again")
