"""How much of its quotas a project uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from aws_lambda_powertools import Logger
from botocore.exceptions import BotoCoreError, ClientError

from tidegate.aws import keys
from tidegate.aws.serialization import Key
from tidegate.aws.table import Table
from tidegate.aws.writes import Write, below, check, update
from tidegate.errors import DomainError, QuotaExceeded
from tidegate.projects.model import Quotas

logger = Logger(service="tidegate", child=True)

# Stored bytes shrink by deletions or retention, not within seconds.
_STORAGE_RETRY_SECONDS = 3600
_UPLOADS_RETRY_SECONDS = 60


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


def upload_closed_write(project_id: str, size: int, condition: str = "", **values: Any) -> Write:
    """An announced upload of this size no longer counts. Only in the transaction that deletes its open record."""
    adds: dict[str, int | set[str]] = {"open_uploads": -1, "announced_bytes": -size}
    return update(keys.upload_usage(project_id), adds=adds, condition=condition, **values)


class Room(NamedTuple):
    """The quota of a project's stored bytes, what is stored, and what uploads were announced and not ended."""

    limit: int | None
    stored: int = 0
    announced: int = 0

    @property
    def left(self) -> int:
        """0 without a quota."""
        return 0 if self.limit is None else self.limit - self.stored - self.announced


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
        uploads = self._table.get(keys.upload_usage(project_id), consistent=True) or {}
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
            "open_uploads": int(uploads.get("open_uploads", 0)),
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

    def require_room(self, project_id: str, size: int) -> Room:
        """QuotaExceeded if content of this size does not fit into the quota beside all announced uploads."""
        return self._room(project_id, size, self._quotas(project_id))

    def upload_opened_writes(self, project_id: str, announced: int | None) -> tuple[int, list[Write]]:
        """Counts an announced upload; refused if a quota was used up meanwhile. QuotaExceeded if one is now.

        Also returns the size that counts. With a quota, an upload of unknown size takes all the room that is left, so
        that there is only one of them at a time.
        """
        quotas = self._quotas(project_id)
        room = self._room(project_id, 1 if announced is None else announced, quotas)
        size = room.left if announced is None else announced
        most = quotas.open_uploads
        if self._counts(keys.upload_usage(project_id), "open_uploads") >= most:
            raise QuotaExceeded.of("open_uploads", most, _UPLOADS_RETRY_SECONDS)
        fits = f"({below('open_uploads', 'most', allows_none=True)})"
        bound: dict[str, Any] = {"most": most}
        checks = []
        if room.limit is not None:
            fits += f" AND ({below('announced_bytes', 'end', allows_none=True)})"
            bound["end"] = room.limit - room.stored - size + 1
            checks = [check(keys.usage(project_id), _not_above("stored_bytes"), seen=room.stored)]
        adds: dict[str, int | set[str]] = {"open_uploads": 1, "announced_bytes": size}
        return size, [update(keys.upload_usage(project_id), adds=adds, condition=fits, **bound), *checks]

    def new_content_writes(self, project_id: str, size: int, announced: int | None = None) -> list[Write]:
        """Counts new content in the transaction that stores it; refused if the quota was used up meanwhile.

        `announced` is the size with which it counts as an open upload, and from now on does not; None if it is none.
        """
        quotas = self._quotas(project_id)
        if announced == size:
            # No other upload was accepted for its room, so only a quota that was lowered refuses it.
            limit = quotas.stored_bytes
            if limit is not None and self._counts(keys.usage(project_id), "stored_bytes") + size > limit:
                raise QuotaExceeded.of("stored_bytes", limit, _STORAGE_RETRY_SECONDS)
            return [stored_bytes_write(project_id, size, limit), upload_closed_write(project_id, size)]
        # It need not fit beside itself.
        room = self._room(project_id, size - (announced or 0), quotas)
        if room.limit is None:
            closed = [] if announced is None else [upload_closed_write(project_id, announced)]
            return [stored_bytes_write(project_id, size, None), *closed]
        stored = stored_bytes_write(project_id, size, room.limit - room.announced + (announced or 0))
        same = _not_above("announced_bytes")
        if announced is None:
            return [stored, check(keys.upload_usage(project_id), same, seen=room.announced)]
        return [stored, upload_closed_write(project_id, announced, same, seen=room.announced)]

    def stored_bytes_limit(self, project_id: str) -> int | None:
        return self._quotas(project_id).stored_bytes

    def _quotas(self, project_id: str) -> Quotas:
        project = self._table.get(keys.project(project_id)) or {}
        return Quotas(**project.get("quotas", {}))

    def _room(self, project_id: str, size: int, quotas: Quotas) -> Room:
        limit = quotas.stored_bytes
        if limit is None:
            return Room(None)
        stored = self._counts(keys.usage(project_id), "stored_bytes")
        announced = self._counts(keys.upload_usage(project_id), "announced_bytes")
        if stored + announced + size <= limit:
            return Room(limit, stored, announced)
        if stored + size > limit:
            raise QuotaExceeded.of("stored_bytes", limit, _STORAGE_RETRY_SECONDS)
        error = QuotaExceeded(
            f"the project's quota stored_bytes is {limit}, and announced uploads hold {announced} of it: complete or "
            "delete pending files, or ask an admin to raise it",
            retry_after=_STORAGE_RETRY_SECONDS,
        )
        error.retryable = False
        raise error

    def _counts(self, key: Key, name: str) -> int:
        return int((self._table.get(key, consistent=True) or {}).get(name, 0))


def _not_above(name: str) -> str:
    """The condition that a count has not grown since it was read as `seen`."""
    return f"attribute_not_exists(#{name}) OR #{name} <= :seen"
