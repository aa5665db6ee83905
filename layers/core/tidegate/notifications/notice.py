"""What is told to the outside when a record ends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tidegate.common.ids import digest, iso

# Every word, of any lifecycle here, after which a record does not change by itself.
ENDED = frozenset({"completed", "failed", "cancelled", "expired", "success", "timeout", "finished", "stopped"})
# A message to a WebSocket holds 128 KB, one of SNS 256, an item 400.
_MOST_BYTES = 120_000


@dataclass(frozen=True, slots=True)
class Notice:
    """`kind` is the webhook's type (`task.completed`, `job.finished`, …), `data` the record as its route shows it."""

    notice_id: str
    project_id: str
    kind: str
    record_id: str
    status: str
    data: Mapping[str, Any]
    callback: str | None
    created_at: datetime

    @property
    def message_id(self) -> str:
        """The id outside: two projects may have Jobs of one name, a receiver of both must not take them for one."""
        return "msg_" + digest(self.project_id, self.notice_id, length=32)


def data_text(notice: Notice) -> str:
    """The record as JSON. One too large to be sent is named, so that whoever hears of it can read it."""
    text = json.dumps(notice.data, ensure_ascii=False, separators=(",", ":"))
    if len(text.encode()) <= _MOST_BYTES:
        return text
    field = id_field(notice.record_id, notice.data)
    return json.dumps({field: notice.record_id, "status": notice.status, "truncated": True})


def notice_id_for(kind: str, record_id: str, occasion: str = "") -> str:
    """One end has one id, whoever tells it and however often. A record that may end again names the occasion."""
    return "msg_" + digest(kind, record_id, occasion, length=32)


def is_over(status: object) -> bool:
    return str(status).lower() in ENDED


def kind_of(record_id: str, record: Mapping[str, Any]) -> str:
    """The type under which a record's present state is told."""
    what = id_field(record_id, record).removesuffix("_id")
    status = str(record.get("status", "")).lower()
    if not is_over(status):
        return f"{what}.progress"
    if what == "task":
        return "task.completed" if status in ("success", "completed") else "task.failed"
    return f"{what}.finished"


def id_field(record_id: str, record: Mapping[str, Any]) -> str:
    """By which field a record carries its id. Exports are requests, and the tasks of the download centre."""
    if record_id.startswith("AsyncDownloadJob"):
        return "job_id"
    if record_id.startswith("bat-"):
        return "batch_id"
    return "request_id" if record_id.startswith("req-") and record.get("task_id") != record_id else "task_id"


def followed_id(record_id: str, record: Mapping[str, Any]) -> str:
    """Whose notices tell of this record: a Task's state is its Job's, and only some Tasks have notices of their own."""
    job_id = record.get("job_id")
    return str(job_id) if job_id and id_field(record_id, record) == "task_id" else record_id


def webhook_body(kind: str, at: datetime, data: Mapping[str, Any]) -> str:
    return json.dumps({"type": kind, "timestamp": iso(at), "data": data}, ensure_ascii=False, separators=(",", ":"))
