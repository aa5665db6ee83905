"""A recurring export: its schedule, its order and its runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

from tidegate.common.ids import iso
from tidegate.exports.model import Delivery, ExportOptions, ExportSpec

PREFIX = "xsc"
ACTIVE, PAUSED = "active", "paused"
STARTED, SKIPPED = "started", "skipped"
# An order is stored in one DynamoDB item, which holds 400 KB.
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
    # The next run, in Unix seconds; None while it is paused, and after its last run.
    due_at: int | None = None
    last_task_id: str | None = None
    # Increases with every change by a caller.
    revision: int = 0
    # Whether the project's quota counts it; schedules older than the quota are not counted.
    counted: bool = False

    def shown(self) -> dict[str, Any]:
        names = (
            *("schedule_id", "name", "type", "schedule", "status", "created_at", "created_by", "last_task_id"),
            "revision",
        )
        fields = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return fields | ({"next_run": _moment(self.due_at)} if self.due_at else {})


@dataclass(frozen=True, slots=True)
class ScheduledOrder:
    """The export that each run orders. `multiple`: it was ordered as several tables, with a list per table field."""

    spec: ExportSpec
    options: ExportOptions
    multiple: bool = False

    def as_data(self) -> dict[str, Any]:
        return {"spec": self.spec.as_data(), "options": asdict(self.options), "multiple": self.multiple}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> ScheduledOrder:
        """From data that `read_exact` read."""
        spec = ExportSpec.from_data(data["spec"])
        multiple = bool(data.get("multiple", len(spec.tables) > 1))
        return cls(spec, options_from(data["options"]), multiple)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a schedule. `state` is `started`, with its `task_id`, or `skipped`, with the reason."""

    due: str
    state: str
    task_id: str | None = None
    reason: str | None = None

    def shown(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def run_of(schedule: ExportSchedule, state: str, task_id: str | None = None, reason: str | None = None) -> Run:
    return Run(_moment(schedule.due_at or 0), state, task_id, reason)


def options_from(data: Mapping[str, Any]) -> ExportOptions:
    names = {field.name for field in fields(ExportOptions)}
    options = ExportOptions(**{name: value for name, value in data.items() if name in names})
    copies = tuple(Delivery(**each) for each in data.get("deliver") or ())
    return replace(options, deliver=copies, email=tuple(options.email))


def dated(options: ExportOptions, due_at: int) -> ExportOptions:
    """The options of one run: its due time, in UTC, replaces `{date}` and `{time}` in the names of its files."""
    copies = tuple(replace(each, key=_dated(each.key, due_at)) for each in options.deliver)
    return replace(options, deliver=copies, file_name=options.file_name and _dated(options.file_name, due_at))


def _dated(text: str, due_at: int) -> str:
    moment = _moment(due_at)
    return text.replace("{date}", moment[:10]).replace("{time}", moment[11:16].replace(":", ""))


def _moment(seconds: int) -> str:
    return iso(datetime.fromtimestamp(seconds, UTC))
