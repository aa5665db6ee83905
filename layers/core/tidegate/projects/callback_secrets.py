"""A project's callback secrets. They are derived, not stored; during a rotation two are valid, and both sign."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Protocol

from tidegate.common.ids import Clock
from tidegate.errors import Conflict, RecordNotFound, WrongState
from tidegate.projects.audit import SYSTEM, act
from tidegate.projects.derived_secrets import derived_secret
from tidegate.projects.model import Project
from tidegate.projects.store import ProjectStore


class Signer(Protocol):
    """Makes the Standard Webhooks headers of a message, with one signature for each valid secret of the project."""

    def __call__(self, project: Project, message_id: str, now: datetime, body: bytes = b"") -> dict[str, str]: ...


class CallbackSecrets:
    def __init__(self, store: ProjectStore, root: Callable[[], bytes], clock: Clock) -> None:
        self._store = store
        self._root = root
        self._clock = clock

    def of(self, project: Project) -> tuple[str, ...]:
        """Every secret that is valid now, newest first."""
        derived = (derived_secret(self._root(), project.project_id, number) for number in project.secret_generations)
        return (*derived, *project.callback_secrets)

    def newest(self, project: Project) -> str:
        return self.of(project)[0]

    def rotate(self, project_id: str, who: str = SYSTEM) -> str:
        """Adds a new secret and returns it. The previous one stays valid until it is retired."""
        project = self._project(project_id)
        if len(project.secret_generations) + len(project.callback_secrets) > 1:
            raise WrongState(
                "a rotation is in progress: end it first with "
                f"DELETE /v1/projects/{project_id}/callback-secrets/previous"
            )
        newest = max(project.secret_generations, default=0) + 1
        rotated = replace(project, secret_generations=(newest, *project.secret_generations))
        self._save(project, rotated, who, "callback_secret.rotate")
        return self.newest(rotated)

    def retire(self, project_id: str, who: str = SYSTEM) -> None:
        """Ends a rotation: only the newest secret signs from now on. Old stored secrets are removed."""
        project = self._project(project_id)
        generations, stored = project.secret_generations[:1], project.callback_secrets
        kept = () if generations else stored[:1]
        if (generations, kept) == (project.secret_generations, stored):
            raise WrongState(
                f"there is no old secret to retire: rotate first with POST /v1/projects/{project_id}/callback-secrets"
            )
        left = replace(project, secret_generations=generations, callback_secrets=kept)
        self._save(project, left, who, "callback_secret.retire")

    def _project(self, project_id: str) -> Project:
        project = self._store.get(project_id, consistent=True)
        if project is None:
            raise RecordNotFound(f"no project has the id {project_id}")
        return project

    def _save(self, was: Project, now: Project, who: str, action: str) -> None:
        line = act(was.project_id, was.project_id, self._clock(), who, action)
        if not self._store.set_secrets(was, now, line):
            raise Conflict("the project's callback secrets were changed at the same time: try again")
