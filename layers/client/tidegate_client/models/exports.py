"""Exports and recurring exports."""

from __future__ import annotations

from typing import Any

from tidegate_client.model import Model


class ExportProgress(Model):
    rows: int
    total: int | None
    percent: float | None


class Export(Model):
    task_id: str
    name: str
    type: str
    status: str
    progress: ExportProgress
    file_name: str | None
    size: int | None
    attempts: int
    warnings: list[str] | None
    deliveries: list[dict[str, str]] | None
    failed_reason: str | None
    create_time: str
    finish_time: str | None


class ExportSchedule(Model):
    """A recurring export; times are UTC. `order`, the fields of the export, is not in lists."""

    schedule_id: str
    name: str
    type: str
    schedule: str
    status: str
    next_run: str | None
    last_task_id: str | None
    created_at: str
    created_by: str
    revision: int
    order: dict[str, Any] | None


class ExportRun(Model):
    """One run of a recurring export: `started`, or `skipped` with the reason."""

    due: str
    state: str
    task_id: str | None
    reason: str | None
    task: Export | None
