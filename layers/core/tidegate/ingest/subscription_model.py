"""Subscriptions: remote sources of files that are scanned by schedule or by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tidegate.common.ids import iso
from tidegate.ingest.source_list import Selection

# A paused subscription is not scanned by its schedule, but can be scanned by hand.
ACTIVE, PAUSED, DELETING = "active", "paused", "deleting"


@dataclass(frozen=True, slots=True)
class Subscription:
    subscription_id: str
    project_id: str
    name: str
    source_url: str
    created_at: str
    schedule: str | None = None
    # Where its files go in the library, and the stored credential that its source needs.
    biz_id: int = 0
    app_id: int = 0
    credentials: str | None = None
    # How the source is read and which of its files are chosen. `file_path` is a template for their paths.
    format: str = "auto"
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    file_path: str | None = None
    # How gently its files are fetched: connections, bytes_per_s, delay_s.
    politeness: Mapping[str, Any] | None = None
    # How many of its downloads run at once.
    concurrency: int = 1
    # Of its scheduled scans and their downloads; 5 if None.
    priority: int | None = None
    status: str = ACTIVE
    etag: str | None = None
    last_scan: str | None = None
    last_request_id: str | None = None
    due_at: int | None = None
    # How many of its downloads have failed, in total and at the time `etag` was stored.
    failures: int = 0
    etag_failures: int = 0
    # Whether the project's quota counts it; those from before the quota existed are not counted.
    counted: bool = False

    @property
    def known_etag(self) -> str | None:
        """The ETag to send with the next scan. None after a failed download, because a 304 would hide its entry."""
        return self.etag if self.failures == self.etag_failures else None

    @property
    def selection(self) -> Selection:
        return Selection(self.format, self.include, self.exclude, self.file_path)

    def shown(self) -> dict[str, Any]:
        names = ("subscription_id", "name", "source_url", "schedule", "biz_id", "app_id", "credentials", "status")
        shown = {
            name: getattr(self, name)
            for name in (*names, "format", "file_path", "concurrency", "priority", "politeness")
        }
        shown |= {name: list(getattr(self, name)) or None for name in ("include", "exclude")}
        next_run = iso(datetime.fromtimestamp(self.due_at, UTC)) if self.due_at and self.status == ACTIVE else None
        shown |= {"create_time": self.created_at, "last_scan": self.last_scan, "next_run": next_run}
        return {name: value for name, value in shown.items() if value is not None}
