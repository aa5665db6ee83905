"""Who a bearer token belongs to, and whether its key is still valid."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Protocol

from aws_lambda_powertools import Logger

from tidegate.common.ids import Clock, iso
from tidegate.projects.model import ApiKey, bootstrap_key, is_bootstrap_record, is_key, key_id_of

logger = Logger(service="tidegate", child=True)

LAST_USE_EVERY = timedelta(hours=1)
# Ten thousand idle hosts come every two hours, and `GET /v1/agents` says better when a host was last seen.
AGENT_USE_EVERY = timedelta(days=1)
_MOST_REMEMBERED = 10_000


class KeyStore(Protocol):
    def get(self, record_id: str, *, consistent: bool = False) -> ApiKey | None: ...

    def note_use(self, key: ApiKey, now: datetime, unless_after: datetime) -> None: ...


class Authentication:
    def __init__(self, store: KeyStore, clock: Clock, admin_key_sha256: str) -> None:
        self._store = store
        self._clock = clock
        self._admin_key_sha256 = admin_key_sha256
        # When this process last tried to note a key's use: a table that refuses is not asked at every request.
        self._noted: dict[str, datetime] = {}

    def describe(self, token: str) -> ApiKey | None:
        """The key behind a bearer token; None if it is unknown, expired or revoked."""
        key = self._find(token)
        now = self._clock()
        if key is None or not key.is_active(now):
            return None
        self._note_use(key, now)
        return key

    def _find(self, token: str) -> ApiKey | None:
        if is_key(token, self._admin_key_sha256):
            bootstrap = bootstrap_key(self._admin_key_sha256)
            return self._store.get(bootstrap.record_id) or bootstrap
        key_id = key_id_of(token)
        if not key_id:
            return None
        # A key that was made within the last second may be missing from an eventual read.
        stored = self._store.get(key_id) or self._store.get(key_id, consistent=True)
        return stored if stored and is_key(token, stored.key_sha256) else None

    def _note_use(self, key: ApiKey, now: datetime) -> None:
        """At most once an hour and key, or a day if it is a host's. It never fails a request: it is for the list."""
        before = now - (AGENT_USE_EVERY if key.agent_id else LAST_USE_EVERY)
        if key.last_used_at and key.last_used_at > iso(before):
            return
        if self._noted.get(key.record_id, before) > before:
            return
        if len(self._noted) >= _MOST_REMEMBERED:
            self._noted.clear()
        self._noted[key.record_id] = now
        try:
            self._store.note_use(key, now, before)
        except Exception:
            logger.warning("the use of a key was not noted", key_id=key.key_id, exc_info=True)

    def is_active(self, record_id: str) -> bool:
        """Checks the key of a connection that outlives a request. A consistent read: revocations are seen at once."""
        key = self._store.get(record_id, consistent=True)
        return key.is_active(self._clock()) if key else is_bootstrap_record(record_id)
