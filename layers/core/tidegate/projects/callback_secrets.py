"""Rotation of a project's callback secret: for a while two are valid, and both sign."""

from __future__ import annotations

from tidegate.errors import RecordNotFound, WrongState
from tidegate.projects.projects import new_callback_secret
from tidegate.projects.store import ProjectStore


class CallbackSecrets:
    def __init__(self, store: ProjectStore) -> None:
        self._store = store

    def rotate(self, project_id: str) -> str:
        """Adds a new secret; the one before stays valid until it is retired."""
        present = self._secrets(project_id)
        if len(present) > 1:
            raise WrongState("a rotation is under way: retire the old secret first")
        made = new_callback_secret()
        self._store.set_callback_secrets(project_id, present, (made, *present))
        return made

    def retire(self, project_id: str) -> None:
        """Ends a rotation: from now on only the newest secret signs."""
        present = self._secrets(project_id)
        if len(present) == 1:
            raise WrongState("there is no old secret")
        self._store.set_callback_secrets(project_id, present, present[:1])

    def _secrets(self, project_id: str) -> tuple[str, ...]:
        project = self._store.get(project_id)
        if project is None:
            raise RecordNotFound("no such project")
        return project.callback_secrets
