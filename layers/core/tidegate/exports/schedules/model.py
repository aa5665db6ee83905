"""A recurring export: when it runs, what it orders, and what became of its runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

from tidegate.common.ids import iso
from tidegate.exports.model import Delivery, ExportOptions

PREFIX = "xsc"
ACTIVE, PAUSED = "active", "paused"
STARTED, SKIPPED = "started", "skipped"
# An order lies in one DynamoDB item, which holds 400 KB.
MOST_BYTES = 300_000


@dataclass(frozen=True, slots=True)
class ExportSchedule:
    schedule_id: str
    project_id: str
    name: str
    type: str
    schedule: str
    status: str
    created_at: str
    created_by: str
    # When it runs next, in seconds since 1970; None while it is paused, and after its last run.
    due_at: int | None = None
    last_task_id: str | None = None

    def shown(self) -> dict[str, Any]:
        names = ("schedule_id", "name", "type", "schedule", "status", "created_at", "created_by", "last_task_id")
        known = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return known | ({"next_run": _moment(self.due_at)} if self.due_at else {})


@dataclass(frozen=True, slots=True)
class Run:
    """One moment of a schedule. `state` is `started`, with its `task_id`, or `skipped`, with the reason."""

    due: str
    state: str
    task_id: str | None = None
    reason: str | None = None

    def shown(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def run_of(schedule: ExportSchedule, state: str, task_id: str | None = None, reason: str | None = None) -> Run:
    return Run(_moment(schedule.due_at or 0), state, task_id, reason)


def options_as_data(options: ExportOptions) -> dict[str, Any]:
    return asdict(options)


def options_from(data: Mapping[str, Any], due_at: int) -> ExportOptions:
    """What a run orders. `{date}` and `{time}` in its file name and the keys of its copies: when it was due, in UTC."""
    known = {field.name for field in fields(ExportOptions)}
    options = ExportOptions(**{name: value for name, value in data.items() if name in known})
    copies = tuple(Delivery(**{**each, "key": _dated(each["key"], due_at)}) for each in data.get("deliver") or ())
    name = options.file_name and _dated(options.file_name, due_at)
    return replace(options, deliver=copies, file_name=name, email=tuple(options.email))


def _dated(text: str, due_at: int) -> str:
    moment = _moment(due_at)
    return text.replace("{date}", moment[:10]).replace("{time}", moment[11:16].replace(":", ""))


def _moment(seconds: int) -> str:
    return iso(datetime.fromtimestamp(seconds, UTC))
