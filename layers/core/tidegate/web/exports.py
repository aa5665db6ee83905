"""Routes for exports: submit, look up, list, delete, download; with their bodies and answers."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Query
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from tidegate.app import app
from tidegate.aws.table import made_before
from tidegate.common.json_input import read_json
from tidegate.errors import ContentTooLarge, Invalid
from tidegate.exports.model import (
    Align,
    Delivery,
    Export,
    ExportOptions,
    ExportSpec,
    ExportType,
    Fill,
    SourceUrl,
    TableSpec,
)
from tidegate.files.model import content_disposition
from tidegate.queue.model import WaitReason
from tidegate.records import record_from
from tidegate.web.api import count_that_fit, fits
from tidegate.web.idempotency import idempotent
from tidegate.web.routing import Cursor, Limit, Router, answer, invalid_fields
from tidegate.web.schemas import Answer, Body, F, LinkAnswer, Page, Text, without_defaults

if TYPE_CHECKING:
    from tidegate.exports.exports import DownloadLink

# --- source schemas
# Sources that an export reads directly, without an HTTP endpoint: S3, DynamoDB, Athena.

Expression = Annotated[str, F(min_length=1, max_length=4096)]
_BUCKET = r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$"
_TABLE = r"^[A-Za-z0-9_.-]{3,255}$"


class S3Source(Body):
    """A CSV object with a header line, or an object of JSON lines. Not compressed, because ranges of it are read."""

    bucket: Annotated[str, F("the bucket; the stack's parameter SourceBucket must allow it", pattern=_BUCKET)]
    key: Annotated[str, F("key of the object", min_length=1, max_length=1024)]
    format: Annotated[Literal["csv", "jsonl"] | None, F("`csv` or `jsonl`; default: by the ending of the key")] = None
    delimiter: Annotated[
        Literal[",", ";", "\t", "|"] | None, F("separator between the cells of CSV; default: a comma")
    ] = None
    encoding: Annotated[Literal["utf-8", "gb18030"] | None, F("encoding of CSV; default: utf-8")] = None

    @model_validator(mode="after")
    def _detect_format(self) -> Self:
        ending = self.key.lower().rpartition(".")[2]
        if self.format is None:
            self.format = {"csv": "csv", "jsonl": "jsonl", "ndjson": "jsonl"}.get(ending)  # type: ignore[assignment]
        if self.format is None:
            raise ValueError(
                "format (csv or jsonl) is required, because the key does not end in .csv, .jsonl or .ndjson"
            )
        return self


class DynamoSource(Body):
    """A DynamoDB query, with DynamoDB's own expression syntax."""

    # It is also part of the changes of a recurring export.
    model_config = ConfigDict(json_schema_extra=without_defaults)

    table: Annotated[str, F("the table; the stack's parameter SourceTable must allow it", pattern=_TABLE)]
    index: Annotated[str | None, F("the secondary index", pattern=_TABLE)] = None
    key_condition: Annotated[Expression, F("the KeyConditionExpression, such as `shop = :shop AND #day > :day`")]
    values: Annotated[dict[str, Any], F('values for the expressions: {":shop": "a"}', min_length=1, max_length=100)]
    names: Annotated[dict[str, Text] | None, F('names for the expressions: {"#day": "day"}', max_length=100)] = None
    filter: Annotated[Expression | None, F("a FilterExpression; applied after the read, which AWS bills in full")] = (
        None
    )
    attributes: Annotated[
        list[Text] | None, F("the attributes to read; default: all", min_length=1, max_length=100)
    ] = None
    newest_first: Annotated[bool, F("descending by the sort key")] = False


class AthenaSource(Body):
    workgroup: Annotated[
        str, F("the workgroup; the stack's parameter SourceWorkgroup must allow it", pattern=r"^[A-Za-z0-9._-]{1,128}$")
    ]
    sql: Annotated[str, F("a read-only statement", min_length=1, max_length=100_000)]
    database: Annotated[Text | None, F("the database of unqualified table names")] = None
    catalog: Annotated[Text | None, F("the data catalog; default: that of the workgroup")] = None

    @model_validator(mode="after")
    def _check_read_only(self) -> Self:
        from tidegate.exports.direct import reads_only

        if not reads_only(self.sql):
            raise ValueError(
                "sql must be a read-only statement: one SELECT, WITH, VALUES, TABLE, SHOW or DESCRIBE, and no control "
                "characters"
            )
        return self


