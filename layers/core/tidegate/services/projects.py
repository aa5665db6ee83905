"""Projects and their keys."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tidegate.domain.audit import NO_PROJECT, SYSTEM, AuditLine, act
from tidegate.domain.ids import Clock, iso, new_id
from tidegate.domain.projects import ApiKey, Project, format_key, hash_key, is_key, key_id_of
from tidegate.errors import Invalid, RecordNotFound
from tidegate.services.ports import Listed


class ProjectStore(Protocol):
    def create(self, project: Project, line: AuditLine) -> None: ...

    def get(self, project_id: str) -> Project | None: ...

    def list(self, limit: int, cursor: str | None) -> Listed[Project]: ...

    def add_key(self, key: ApiKey, line: AuditLine) -> None: ...

    def get_key(self, key_id: str, *, consistent: bool = False) -> ApiKey | None: ...

    def remove_key(self, key_id: str, line: AuditLine) -> bool: ...


@dataclass(frozen=True, slots=True)
class NewKey:
    key_id: str
    key: str
    callback_secret: str


def new_callback_secret() -> str:
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


class Projects:
    def __init__(self, store: ProjectStore, clock: Clock, admin_key_sha256: str) -> None:
        self._store = store
        self._clock = clock
        self._admin_key_sha256 = admin_key_sha256

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
            callback_secrets=(new_callback_secret(),),
        )
        self._store.create(project, act(NO_PROJECT, project.project_id, now, who, "project.create", name))
        return project

    def list(self, limit: int, cursor: str | None) -> Listed[Project]:
        return self._store.list(limit, cursor)

    def get(self, project_id: str) -> Project:
        project = self._store.get(project_id)
        if project is None:
            raise RecordNotFound("no such project")
        return project

    def add_key(
        self, project_id: str, scopes: Sequence[str], agent_id: str | None = None, *, who: str = SYSTEM
    ) -> NewKey:
        if ("agent" in scopes) != (agent_id is not None):
            message = "a key of scope agent is bound to one agent_id, and no other key has one"
            raise Invalid(message, errors=[{"loc": ["body", "agent_id"], "msg": message}])
        project = self.get(project_id)
        now = self._clock()
        key_id = new_id("key", now).replace("-", "")
        text = format_key(key_id, secrets.token_hex(20))
        why = f"scopes {' '.join(scopes)}" + (f" for {agent_id}" if agent_id else "")
        self._store.add_key(
            ApiKey(key_id, project_id, tuple(dict.fromkeys(scopes)), agent_id, hash_key(text), iso(now)),
            act(project_id, key_id, now, who, "key.create", why),
        )
        return NewKey(key_id, text, project.callback_secrets[0])

    def remove_key(self, key_id: str, *, who: str = SYSTEM) -> None:
        key = self._store.get_key(key_id, consistent=True)
        if key is None or not self._store.remove_key(
            key_id, act(key.project_id or NO_PROJECT, key_id, self._clock(), who, "key.revoke")
        ):
            raise RecordNotFound("no such key")

    def describe(self, key: str) -> ApiKey | None:
        """The key behind a bearer token. The admin's key is known to the deployment, not to the table."""
        if is_key(key, self._admin_key_sha256):
            return ApiKey("admin", "", ("admin",), None, self._admin_key_sha256, "")
        key_id = key_id_of(key)
        stored = self._store.get_key(key_id) if key_id else None
        return stored if stored and is_key(key, stored.key_sha256) else None
