"""Records and values of exports: the order, the file, and the export as callers see it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args

from tidegate.files.model import plain_name
from tidegate.queue.model import COMPLETED, FAILED, Request
from tidegate.records import F, Priority, Text
from tidegate.sheets.table import SheetTable, masked_name, parse_mask, parse_template

if TYPE_CHECKING:
    from tidegate.sheets.files import Output

TYPE = "export"
PREFIX = "exp"
# The address of a direct source starts with this; no URL does.
DIRECT = "direct:"
CSV: Final = "csv"
EXCEL, JSONL, PARQUET = "excel", "jsonl", "parquet"
EXPIRED = "expired"
KEPT = timedelta(days=7)
# Codes of errors for which all pages are pulled again.
_OF_PAGES = frozenset({"source_broken", "bad_table", "not_found"})
_EXTENSION = re.compile(r"\.(csv|xlsx?|zip|jsonl|ndjson|parquet)(\.gz)?$", re.IGNORECASE)


ExportType = Literal["csv", "excel", "jsonl", "parquet"]
FORMATS = "format of the file: " + " or ".join(", ".join(f"`{name}`" for name in get_args(ExportType)).rsplit(", ", 1))
Align = Literal["left", "center", "right"]
SourceUrl = Annotated[str, F(min_length=1, max_length=2048)]


@dataclass(frozen=True, slots=True)
class TableSpec:
    """One table of an order; `data` has its rows, or is None if they are pulled from a source."""

    source_url: Annotated[SourceUrl | None, F("your endpoint, from which rows are pulled page by page")] = None
    source: Annotated[Any, F("rows that are read directly: an S3 object, a DynamoDB query or Athena SQL")] = None
    data: Any = None
    template: Annotated[
        Any,
        F(
            "column headings: none, `{key: title}`, a list of nodes, or `{col, row}`; see the schemas Template and "
            "TemplateNode"
        ),
    ] = None
    title: Annotated[str, F("text above the table", max_length=1000)] = ""
    sheet_name: Annotated[
        str | None, F("name of its sheet in Excel, at most 31 characters; default: from the title", max_length=31)
    ] = None
    summary: Annotated[str, F("text below the title", max_length=10_000)] = ""
    header: Annotated[Any, F("texts above the table, as `{label: text}`")] = None
    footer: Annotated[Any, F("texts below the table, as `{label: text}`")] = None
    header_align: Annotated[Align, F("alignment of the header")] = "right"
    footer_align: Annotated[Align, F("alignment of the footer")] = "right"

    @property
    def address(self) -> str:
        """The address from which the rows are pulled: a URL, or a direct source as text."""
        return address_of(self.source) if self.source else self.source_url or ""


@dataclass(frozen=True, slots=True)
class Fill:
    """An Excel file of the library that is filled with the rows, and the values for its other placeholders."""

    file_id: Annotated[Text, F("an .xlsx file of the library with placeholders, at most 10 MB")]
    values: Annotated[Mapping[str, Any] | None, F("values for placeholders such as `{customer}`, by name")] = None


@dataclass(frozen=True, slots=True)
class ExportSpec:
    tables: tuple[TableSpec, ...]
    type: Annotated[ExportType, F("format of the file")] = CSV
    multi_type: Annotated[
        Literal["page", "tab"], F("several tables in one sheet (`page`), or one sheet for each table (`tab`)")
    ] = "page"
    step: Annotated[int, F("rows in a page; sent to the source as `page_size`", ge=100, le=5000)] = 1000
    rows_per_file: Annotated[
        int | None,
        F(
            "with more rows than this, split into several files in one zip; default: Excel's limit, then a new sheet",
            ge=1,
            le=1_048_576,
        ),
    ] = None
    default_width: Annotated[float | None, F("column width in points", gt=0, le=1400)] = None
    default_height: Annotated[float | None, F("row height in points", gt=0, le=409)] = None
    bom: Annotated[bool, F("start a CSV file with a byte-order mark, which Excel needs to recognise UTF-8")] = False
    csv_header: Annotated[
        Literal["keys", "titles", "none"],
        F("first line of a CSV file: the `keys` of the rows, the `titles` of the template, or `none`"),
    ] = "keys"
    csv_guard: Annotated[bool, F("put an apostrophe before cells that a spreadsheet would run as a formula")] = True
    delimiter: Annotated[Literal[",", ";", "\t", "|"], F("separator between the cells of a CSV file")] = ","
    encoding: Annotated[Literal["utf-8", "utf-8-sig", "gb18030"], F("character encoding of a CSV file")] = "utf-8"
    line_end: Annotated[
        str, F("end of a line in a CSV file: line feed (`lf`), or carriage return and line feed (`crlf`)")
    ] = "\n"
    compression: Annotated[str | None, F("`gzip` (for csv and jsonl) or `none`")] = None
    freeze: Annotated[bool | None, F("keep the column headings visible when scrolling; default true for one table")] = (
        None
    )
    autofilter: Annotated[bool | None, F("add filters to the column headings; default true for one table")] = None
    auto_width: Annotated[bool | None, F("make columns as wide as their content; default true for one table")] = None
    # The name of the stored credential that is sent to the sources.
    credential: str | None = None
    parallel: Annotated[
        int | None, F("the most requests to the source in flight at a time; default: as many as it needs", ge=1, le=160)
    ] = None
    source_rate: Annotated[
        int | None,
        F("requests per second to the source's host, shared by all exports of the project that set it", ge=1, le=1000),
    ] = None
    source_timeout: Annotated[
        int | None,
        F(
            "seconds that a request for a page may take; default: 30 without a byte, 50 in all. A "
            "synchronous export has 20 for all pages",
            ge=1,
            le=600,
        ),
    ] = None

    unmask: Annotated[
        bool, F("write columns that the project masks as they are; needs a key of scope `unmask`, and is audited")
    ] = False
    fill: Annotated[Fill | None, F("an Excel template to fill with the rows and with values; excel only")] = None
    password: Annotated[
        str | None,
        F(
            "encrypts the file: a workbook as Excel does it (up to 100 MB), all else as a zip with AES-256. Printable "
            "ASCII. It is never shown, and kept encrypted until the file is made",
            min_length=8,
            max_length=100,
            pattern=r"^[ -~]+$",
        ),
    ] = field(default=None, repr=False)
    # The project's masks when the export was queued.
    masks: Mapping[str, Any] | None = None
    # The password, as a queued export keeps it.
    sealed_password: str | None = None

    def as_data(self) -> dict[str, Any]:
        """Returns the order as it is stored. A stored order never has the password in plain text."""
        return asdict(self) | {"password": None}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> ExportSpec:
        """Returns the order from its stored data, which `read_exact` has parsed.

        Only rows keep decimals as `Digits`.
        """
        from tidegate.sheets.values import plain

        tables = tuple(
            TableSpec(**{**plain({**table, "data": None}), "data": table["data"]}) for table in data["tables"]
        )
        fill = Fill(**data["fill"]) if data.get("fill") else None
        return cls(**{**plain({**data, "tables": None, "fill": None}), "tables": tables, "fill": fill})

    def output(self) -> Output:
        from tidegate.sheets.files import CsvOptions, Output

        options = CsvOptions(self.bom, self.csv_header, self.csv_guard, self.delimiter, self.encoding, self.line_end)
        more = self.rows_per_file, options, self.compression, self.password
        return Output(self.type, self.multi_type, *more)

    def table(self, number: int, answered: Mapping[str, Any] | None = None) -> SheetTable:
        """Returns the table to render.

        `answered`: the header, footer and template that the source sent. They replace those of the order.
        """
        spec = replace(self.tables[number], **{k: v for k, v in (answered or {}).items() if v})
        return SheetTable(
            template=parse_template(spec.template),
            title=spec.title,
            sheet_name=spec.sheet_name,
            summary=spec.summary,
            header=spec.header or "",
            footer=spec.footer or "",
            header_align=spec.header_align,
            footer_align=spec.footer_align,
            default_width=self.default_width,
            default_height=self.default_height,
            freeze=self.freeze,
            autofilter=self.autofilter,
            auto_width=self.auto_width,
            late_footer=spec.data is None,
            masks={masked_name(name): parse_mask(mask, "masks") for name, mask in (self.masks or {}).items()},
        )


@dataclass(frozen=True, slots=True)
class Delivery:
    """The destination of a copy of the file. The file's name is appended to a key that ends in `/`."""

    bucket: Annotated[
        str,
        F(
            "the bucket; the stack's parameter DeliveryBucket and the project's `deliver_to` must allow it",
            pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$",
        ),
    ]
    key: Annotated[
        Text, F("key of the copy; the file's name is appended to a key that ends in `/`", min_length=1, max_length=900)
    ]
    region: Annotated[
        str | None, F("region of the bucket; default: the stack's own", pattern=r"^[a-z]{2}(-[a-z]+)+-[0-9]$")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportLabels:
    """The fields by which callers find an export again."""

    name: Annotated[Text, F("a name for people", min_length=2, max_length=60)]
    operator_id: Annotated[Text | None, F("a value of your choice; recorded, and a filter of lists")] = None
    merchant_type: Annotated[int | None, F("a value of your choice; recorded, and a filter of lists", ge=0, le=3)] = (
        None
    )
    merchant_id: Annotated[
        Annotated[int, F(strict=True)] | Text | None, F("a value of your choice; recorded, and a filter of lists")
    ] = None
    note: Annotated[str | None, F("a remark for people; the console finds it", max_length=500, changes=True)] = None


LABELS = tuple(label.name for label in fields(ExportLabels))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions(ExportLabels):
    """The fields of an order besides its tables."""

    file_name: Annotated[str | None, F("name of the file", min_length=1, max_length=120, check=plain_name)] = None
    callback: Annotated[
        str | None, F("an http or https URL that gets a signed POST when the record has ended", max_length=300)
    ] = None
    max_exec_time: Annotated[int, F("seconds after which the export fails", ge=1, le=86_400)] = 3600
    priority: Priority = 5
    deliver: Annotated[tuple[Delivery, ...], F("copy the finished file to these places")] = ()
    email: Annotated[
        tuple[str, ...],
        F("addresses that get an e-mail when the file is ready; the stack's parameter EmailRecipients must allow them"),
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Export(ExportLabels):
    """The entry of an export in lists; its state is that of the request with the same id."""

    task_id: Annotated[str, F("id of the export")]
    project_id: str
    type: Annotated[str, F(FORMATS)]
    created_at: Annotated[str, F("when it was created, ISO 8601 UTC", shown="create_time")]
    schedule_id: Annotated[str | None, F("the recurring export that created it")] = None


def address_of(source: Mapping[str, Any]) -> str:
    """Returns the address of a direct source as text that is used like a URL."""
    return DIRECT + json.dumps(source, sort_keys=True, ensure_ascii=False)


def keeps_pages(request: Request) -> bool:
    """Whether the export failed and a retry can use its staged pages.

    A retry cannot use the pages if they were the cause of the failure.
    """
    return request.status == FAILED and (request.error or {}).get("code") not in _OF_PAGES


def file_name_for(requested: str, extension: str) -> str:
    return f"{_EXTENSION.sub('', requested) or 'export'}.{extension}"


def default_file_name(now: datetime, task_id: str) -> str:
    return f"{now:%Y%m%d}-{task_id[-8:]}"


def is_expired(request: Request, now: datetime) -> bool:
    """Whether the file of a completed export is deleted or due for deletion, because its retention is over."""
    if request.status != COMPLETED or request.finish_time is None:
        return False
    return request.expired_at is not None or now >= datetime.fromisoformat(request.finish_time) + KEPT


# How many warnings the record of an export has.
MAX_WARNINGS = 20


@dataclass(frozen=True, slots=True)
class Rendered:
    """The finished file, before it is published."""

    key: str
    file_name: str
    size: int
    rows: int
    warnings: list[str]


def progress_of(pulled: int, total: int | None, rendered: int = 0) -> dict[str, Any]:
    """Returns the progress as callers see it.

    Pulling counts for 70 percent and rendering for 30 percent. Without a total, `percent` is 0.
    """
    if not total:
        return {"rows": pulled, "total": total, "percent": 0}
    percent = int(70 * min(1.0, pulled / total) + 30 * min(1.0, rendered / total))
    return {"rows": pulled, "total": total, "percent": min(99, percent)}


def export_view(request: Request, now: datetime, api_url: str = "") -> dict[str, Any]:
    """Returns the export as callers see it."""
    payload, result = request.payload, request.result or {}
    status = EXPIRED if is_expired(request, now) else request.status
    progress = request.progress or progress_of(0, None)
    if request.status == COMPLETED:
        progress = {"rows": result.get("rows"), "total": result.get("rows"), "percent": 100}
    data = {name: payload.get(name) for name in (*LABELS, "type", "schedule_id")} | {
        "task_id": request.request_id,
        "status": status,
        "progress": progress,
        "file_name": result.get("file_name") or payload.get("file_name"),
        "size": result.get("size"),
        "attempts": request.attempt,
        "warnings": result.get("warnings") or None,
        "deliveries": result.get("deliveries") or None,
        "emails": result.get("emails") or None,
        "failed_reason": request.error["detail"] if request.error and request.status != COMPLETED else None,
        "unmask": payload.get("unmask"),
        "priority": request.priority,
        "last_wait_reason": request.last_wait_reason,
        "create_time": request.created_at,
        "start_time": request.start_time,
        "finish_time": request.finish_time,
        "download_url": f"{api_url}/v1/download/async?task_id={request.request_id}" if status == COMPLETED else None,
    }
    return {name: value for name, value in data.items() if value is not None}
