"""API keys in the table: hash, state, expiry, last use."""

from __future__ import annotations

from dataclasses import asdict, fields
from datetime import datetime
from typing import Any

from tidegate.aws import keys
from tidegate.aws.table import Table
from tidegate.aws.writes import Write, put_new, update
from tidegate.common.ids import iso
from tidegate.common.listing import Listed
from tidegate.projects.audit import AuditLine
from tidegate.projects.audit_store import audit_write
from tidegate.projects.model import ENDED_KEY_KEPT_SECONDS, ApiKey

_FIELDS = tuple(field.name for field in fields(ApiKey))


def key_of(item: dict[str, Any]) -> ApiKey:
    known = {name: item[name] for name in _FIELDS if name in item}
    known |= {"scopes": tuple(item["scopes"]), "agent_id": item.get("agent_id")}
    if "valid_until" in known:
        known["valid_until"] = int(known["valid_until"])
    return ApiKey(**known)


def _listing(key: ApiKey) -> dict[str, str]:
    return {"gsi1pk": keys.api_keys_list(key.project_id), "gsi1sk": key.key_id}


def _end(key: ApiKey, at: int) -> dict[str, Any]:
    """Attributes of a key that ends at `at`: its connections are closed then, and later the TTL removes the record.

    The bootstrap key's record is never removed: without it, an ended bootstrap key would be valid again.
    """
    due = keys.due(key.record_id, at, "key")
    return due if key.is_bootstrap else due | {"expires_at": at + ENDED_KEY_KEPT_SECONDS}


def new_key(key: ApiKey) -> Write:
    end = {} if key.valid_until is None else _end(key, key.valid_until)
    known = {name: value for name, value in asdict(key).items() if value is not None}
    return put_new(keys.api_key(key.record_id) | known | _listing(key) | end)


class ApiKeyStore:
    def __init__(self, table: Table) -> None:
        self._table = table

    def add(self, key: ApiKey, line: AuditLine) -> None:
        self._table.transact([new_key(key), audit_write(line)])

    def get(self, record_id: str, *, consistent: bool = False) -> ApiKey | None:
        item = self._table.get(keys.api_key(record_id), consistent=consistent)
        return key_of(item) if item else None

    def list(self, project_id: str, limit: int, cursor: str | None) -> Listed[ApiKey]:
        page = self._table.query(
            keys.api_keys_list(project_id), index="gsi1", newest_first=True, limit=limit, cursor=cursor
        )
        return Listed([key_of(item) for item in page.items], page.cursor)

    def note_use(self, key: ApiKey, now: datetime, unless_after: datetime) -> None:
        """Records the use, unless one after `unless_after` is recorded. Also adds old keys to the list."""
        free = "(attribute_not_exists(#last_used_at) OR #last_used_at <= :before)"
        self._change(key, {"last_used_at": iso(now)}, free, before=iso(unless_after))

    def replace(self, old: ApiKey, new: ApiKey, old_until: int, line: AuditLine) -> bool:
        """Adds the new key and sets the end of the old one. False if that was replaced or revoked meanwhile."""
        ending = {"valid_until": old_until, "replaced_by": new.key_id} | _end(old, old_until)
        unchanged = "attribute_not_exists(#replaced_by) AND attribute_not_exists(#revoked_at)"
        return self._table.try_write(new_key(new), self._update(old, ending, unchanged), audit_write(line))

    def revoke(self, key: ApiKey, now: datetime, line: AuditLine) -> bool:
        """False if it was revoked before."""
        ended = {"revoked_at": iso(now)} | _end(key, int(now.timestamp()))
        revoked = self._update(key, ended, "attribute_not_exists(#revoked_at)")
        return self._table.try_write(revoked, audit_write(line))

    def settle(self, record_id: str) -> None:
        """Marks the end of a key as finished: the compensation poll no longer looks at it."""
        self._table.write(update(keys.api_key(record_id), removes=keys.DUE_ATTRIBUTES))

    def _change(self, key: ApiKey, sets: dict[str, Any], condition: str, **values: Any) -> bool:
        return self._table.try_write(self._update(key, sets, condition, **values))

    @staticmethod
    def _update(key: ApiKey, sets: dict[str, Any], condition: str, **values: Any) -> Write:
        """Creates the bootstrap key's record, which exists only once it was changed."""
        if key.is_bootstrap:
            identity = {name: getattr(key, name) for name in ("key_id", "project_id", "scopes", "key_sha256", "name")}
            sets = identity | {"scopes": list(key.scopes), "created_at": key.created_at} | sets
        else:
            condition = f"attribute_exists(#pk) AND {condition}"
        return update(keys.api_key(key.record_id), _listing(key) | sets, condition=condition, **values)
