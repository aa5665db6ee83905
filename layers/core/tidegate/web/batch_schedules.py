"""Routes for recurring batches: schedules that create and start a batch at each run."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from aws_lambda_powertools.event_handler import Response
from pydantic import Field

from tidegate.app import app
from tidegate.batches.model import SOURCE_FIELDS, NewBatch
from tidegate.batches.schedules import BatchSchedule
from tidegate.web.batches import BatchAnswer, BatchBody, BatchChanges, new_batch
from tidegate.web.idempotency import idempotent
from tidegate.web.routing import Cursor, Limit, Router, answer
from tidegate.web.schemas import Answer, Body, Schedule

# --- schedules
# Routes for recurring batches: schedules that create and start a batch at each run.

router = Router()
_TAGS = ["Batches"]


_EXPRESSION = "`cron(0 2 * * ? *)` or `rate(6 hours)`, in UTC"
_BATCH = "the batch that each run creates, with the fields of POST /v1/batches"
When = Annotated[Schedule, Field(min_length=1, description=_EXPRESSION)]


class BatchScheduleBody(Body):
    schedule: When
    batch: Annotated[BatchBody, Field(description=_BATCH)]


class BatchSchedulePatch(Body):
    """Fields that are left out stay as they are."""

    schedule: When | None = None
    paused: Annotated[bool, Field(description="true stops the schedule, false resumes it")] | None = None
    batch: Annotated[BatchChanges, Field(description="fields of the batch to change, from the next run on")] | None = (
        None
    )
    revision: (
        Annotated[int, Field(ge=1, description="the `revision` that you read; 409 if the schedule was changed since")]
        | None
    ) = None


class BatchScheduleAnswer(Answer):
    schedule_id: Annotated[str, Field(description="id of the schedule")]
    schedule: Annotated[str, Field(description=_EXPRESSION)]
    status: Annotated[Literal["active", "paused"], Field(description="a paused schedule creates no batches")]
    revision: Annotated[int, Field(description="increases with every change")]
    biz_id: Annotated[str, Field(description="the business of its batches")]
    name: Annotated[str, Field(description="the name of its batches")]
    next_run: Annotated[str | None, Field(description="time of the next run; absent while paused")] = None
    last_batch_id: Annotated[str | None, Field(description="the batch that the last run created")] = None
    last_error: Annotated[str | None, Field(description="why the last run created or started no batch")] = None
    created_at: Annotated[str, Field(description="when the schedule was created, ISO 8601 UTC")]
    created_by: Annotated[str, Field(description="key_id of its creator, also recorded as the creator of its batches")]


class BatchScheduleDetail(BatchScheduleAnswer):
    batch: Annotated[dict[str, Any], Field(description=_BATCH)]


class BatchScheduleList(Answer):
    items: list[BatchScheduleAnswer]
    next_cursor: str | None = None


class BatchRunAnswer(Answer):
    """One run of a schedule."""

    due: Annotated[str, Field(description="the time at which the run was due")]
    state: Annotated[Literal["started", "skipped"], Field(description="whether a batch was started")]
    batch_id: Annotated[str | None, Field(description="the batch that was created")] = None
    reason: Annotated[str | None, Field(description="why the run was skipped")] = None
    batch: Annotated[BatchAnswer | None, Field(description="the batch in its current state")] = None


class BatchRunList(Answer):
    items: list[BatchRunAnswer]
    next_cursor: str | None = None


def _detail(schedule: BatchSchedule, batch: NewBatch) -> BatchScheduleDetail:
    """The schedule, and its batch in the form of a request body."""
    body: dict[str, Any] = {name: value for name, value in asdict(batch).items() if value is not None}
    source = {name: body.pop(name) for name in SOURCE_FIELDS if name in body}
    body["pause_windows"] = [window.view() for window in batch.pause_windows]
    return BatchScheduleDetail(**schedule.shown(), batch=body | ({"source": source} if source else {}))


@router.post(
    "/v1/batch-schedules",
    scope="write",
    tags=_TAGS,
    summary="Create a recurring batch",
    status_code=201,
    middlewares=[idempotent],
)
def create(body: BatchScheduleBody) -> Response[BatchScheduleDetail]:
    caller, batch = router.caller, new_batch(body.batch)
    made = app().batches.schedules.add(caller.project_id, body.schedule, batch, caller.key_id)
    return answer(_detail(made, batch), 201)


@router.get("/v1/batch-schedules", scope="read", tags=_TAGS, summary="List recurring batches")
def list_schedules(limit: Limit = 20, cursor: Cursor = None) -> BatchScheduleList:
    page = app().batches.schedules.list(router.caller.project_id, limit, cursor)
    items = [BatchScheduleAnswer(**schedule.shown()) for schedule in page.items]
    return BatchScheduleList(items=items, next_cursor=page.next_cursor)


@router.get("/v1/batch-schedules/<schedule_id>", scope="read", tags=_TAGS, summary="Get a recurring batch")
def show(schedule_id: str) -> BatchScheduleDetail:
    schedules = app().batches.schedules
    found = schedules.get(router.caller.project_id, schedule_id)
    return _detail(found, schedules.batch(found))


@router.get(
    "/v1/batch-schedules/<schedule_id>/runs", scope="read", tags=_TAGS, summary="List the runs of a recurring batch"
)
def runs(schedule_id: str, limit: Limit = 20, cursor: Cursor = None) -> BatchRunList:
    page = app().batches.schedules.runs(router.caller.project_id, schedule_id, limit, cursor)
    return BatchRunList(items=[BatchRunAnswer(**run) for run in page.items], next_cursor=page.next_cursor)


@router.patch(
    "/v1/batch-schedules/<schedule_id>", scope="write", tags=_TAGS, summary="Change, pause or resume a recurring batch"
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
    "/v1/batch-schedules/<schedule_id>", scope="write", tags=_TAGS, summary="Delete a recurring batch", status_code=204
)
def delete(schedule_id: str) -> Response[Any]:
    caller = router.caller
    app().batches.schedules.delete(caller.project_id, schedule_id, caller.key_id)
    return answer(None, 204)
