"""Routes for exports: submit, look up, list, delete, download; with their bodies and answers."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, Self, TypeVar

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Query
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    model_validator,
)

from tidegate.app import app
from tidegate.common.json_input import read_json
from tidegate.errors import ContentTooLarge
from tidegate.exports.model import Delivery, ExportOptions, ExportSpec, TableSpec
from tidegate.files.model import content_disposition
from tidegate.web.idempotency import idempotent
from tidegate.web.resolver import count_that_fit, fits
from tidegate.web.routing import Cursor, Limit, Router, answer
from tidegate.web.schemas import Answer, Body, LinkAnswer, Priority, Text, plain_name
from tidegate.web.scopes import invalid_fields

# --- source schemas
# Sources that an export reads directly, without an HTTP endpoint: S3, DynamoDB, Athena.

Expression = Annotated[str, Field(min_length=1, max_length=4096)]


class S3Source(Body):
    """A CSV object with a header line, or an object of JSON lines. Not compressed, because ranges of it are read."""

    bucket: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")]
    key: Annotated[str, Field(min_length=1, max_length=1024)]
    format: Literal["csv", "jsonl"] | None = None
    delimiter: Literal[",", ";", "\t", "|"] | None = None
    encoding: Literal["utf-8", "gb18030"] | None = None

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

    table: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{3,255}$")]
    index: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{3,255}$")] | None = None
    key_condition: Expression
    values: Annotated[dict[str, Any], Field(min_length=1, max_length=100)]
    names: Annotated[dict[str, Text], Field(max_length=100)] | None = None
    filter: Expression | None = None
    attributes: Annotated[list[Text], Field(min_length=1, max_length=100)] | None = None
    newest_first: bool = False


class AthenaSource(Body):
    workgroup: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,128}$")]
    sql: Annotated[str, Field(min_length=1, max_length=100_000)]
    database: Text | None = None
    catalog: Text | None = None

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
    """Exactly one of the three. The stack's parameters and the project's `read_from` must allow it."""

    s3: S3Source | None = None
    dynamodb: DynamoSource | None = None
    athena: AthenaSource | None = None

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if sum(each is not None for each in (self.s3, self.dynamodb, self.athena)) != 1:
            raise ValueError("must have exactly one of s3, dynamodb and athena")
        return self

    def as_data(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)


# --- schemas
# Bodies and answers of exports.

Align = Literal["left", "center", "right"]
Url = Annotated[str, Field(min_length=1, max_length=2048)]


def _from_json(value: Any) -> Any:
    """Objects and lists may be sent as strings that contain JSON."""
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
    """JSON text as its value, with decimals as they were written. Blank text counts as no value."""
    from tidegate.sheets.values import read_exact

    if not isinstance(value, str):
        return value
    return read_exact(value) if value.strip() else None


def _exact_rows(value: Any) -> Any:
    return _rows(_parsed_exactly(value))


def _line_end(value: Any) -> Any:
    """`lf` or `crlf`, also for the characters themselves, which schedules show and earlier clients send."""
    return {"\n": "lf", "\r\n": "crlf"}.get(value, value.lower()) if isinstance(value, str) else value


def _compression(value: Any) -> Any:
    return None if value in ("none", "") else value


Json = Annotated[Any, BeforeValidator(_from_json)]
Rows = Annotated[Any, BeforeValidator(_from_json), AfterValidator(_rows)]
Texts = Annotated[Any, BeforeValidator(_from_json), AfterValidator(_texts)]
Source = Annotated[DirectSource | None, BeforeValidator(_from_json)]
FileName = Annotated[str, Field(min_length=1, max_length=120), AfterValidator(plain_name)]
EmailAddress = Annotated[str, Field(max_length=254, pattern=r"^[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+@[A-Za-z0-9.-]+$")]
Name = Annotated[Text, Field(min_length=2, max_length=60)]


class SourceHeaders(Body):
    """A credential stored with `PUT /v1/credentials/{name}`. Its headers are sent to the credential's origins only."""

    credential: Annotated[Text, Field(min_length=1, max_length=64)]


