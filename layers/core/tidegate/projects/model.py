"""Projects (the tenants), their quotas and API keys."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from typing import Any

SCOPES = ("read", "write", "agent", "admin")
# The deployment's own admin key: its hash is a template parameter, and the table holds only its state.
BOOTSTRAP_KEY_ID = "admin"
ACTIVE, EXPIRED, REVOKED = "active", "expired", "revoked"
# How long an ended key stays in the list.
ENDED_KEY_KEPT_SECONDS = 90 * 86400
_KEY = re.compile(r"tg_([0-9a-z]{1,64})_[0-9A-Za-z]{1,128}")


@dataclass(frozen=True, slots=True)
class Quotas:
    """A project's limits; None is no limit. `share` is slots by channel, instead of a fair share.

    Those with a number here limit every project, because without them one project could harm others.
    """

    stored_bytes: int | None = None
    queued: int | None = None
    requests_per_s: int | None = None
    batch_schedules: int | None = None
    export_schedules: int | None = None
    subscriptions: int = 1000
    businesses: int = 1000
    unstarted_batches: int = 1000
    open_uploads: int = 1000
    slow_calls: int = 20
    share: Mapping[str, int] | None = None

    def changed(self, limits: Mapping[str, Any]) -> Quotas:
        """With these limits. None sets the default, which for most quotas is no limit."""
        return replace(self, **{name: DEFAULTS[name] if limit is None else limit for name, limit in limits.items()})

    def set_limits(self) -> dict[str, Any]:
        """The limits that differ from the defaults."""
        return {name: limit for name, limit in asdict(self).items() if limit != DEFAULTS[name]}


DEFAULTS: Mapping[str, Any] = {limit.name: limit.default for limit in fields(Quotas)}


@dataclass(frozen=True, slots=True)
class Project:
    project_id: str
    name: str
    group: str | None
    allow_private_urls: bool
    created_at: str
    # Newest first. During a rotation there are two secrets, and both sign.
    secret_generations: tuple[int, ...] = ()
    # Stored secrets of projects from before secrets were derived; removed when their next rotation ends.
    callback_secrets: tuple[str, ...] = ()
    quotas: Quotas = field(default_factory=Quotas)
    # Whether its hosts may send files to each other: "auto" or "off".
    swarm: str = "auto"
    # Where its exports may be copied: patterns of `bucket/key`, such as `acme-reports/shop/*`.
    deliver_to: tuple[str, ...] = ()
    # What its exports may read directly: patterns such as `s3://acme-data/shop/*`, `dynamodb://orders`.
    read_from: tuple[str, ...] = ()
    # Increases with every change that an operator makes.
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
    # Seconds since 1970. Not named `expires_at`, because the table's TTL deletes by that attribute.
    valid_until: int | None = None
    last_used_at: str | None = None
    revoked_at: str | None = None
    replaced_by: str | None = None

    @property
    def record_id(self) -> str:
        """The id of its record. The bootstrap key's includes its hash, so a new key has a new record."""
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
    """The deployment's admin key, as it is while the table has no record of it."""
    return ApiKey(BOOTSTRAP_KEY_ID, "", ("admin",), None, key_sha256, "", name="bootstrap")


def is_bootstrap_record(record_id: str) -> bool:
    return record_id.startswith(f"{BOOTSTRAP_KEY_ID}-")


def hash_key(key: str) -> str:
    """A plain SHA-256 is enough: a key has 160 random bits, so it cannot be guessed from its hash."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def is_key(given: str, key_sha256: str) -> bool:
    return bool(key_sha256) and hmac.compare_digest(hash_key(given), key_sha256)


def format_key(key_id: str, secret: str) -> str:
    return f"tg_{key_id}_{secret}"


def key_id_of(key: str) -> str | None:
    """The id inside a key; None if the text does not look like a key, so that no table read is spent on it."""
    found = _KEY.fullmatch(key)
    return found[1] if found else None
