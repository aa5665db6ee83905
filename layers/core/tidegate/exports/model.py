"""An export: its order, the keys of its objects in S3, and how it is shown."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from tidegate.queue.model import COMPLETED, FAILED, Request
from tidegate.sheets.table import SheetTable, parse_template

TYPE = "export"
PREFIX = "exp"
# The address of a direct source starts with this; no URL does.
DIRECT = "direct:"
CSV, EXCEL, JSONL, PARQUET = "csv", "excel", "jsonl", "parquet"
EXPIRED = "expired"
KEPT = timedelta(days=7)
# Codes of errors for which all pages are pulled again.
_OF_PAGES = frozenset({"source_broken", "bad_table", "not_found"})
_EXTENSION = re.compile(r"\.(csv|xlsx?|zip|jsonl|ndjson|parquet)(\.gz)?$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TableSpec:
    """One table as its caller described it; `data` has its rows, or is None if they are pulled."""

    source_url: str | None = None
    # A direct source, such as {"s3": {"bucket": …, "key": …}}.
    source: Any = None
    data: Any = None
    template: Any = None
    title: str = ""
    summary: str = ""
    header: Any = None
    footer: Any = None
    header_align: str = "right"
    footer_align: str = "right"

    @property
    def address(self) -> str:
        """Where `Sources` reads its rows."""
        return address_of(self.source) if self.source else self.source_url or ""


@dataclass(frozen=True, slots=True)
class ExportSpec:
    tables: tuple[TableSpec, ...]
    type: str = CSV
    multi_type: str = "page"
    step: int = 1000
    rows_per_file: int | None = None
    default_width: float | None = None
    default_height: float | None = None
    bom: bool = False
    csv_header: str = "keys"
    csv_guard: bool = True
    delimiter: str = ","
    encoding: str = "utf-8"
    line_end: str = "\n"
    compression: str | None = None
    freeze: bool | None = None
    autofilter: bool | None = None
    auto_width: bool | None = None
    # The name of the stored credential that is sent to the sources.
    credential: str | None = None
    # Requests to the source in flight at a time; None: the system's default.
    parallel: int | None = None
    # Requests per second to the source's host, of all exports of the project that set one; None: no limit.
    source_rate: int | None = None
    # Seconds that a request for a page may take; None: the system's default.
    source_timeout: int | None = None

    def as_data(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> ExportSpec:
        """From data that `read_exact` read: decimals stay `Digits` in rows only."""
        from tidegate.sheets.values import plain

        tables = tuple(
            TableSpec(**{**plain({**table, "data": None}), "data": table["data"]}) for table in data["tables"]
        )
        return cls(**{**plain({**data, "tables": None}), "tables": tables})

    def table(self, number: int, answered: Mapping[str, Any] | None = None) -> SheetTable:
        """The table to render; `header`, `footer` and `template` that its source sent replace those of the order."""
        spec = replace(self.tables[number], **{k: v for k, v in (answered or {}).items() if v})
        return SheetTable(
            template=parse_template(spec.template),
            title=spec.title,
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
        )


@dataclass(frozen=True, slots=True)
class Delivery:
    """The destination of a copy; the file's name is appended to a `key` that ends in `/`."""

    bucket: str
    key: str
    region: str | None = None


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The fields of an order besides its tables."""

    name: str
    file_name: str | None = None
    callback: str | None = None
    operator_id: str | None = None
    merchant_type: int | None = None
    merchant_id: str | int | None = None
    max_exec_time: int = 3600
    priority: int = 5
    deliver: tuple[Delivery, ...] = ()
    # The addresses that get a mail when the file is ready.
    email: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Export:
    """The entry of an export in lists; its state is that of the request with the same id."""

    task_id: str
    project_id: str
    name: str
    type: str
    created_at: str
    operator_id: str | None = None
    merchant_type: int | None = None
    merchant_id: str | None = None
    schedule_id: str | None = None


def address_of(source: Mapping[str, Any]) -> str:
    """The address of a direct source, used like a URL."""
    return DIRECT + json.dumps(source, sort_keys=True, ensure_ascii=False)


def staging_prefix(project_id: str, task_id: str) -> str:
    """The order and the pulled pages; deleted when the export ends."""
    return f"staging/{project_id}/{task_id}/"


def spec_object(project_id: str, task_id: str) -> str:
    return f"{staging_prefix(project_id, task_id)}spec.json"


def is_spec(key: str) -> bool:
    return key.count("/") == 3 and key.endswith("/spec.json")


def keeps_pages(request: Request) -> bool:
    """Whether a retry of an export that ended goes on from its pages: not if they are what was wrong."""
    return request.status == FAILED and (request.error or {}).get("code") not in _OF_PAGES


def pages_prefix(project_id: str, task_id: str) -> str:
    return f"{staging_prefix(project_id, task_id)}pages/"


def ledger_object(project_id: str, task_id: str, attempt: int) -> str:
    """One for each attempt, so that a worker that lost its lease cannot overwrite the list of the next attempt."""
    return f"{pages_prefix(project_id, task_id)}ledger-{attempt}.json"


def page_object(project_id: str, task_id: str, table: int, page: int) -> str:
    return f"{pages_prefix(project_id, task_id)}{table:03d}/{page:07d}.json"


def output_prefix(project_id: str, task_id: str) -> str:
    return f"exports/{project_id}/{task_id}/"


def output_object(project_id: str, task_id: str, attempt: int) -> str:
    """One for each attempt, so that a worker that lost its lease cannot overwrite the published file."""
    return f"{output_prefix(project_id, task_id)}{attempt}"


def sync_object(project_id: str, task_id: str) -> str:
    return f"sync/{project_id}/{task_id}"


def owned_objects(request: Request) -> list[str]:
    """The objects that are deleted with the record: the order, and the files of all attempts."""
    project_id, task_id = request.project_id, request.request_id
    rendered = [output_object(project_id, task_id, attempt) for attempt in range(1, request.attempt + 1)]
    return [spec_object(project_id, task_id), *rendered]


def file_name_for(requested: str, extension: str) -> str:
    return f"{_EXTENSION.sub('', requested) or 'export'}.{extension}"


def default_file_name(now: datetime, task_id: str) -> str:
    return f"{now:%Y%m%d}-{task_id[-8:]}"


def is_expired(request: Request, now: datetime) -> bool:
    if request.status != COMPLETED or request.finish_time is None:
        return False
    return request.expired_at is not None or now >= datetime.fromisoformat(request.finish_time) + KEPT


def progress_of(pulled: int, total: int | None, rendered: int = 0) -> dict[str, Any]:
    """Pulling counts for 70 percent; without a total the percentage is 0 until all is pulled."""
    if not total:
        return {"rows": pulled, "total": total, "percent": 0}
    percent = int(70 * min(1.0, pulled / total) + 30 * min(1.0, rendered / total))
    return {"rows": pulled, "total": total, "percent": min(99, percent)}


def shown(request: Request, now: datetime, api_url: str = "") -> dict[str, Any]:
    payload, result = request.payload, request.result or {}
    status = EXPIRED if is_expired(request, now) else request.status
    progress = request.progress or progress_of(0, None)
    if request.status == COMPLETED:
        progress = {"rows": result.get("rows"), "total": result.get("rows"), "percent": 100}
    data = {
        "task_id": request.request_id,
        "name": payload.get("name"),
        "type": payload.get("type"),
        "status": status,
        "progress": progress,
        "file_name": result.get("file_name") or payload.get("file_name"),
        "size": result.get("size"),
        "attempts": request.attempt,
        "warnings": result.get("warnings") or None,
        "deliveries": result.get("deliveries") or None,
        "emails": result.get("emails") or None,
        "schedule_id": payload.get("schedule_id"),
        "failed_reason": request.error["detail"] if request.error and request.status != COMPLETED else None,
        "operator_id": payload.get("operator_id"),
        "merchant_type": payload.get("merchant_type"),
        "merchant_id": payload.get("merchant_id"),
        "priority": request.priority,
        "last_wait_reason": request.last_wait_reason,
        "create_time": request.created_at,
        "start_time": request.start_time,
        "finish_time": request.finish_time,
        "download_url": f"{api_url}/v1/download/async?task_id={request.request_id}" if status == COMPLETED else None,
    }
    return {name: value for name, value in data.items() if value is not None}
