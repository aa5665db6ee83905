"""Schedules that make and start a batch again and again."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from aws_lambda_powertools.event_handler import Response
from pydantic import Field

from tidegate.app import app
from tidegate.batches.model import NewBatch
from tidegate.batches.recurring.model import BatchSchedule
from tidegate.batches.view import clock_text
from tidegate.web.batches.schemas import BatchAnswer, BatchBody, BatchChanges, new_batch
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
    """What is named is set; what is not named stays."""

    schedule: When | None = None
    paused: Annotated[bool, Field(description="a paused schedule makes no batch")] | None = None
    batch: Annotated[BatchChanges, Field(description="fields that change, from the next batch on")] | None = None
    revision: (
        Annotated[int, Field(ge=1, description="the revision that was read: refused (409) if there is a newer one")]
        | None
    ) = None


class BatchScheduleAnswer(Answer):
    schedule_id: Annotated[str, Field(description="the schedule")]
    schedule: Annotated[str, Field(description="`cron(0 2 * * ? *)` or `rate(6 hours)`, UTC")]
    status: Annotated[Literal["active", "paused"], Field(description="active or paused; a paused one makes no batch")]
    revision: Annotated[int, Field(description="rises with every change")]
    biz_id: Annotated[str, Field(description="the business of its batches")]
    name: Annotated[str, Field(description="the name of its batches")]
    next_run: Annotated[str | None, Field(description="when the next batch is made")] = None
    last_batch_id: Annotated[str | None, Field(description="the batch that it made last")] = None
    last_error: Annotated[str | None, Field(description="why the last moment made or started no batch")] = None
    created_at: Annotated[str, Field(description="when it was made")]
    created_by: Annotated[str, Field(description="the key that made it; its batches are made in this name")]


class BatchScheduleDetail(BatchScheduleAnswer):
    batch: Annotated[dict[str, Any], Field(description="the batch that is made each time, as for POST /v1/batches")]


class BatchScheduleList(Answer):
    items: list[BatchScheduleAnswer]
    next_cursor: str | None = None


class BatchRunAnswer(Answer):
    """One moment of a schedule; `batch` is its batch as it is now."""

    due: Annotated[str, Field(description="the moment of the schedule")]
    state: Annotated[Literal["started", "skipped"], Field(description="started or skipped")]
    batch_id: Annotated[str | None, Field(description="the batch that was made")] = None
    reason: Annotated[str | None, Field(description="why it was skipped")] = None
    batch: Annotated[BatchAnswer | None, Field(description="the batch as it is now, with its counts")] = None


class BatchRunList(Answer):
    items: list[BatchRunAnswer]
    next_cursor: str | None = None


def _detail(schedule: BatchSchedule, batch: NewBatch) -> BatchScheduleDetail:
    told: dict[str, Any] = {name: value for name, value in asdict(batch).items() if value is not None}
    file = {name: told.pop(name) for name in ("file_id", "format") if name in told}
    told["pause_windows"] = [{"start": clock_text(start), "end": clock_text(end)} for start, end in batch.pause_windows]
    return BatchScheduleDetail(**schedule.shown(), batch=told | ({"source": file} if file else {}))


@router.post(
    "/v1/batch-schedules",
    scope="write",
    tags=_TAGS,
    summary="Make and start a batch again and again",
    status_code=201,
    middlewares=[idempotent],
)
def create(body: BatchScheduleBody) -> Response[BatchScheduleDetail]:
    caller, batch = router.caller, new_batch(body.batch)
    made = app().batches.schedules.add(caller.project_id, body.schedule, batch, caller.key_id)
    return answer(_detail(made, batch), 201)


@router.get("/v1/batch-schedules", scope="read", tags=_TAGS, summary="List schedules of batches")
def list_schedules(limit: Limit = 20, cursor: Cursor = None) -> BatchScheduleList:
    page = app().batches.schedules.list(router.caller.project_id, limit, cursor)
    items = [BatchScheduleAnswer(**schedule.shown()) for schedule in page.items]
    return BatchScheduleList(items=items, next_cursor=page.next_cursor)


@router.get("/v1/batch-schedules/<schedule_id>", scope="read", tags=_TAGS, summary="One schedule of batches")
def show(schedule_id: str) -> BatchScheduleDetail:
    schedules = app().batches.schedules
    found = schedules.get(router.caller.project_id, schedule_id)
    return _detail(found, schedules.batch(found))


@router.get(
    "/v1/batch-schedules/<schedule_id>/runs", scope="read", tags=_TAGS, summary="The runs of a schedule of batches"
)
def runs(schedule_id: str, limit: Limit = 20, cursor: Cursor = None) -> BatchRunList:
    page = app().batches.schedules.runs(router.caller.project_id, schedule_id, limit, cursor)
    return BatchRunList(items=[BatchRunAnswer(**run) for run in page.items], next_cursor=page.next_cursor)


@router.patch(
    "/v1/batch-schedules/<schedule_id>", scope="write", tags=_TAGS, summary="Change, pause or resume a schedule"
)
def change(schedule_id: str, body: BatchSchedulePatch) -> BatchScheduleDetail:
    caller, schedules = router.caller, app().batches.schedules
    changed = schedules.change(
        caller.project_id,
        schedule_id,
        schedule=body.schedule,
        paused=body.paused,
        batch=body.batch.fields() if body.batch else None,
        revision=body.revision,
        who=caller.key_id,
    )
    return _detail(changed, schedules.batch(changed))


@router.delete(
    "/v1/batch-schedules/<schedule_id>", scope="write", tags=_TAGS, summary="Delete a schedule", status_code=204
)
def delete(schedule_id: str) -> Response[Any]:
    caller = router.caller
    app().batches.schedules.delete(caller.project_id, schedule_id, caller.key_id)
    return answer(None, 204)
