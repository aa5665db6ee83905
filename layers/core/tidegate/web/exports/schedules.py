"""Recurring exports: made, listed, changed, paused, deleted, and their history."""

from __future__ import annotations

from typing import Any

from aws_lambda_powertools.event_handler import Response

from tidegate.app import app
from tidegate.exports.schedules.model import ScheduledOrder
from tidegate.web.exports.routes import exact_data, validated
from tidegate.web.exports.schedule_schemas import (
    ExportScheduleAnswer,
    ExportScheduleBody,
    ExportScheduleChange,
    ExportScheduleList,
    MultipleScheduleBody,
    RunAnswer,
    RunList,
    order_fields,
)
from tidegate.web.exports.schemas import MultipleBody, TaskBody
from tidegate.web.idempotency import idempotent
from tidegate.web.routing import Cursor, Limit, Router, answer

router = Router()
_TAGS = ["Exports"]
_SOURCES = ("source_url", "source", "source_data")


@router.post(
    "/v1/export-schedules",
    scope="write",
    tags=_TAGS,
    summary="Repeat an export",
    status_code=201,
    middlewares=[idempotent],
)
def create(body: ExportScheduleBody) -> Response[ExportScheduleAnswer]:
    return _created(body)


@router.post(
    "/v1/export-schedules/multiple",
    scope="write",
    tags=_TAGS,
    summary="Repeat an export of several tables",
    status_code=201,
    middlewares=[idempotent],
)
def create_multiple(body: MultipleScheduleBody) -> Response[ExportScheduleAnswer]:
    return _created(body)


def _created(body: ExportScheduleBody | MultipleScheduleBody) -> Response[ExportScheduleAnswer]:
    caller = router.caller
    order = ScheduledOrder(body.spec(exact_data()), body.order(), multiple=isinstance(body, MultipleBody))
    made = app().exports.schedules.create(caller.acting_for(body.project_id), body.schedule, order, caller.key_id)
    return answer(ExportScheduleAnswer(**made.shown()), 201)


@router.get("/v1/export-schedules", scope="read", tags=_TAGS, summary="List recurring exports")
def list_schedules(limit: Limit = 20, cursor: Cursor = None) -> ExportScheduleList:
    page = app().exports.schedules.list(router.caller.project_id, limit, cursor)
    items = [ExportScheduleAnswer(**schedule.shown()) for schedule in page.items]
    return ExportScheduleList(items=items, next_cursor=page.next_cursor)


@router.get("/v1/export-schedules/<schedule_id>", scope="read", tags=_TAGS, summary="One recurring export")
def show(schedule_id: str) -> Response[ExportScheduleAnswer]:
    found = app().exports.schedules.get(router.caller.project_id, schedule_id)
    return answer(ExportScheduleAnswer(**found.shown()))


@router.get("/v1/export-schedules/<schedule_id>/runs", scope="read", tags=_TAGS, summary="Its history")
def runs(schedule_id: str, limit: Limit = 20, cursor: Cursor = None) -> RunList:
    page = app().exports.schedules.runs(router.caller.project_id, schedule_id, limit, cursor)
    return RunList(items=[RunAnswer(**run) for run in page.items], next_cursor=page.next_cursor)


@router.patch(
    "/v1/export-schedules/<schedule_id>", scope="write", tags=_TAGS, summary="Change when it runs or what it orders"
)
def change(schedule_id: str, body: ExportScheduleChange) -> Response[ExportScheduleAnswer]:
    caller, fields = router.caller, body.order_fields()
    changed = app().exports.schedules.change(
        caller.project_id,
        schedule_id,
        caller.key_id,
        schedule=body.schedule,
        paused=body.paused,
        revision=body.revision,
        reorder=(lambda order: _reordered(order, fields)) if fields else None,
    )
    return answer(ExportScheduleAnswer(**changed.shown()))


def _reordered(old: ScheduledOrder, fields: dict[str, Any]) -> ScheduledOrder:
    """The order with these fields in place of its own; the whole of it is checked as a new one would be."""
    merged, exact = order_fields(old), None
    if any(fields.get(name) is not None for name in _SOURCES):
        # Another source takes the place of the one before, of whichever kind that was.
        merged = {name: value for name, value in merged.items() if name not in _SOURCES}
        exact = exact_data()
    elif "source_data" not in fields and any(table.data is not None for table in old.spec.tables):
        rows = [table.data for table in old.spec.tables]
        exact = merged["source_data"] = rows if old.multiple else rows[0]
    asked = {name: value for name, value in (merged | fields).items() if value is not None}
    body = validated(MultipleBody, asked) if old.multiple else validated(TaskBody, asked)
    return ScheduledOrder(body.spec(exact), body.order(), multiple=old.multiple)


@router.post("/v1/export-schedules/<schedule_id>/pause", scope="write", tags=_TAGS, summary="Stop repeating it")
def pause(schedule_id: str) -> Response[ExportScheduleAnswer]:
    caller = router.caller
    paused = app().exports.schedules.pause(caller.project_id, schedule_id, caller.key_id)
    return answer(ExportScheduleAnswer(**paused.shown()))


@router.post("/v1/export-schedules/<schedule_id>/resume", scope="write", tags=_TAGS, summary="Repeat it again")
def resume(schedule_id: str) -> Response[ExportScheduleAnswer]:
    caller = router.caller
    resumed = app().exports.schedules.resume(caller.project_id, schedule_id, caller.key_id)
    return answer(ExportScheduleAnswer(**resumed.shown()))


@router.delete(
    "/v1/export-schedules/<schedule_id>",
    scope="write",
    tags=_TAGS,
    summary="Forget it; exports that it ordered stay",
    status_code=204,
)
def delete(schedule_id: str) -> Response[Any]:
    caller = router.caller
    app().exports.schedules.delete(caller.project_id, schedule_id, caller.key_id)
    return answer(None, 204)