class DeliverTo(Body):
    """Where a copy of the file is put. The file's name is appended to a key that ends in `/`."""

    bucket: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")]
    key: Annotated[Text, Field(min_length=1, max_length=900)]
    region: Annotated[str, Field(pattern=r"^[a-z]{2}(-[a-z]+)+-[0-9]$")] | None = None


class ExportBody(Body):
    """Fields that exports of one table and of several tables share."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    name: Name
    project_id: Text | None = None
    file_name: FileName | None = None
    type: Literal["csv", "excel", "jsonl", "parquet"] = "csv"
    callback: Annotated[str, Field(max_length=300)] | None = None
    step: Annotated[int, Field(ge=100, le=5000)] = 1000
    operator_id: Text | None = None
    merchant_type: Annotated[int, Field(ge=0, le=3)] | None = None
    merchant_id: Annotated[int, Strict()] | Text | None = None
    default_width: Annotated[float, Field(gt=0, le=1400)] | None = None
    default_height: Annotated[float, Field(gt=0, le=409)] | None = None
    max_exec_time: Annotated[int, Field(ge=1, le=86_400)] = 3600
    priority: Priority = 5
    rows_per_file: Annotated[int, Field(ge=1, le=1_048_576)] | None = None
    bom: bool = False
    csv_header: Literal["keys", "titles", "none"] = "keys"
    csv_guard: bool = True
    delimiter: Literal[",", ";", "\t", "|"] = ","
    encoding: Literal["utf-8", "utf-8-sig", "gb18030"] = "utf-8"
    line_end: Annotated[Literal["lf", "crlf"], BeforeValidator(_line_end)] = "lf"
    compression: Annotated[Literal["gzip"] | None, BeforeValidator(_compression)] = None
    freeze: bool | None = None
    autofilter: bool | None = None
    auto_width: bool | None = None
    parallel: Annotated[int, Field(ge=1, le=160)] | None = None
    source_rate: Annotated[int, Field(ge=1, le=1000)] | None = None
    source_timeout: Annotated[int, Field(ge=1, le=600)] | None = None
    deliver: Annotated[list[DeliverTo], Field(max_length=5)] | None = None
    email: Annotated[list[EmailAddress], Field(max_length=5)] | None = None
    source_headers: Annotated[SourceHeaders | None, BeforeValidator(_from_json)] = None

    @model_validator(mode="after")
    def _check_compression(self) -> Self:
        if self.compression and self.type in ("excel", "parquet"):
            raise ValueError(
                f"compression is for csv and jsonl only, because {self.type} files are compressed: leave it out"
            )
        return self

    def options(self) -> ExportOptions:
        return ExportOptions(
            name=self.name,
            file_name=self.file_name,
            callback=self.callback or None,
            operator_id=self.operator_id,
            merchant_type=self.merchant_type,
            merchant_id=self.merchant_id,
            max_exec_time=self.max_exec_time,
            priority=self.priority,
            deliver=tuple(Delivery(each.bucket, each.key, each.region) for each in self.deliver or ()),
            email=tuple(dict.fromkeys(self.email or ())),
        )

    def _spec(self, tables: list[TableSpec], multi_type: str = "page") -> ExportSpec:
        return ExportSpec(
            tables=tuple(tables),
            type=self.type,
            multi_type=multi_type,
            step=self.step,
            rows_per_file=self.rows_per_file,
            default_width=self.default_width,
            default_height=self.default_height,
            bom=self.bom,
            csv_header=self.csv_header,
            csv_guard=self.csv_guard,
            delimiter=self.delimiter,
            encoding=self.encoding,
            line_end="\r\n" if self.line_end == "crlf" else "\n",
            compression=self.compression,
            freeze=self.freeze,
            autofilter=self.autofilter,
            auto_width=self.auto_width,
            parallel=self.parallel,
            source_rate=self.source_rate,
            source_timeout=self.source_timeout,
            credential=self.source_headers.credential if self.source_headers else None,
        )


class TaskBody(ExportBody):
    source_url: Url | None = None
    source: Source = None
    source_data: Rows = None
    template: Json = None
    title: Annotated[str, Field(max_length=1000)] | None = None
    summary: Annotated[str, Field(max_length=10_000)] | None = None
    header: Texts = None
    footer: Texts = None
    header_align: Align = "right"
    footer_align: Align = "right"

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if self.source_data is None and not self.source_url and not self.source:
            raise ValueError("one of source_url, source and source_data is required")
        if self.source and self.source_url:
            raise ValueError("give source_url or source, not both")
        return self

    def spec(self, exact: Any = None) -> ExportSpec:
        """`exact`: `source_data` with decimals as they were written, if the body has any."""
        table = TableSpec(
            source_url=self.source_url,
            source=self.source.as_data() if self.source else None,
            data=self.source_data if exact is None else _exact_rows(exact),
            template=self.template,
            title=self.title or "",
            summary=self.summary or "",
            header=self.header,
            footer=self.footer,
            header_align=self.header_align,
            footer_align=self.footer_align,
        )
        return self._spec([table])


def _listed(value: Any) -> Any:
    value = _from_json(value)
    if value is None or isinstance(value, list):
        return value
    raise ValueError("must be a list with one entry for each table")


class MultipleBody(ExportBody):
    """Every field of a table is a list with one entry for each table."""

    multi_type: Literal["page", "tab"] = "page"
    source_url: Annotated[list[Url | None] | None, BeforeValidator(_listed)] = None
    source: Annotated[list[Source] | None, BeforeValidator(_listed)] = None
    source_data: Annotated[list[Rows] | None, BeforeValidator(_listed)] = None
    template: Annotated[list[Json] | None, BeforeValidator(_listed)] = None
    title: Annotated[list[str | None] | None, BeforeValidator(_listed)] = None
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
        for field in ("template", "title", "summary", "header", "footer"):
            if (entries := len(getattr(self, field) or [])) > self._count:
                raise ValueError(f"{field} has {entries} entries, but there are only {self._count} tables")
        return self

    @property
    def _count(self) -> int:
        """The number of tables. A table with several sources uses `source_data`, else `source`, else `source_url`."""
        return max(len(given or []) for given in (self.source_data, self.source_url, self.source))

    def spec(self, exact: Any = None) -> ExportSpec:
        data = self.source_data if exact is None else [_exact_rows(rows) for rows in _parsed_exactly(exact) or ()]

        def entry(values: Any, number: int, default: Any = None) -> Any:
            if not isinstance(values, list):
                return default if values is None else values
            return values[number] if number < len(values) and values[number] is not None else default

        def direct(number: int) -> Any:
            source = entry(self.source, number)
            return source.as_data() if source else None

        tables = [
            TableSpec(
                source_url=entry(self.source_url, number),
                source=direct(number),
                data=entry(data, number),
                template=entry(self.template, number),
                title=entry(self.title, number, ""),
                summary=entry(self.summary, number, ""),
                header=entry(self.header, number),
                footer=entry(self.footer, number),
                header_align=entry(self.header_align, number, "right"),
                footer_align=entry(self.footer_align, number, "right"),
            )
            for number in range(self._count)
        ]
        return self._spec(tables, self.multi_type)


class SyncBody(TaskBody):
    """Like `TaskBody`, but without a record: `name` may be left out, and has no effect."""

    name: Name = "sync"


class SyncMultipleBody(MultipleBody):
    name: Name = "sync"


class SampleBody(Body):
    source_url: Url


class SampleAnswer(Answer):
    """The first rows of a source, and what its answer contains besides rows."""

    rows: list[dict[str, Any]]
    total: int | None = None
    answered: dict[str, Any]


class TaskIds(Body):
    task_ids: Annotated[list[Text], Field(min_length=1, max_length=100)]


class TaskAccepted(Answer):
    task_id: str


class Progress(Answer):
    rows: int
    total: int | None = None
    percent: int


class DeliveredCopy(Answer):
    bucket: str
    key: str
    state: Literal["delivered", "failed"]
    error: str | None = None


class SentEmail(Answer):
    to: str
    state: Literal["sent", "failed", "unknown"]
    error: str | None = None


class TaskAnswer(Answer):
    task_id: str
    name: str
    type: str
    status: str
    progress: Progress
    file_name: str | None = None
    size: int | None = None
    attempts: int
    warnings: list[str] | None = None
    deliveries: list[DeliveredCopy] | None = None
    emails: list[SentEmail] | None = None
    schedule_id: str | None = None
    failed_reason: str | None = None
    operator_id: str | None = None
    merchant_type: int | None = None
    merchant_id: str | int | None = None
    priority: int | None = None
    last_wait_reason: str | None = None
    create_time: str
    start_time: str | None = None
    finish_time: str | None = None
    download_url: str | None = None


class TaskList(Answer):
    items: list[TaskAnswer]
    next_cursor: str | None = None


class Deleted(Answer):
    deleted: int


# --- routes
# Routes for exports: submit, look up, list, delete, download.

router = Router()
_TAGS = ["Exports"]
TaskId = Annotated[str, Query(min_length=1, max_length=100)]
Filter = Annotated[str | None, Query(max_length=200)]
B = TypeVar("B", bound=BaseModel)


@router.post(
    "/v1/task", scope="write", tags=_TAGS, summary="Submit an export", status_code=202, middlewares=[idempotent]
)
def submit(body: TaskBody) -> Response[TaskAccepted]:
    return _submitted(body)


@router.post(
    "/v1/task/multiple",
    scope="write",
    tags=_TAGS,
    summary="Submit an export of several tables",
    status_code=202,
    middlewares=[idempotent],
)
def submit_multiple(body: MultipleBody) -> Response[TaskAccepted]:
    return _submitted(body)


@router.post("/v1/task/sample", scope="write", tags=_TAGS, summary="Preview the first rows of a source")
def sample(body: SampleBody) -> SampleAnswer:
    project_id = router.caller.project_id
    with app().projects.slow_calls.held(project_id):
        found = app().exports.sample(project_id, body.source_url)
    rows = found.rows[: count_that_fit([found.answered, *found.rows]) - 1]
    if not fits([found.answered, *rows]) or (found.rows and not rows):
        raise ContentTooLarge(
            "the first row of the source, with its header, footer and template, is larger than this call can return: "
            "create the export without a sample"
        )
    return SampleAnswer(rows=rows, total=found.total, answered=found.answered)


def _submitted(body: TaskBody | MultipleBody) -> Response[TaskAccepted]:
    project_id = router.caller.acting_for(body.project_id)
    spec = with_exact_texts(body.spec(exact_source_data()))
    task_id = app().exports.exports.submit(project_id, spec, body.options(), router.caller.key_id)
    return answer(TaskAccepted(task_id=task_id), 202)


@router.get("/v1/task", scope="read", tags=_TAGS, summary="Get an export")
def show(task_id: TaskId) -> Response[TaskAnswer]:
    return answer(TaskAnswer(**app().exports.exports.get(router.caller.project_id, task_id)))


@router.get("/v1/tasks", scope="read", tags=_TAGS, summary="List exports")
def list_tasks(
    status: Filter = None,
    operator_id: Filter = None,
    merchant_type: Annotated[int | None, Query(ge=0, le=3)] = None,
    merchant_id: Filter = None,
    name: Filter = None,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> TaskList:
    filters = {
        "operator_id": operator_id,
        "merchant_type": merchant_type,
        "merchant_id": merchant_id,
        "name": name,
    }
    page = app().exports.exports.list(
        router.caller.project_id,
        status=status,
        wanted={field: value for field, value in filters.items() if value is not None},
        limit=limit,
        cursor=cursor,
    )
    return TaskList(items=[TaskAnswer(**record) for record in page.items], next_cursor=page.next_cursor)


@router.post("/v1/tasks/delete", scope="write", tags=_TAGS, summary="Delete exports and their files")
def delete(body: TaskIds) -> Deleted:
    caller = router.caller
    return Deleted(deleted=app().exports.exports.delete(caller.project_id, body.task_ids, caller.key_id))


@router.get("/v1/download/url", scope="read", tags=_TAGS, summary="Get a download link, valid for 300 s")
def link(task_id: TaskId) -> Response[LinkAnswer]:
    return answer(LinkAnswer.model_validate(app().exports.exports.link(router.caller.project_id, task_id)))


@router.get(
    "/v1/download/async", scope="read", tags=_TAGS, summary="Permanent URL of an export's file", status_code=302
)
def permanent(task_id: TaskId) -> Response[None]:
    fresh = app().exports.exports.link(router.caller.project_id, task_id)
    return answer(None, 302, {"location": fresh.url})


@router.post("/v1/download/sync", scope="read", tags=_TAGS, summary="Create a small export and return its file")
def sync(body: SyncBody) -> Response[Any]:
    return _file_response(body, with_exact_texts(body.spec(exact_source_data())))


@router.post(
    "/v1/download/sync/multiple",
    scope="read",
    tags=_TAGS,
    summary="Create a small export of several tables and return its file",
)
def sync_multiple(body: SyncMultipleBody) -> Response[Any]:
    return _file_response(body, with_exact_texts(body.spec(exact_source_data())))


@router.get(
    "/v1/download/sync", scope="read", tags=_TAGS, summary="Create a small export from query parameters and return it"
)
def sync_by_query() -> Response[Any]:
    return _from_query(SyncBody)


@router.get(
    "/v1/download/sync/multiple",
    scope="read",
    tags=_TAGS,
    summary="Create a small export of several tables from query parameters and return it",
)
def sync_multiple_by_query() -> Response[Any]:
    return _from_query(SyncMultipleBody)


def exact_source_data() -> Any:
    """The body's `source_data` with decimals as they were written: as a float, 100.00 would become 100.0.

    None if the body has no `source_data`, or no decimal point.
    """
    text = router.current_event.decoded_body or ""
    if '"source_data"' not in text or "." not in text:
        return None
    from tidegate.sheets.values import read_exact

    return read_exact(text).get("source_data")


def with_exact_texts(spec: ExportSpec, given: Mapping[str, Any] | None = None) -> ExportSpec:
    """The spec with decimals in `header` and `footer` as they were written in `given`, by default the body."""
    if given is None:
        text = router.current_event.decoded_body or ""
        if "." not in text or ('"header"' not in text and '"footer"' not in text):
            return spec
        from tidegate.sheets.values import read_exact

        given = read_exact(text)
    tables = []
    for number, table in enumerate(spec.tables):
        exact = dict[str, Any]()
        for name in ("header", "footer"):
            texts = _texts_of_table(given.get(name), number)
            if isinstance(texts, dict):
                exact[name] = texts
        tables.append(replace(table, **exact))
    return replace(spec, tables=tuple(tables))


def _texts_of_table(given: Any, number: int) -> Any:
    from tidegate.exports.source import as_written, unpacked

    given = unpacked(given)
    if isinstance(given, list):
        given = unpacked(given[number]) if number < len(given) else None
    return as_written(given) if isinstance(given, dict) else None


def _from_query(model: type[SyncBody] | type[SyncMultipleBody]) -> Response[Any]:
    query = dict(router.current_event.query_string_parameters or {})
    body = validated(model, query, "query")
    return _file_response(body, with_exact_texts(body.spec(query.get("source_data")), query))


def validated(model: type[B], fields: Mapping[str, Any], place: str = "body") -> B:
    """The model of these fields. Raises Invalid, which names the fields that are wrong."""
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
        made = app().exports.sync.make(project_id, spec, body.file_name, body.max_exec_time)
    if made.url:
        return answer(None, 303, {"location": made.url})
    headers: dict[str, str | list[str]] = {
        "content-disposition": content_disposition(made.file_name),
        "cache-control": "no-store",
    }
    # Encoded here, because Powertools' response validation would decode bytes as UTF-8.
    content = base64.b64encode(made.body).decode()
    response: Response[Any] = Response(200, made.content_type, content, headers)
    response.base64_encoded = True
    return response