class DirectSource(Body):
    """Rows that are read directly: from exactly one of `s3`, `dynamodb` and `athena`.

    The stack's parameters and the project's `read_from` must allow it."""

    s3: Annotated[S3Source | None, F("an object in S3")] = None
    dynamodb: Annotated[DynamoSource | None, F("a query of a DynamoDB table")] = None
    athena: Annotated[AthenaSource | None, F("SQL, run by Athena in a workgroup")] = None

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if sum(each is not None for each in (self.s3, self.dynamodb, self.athena)) != 1:
            raise ValueError("must have exactly one of s3, dynamodb and athena")
        return self

    def as_data(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)


# --- schemas


def _from_json(value: Any) -> Any:
    """Returns the value. If the value is a string with a JSON object or list, returns this object or list.

    A blank string becomes None.
    """
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    if value.lstrip()[0] in "{[":
        try:
            return read_json(value)
        except ValueError as error:
            raise ValueError(f"starts like JSON but cannot be parsed: {error}") from error
    return value


def _texts_from_json(value: Any) -> Any:
    """Returns the object in a JSON text. Any other text stays as it is, because a heading may begin with `[` or `{`."""
    if not isinstance(value, str) or value.lstrip()[:1] != "{":
        return value or None
    try:
        return read_json(value)
    except ValueError:
        return value


def _texts(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict) and all(v is None or isinstance(v, str | int | float) for v in value.values()):
        return value
    raise ValueError('must be a string, or an object of strings such as {"Station": "North"}')


def _rows(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"data", "total"} and not isinstance(value["total"], list):
        # The format in which a source answers. Its total is not needed, because all rows are here.
        value = value["data"]
    if value is None or isinstance(value, list | dict):
        return value
    raise ValueError('must be a list of rows such as [{"id": 1}], or an object {group: rows}')


def _parsed_exactly(value: Any) -> Any:
    """Returns the value of a JSON text, with decimals as they were written. None for a blank text."""
    from tidegate.sheets.values import read_exact

    if not isinstance(value, str):
        return value
    return read_exact(value) if value.strip() else None


def _exact_rows(value: Any) -> Any:
    return _rows(_parsed_exactly(value))


def _line_end(value: Any) -> Any:
    """Returns `lf` or `crlf`. The value may also be the line-end characters themselves.

    Schedules show these characters, and earlier clients send them.
    """
    return {"\n": "lf", "\r\n": "crlf"}.get(value, value.lower()) if isinstance(value, str) else value


def _compression(value: Any) -> Any:
    return None if value in ("none", "") else value


Json = Annotated[Any, BeforeValidator(_from_json)]
Rows = Annotated[Any, BeforeValidator(_from_json), AfterValidator(_rows)]
Texts = Annotated[Any, BeforeValidator(_texts_from_json), AfterValidator(_texts)]
Source = Annotated[DirectSource | None, BeforeValidator(_from_json)]
Name = Annotated[Text, F(min_length=2, max_length=60)]
EmailAddress = Annotated[str, F(max_length=254, pattern=r"^[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+@[A-Za-z0-9.-]+$")]


class SourceHeaders(Body):
    """A credential stored with `PUT /v1/credentials/{name}`. Its headers are sent to the credential's origins only."""

    credential: Annotated[
        Text, F("name of a stored credential; its headers are sent to its origins only", min_length=1, max_length=64)
    ]


class DeliverTo(Body, record=Delivery):
    """Where a copy of the file is put. The file's name is appended to a key that ends in `/`."""


class FillBody(Body, record=Fill):
    """A template, which is an .xlsx of the library. `{name}` is replaced by a value. `{.name}` marks the row that is
    repeated for each row of data, `{list.name}` that of one of several tables, by its title or its number. `\\{` is a
    brace."""


