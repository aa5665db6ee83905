"""Schedules that make and start a batch again and again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from aws_lambda_powertools.event_handler import Response
from pydantic import Field

from tidegate.app import app
from tidegate.batches.recurring.store import BatchSchedule
from tidegate.common.ids import iso
from tidegate.web.batches.schemas import BatchBody, new_batch
from tidegate.web.idempotency import idempotent
from tidegate.web.routing import Cursor, Limit, Router, answer
from tidegate.web.schemas import Answer, Body, Schedule

router = Router()
_TAGS = ["Batches"]


When = Annotated[Schedule, Field(min_length=1, description="`cron(0 2 * * ? *)` or `rate(6 hours)`, UTC")]


class BatchScheduleBody(Body):
    schedule: When
    batch: Annotated[BatchBody, Field(description="the batch that is made each time, as for POST /v1/batches")]


class BatchSchedulePatch(Body):
    schedule: When | None = None
    enabled: Annotated[bool, Field(description="a disabled schedule makes no batch")] | None = None


class BatchScheduleAnswer(Answer):
    schedule_id: Annotated[str, Field(description="the schedule")]
    schedule: Annotated[str, Field(description="`cron(0 2 * * ? *)` or `rate(6 hours)`, UTC")]
    enabled: Annotated[bool, Field(description="whether it makes batches")]
    biz_id: Annotated[str, Field(description="the business of its batches")]
    name: Annotated[str, Field(description="the name of its batches")]
    next_run: Annotated[str | None, Field(description="when the next batch is made")] = None
    last_batch_id: Annotated[str | None, Field(description="the batch that it made last")] = None
    last_error: Annotated[str | None, Field(description="why the last moment made or started no batch")] = None
    created_at: Annotated[str, Field(description="when it was made")]


class BatchScheduleList(Answer):
    items: list[BatchScheduleAnswer]
    next_cursor: str | None = None


def _shown(schedule: BatchSchedule) -> BatchScheduleAnswer:
    names = ("schedule_id", "schedule", "enabled", "last_batch_id", "last_error", "created_at")
    told: dict[str, Any] = {name: getattr(schedule, name) for name in names}
    due = schedule.due_at
    return BatchScheduleAnswer(
        **told,
        biz_id=schedule.batch.biz_id,
        name=schedule.batch.name,
        next_run=iso(datetime.fromtimestamp(due, UTC)) if due else None,
    )


@router.post(
    "/v1/batch-schedules",
    scope="write",
    tags=_TAGS,
    summary="Make and start a batch again and again",
    status_code=201,
    middlewares=[idempotent],
)
def create(body: BatchScheduleBody) -> Response[BatchScheduleAnswer]:
    caller = router.caller
    made = app().batches.schedules.add(caller.project_id, body.schedule, new_batch(body.batch), caller.key_id)
    return answer(_shown(made), 201)


@router.get("/v1/batch-schedules", scope="read", tags=_TAGS, summary="List schedules of batches")
def list_schedules(limit: Limit = 20, cursor: Cursor = None) -> BatchScheduleList:
    page = app().batches.schedules.list(router.caller.project_id, limit, cursor)
    return BatchScheduleList(items=[_shown(one) for one in page.items], next_cursor=page.next_cursor)


@router.get("/v1/batch-schedules/<schedule_id>", scope="read", tags=_TAGS, summary="One schedule of batches")
def show(schedule_id: str) -> BatchScheduleAnswer:
    return _shown(app().batches.schedules.get(router.caller.project_id, schedule_id))


@router.patch(
    "/v1/batch-schedules/<schedule_id>", scope="write", tags=_TAGS, summary="Change, disable or enable a schedule"
)
def change(schedule_id: str, body: BatchSchedulePatch) -> BatchScheduleAnswer:
    caller = router.caller
    changed = app().batches.schedules.change(
        caller.project_id, schedule_id, schedule=body.schedule, enabled=body.enabled, who=caller.key_id
    )
    return _shown(changed)


@router.delete(
    "/v1/batch-schedules/<schedule_id>", scope="write", tags=_TAGS, summary="Delete a schedule", status_code=204
)
def delete(schedule_id: str) -> Response[Any]:
    caller = router.caller
    app().batches.schedules.delete(caller.project_id, schedule_id, caller.key_id)
    return answer(None, 204)
