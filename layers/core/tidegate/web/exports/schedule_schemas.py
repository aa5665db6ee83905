"""Bodies and answers of recurring exports."""

from __future__ import annotations

from typing import Literal

from tidegate.web.exports.schemas import MultipleBody, TaskAnswer, TaskBody
from tidegate.web.schemas import Answer, Schedule


class ExportScheduleBody(TaskBody):
    """An export as `POST /v1/task` takes it, and when it is made again."""

    schedule: Schedule


class MultipleScheduleBody(MultipleBody):
    """An export as `POST /v1/task/multiple` takes it, and when it is made again."""

    schedule: Schedule


class ExportScheduleAnswer(Answer):
    schedule_id: str
    name: str
    type: str
    schedule: str
    status: Literal["active", "paused"]
    next_run: str | None = None
    last_task_id: str | None = None
    created_at: str
    created_by: str


class ExportScheduleList(Answer):
    items: list[ExportScheduleAnswer]
    next_cursor: str | None = None


class RunAnswer(Answer):
    """One moment of a schedule; `task` is its export as it is now."""

    due: str
    state: Literal["started", "skipped"]
    task_id: str | None = None
    reason: str | None = None
    task: TaskAnswer | None = None


class RunList(Answer):
    items: list[RunAnswer]
    next_cursor: str | None = None