class ExportBody(
    Body, record=(ExportOptions, ExportSpec), without=("tables", "multi_type", "credential", "masks", "sealed_password")
):
    """Fields that exports of one table and of several tables share."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    project_id: Annotated[Text | None, F("the project, for admin keys; default: the project of the key")] = None
    type: ExportType = "csv"
    line_end: Annotated[Literal["lf", "crlf"], BeforeValidator(_line_end)] = "lf"
    compression: Annotated[Literal["gzip"] | None, BeforeValidator(_compression)] = None
    deliver: Annotated[list[DeliverTo], Field(max_length=5)] | None = None
    email: Annotated[list[EmailAddress], Field(max_length=5)] | None = None
    fill: Annotated[FillBody | None, BeforeValidator(_from_json)] = None
    source_headers: Annotated[
        SourceHeaders | None, BeforeValidator(_from_json), F("a stored credential whose headers are sent to the source")
    ] = None

    @model_validator(mode="after")
    def _check_compression(self) -> Self:
        if self.compression and self.type in ("excel", "parquet"):
            raise ValueError(
                f"compression is for csv and jsonl only, because {self.type} files are compressed: leave it out"
            )
        return self

    def options(self) -> ExportOptions:
        once = tuple(dict.fromkeys(self.email or ()))
        options = record_from(ExportOptions, vars(self), email=once)
        return options if options.callback else replace(options, callback=None)

    def _spec(self, tables: list[TableSpec], multi_type: str = "page") -> ExportSpec:
        return record_from(
            ExportSpec,
            vars(self),
            tables=tuple(tables),
            multi_type=multi_type,
            line_end="\r\n" if self.line_end == "crlf" else "\n",
            credential=self.source_headers.credential if self.source_headers else None,
        )


class TaskBody(ExportBody, record=TableSpec, without=("data",)):
    source_url: SourceUrl | None = None
    source: Source = None
    source_data: Annotated[Rows, F("the rows: a list of objects, or `{group: rows}`")] = None
    template: Json = None
    title: Annotated[str, Field(max_length=1000)] | None = None
    summary: Annotated[str, Field(max_length=10_000)] | None = None
    header: Texts = None
    footer: Texts = None

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if self.source_data is None and not self.source_url and not self.source:
            raise ValueError("one of source_url, source and source_data is required")
        if self.source and self.source_url:
            raise ValueError("give source_url or source, not both")
        return self

    def spec(self, exact: Any = None) -> ExportSpec:
        """Returns the export in this body.

        `exact`: the body's `source_data` with decimals as they were written. None if the body has no such decimals.
        """
        direct = self.source.as_data() if self.source else None
        data = self.source_data if exact is None else _exact_rows(exact)
        table = record_from(TableSpec, vars(self), source=direct, data=data)
        return self._spec([table])


def _listed(value: Any) -> Any:
    value = _from_json(value)
    if value is None or isinstance(value, list):
        return value
    raise ValueError("must be a list with one entry for each table")


class MultipleBody(ExportBody, record=TableSpec, without=("data",)):
    """Every field of a table is a list with one entry for each table."""

    type: Annotated[ExportType, F("format of the file; Parquet files have one table only")] = "csv"
    multi_type: Annotated[
        Literal["page", "tab"], F("several tables in one sheet (`page`), or one sheet for each table (`tab`)")
    ] = "page"
    source_url: Annotated[
        list[SourceUrl | None] | None,
        BeforeValidator(_listed),
        F("your endpoints, one for each table, from which rows are pulled page by page"),
    ] = None
    source: Annotated[
        list[Source] | None, BeforeValidator(_listed), F("rows that are read directly, one entry for each table")
    ] = None
    source_data: Annotated[
        list[Rows] | None, BeforeValidator(_listed), F("the rows: a list of objects, or `{group: rows}`")
    ] = None
    template: Annotated[list[Json] | None, BeforeValidator(_listed)] = None
    title: Annotated[list[str | None] | None, BeforeValidator(_listed)] = None
    sheet_name: Annotated[
        list[Annotated[str, Field(max_length=31)] | None] | None,
        BeforeValidator(_listed),
        F("names of the sheets in Excel, at most 31 characters; with `page`, that of the first table"),
    ] = None
    summary: Annotated[list[str | None] | None, BeforeValidator(_listed)] = None
    header: Annotated[list[Texts] | None, BeforeValidator(_listed)] = None
    footer: Annotated[list[Texts] | None, BeforeValidator(_listed)] = None
    header_align: Align | list[Align] = "right"
    footer_align: Align | list[Align] = "right"

    @model_validator(mode="after")
    def _check_tables(self) -> Self:
        if not self._count:
            raise ValueError("one of source_data, source_url and source is required, with one entry for each table")
        if self.type == "parquet":
            raise ValueError("a Parquet file has one table: submit an export for each table")
        if self._count > 100:
            raise ValueError(f"an export has at most 100 tables, not {self._count}: submit several exports")
        for field in ("template", "title", "sheet_name", "summary", "header", "footer"):
            if (entries := len(getattr(self, field) or [])) > self._count:
                raise ValueError(f"{field} has {entries} entries, but there are only {self._count} tables")
        return self

    @property
    def _count(self) -> int:
        """The number of tables. A table with several sources uses `source_data`, else `source`, else `source_url`."""
        return max(len(given or []) for given in (self.source_data, self.source_url, self.source))

    def spec(self, exact: Any = None) -> ExportSpec:
        data = self.source_data if exact is None else [_exact_rows(rows) for rows in _parsed_exactly(exact) or ()]

        def entry(values: Any, number: int) -> Any:
            if not isinstance(values, list):
                return values
            return values[number] if number < len(values) else None

        tables = []
        for number in range(self._count):
            given = {name: entry(value, number) for name, value in self}
            direct = given["source"].as_data() if given["source"] else None
            tables.append(record_from(TableSpec, given, source=direct, data=entry(data, number)))
        return self._spec(tables, self.multi_type)


class SyncBody(TaskBody):
    """Like `TaskBody`, but without a record: `name` may be left out, and has no effect."""

    name: Annotated[Name, F("accepted as for POST /v1/task; has no effect")] = "sync"
    callback: Annotated[str | None, F("not for synchronous exports", max_length=300)] = None
    deliver: Annotated[list[DeliverTo] | None, F("not for synchronous exports", max_length=5)] = None
    email: Annotated[list[EmailAddress] | None, F("not for synchronous exports", max_length=5)] = None
    source: Annotated[Source, F("not for synchronous exports")] = None


class SyncMultipleBody(MultipleBody):
    name: Annotated[Name, F("accepted as for POST /v1/task/multiple; has no effect")] = "sync"
    callback: Annotated[str | None, F("not for synchronous exports", max_length=300)] = None
    deliver: Annotated[list[DeliverTo] | None, F("not for synchronous exports", max_length=5)] = None
    email: Annotated[list[EmailAddress] | None, F("not for synchronous exports", max_length=5)] = None
    source: Annotated[list[Source] | None, BeforeValidator(_listed), F("not for synchronous exports")] = None


class SampleBody(Body):
    source_url: Annotated[SourceUrl, F("your endpoint, from which rows are pulled page by page")]


class SampleAnswer(Answer):
    """The first rows of a source, and what its answer contains besides rows."""

    rows: Annotated[list[dict[str, Any]], F("the first rows, at most 20")]
    total: Annotated[int | None, F("total number of rows, if the source states it")] = None
    answered: Annotated[dict[str, Any], F("what the source's answer contains besides rows: header, footer, template")]


class TemplateList(Answer):
    """A list of a template: the rows of the sheet that are repeated, and the columns that they name."""

    name: Annotated[str, F("title or number of its table; empty for `{.name}`, which is the first table")]
    sheet: Annotated[str, F("name of its sheet")]
    row: Annotated[int, F("the first row that is repeated, from 1")]
    last_row: Annotated[int, F("the last row that is repeated with it")]
    columns: Annotated[list[str], F("keys, or titles of the order's `template`, that its placeholders name")]


class TemplateCellAnswer(Answer):
    row: Annotated[int, F("row, from 1")]
    column: Annotated[int, F("column, from 1")]
    text: Annotated[
        str, F("text with placeholders, a formula with `=`, or a number as it is stored; at most 200 characters")
    ]
    bold: Annotated[bool | None, F("whether it is bold")] = None
    align: Annotated[Literal["left", "center", "right"] | None, F("horizontal alignment, if it is set")] = None
    color: Annotated[str | None, F("colour of the text, six hexadecimal digits")] = None
    bg_color: Annotated[str | None, F("colour of the cell, six hexadecimal digits")] = None


class TemplateSheetAnswer(Answer):
    name: Annotated[str, F("name of the sheet")]
    cells: Annotated[list[TemplateCellAnswer], F("cells of its first 40 rows and 26 columns, for a preview")]
    merges: Annotated[list[str], F("merged areas that begin in these rows, such as `A1:C1`")]


class PlaceholdersAnswer(Answer):
    """What a template asks for, and what its sheets look like."""

    values: Annotated[list[str], F("names of its values, such as `customer` for `{customer}`")]
    lists: Annotated[list[TemplateList], F("its lists, in the order of the sheets")]
    sheets: Annotated[list[TemplateSheetAnswer], F("its first sheets, at most 5")]


class TaskIds(Body):
    task_ids: Annotated[list[Text], F("ids of the exports, up to 100", min_length=1, max_length=100)]


class TaskAccepted(Answer):
    task_id: Annotated[str, F("id of the export: GET /v1/task?task_id=")]


class ExportProgress(Answer):
    rows: Annotated[int, F("rows so far")]
    total: Annotated[int | None, F("total number of rows, if the source states it")] = None
    percent: Annotated[int, F("progress in percent, 0 to 100")]


class DeliveredCopy(Answer):
    bucket: Annotated[str, F("the bucket")]
    key: Annotated[str, F("key of the copy")]
    state: Annotated[Literal["delivered", "failed"], F("`delivered` or `failed`")]
    error: Annotated[str | None, F("why the copy failed")] = None


class SentEmail(Answer):
    to: Annotated[str, F("the address")]
    state: Annotated[
        Literal["sent", "failed", "unknown"],
        F("`sent`, `failed`, or `unknown`: the function ended before it knew, and the e-mail is not sent again"),
    ]
    error: Annotated[str | None, F("why it was not sent, or why the result is unknown")] = None


class ExportAnswer(Answer, record=Export):
    status: Annotated[
        str, F("`pending`, `queued`, `running`, `completed`, `failed`, `cancelled`, `paused` or `expired`")
    ]
    progress: Annotated[ExportProgress, F("rows so far, and the total if the source states it")]
    file_name: Annotated[str | None, F("name of the file")] = None
    size: Annotated[int | None, F("size in bytes")] = None
    attempts: Annotated[int, F("number of attempts so far")]
    warnings: Annotated[
        list[str] | None, F("inconsistencies, such as a total that differs from the number of rows")
    ] = None
    deliveries: Annotated[list[DeliveredCopy] | None, F("the requested copies and their state")] = None
    emails: Annotated[list[SentEmail] | None, F("the addresses that get an e-mail, and whether it was sent")] = None
    failed_reason: Annotated[str | None, F("why the export failed")] = None
    unmask: Annotated[bool | None, F("whether columns that the project masks are written as they are")] = None
    priority: Annotated[int | None, F("1 (first) to 10 (last)")] = None
    last_wait_reason: WaitReason = None
    start_time: Annotated[str | None, F("when it started, ISO 8601 UTC")] = None
    finish_time: Annotated[str | None, F("when it ended, ISO 8601 UTC")] = None
    download_url: Annotated[
        str | None, F("permanent URL of the file; needs a key, and redirects to a fresh presigned URL")
    ] = None


class TaskPatch(Body, changes=Export):
    """Fields that are left out stay as they are; null removes one."""


class ExportList(Page):
    items: list[ExportAnswer]


class Deleted(Answer):
    deleted: Annotated[int, F("number of exports that were deleted")]


# --- routes

router = Router("Exports")
TaskId = Annotated[str, Query(min_length=1, max_length=100)]
Filter = Annotated[str | None, Query(max_length=200)]
_DECIMAL = re.compile(r"\d[.eE]")
B = TypeVar("B", bound=BaseModel)


@router.post("/v1/task", scope="write", summary="Submit an export", status_code=202, middlewares=[idempotent])
def submit(body: TaskBody) -> Response[TaskAccepted]:
    return _submitted(body)


@router.post(
    "/v1/task/multiple",
    scope="write",
    summary="Submit an export of several tables",
    status_code=202,
    middlewares=[idempotent],
)
def submit_multiple(body: MultipleBody) -> Response[TaskAccepted]:
    return _submitted(body)


@router.post("/v1/task/sample", scope="write", summary="Preview the first rows of a source")
def sample(body: SampleBody) -> SampleAnswer:
    project_id = router.caller.project_id
    from tidegate.exports.exports import take_sample

    with app().projects.slow_calls.held(project_id):
        found = take_sample(app().exports, project_id, body.source_url)
    rows = found.rows[: count_that_fit([found.answered, *found.rows]) - 1]
    if not fits([found.answered, *rows]) or (found.rows and not rows):
        raise ContentTooLarge(
            "the first row of the source, with its header, footer and template, is larger than this call can return: "
            "create the export without a sample"
        )
    return SampleAnswer(rows=rows, total=found.total, answered=found.answered)


@router.get("/v1/task/placeholders", scope="read", summary="Get the placeholders of a template")
def placeholders(file_id: Annotated[str, Query(min_length=1, max_length=100)]) -> PlaceholdersAnswer:
    project_id = router.caller.project_id
    from tidegate.exports.exports import template_bytes
    from tidegate.sheets.fill_template import FillTemplate

    with app().projects.slow_calls.held(project_id):
        template = FillTemplate(template_bytes(app().exports, project_id, file_id))
        made = {"values": template.values, "lists": list(template.lists.values()), "sheets": template.sketches}
    found = PlaceholdersAnswer.model_validate(made)
    shown = found.model_dump()
    sheets, asked = shown.pop("sheets"), shown
    if not fits(asked):
        raise ContentTooLarge("the template has more placeholders than this call can return")
    found.sheets = found.sheets[: count_that_fit([asked, *sheets]) - 1]
    return found


def _submitted(body: TaskBody | MultipleBody) -> Response[TaskAccepted]:
    project_id = router.caller.acting_for(body.project_id)
    if made := made_before():
        return answer(TaskAccepted(task_id=made["request_id"]), 202)
    spec = permitted(with_exact_texts(body.spec(exact_source_data())))
    task_id = app().exports.orders.submit(project_id, spec, body.options(), router.caller.key_id)
    return answer(TaskAccepted(task_id=task_id), 202)


@router.get("/v1/task", scope="read", summary="Get an export")
def show(task_id: TaskId) -> Response[ExportAnswer]:
    return answer(ExportAnswer.model_validate(app().exports.orders.get(router.caller.project_id, task_id)))


@router.patch("/v1/task", scope="write", summary="Change the note of an export")
def change(task_id: TaskId, body: TaskPatch) -> Response[ExportAnswer]:
    caller, changes = router.caller, body.model_dump(exclude_unset=True)
    changed = app().exports.orders.update(caller.project_id, task_id, changes, caller.key_id)
    return answer(ExportAnswer.model_validate(changed))


@router.get("/v1/tasks", scope="read", summary="List exports")
def list_tasks(
    status: Filter = None,
    operator_id: Filter = None,
    merchant_type: Annotated[int | None, Query(ge=0, le=3)] = None,
    merchant_id: Filter = None,
    name: Filter = None,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> ExportList:
    filters = {"operator_id": operator_id, "merchant_type": merchant_type, "merchant_id": merchant_id, "name": name}
    page = app().exports.orders.list(
        router.caller.project_id,
        status=status,
        wanted={field: value for field, value in filters.items() if value is not None},
        limit=limit,
        cursor=cursor,
    )
    return ExportList.model_validate(page)


@router.post("/v1/tasks/delete", scope="write", summary="Delete exports and their files")
def delete(body: TaskIds) -> Deleted:
    caller = router.caller
    return Deleted(deleted=app().exports.orders.delete(caller.project_id, body.task_ids, caller.key_id))


@router.get("/v1/download/url", scope="read", summary="Get a download link, valid for 300 s")
def link(task_id: TaskId) -> Response[LinkAnswer]:
    return answer(LinkAnswer.model_validate(_link(task_id)))


@router.get("/v1/download/async", scope="read", summary="Permanent URL of an export's file", status_code=302)
def permanent(task_id: TaskId) -> Response[None]:
    return answer(None, 302, {"location": _link(task_id).url})


def _link(task_id: str) -> DownloadLink:
    caller = router.caller
    return app().exports.orders.link(caller.project_id, task_id, caller.require)


@router.post("/v1/download/sync", scope="read", summary="Create a small export and return its file")
def sync(body: SyncBody) -> Response[Any]:
    return _file_response(body, with_exact_texts(body.spec(exact_source_data())))


@router.post(
    "/v1/download/sync/multiple", scope="read", summary="Create a small export of several tables and return its file"
)
def sync_multiple(body: SyncMultipleBody) -> Response[Any]:
    return _file_response(body, with_exact_texts(body.spec(exact_source_data())))


@router.get("/v1/download/sync", scope="read", summary="Create a small export from query parameters and return it")
def sync_by_query() -> Response[Any]:
    return _from_query(SyncBody)


@router.get(
    "/v1/download/sync/multiple",
    scope="read",
    summary="Create a small export of several tables from query parameters and return it",
)
def sync_multiple_by_query() -> Response[Any]:
    return _from_query(SyncMultipleBody)


def permitted(spec: ExportSpec) -> ExportSpec:
    """Returns the spec if the caller may order it.

    Raises ScopeMissing if the spec lifts masks and the caller's key lacks the scope `unmask`.
    """
    if spec.unmask:
        router.caller.require("unmask")
    return spec


def _exact_body(*names: str) -> Mapping[str, Any]:
    """Returns the body with decimals as they were written. As a float, 100.00 would become 100.0.

    Empty if the body has none of the fields in `names`, or no decimal.
    """
    text = router.current_event.decoded_body or ""
    if not any(f'"{name}"' in text for name in names) or not _DECIMAL.search(text):
        return {}
    from tidegate.sheets.values import read_exact

    found: Mapping[str, Any] = read_exact(text)
    return found


def exact_source_data() -> Any:
    """Returns the body's `source_data` with decimals as they were written.

    None if the body has no such field or no decimal.
    """
    return _exact_body("source_data").get("source_data")


def with_exact_texts(spec: ExportSpec, given: Mapping[str, Any] | None = None) -> ExportSpec:
    """Returns the spec with decimals as they were written in `given`. By default, `given` is the request's body.

    That concerns the decimals in `header`, in `footer`, and in the values of `fill`.
    """
    from tidegate.exports.source import unpacked

    given = _exact_body("header", "footer", "fill") if given is None else given
    tables = []
    for number, table in enumerate(spec.tables):
        exact = dict[str, Any]()
        for name in ("header", "footer"):
            texts = _texts_of_table(given.get(name), number)
            if isinstance(texts, dict):
                exact[name] = texts
        tables.append(replace(table, **exact))
    fill = unpacked(given.get("fill"))
    if spec.fill and isinstance(fill, dict):
        spec = replace(spec, fill=replace(spec.fill, values=fill.get("values")))
    return replace(spec, tables=tuple(tables))


def _texts_of_table(given: Any, number: int) -> Any:
    from tidegate.exports.source import as_written, unpacked, unpacked_texts

    given = unpacked(given)
    if isinstance(given, list):
        given = unpacked_texts(given[number]) if number < len(given) else None
    return as_written(given) if isinstance(given, dict) else None


def _from_query(model: type[SyncBody] | type[SyncMultipleBody]) -> Response[Any]:
    query = dict(router.current_event.query_string_parameters or {})
    if "password" in query:
        # URLs are kept in the logs of servers and in the history of browsers.
        detail = "a password must not be in a URL: send it in the body of a POST request, and choose another one"
        raise Invalid(detail, errors=[{"loc": ["query", "password"], "msg": detail}])
    body = validated(model, query, "query")
    return _file_response(body, with_exact_texts(body.spec(query.get("source_data")), query))


def validated(model: type[B], fields: Mapping[str, Any], place: str = "body") -> B:
    """Returns the model with these fields. Raises Invalid, which names the wrong fields, if some are wrong."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise invalid_fields([{**entry, "loc": (place, *entry["loc"])} for entry in error.errors()]) from error


