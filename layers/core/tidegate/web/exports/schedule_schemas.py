"""Bodies and answers of recurring exports."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from tidegate.common.schedules import check_schedule
from tidegate.errors import Invalid
from tidegate.web.exports.schemas import MultipleBody, TaskAnswer, TaskBody
from tidegate.web.schemas import Answer


def _fires(value: str) -> str:
    try:
        check_schedule(value)
    except Invalid as error:
        raise ValueError(error.detail) from error
    return value


Schedule = Annotated[str, Field(max_length=200), AfterValidator(_fires)]


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
