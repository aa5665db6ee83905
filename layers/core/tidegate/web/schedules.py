"""Routes for recurring exports and batches, with their bodies and answers."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated, Any, Union

from aws_lambda_powertools.event_handler import Response
from pydantic import ConfigDict, create_model

from tidegate.app import app
from tidegate.aws.table import made_before
from tidegate.batches.model import SOURCE_FIELDS, NewBatch
from tidegate.batches.schedules import BatchSchedule
from tidegate.errors import Invalid
from tidegate.exports.model import ExportSpec
from tidegate.exports.schedules import ExportSchedule, ScheduledOrder
from tidegate.queue.schedules import Status, TimeZone, When
from tidegate.records import view_of
from tidegate.web.batches import BatchAnswer, BatchBody, BatchChanges, new_batch
from tidegate.web.exports import (
    ExportAnswer,
    Json,
    MultipleBody,
    TaskBody,
    exact_source_data,
    permitted,
    validated,
    with_exact_texts,
)
from tidegate.web.idempotency import idempotent
from tidegate.web.routing import Cursor, Limit, Router, answer
from tidegate.web.schemas import Answer, Body, F, Page, ScheduleChange, ScheduleRun, without_defaults

# --- schemas

_BATCH = "the batch that each run creates, with the fields of POST /v1/batches"


class ExportScheduleBody(TaskBody):
    """The fields of `POST /v1/task`, and a schedule."""

    schedule: When
    timezone: TimeZone = "UTC"


class MultipleScheduleBody(MultipleBody):
    """The fields of `POST /v1/task/multiple`, and a schedule."""

    schedule: When
    timezone: TimeZone = "UTC"


class BatchScheduleBody(Body):
    schedule: When
    timezone: TimeZone = "UTC"
    batch: Annotated[BatchBody, F(_BATCH)]


def _export_fields() -> dict[str, Any]:
    """All fields of an export, of one table or of several, as optional fields."""
    found: dict[str, Any] = {}
    for name in sorted({*TaskBody.model_fields, *MultipleBody.model_fields} - {"project_id"}):
        given = [body.model_fields[name] for body in (TaskBody, MultipleBody) if name in body.model_fields]
        kinds = [Annotated[each.annotation, *each.metadata] if each.metadata else each.annotation for each in given]
        found[name] = (Union[(*kinds, None)], None)
    # Any JSON here, validated with the whole order: else a generated client would send the defaults of its parts.
    return found | {"source": (Annotated[Json, F("rows that are read directly; of several tables, a list")], None)}


_ExportFieldChanges: Any = create_model("ExportFieldChanges", __base__=ScheduleChange, **_export_fields())


class ExportScheduleChange(_ExportFieldChanges, changes=ExportSchedule):  # type: ignore[misc,call-arg]
    """Fields that are left out stay as they are; null removes one.

    For an export of several tables, the fields of a table are lists, as in the request that created it.
    """

    model_config = ConfigDict(coerce_numbers_to_str=True, json_schema_extra=without_defaults)


class BatchSchedulePatch(ScheduleChange, changes=BatchSchedule):
    """Fields that are left out stay as they are."""

    batch: Annotated[BatchChanges | None, F("fields of the batch to change, from the next run on")] = None


class ExportScheduleAnswer(Answer, record=ExportSchedule):
    schedule: str
    status: Status


class ExportScheduleDetail(ExportScheduleAnswer):
    order: Annotated[dict[str, Any], F("what each run exports, as it was ordered, without given rows")]


class BatchScheduleAnswer(Answer, record=BatchSchedule):
    schedule: str
    status: Status


class BatchScheduleDetail(BatchScheduleAnswer):
    batch: Annotated[dict[str, Any], F(_BATCH)]


class ExportScheduleList(Page):
    items: list[ExportScheduleAnswer]


class BatchScheduleList(Page):
    items: list[BatchScheduleAnswer]


class RunAnswer(ScheduleRun):
    task_id: Annotated[str | None, F("the export that was created")] = None
    task: Annotated[ExportAnswer | None, F("the export in its current state; absent if it was deleted")] = None


class BatchRunAnswer(ScheduleRun):
    batch_id: Annotated[str | None, F("the batch that was created")] = None
    batch: Annotated[BatchAnswer | None, F("the batch in its current state; absent if it was deleted")] = None


class RunList(Page):
    items: list[RunAnswer]


class BatchRunList(Page):
    items: list[BatchRunAnswer]


# --- orders as bodies

# Fields of a table; an export of several tables has a list of each.
_TABLE_FIELDS = ("source_url", "source", "template", "title", "sheet_name", "summary", "header", "footer")
_NOT_SHOWN = ("tables", "credential", "multi_type", "masks", "password", "sealed_password")
_ALIGNS = ("header_align", "footer_align")
_SOURCES = ("source_url", "source", "source_data")


def order_fields(order: ScheduledOrder) -> dict[str, Any]:
    """Returns the fields of a request body that would create this export. The rows of the export are left out."""
    spec, options = order.spec, asdict(order.options)
    common = asdict(ExportSpec(tables=()))
    fields = {name: getattr(spec, name) for name in common if name not in _NOT_SHOWN}
    if spec.fill:
        fields["fill"] = asdict(spec.fill)
    if spec.credential:
        fields["source_headers"] = {"credential": spec.credential}
    for name in (*_TABLE_FIELDS, *_ALIGNS):
        values = [getattr(table, name) or None for table in spec.tables]
        fields[name] = values if order.multiple else values[0]
    if order.multiple:
        fields["multi_type"] = spec.multi_type
    given_options = options | {"deliver": list(options["deliver"]) or None, "email": list(options["email"]) or None}
    return {name: value for name, value in (fields | given_options).items() if value is not None}


def _ordered(body: TaskBody | MultipleBody, exact: Any) -> ScheduledOrder:
    """Returns the order in a body. `exact`: the rows of the order, with decimals as they were written."""
    spec = permitted(with_exact_texts(body.spec(exact)))
    if spec.password:
        detail = "a recurring export keeps no password: leave it out, or order each export with POST /v1/task"
        raise Invalid(detail, errors=[{"loc": ["body", "password"], "msg": detail}])
    return ScheduledOrder(spec, body.options(), multiple=isinstance(body, MultipleBody))


def _with_changes(old: ScheduledOrder, fields: dict[str, Any]) -> ScheduledOrder:
    """Returns the export with these fields replaced. The result is validated like a new export."""
    merged, exact = order_fields(old), None
    if any(fields.get(name) is not None for name in _SOURCES):
        # A new source replaces the old one, whichever kind that was.
        merged = {name: value for name, value in merged.items() if name not in _SOURCES}
        exact = exact_source_data()
    elif "source_data" not in fields and any(table.data is not None for table in old.spec.tables):
        rows = [table.data for table in old.spec.tables]
        exact = merged["source_data"] = rows if old.multiple else rows[0]
    complete = {name: value for name, value in (merged | fields).items() if value is not None}
    return _ordered(validated(MultipleBody, complete) if old.multiple else validated(TaskBody, complete), exact)


def _export_detail(schedule: ExportSchedule) -> ExportScheduleDetail:
    from tidegate.sheets.values import plain

    order = plain(order_fields(app().exports.schedules.order(schedule)))
    return ExportScheduleDetail(**view_of(schedule), order=order)


def _batch_detail(schedule: BatchSchedule, batch: NewBatch | None = None) -> BatchScheduleDetail:
    batch = batch or app().batches.schedules.order(schedule)
    body: dict[str, Any] = {name: value for name, value in asdict(batch).items() if value is not None}
    source = {name: body.pop(name) for name in SOURCE_FIELDS if name in body}
    body["pause_windows"] = [window.view() for window in batch.pause_windows]
    return BatchScheduleDetail(**view_of(schedule), batch=body | ({"source": source} if source else {}))


# --- routes

router = Router("Exports")
_BATCHES: dict[str, Any] = {"tags": ["Batches"]}
_NEW: dict[str, Any] = {"scope": "write", "status_code": 201, "middlewares": [idempotent]}
_EXPORT, _BATCH_PATH = "/v1/export-schedules/<schedule_id>", "/v1/batch-schedules/<schedule_id>"


@router.post("/v1/export-schedules", summary="Create a recurring export", **_NEW)
def create_export(body: ExportScheduleBody) -> Response[ExportScheduleAnswer]:
    return _created(body)


@router.post("/v1/export-schedules/multiple", summary="Create a recurring export of several tables", **_NEW)
def create_export_of_several(body: MultipleScheduleBody) -> Response[ExportScheduleAnswer]:
    return _created(body)


def _created(body: ExportScheduleBody | MultipleScheduleBody) -> Response[ExportScheduleAnswer]:
    caller, order = router.caller, _ordered(body, exact_source_data())
    project_id, schedules = caller.acting_for(body.project_id), app().exports.schedules
    if earlier := made_before():
        made = schedules.get(project_id, earlier["schedule_id"])
    else:
        made = schedules.create(project_id, body.schedule, order, caller.key_id, timezone=body.timezone)
    return answer(ExportScheduleAnswer(**view_of(made)), 201)


@router.post("/v1/batch-schedules", summary="Create a recurring batch", **_NEW, **_BATCHES)
def create_batch(body: BatchScheduleBody) -> Response[BatchScheduleDetail]:
    caller, batch = router.caller, new_batch(body.batch)
    schedules = app().batches.schedules
    if earlier := made_before():
        return answer(show_batch(earlier["schedule_id"]), 201)
    made = schedules.create(caller.project_id, body.schedule, batch, caller.key_id, timezone=body.timezone)
    return answer(_batch_detail(made, batch), 201)


@router.get("/v1/export-schedules", scope="read", summary="List recurring exports")
def list_exports(limit: Limit = 20, cursor: Cursor = None) -> ExportScheduleList:
    page = app().exports.schedules.list(router.caller.project_id, limit, cursor)
    items = [ExportScheduleAnswer(**view_of(schedule)) for schedule in page.items]
    return ExportScheduleList(items=items, next_cursor=page.next_cursor)


@router.get("/v1/batch-schedules", scope="read", summary="List recurring batches", **_BATCHES)
def list_batches(limit: Limit = 20, cursor: Cursor = None) -> BatchScheduleList:
    page = app().batches.schedules.list(router.caller.project_id, limit, cursor)
    items = [BatchScheduleAnswer(**view_of(schedule)) for schedule in page.items]
    return BatchScheduleList(items=items, next_cursor=page.next_cursor)


@router.get(_EXPORT, scope="read", summary="Get a recurring export")
def show_export(schedule_id: str) -> Response[ExportScheduleDetail]:
    return answer(_export_detail(app().exports.schedules.get(router.caller.project_id, schedule_id)))


@router.get(_BATCH_PATH, scope="read", summary="Get a recurring batch", **_BATCHES)
def show_batch(schedule_id: str) -> BatchScheduleDetail:
    return _batch_detail(app().batches.schedules.get(router.caller.project_id, schedule_id))


@router.get(f"{_EXPORT}/runs", scope="read", summary="List the runs of a recurring export")
def runs_of_export(schedule_id: str, limit: Limit = 20, cursor: Cursor = None) -> RunList:
    page = app().exports.schedules.runs(router.caller.project_id, schedule_id, limit, cursor)
    return RunList(items=[RunAnswer(**run) for run in page.items], next_cursor=page.next_cursor)


@router.get(f"{_BATCH_PATH}/runs", scope="read", summary="List the runs of a recurring batch", **_BATCHES)
def runs_of_batch(schedule_id: str, limit: Limit = 20, cursor: Cursor = None) -> BatchRunList:
    page = app().batches.schedules.runs(router.caller.project_id, schedule_id, limit, cursor)
    return BatchRunList(items=[BatchRunAnswer(**run) for run in page.items], next_cursor=page.next_cursor)


def _timing(body: ScheduleChange) -> dict[str, Any]:
    return {name: getattr(body, name) for name in ("schedule", "timezone", "paused", "revision")}


@router.patch(_EXPORT, scope="write", summary="Change its schedule or its export")
def change_export(schedule_id: str, body: ExportScheduleChange) -> Response[ExportScheduleAnswer]:
    caller, timing = router.caller, _timing(body)
    fields = body.model_dump(exclude_unset=True, exclude=timing.keys())
    reorder = (lambda order: _with_changes(order, fields)) if fields else None
    schedules = app().exports.schedules
    changed = schedules.change(caller.project_id, schedule_id, caller.key_id, **timing, reorder=reorder, fields=fields)
    return answer(ExportScheduleAnswer(**view_of(changed)))


@router.patch(_BATCH_PATH, scope="write", summary="Change, pause or resume a recurring batch", **_BATCHES)
def change_batch(schedule_id: str, body: BatchSchedulePatch) -> BatchScheduleDetail:
    caller, fields = router.caller, body.batch.fields() if body.batch else {}
    reorder = (lambda batch: replace(batch, **fields)) if fields else None
    changed = app().batches.schedules.change(
        caller.project_id, schedule_id, caller.key_id, **_timing(body), reorder=reorder, fields=fields
    )
    return _batch_detail(changed)


@router.post(f"{_EXPORT}/pause", scope="write", summary="Pause a recurring export")
def pause_export(schedule_id: str) -> Response[ExportScheduleAnswer]:
    return _switched(schedule_id, paused=True)


@router.post(f"{_EXPORT}/resume", scope="write", summary="Resume a recurring export")
def resume_export(schedule_id: str) -> Response[ExportScheduleAnswer]:
    return _switched(schedule_id, paused=False)


def _switched(schedule_id: str, *, paused: bool) -> Response[ExportScheduleAnswer]:
    caller = router.caller
    changed = app().exports.schedules.change(caller.project_id, schedule_id, caller.key_id, paused=paused)
    return answer(ExportScheduleAnswer(**view_of(changed)))


@router.delete(_EXPORT, scope="write", summary="Delete a recurring export", status_code=204)
def delete_export(schedule_id: str) -> Response[Any]:
    app().exports.schedules.delete(router.caller.project_id, schedule_id, router.caller.key_id)
    return answer(None, 204)


@router.delete(_BATCH_PATH, scope="write", summary="Delete a recurring batch", status_code=204, **_BATCHES)
def delete_batch(schedule_id: str) -> Response[Any]:
    app().batches.schedules.delete(router.caller.project_id, schedule_id, router.caller.key_id)
    return answer(None, 204)
