"""Tenants and their keys."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

SCOPES = ("read", "write", "agent", "admin")
# The deployment's own admin key: its hash is a template parameter, the table holds only its state.
BOOTSTRAP_KEY_ID = "admin"
ACTIVE, EXPIRED, REVOKED = "active", "expired", "revoked"
# A key that ended stays in the list for this long.
ENDED_KEY_KEPT_SECONDS = 90 * 86400
_KEY = re.compile(r"tg_([0-9a-z]{1,64})_[0-9A-Za-z]{1,128}")


@dataclass(frozen=True, slots=True)
class Quotas:
    """What a project may use at most; None is no limit. `share` is slots by channel, in place of a fair share."""

    stored_bytes: int | None = None
    queued: int | None = None
    requests_per_s: int | None = None
    export_schedules: int | None = None
    share: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Project:
    project_id: str
    name: str
    group: str | None
    allow_private_urls: bool
    created_at: str
    # Newest first; while a rotation lasts there are two secrets, and both sign.
    secret_generations: tuple[int, ...] = ()
    # Of projects made before secrets were derived: stored until their next rotation ends.
    callback_secrets: tuple[str, ...] = ()
    quotas: Quotas = field(default_factory=Quotas)
    # Whether its hosts may feed each other: "auto" or "off".
    swarm: str = "auto"
    # Where its exports may be copied: patterns of `bucket/key`, such as `acme-reports/shop/*`.
    deliver_to: tuple[str, ...] = ()
    # What its exports may read without an endpoint: patterns such as `s3://acme-data/shop/*`, `dynamodb://orders`.
    read_from: tuple[str, ...] = ()
    # Rises with every change that an operator makes.
    revision: int = 0


@dataclass(frozen=True, slots=True)
class ApiKey:
    key_id: str
    project_id: str
    scopes: tuple[str, ...]
    agent_id: str | None
    key_sha256: str
    created_at: str
    name: str | None = None
    created_by: str | None = None
    # Seconds since 1970; not named `expires_at`, which the table's TTL deletes by.
    valid_until: int | None = None
    last_used_at: str | None = None
    revoked_at: str | None = None
    replaced_by: str | None = None

    @property
    def record_id(self) -> str:
        """Where the table keeps it. The bootstrap key's record is bound to its hash: a new one starts without."""
        return f"{self.key_id}-{self.key_sha256}" if self.is_bootstrap else self.key_id

    @property
    def is_bootstrap(self) -> bool:
        return self.key_id == BOOTSTRAP_KEY_ID

    @property
    def is_admin(self) -> bool:
        return "admin" in self.scopes

    def state(self, now: datetime) -> str:
        if self.revoked_at:
            return REVOKED
        return EXPIRED if self.valid_until is not None and now.timestamp() >= self.valid_until else ACTIVE

    def is_active(self, now: datetime) -> bool:
        return self.state(now) == ACTIVE


def bootstrap_key(key_sha256: str) -> ApiKey:
    """The deployment's admin key, as long as the table says nothing else of it."""
    return ApiKey(BOOTSTRAP_KEY_ID, "", ("admin",), None, key_sha256, "", name="bootstrap")


def is_bootstrap_record(record_id: str) -> bool:
    return record_id.startswith(f"{BOOTSTRAP_KEY_ID}-")


def hash_key(key: str) -> str:
    """Keys are 160 random bits, so a plain hash is enough to keep them out of the table."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def is_key(given: str, key_sha256: str) -> bool:
    return bool(key_sha256) and hmac.compare_digest(hash_key(given), key_sha256)


def format_key(key_id: str, secret: str) -> str:
    return f"tg_{key_id}_{secret}"


def key_id_of(key: str) -> str | None:
    """The id inside a key; None for what no key looks like, so that the table is not asked for it."""
    found = _KEY.fullmatch(key)
    return found[1] if found else None
