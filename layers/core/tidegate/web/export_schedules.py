"""Routes for recurring exports, with their bodies and answers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from aws_lambda_powertools.event_handler import Response
from pydantic import ConfigDict, Field, Strict

from tidegate.app import app
from tidegate.exports.model import ExportSpec
from tidegate.exports.schedules import ScheduledOrder
from tidegate.web.exports import (
    DeliverTo,
    EmailAddress,
    Json,
    MultipleBody,
    SourceHeaders,
    TaskAnswer,
    TaskBody,
    exact_source_data,
    validated,
    with_exact_texts,
)
from tidegate.web.idempotency import idempotent
from tidegate.web.routing import Cursor, Limit, Router, answer
from tidegate.web.schemas import Answer, Body, Priority, Schedule, Text

# --- schedule schemas
# Bodies and answers of recurring exports.

# Fields of a table; an export of several tables has a list of each.
_TABLE_FIELDS = ("source_url", "source", "template", "title", "summary", "header", "footer")
_ALIGNS = ("header_align", "footer_align")


class ExportScheduleBody(TaskBody):
    """The fields of `POST /v1/task`, and a schedule."""

    schedule: Schedule


class MultipleScheduleBody(MultipleBody):
    """The fields of `POST /v1/task/multiple`, and a schedule."""

    schedule: Schedule


class ExportScheduleChange(Body):
    """Fields that are left out stay as they are; null removes one.

    For an export of several tables, the fields of a table are lists, as in the request that created it.
    """

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    schedule: Schedule | None = None
    paused: bool | None = None
    revision: Annotated[int, Field(ge=0, le=2**53)] | None = None
    name: Text | None = None
    file_name: Text | None = None
    type: Text | None = None
    multi_type: Text | None = None
    callback: Text | None = None
    step: int | None = None
    operator_id: Text | None = None
    merchant_type: int | None = None
    merchant_id: Annotated[int, Strict()] | Text | None = None
    default_width: float | None = None
    default_height: float | None = None
    max_exec_time: int | None = None
    priority: Priority | None = None
    rows_per_file: int | None = None
    bom: bool | None = None
    csv_header: Text | None = None
    csv_guard: bool | None = None
    delimiter: str | None = None
    encoding: Text | None = None
    line_end: str | None = None
    compression: Text | None = None
    freeze: bool | None = None
    autofilter: bool | None = None
    auto_width: bool | None = None
    parallel: int | None = None
    source_rate: int | None = None
    source_timeout: int | None = None
    deliver: list[DeliverTo] | None = None
    email: list[EmailAddress] | None = None
    source_headers: SourceHeaders | None = None
    source_url: str | list[str | None] | None = None
    source: Json = None
    source_data: Json = None
    template: Json = None
    title: str | list[str | None] | None = None
    summary: str | list[str | None] | None = None
    header: Json = None
    footer: Json = None
    header_align: str | list[str] | None = None
    footer_align: str | list[str] | None = None

    def order_fields(self) -> dict[str, Any]:
        """The fields that change the export itself."""
        return self.model_dump(exclude_unset=True, exclude={"schedule", "paused", "revision"})


def order_fields(order: ScheduledOrder) -> dict[str, Any]:
    """The request body that would create this export, without its rows."""
    spec, options = order.spec, asdict(order.options)
    common = asdict(ExportSpec(tables=()))
    fields = {name: getattr(spec, name) for name in common if name not in ("tables", "credential", "multi_type")}
    if spec.credential:
        fields["source_headers"] = {"credential": spec.credential}
    tables = [asdict(table) for table in spec.tables]
    for name in _TABLE_FIELDS:
        values = [table[name] or None for table in tables]
        fields[name] = values if order.multiple else values[0]
    for name in _ALIGNS:
        aligns = [table[name] for table in tables]
        fields[name] = aligns if order.multiple else aligns[0]
    if order.multiple:
        fields["multi_type"] = spec.multi_type
    given_options = options | {"deliver": list(options["deliver"]) or None, "email": list(options["email"]) or None}
    return {name: value for name, value in (fields | given_options).items() if value is not None}


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
    revision: int


class ExportScheduleDetail(ExportScheduleAnswer):
    order: Annotated[dict[str, Any], Field(description="what each run exports, as it was ordered, without given rows")]


class ExportScheduleList(Answer):
    items: list[ExportScheduleAnswer]
    next_cursor: str | None = None


class RunAnswer(Answer):
    """One run of a schedule."""

    due: str
    state: Literal["started", "skipped"]
    task_id: str | None = None
    reason: str | None = None
    task: TaskAnswer | None = None


class RunList(Answer):
    items: list[RunAnswer]
    next_cursor: str | None = None


# --- schedules
# Routes for recurring exports: create, list, change, pause, delete, and their runs.

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
    order = ScheduledOrder(
        with_exact_texts(body.spec(exact_source_data())), body.options(), multiple=isinstance(body, MultipleBody)
    )
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
    return ScheduledOrder(with_exact_texts(body.spec(exact)), body.options(), multiple=old.multiple)


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