def _file_response(body: SyncBody | SyncMultipleBody, spec: ExportSpec) -> Response[Any]:
    project_id = router.caller.acting_for(body.project_id)
    if any(table.data is None for table in spec.tables):
        # Tidegate signs what it sends to a source, so asking a URL is more than reading.
        router.caller.require("write")
    with app().projects.slow_calls.held(project_id):
        options = body.options()
        app().freeze.require_thawed()
        from tidegate.exports.exports import sync_file

        limits = options.file_name, options.max_exec_time
        made = sync_file(app().exports, project_id, permitted(spec), *limits, who=router.caller.key_id)
    # In a header, because this export has no record for them.
    warnings = {"x-warnings": _header_list(made.warnings)} if made.warnings else {}
    if made.url:
        return answer(None, 303, {"location": made.url, **warnings})
    headers: dict[str, str | list[str]] = {
        **warnings,
        "content-disposition": content_disposition(made.file_name),
        "cache-control": "no-store",
    }
    # Encoded here, because Powertools' response validation would decode bytes as UTF-8.
    content = base64.b64encode(made.body).decode()
    response: Response[Any] = Response(200, made.content_type, content, headers)
    response.base64_encoded = True
    return response


# Servers refuse answers with long headers.
_LONGEST_HEADER = 4000


def _header_list(texts: Sequence[str]) -> str:
    """Returns a JSON list with as many of these texts as fit into a header."""
    fits = next(count for count in range(len(texts), -1, -1) if len(json.dumps(texts[:count])) <= _LONGEST_HEADER)
    return json.dumps(texts[:fits])
