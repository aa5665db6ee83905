"""How much of its quotas a project uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aws_lambda_powertools import Logger
from botocore.exceptions import BotoCoreError, ClientError

from tidegate.aws import keys
from tidegate.aws.serialization import Key
from tidegate.aws.table import Table
from tidegate.aws.writes import Write, below, update
from tidegate.errors import DomainError, QuotaExceeded
from tidegate.projects.model import Quotas

logger = Logger(service="tidegate", child=True)

# Stored bytes shrink by deletions or retention, not within seconds.
_STORAGE_RETRY_SECONDS = 3600


def queued_write(project_id: str, change: int, limit: int | None = None) -> Write:
    """Adds to the count of waiting requests. With a limit, the write is refused if as many wait already."""
    return count_write(project_id, "queued", change, limit)


def count_write(project_id: str, name: str, change: int, limit: int | None = None) -> Write:
    """Adds to a count of the project, named as its quota. With a limit, the write is refused if it is reached."""
    return _count_write(keys.usage(project_id), name, change, limit)


def unstarted_batches_write(project_id: str, change: int, limit: int | None = None) -> Write:
    """Adds to the count of batches that were never started. With a limit, refused if there are as many already."""
    return _count_write(keys.batch_usage(project_id), "unstarted_batches", change, limit)


def _count_write(key: Key, name: str, change: int, limit: int | None) -> Write:
    bound: dict[str, Any] = {"limit": limit} if limit is not None else {}
    return update(
        key,
        adds={name: change},
        condition=below(name, "limit", allows_none=limit > 0) if limit is not None else "",
        **bound,
    )


def stored_bytes_write(project_id: str, size: int, limit: int | None) -> Write:
    """Adds new content to the project's stored bytes. With a limit, the write is refused if it does not fit."""
    bound: dict[str, Any] = {"room": limit - size + 1} if limit is not None else {}
    return update(
        keys.usage(project_id),
        adds={"stored_bytes": size},
        condition=below("stored_bytes", "room", allows_none=limit >= size) if limit is not None else "",
        **bound,
    )


class UsageStore:
    def __init__(self, table: Table) -> None:
        self._table = table

    def of_project(self, project_id: str, channels: Sequence[str]) -> dict[str, Any]:
        """Its counts, named as their quotas, and `running: {channel: n}`, without channels in which nothing runs."""
        found = self._table.get(keys.usage(project_id), consistent=True) or {}
        batches = self._table.get(keys.batch_usage(project_id), consistent=True) or {}
        standings = self._table.batch_get([keys.standing(name, project_id) for name in channels], consistent=True)
        names = {keys.standings(name): name for name in channels}
        running = {names[item["pk"]]: int(item.get("running", 0)) for item in standings}
        return {
            "stored_bytes": int(found.get("stored_bytes", 0)),
            "queued": int(found.get("queued", 0)),
            "batch_schedules": int(found.get("batch_schedules", 0)),
            "export_schedules": int(found.get("export_schedules", 0)),
            "subscriptions": int(found.get("subscriptions", 0)),
            "businesses": int(found.get("businesses", 0)),
            "unstarted_batches": int(batches.get("unstarted_batches", 0)),
            "running": {name: count for name, count in sorted(running.items()) if count > 0},
        }

    def register_server(self, key: Key, name: str, expires_at: float, **caller: Any) -> int:
        """Registers a function in the record of a window. Returns how many are in it; 0 if that is unknown.

        `caller` is who it serves, for the log.
        """
        noted = update(key, {"expires_at": int(expires_at)}, adds={"servers": {name}}, condition="")
        try:
            return len(self._table.write(noted)["servers"])
        except (ClientError, BotoCoreError, DomainError):
            # A failure of the rate limiter must not fail requests.
            logger.exception("the functions that serve a caller could not be counted", **caller)
            return 0

    def require_room(self, project_id: str, size: int) -> int | None:
        """QuotaExceeded if content of this size does not fit into the quota. Returns the quota."""
        project = self._table.get(keys.project(project_id)) or {}
        limit = Quotas(**project.get("quotas", {})).stored_bytes
        if limit is not None:
            found = self._table.get(keys.usage(project_id), consistent=True) or {}
            if int(found.get("stored_bytes", 0)) + size > limit:
                raise QuotaExceeded.of("stored_bytes", limit, _STORAGE_RETRY_SECONDS)
        return limit

    def new_content_write(self, project_id: str, size: int) -> Write:
        """Counts new content in the transaction that stores it; refused if the quota was used up meanwhile."""
        return stored_bytes_write(project_id, size, self.require_room(project_id, size))
