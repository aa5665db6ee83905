"""Routes for recurring exports: create, list, change, pause, delete, and their runs."""

from __future__ import annotations

from typing import Any

from aws_lambda_powertools.event_handler import Response

from tidegate.app import app
from tidegate.exports.schedules.model import ScheduledOrder
from tidegate.web.exports.routes import exact_source_data, validated
from tidegate.web.exports.schedule_schemas import (
    ExportScheduleAnswer,
    ExportScheduleBody,
    ExportScheduleChange,
    ExportScheduleDetail,
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
    summary="Create a recurring export",
    status_code=201,
    middlewares=[idempotent],
)
def create(body: ExportScheduleBody) -> Response[ExportScheduleAnswer]:
    return _created(body)


@router.post(
    "/v1/export-schedules/multiple",
    scope="write",
    tags=_TAGS,
    summary="Create a recurring export of several tables",
    status_code=201,
    middlewares=[idempotent],
)
def create_multiple(body: MultipleScheduleBody) -> Response[ExportScheduleAnswer]:
    return _created(body)


def _created(body: ExportScheduleBody | MultipleScheduleBody) -> Response[ExportScheduleAnswer]:
    caller = router.caller
    order = ScheduledOrder(body.spec(exact_source_data()), body.options(), multiple=isinstance(body, MultipleBody))
    made = app().exports.schedules.create(caller.acting_for(body.project_id), body.schedule, order, caller.key_id)
    return answer(ExportScheduleAnswer(**made.shown()), 201)


@router.get("/v1/export-schedules", scope="read", tags=_TAGS, summary="List recurring exports")
def list_schedules(limit: Limit = 20, cursor: Cursor = None) -> ExportScheduleList:
    page = app().exports.schedules.list(router.caller.project_id, limit, cursor)
    items = [ExportScheduleAnswer(**schedule.shown()) for schedule in page.items]
    return ExportScheduleList(items=items, next_cursor=page.next_cursor)


@router.get("/v1/export-schedules/<schedule_id>", scope="read", tags=_TAGS, summary="Get a recurring export")
def show(schedule_id: str) -> Response[ExportScheduleDetail]:
    schedules = app().exports.schedules
    found = schedules.get(router.caller.project_id, schedule_id)
    return answer(ExportScheduleDetail(**found.shown(), order=order_fields(schedules.order(found))))


@router.get("/v1/export-schedules/<schedule_id>/runs", scope="read", tags=_TAGS, summary="List its runs")
def runs(schedule_id: str, limit: Limit = 20, cursor: Cursor = None) -> RunList:
    page = app().exports.schedules.runs(router.caller.project_id, schedule_id, limit, cursor)
    return RunList(items=[RunAnswer(**run) for run in page.items], next_cursor=page.next_cursor)


@router.patch(
    "/v1/export-schedules/<schedule_id>", scope="write", tags=_TAGS, summary="Change its schedule or its export"
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
        reorder=(lambda order: _with_changes(order, fields)) if fields else None,
    )
    return answer(ExportScheduleAnswer(**changed.shown()))


def _with_changes(old: ScheduledOrder, fields: dict[str, Any]) -> ScheduledOrder:
    """The export with these fields replaced, validated as a new one would be."""
    merged, exact = order_fields(old), None
    if any(fields.get(name) is not None for name in _SOURCES):
        # A new source replaces the old one, whichever kind that was.
        merged = {name: value for name, value in merged.items() if name not in _SOURCES}
        exact = exact_source_data()
    elif "source_data" not in fields and any(table.data is not None for table in old.spec.tables):
        rows = [table.data for table in old.spec.tables]
        exact = merged["source_data"] = rows if old.multiple else rows[0]
    complete = {name: value for name, value in (merged | fields).items() if value is not None}
    body = validated(MultipleBody, complete) if old.multiple else validated(TaskBody, complete)
    return ScheduledOrder(body.spec(exact), body.options(), multiple=old.multiple)


@router.post("/v1/export-schedules/<schedule_id>/pause", scope="write", tags=_TAGS, summary="Pause a recurring export")
def pause(schedule_id: str) -> Response[ExportScheduleAnswer]:
    caller = router.caller
    paused = app().exports.schedules.pause(caller.project_id, schedule_id, caller.key_id)
    return answer(ExportScheduleAnswer(**paused.shown()))


@router.post(
    "/v1/export-schedules/<schedule_id>/resume", scope="write", tags=_TAGS, summary="Resume a recurring export"
)
def resume(schedule_id: str) -> Response[ExportScheduleAnswer]:
    caller = router.caller
    resumed = app().exports.schedules.resume(caller.project_id, schedule_id, caller.key_id)
    return answer(ExportScheduleAnswer(**resumed.shown()))


@router.delete(
    "/v1/export-schedules/<schedule_id>",
    scope="write",
    tags=_TAGS,
    summary="Delete a recurring export",
    status_code=204,
)
def delete(schedule_id: str) -> Response[Any]:
    caller = router.caller
    app().exports.schedules.delete(caller.project_id, schedule_id, caller.key_id)
    return answer(None, 204)
