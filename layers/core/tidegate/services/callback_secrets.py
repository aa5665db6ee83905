"""Rotation of a project's callback secret: for a while two are valid, and both sign."""

from __future__ import annotations

from typing import Protocol

from tidegate.domain.audit import SYSTEM, AuditLine, act
from tidegate.domain.ids import Clock
from tidegate.domain.projects import Project
from tidegate.errors import RecordNotFound, WrongState
from tidegate.services.projects import new_callback_secret


class SecretStore(Protocol):
    def get(self, project_id: str) -> Project | None: ...

    def set_callback_secrets(
        self, project_id: str, was: tuple[str, ...], now: tuple[str, ...], line: AuditLine
    ) -> None: ...


class CallbackSecrets:
    def __init__(self, store: SecretStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def rotate(self, project_id: str, who: str = SYSTEM) -> str:
        """Adds a new secret; the one before stays valid until it is retired."""
        present = self._secrets(project_id)
        if len(present) > 1:
            raise WrongState("a rotation is under way: retire the old secret first")
        made = new_callback_secret()
        line = act(project_id, project_id, self._clock(), who, "callback_secret.rotate")
        self._store.set_callback_secrets(project_id, present, (made, *present), line)
        return made

    def retire(self, project_id: str, who: str = SYSTEM) -> None:
        """Ends a rotation: from now on only the newest secret signs."""
        present = self._secrets(project_id)
        if len(present) == 1:
            raise WrongState("there is no old secret")
        line = act(project_id, project_id, self._clock(), who, "callback_secret.retire")
        self._store.set_callback_secrets(project_id, present, present[:1], line)

    def _secrets(self, project_id: str) -> tuple[str, ...]:
        project = self._store.get(project_id)
        if project is None:
            raise RecordNotFound("no such project")
        return project.callback_secrets
