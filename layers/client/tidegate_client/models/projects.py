"""Projects, their quotas, and keys."""

from __future__ import annotations

from typing import TypedDict

from tidegate_client.model import Model


class Project(Model):
    project_id: str
    name: str
    group: str | None


class Quotas(TypedDict, total=False):
    stored_bytes: int | None
    queued: int | None
    requests_per_s: int | None
    export_schedules: int | None
    batch_schedules: int | None
    subscriptions: int | None
    businesses: int | None
    unstarted_batches: int | None
    open_uploads: int | None
    slow_calls: int | None
    share: dict[str, int] | None


class ProjectDetail(Project):
    allow_private_urls: bool
    swarm: str
    deliver_to: list[str]
    read_from: list[str]
    quotas: Quotas
    usage: Model


class Key(Model):
    """A new key, shown once. Keys of scope `write` come with the project's `callback_secret`."""

    key_id: str
    key: str
    callback_secret: str | None


class KeyRecord(Model):
    key_id: str
    name: str | None
    scopes: list[str]
    agent_id: str | None
    created_at: str | None
    created_by: str | None
    expires_at: str | None
    last_used_at: str | None
    state: str
