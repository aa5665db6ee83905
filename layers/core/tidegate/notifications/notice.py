"""Notices: messages about a record for the topic, for callbacks and for WebSocket clients."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tidegate.common.ids import digest, iso

# The final states of all kinds of records.
ENDED = frozenset({"completed", "failed", "cancelled", "expired", "success", "timeout", "finished", "stopped"})
# The smallest of the limits: a WebSocket message has 128 KB, an SNS message 256 KB, an item 400 KB.
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
        """The id that receivers see. It includes the project: two projects may have Jobs with the same id."""
        return "msg_" + digest(self.project_id, self.notice_id, length=32)


def data_text(notice: Notice) -> str:
    """The record as JSON. If it is too large to send: only its id and status, and `truncated`."""
    text = json.dumps(notice.data, ensure_ascii=False, separators=(",", ":"))
    if len(text.encode()) <= _MOST_BYTES:
        return text
    field = id_field(notice.record_id, notice.data)
    return json.dumps({field: notice.record_id, "status": notice.status, "truncated": True})


def notice_id_for(kind: str, record_id: str, occasion: str = "") -> str:
    """Deterministic id, so receivers can de-duplicate. `occasion` differs for each end of a record."""
    return "msg_" + digest(kind, record_id, occasion, length=32)


def is_over(status: object) -> bool:
    return str(status).lower() in ENDED


def kind_of(record_id: str, record: Mapping[str, Any]) -> str:
    """The notice type for a record's present state."""
    what = id_field(record_id, record).removesuffix("_id")
    status = str(record.get("status", "")).lower()
    if not is_over(status):
        return f"{what}.progress"
    if what == "task":
        return "task.completed" if status in ("success", "completed") else "task.failed"
    return f"{what}.finished"


def id_field(record_id: str, record: Mapping[str, Any]) -> str:
    """The name of the field that holds a record's id. An export is a request too, but is shown with a task_id."""
    if record_id.startswith("AsyncDownloadJob"):
        return "job_id"
    if record_id.startswith("bat-"):
        return "batch_id"
    return "request_id" if record_id.startswith("req-") and record.get("task_id") != record_id else "task_id"


def followed_id(record_id: str, record: Mapping[str, Any]) -> str:
    """The record whose notices to follow: a Task's state comes from its Job, and few Tasks have their own notices."""
    job_id = record.get("job_id")
    return str(job_id) if job_id and id_field(record_id, record) == "task_id" else record_id


def webhook_body(kind: str, at: datetime, data: Mapping[str, Any]) -> str:
    return json.dumps({"type": kind, "timestamp": iso(at), "data": data}, ensure_ascii=False, separators=(",", ":"))
