"""Who a bearer token belongs to, and whether its key is still valid."""

from __future__ import annotations

from datetime import datetime, timedelta

from aws_lambda_powertools import Logger

from tidegate.common.ids import Clock, iso
from tidegate.projects.key_store import ApiKeyStore
from tidegate.projects.model import ApiKey, bootstrap_key, is_bootstrap_record, is_key, key_id_of

logger = Logger(service="tidegate", child=True)

LAST_USE_EVERY = timedelta(hours=1)
# Less often: ten thousand idle hosts reconnect every two hours, and `GET /v1/agents` shows when each was last seen.
AGENT_USE_EVERY = timedelta(days=1)
_MOST_REMEMBERED = 10_000


class Authentication:
    def __init__(self, store: ApiKeyStore, clock: Clock, admin_key_sha256: str) -> None:
        self._store = store
        self._clock = clock
        self._admin_key_sha256 = admin_key_sha256
        # When this process last tried to record a key's use, so that a failing table is not asked at every request.
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
        # An eventually consistent read may miss a key that was created a second ago.
        stored = self._store.get(key_id) or self._store.get(key_id, consistent=True)
        return stored if stored and is_key(token, stored.key_sha256) else None

    def _note_use(self, key: ApiKey, now: datetime) -> None:
        """Records the use for the list of keys: at most once an hour, or once a day for an agent's. Never raises."""
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
            logger.warning("the last use of a key was not recorded", key_id=key.key_id, exc_info=True)

    def is_active(self, record_id: str) -> bool:
        """Whether the key of an open connection is still valid. Reads consistently, so a revocation counts at once."""
        key = self._store.get(record_id, consistent=True)
        return key.is_active(self._clock()) if key else is_bootstrap_record(record_id)
