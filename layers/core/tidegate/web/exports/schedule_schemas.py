"""Bodies and answers of recurring exports."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, Strict

from tidegate.exports.model import ExportSpec
from tidegate.exports.schedules.model import ScheduledOrder
from tidegate.web.exports.schemas import (
    DeliverTo,
    EmailAddress,
    Json,
    MultipleBody,
    SourceHeaders,
    TaskAnswer,
    TaskBody,
)
from tidegate.web.schemas import Answer, Body, Priority, Schedule, Text

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
