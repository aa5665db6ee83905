"""API keys: create, list, rotate, revoke. When a key ends, its WebSockets are closed."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from aws_lambda_powertools import Logger

from tidegate.common.ids import Clock, iso, new_id
from tidegate.common.listing import Listed
from tidegate.errors import Invalid, RecordNotFound, WrongState
from tidegate.projects.audit import NO_PROJECT, SYSTEM, AuditLine, act
from tidegate.projects.key_store import ApiKeyStore
from tidegate.projects.model import BOOTSTRAP_KEY_ID, ApiKey, Project, bootstrap_key, format_key, hash_key

logger = Logger(service="tidegate", child=True)

# Closes the WebSocket connections made with a key, by its record id. Returns how many may still be open.
CloseConnections = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class NewKey:
    """`key` is the text that the caller sends; only its hash is stored."""

    key_id: str
    key: str


class ApiKeys:
    def __init__(
        self,
        store: ApiKeyStore,
        close_connections: CloseConnections,
        project_of: Callable[[str], Project],
        clock: Clock,
        admin_key_sha256: str,
    ) -> None:
        self._store = store
        self._close_all = close_connections
        self._project_of = project_of
        self._clock = clock
        self._admin_key_sha256 = admin_key_sha256

    def add(
        self,
        project_id: str,
        scopes: Sequence[str],
        agent_id: str | None = None,
        *,
        name: str | None = None,
        expires_in: int | None = None,
        by: str | None = None,
    ) -> NewKey:
        """Creates a key of a project."""
        if ("agent" in scopes) != (agent_id is not None):
            message = "agent_id is required for a key with the scope agent, and not allowed for any other key"
            raise Invalid(message, errors=[{"loc": ["body", "agent_id"], "msg": message}])
        self._project_of(project_id)
        return self._add(*self.made(project_id, tuple(dict.fromkeys(scopes)), agent_id, name, expires_in, by))

    def add_admin(self, *, name: str | None = None, expires_in: int | None = None, by: str | None = None) -> NewKey:
        """Creates a key for all projects."""
        return self._add(*self.made("", ("admin",), None, name, expires_in, by))

    def _add(self, made: ApiKey, text: str) -> NewKey:
        why = f"scopes {' '.join(made.scopes)}" + (f" for {made.agent_id}" if made.agent_id else "")
        self._store.add(made, self._line(made, made.created_by, "key.create", why))
        return NewKey(made.key_id, text)

    def made(
        self,
        project_id: str,
        scopes: tuple[str, ...],
        agent_id: str | None,
        name: str | None,
        expires_in: int | None,
        by: str | None,
    ) -> tuple[ApiKey, str]:
        """A new key, which is not stored yet, and its text."""
        now = self._clock()
        key_id = new_id("key", now).replace("-", "")
        text = format_key(key_id, secrets.token_hex(20))
        until = None if expires_in is None else int(now.timestamp()) + expires_in
        key = ApiKey(key_id, project_id, scopes, agent_id, hash_key(text), iso(now), name, by, until)
        return key, text

    def list(self, project_id: str, limit: int, cursor: str | None) -> Listed[ApiKey]:
        self._project_of(project_id)
        return self._store.list(project_id, limit, cursor)

    def list_admin(self, limit: int, cursor: str | None) -> Listed[ApiKey]:
        return self._store.list("", limit, cursor)

    def rotate(self, key_id: str, overlap_s: int, by: str) -> NewKey:
        """Creates a key with the old one's name, scopes and lifetime. The old one stays valid for `overlap_s`."""
        old, now = self._key(key_id), self._clock()
        if not old.is_active(now):
            raise WrongState(f"the key {key_id} is {old.state(now)}: create a new key")
        if old.replaced_by:
            raise WrongState(f"the key {key_id} was rotated to {old.replaced_by} before: rotate that key")
        lifetime = None
        if old.valid_until is not None:
            lifetime = old.valid_until - int(datetime.fromisoformat(old.created_at).timestamp())
        name = None if old.is_bootstrap else old.name
        new, text = self.made(old.project_id, old.scopes, old.agent_id, name, lifetime, by)
        end = int(now.timestamp()) + overlap_s
        until = end if old.valid_until is None else min(end, old.valid_until)
        line = self._line(old, by, "key.rotate", f"to {new.key_id}, overlap {overlap_s} s")
        if not self._store.replace(old, new, until, line):
            raise WrongState(
                f"another request rotated or revoked the key {key_id} meanwhile: list the keys to see their states"
            )
        if overlap_s == 0:
            self._close_connections(old.record_id)
        return NewKey(new.key_id, text)

    def revoke(self, key_id: str, by: str) -> None:
        """Revokes a key and closes its WebSocket connections. Idempotent: a repeat closes what is still open."""
        key = self._key(key_id)
        if key.is_admin and key_id == by:
            raise WrongState("an admin key cannot revoke itself: call with the admin key that you want to keep")
        self._store.revoke(key, self._clock(), self._line(key, by, "key.revoke"))
        self._close_connections(key.record_id)

    def _line(self, key: ApiKey, by: str | None, action: str, why: str = "") -> AuditLine:
        return act(key.project_id or NO_PROJECT, key.key_id, self._clock(), by or SYSTEM, action, why)

    def finish_end(self, key: ApiKey) -> bool:
        """Closes the connections of an expired key, or after an interrupted revocation. False if the key is active."""
        if key.is_active(self._clock()):
            return False
        self._close_connections(key.record_id)
        return True

    def record_id(self, key_id: str) -> str:
        """The id of the key's record in the table."""
        return bootstrap_key(self._admin_key_sha256).record_id if key_id == BOOTSTRAP_KEY_ID else key_id

    def _key(self, key_id: str) -> ApiKey:
        key = self._store.get(self.record_id(key_id), consistent=True)
        if key is None and key_id == BOOTSTRAP_KEY_ID:
            return bootstrap_key(self._admin_key_sha256)
        if key is None or key.key_id != key_id:
            raise RecordNotFound(f"no key has the id {key_id}")
        return key

    def _close_connections(self, record_id: str) -> None:
        """If some cannot be closed now, the key stays due and the compensation poll tries again."""
        still_open = self._close_all(record_id)
        if still_open:
            logger.warning("connections of an ended key are still open", key_id=record_id, open=still_open)
        else:
            self._store.settle(record_id)
