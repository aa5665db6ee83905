"""Projects: create, list, read and change them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tidegate.common.ids import Clock, iso, new_id
from tidegate.common.listing import Listed
from tidegate.errors import Conflict, RecordNotFound
from tidegate.projects.audit import NO_PROJECT, SYSTEM, act
from tidegate.projects.model import Project
from tidegate.projects.store import ProjectStore

_TRIES = 5


class Projects:
    def __init__(self, store: ProjectStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

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

    def change(
        self, project_id: str, fields: Mapping[str, Any], limits: Mapping[str, Any], who: str = SYSTEM
    ) -> Project:
        """Sets the named fields and quotas and leaves the others. A quota of None gets its default."""
        for _ in range(_TRIES):
            project = self.get(project_id, consistent=True)
            changed = replace(project, **fields, quotas=project.quotas.changed(limits))
            if changed == project:
                return project
            named = ", ".join(sorted([*fields, *limits]))
            line = act(project_id, project_id, self._clock(), who, "project.change", named)
            if self._store.change(project, changed, line):
                return replace(changed, revision=project.revision + 1)
        raise Conflict(f"the project {project_id} is being changed by other requests: try again")
