"""Bodies and answers of exports."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, Strict, model_validator

from tidegate.common.json_input import read_json
from tidegate.exports.model import Delivery, ExportOptions, ExportSpec, TableSpec
from tidegate.web.exports.source_schemas import DirectSource
from tidegate.web.schemas import Answer, Body, Priority, Text, plain_name

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
    from tidegate.exports.source_json import read_exact

    if not isinstance(value, str):
        return value
    return read_exact(value) if value.strip() else None


def _exact_rows(value: Any) -> Any:
    return _rows(_parsed_exactly(value))


def _line_end(value: Any) -> Any:
    return {"lf": "\n", "crlf": "\r\n"}.get(value.lower(), value) if isinstance(value, str) else value


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
    line_end: Annotated[Literal["\n", "\r\n"], BeforeValidator(_line_end)] = "\n"
    compression: Annotated[Literal["gzip"] | None, BeforeValidator(_compression)] = None
    freeze: bool | None = None
    autofilter: bool | None = None
    auto_width: bool | None = None
    parallel: Annotated[int, Field(ge=1, le=160)] | None = None
    source_rate: Annotated[int, Field(ge=1, le=1000)] | None = None
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
            line_end=self.line_end,
            compression=self.compression,
            freeze=self.freeze,
            autofilter=self.autofilter,
            auto_width=self.auto_width,
            parallel=self.parallel,
            source_rate=self.source_rate,
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
