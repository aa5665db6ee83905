"""Subscriptions: sources of files, how they are read, and stored credentials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from tidegate_client.model import Model


class Politeness(TypedDict, total=False):
    """Limits for reading a source."""

    connections: int | None
    bytes_per_s: int | None
    delay_s: float | None
    host_downloads: int | None


class Selection(TypedDict, total=False):
    """How a source is read, which of its files are taken, and their paths in the library."""

    format: str | None
    include: Sequence[str] | None
    exclude: Sequence[str] | None
    file_path: str | None


class SubscriptionOptions(Selection, total=False):
    biz_id: int | None
    app_id: int | None
    credentials: str | None
    concurrency: int | None
    priority: int | None
    politeness: Politeness | None


class SubscriptionChanges(SubscriptionOptions, total=False):
    name: str
    source_url: str
    schedule: str | None


class Subscription(Model):
    subscription_id: str
    name: str
    source_url: str
    schedule: str | None
    biz_id: int
    app_id: int
    credentials: str | None
    format: str | None
    include: list[str] | None
    exclude: list[str] | None
    file_path: str | None
    priority: int | None
    concurrency: int
    politeness: Politeness | None
    status: str | None
    create_time: str
    last_scan: str | None
    next_run: str | None


class Credential(Model):
    name: str
    origins: list[str]
    headers: list[str]
    updated_at: str
    updated_by: str


class PreviewEntry(Model):
    url: str
    file_path: str
    file_name: str
    size: int | None
    signature: str | None


class Preview(Model):
    format: str
    listed: int
    chosen: int
    items_: list[PreviewEntry]
