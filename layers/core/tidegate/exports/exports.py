"""What callers do with exports: order, show, list, link to the file, delete; and small exports in one HTTP call."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any

from tidegate.aws.table import Write
from tidegate.common.ids import iso, new_id
from tidegate.common.sequences import Listed
from tidegate.errors import (
    BadTable,
    DomainError,
    Expired,
    FetchTimeout,
    NotReady,
    NotSent,
    RecordNotFound,
    UseAsync,
    WrongState,
)
from tidegate.exports import PARALLEL
from tidegate.exports import model as domain
from tidegate.exports.model import (
    EXCEL,
    EXPIRED,
    MAX_WARNINGS,
    PREFIX,
    Export,
    ExportOptions,
    ExportSpec,
    TableSpec,
    default_file_name,
    export_view,
    file_name_for,
)
from tidegate.exports.source import PagePlace, SourcePage, TablePages, page_source, read_page
from tidegate.exports.store import ExportBucket, fill_object, output_prefix, spec_object, staging_prefix, sync_object
from tidegate.http.model import Limits
from tidegate.projects.audit import act, audit_write
from tidegate.queue import control
from tidegate.queue.model import COMPLETED, Request
from tidegate.records import declared
from tidegate.sheets.rows import shaped
from tidegate.sheets.table import Notes, check_rows, flat_rows, keys_of, leaves
from tidegate.sheets.values import Digits, digits_of

if TYPE_CHECKING:
    from tidegate.exports import Exports
    from tidegate.sheets.fill import Filling
    from tidegate.sheets.xlsx import TableRows

# --- exports
# The operations of callers on exports: order, show, list, link to the file, delete.

LINK_SECONDS = 300
# How many pages a list filtered by status reads before it returns what it found.
_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class DownloadLink:
    url: str
    expires_at: str


class Orders:
    """The operations of callers on exports."""

    def __init__(self, exports: Exports) -> None:
        self._exports = exports

    def check(self, project_id: str, spec: ExportSpec) -> None:
        """Raises an error for an order that could only fail later: BadTable, or the error that refuses its source."""
        self._exports.check_urls(project_id, self._checked_tables(project_id, spec))

    def _checked_tables(self, project_id: str, spec: ExportSpec) -> dict[str, str | None]:
        """Checks the tables, but not their URLs. Returns the URLs by field name, for `check_urls`."""
        urls: dict[str, str | None] = {}
        for number, table in enumerate(spec.tables):
            place = f"[{number}]" if len(spec.tables) > 1 else ""
            with _blamed_on("template"):
                laid = spec.table(number)
            with _blamed_on("source_data"):
                if table.data is not None:
                    check_rows(flat_rows(table.data, f"source_data{place}"), laid.template, excel=spec.type == EXCEL)
                elif not table.address:
                    raise BadTable(f"table {number + 1} has no rows: give its source_data, source_url or source")
            if table.data is None and table.source:
                self._exports.allowed_sources.check(project_id, table.source, f"source{place}")
            elif table.data is None:
                urls[f"source_url{place}"] = table.source_url
        if spec.type == EXCEL and any(table.sheet_name for table in spec.tables):
            from tidegate.sheets.xlsx import check_sheet_names

            with _blamed_on("sheet_name"):
                if spec.fill:
                    raise BadTable("a filled template keeps the names of its sheets: leave out sheet_name")
                laid_out = [spec.table(number) for number in range(len(spec.tables))]
                check_sheet_names(laid_out, together=spec.multi_type == "page")
        if spec.fill:
            with _blamed_on("fill"):
                template_of(self._exports, project_id, spec)
        return urls

    def check_order(self, project_id: str, spec: ExportSpec, options: ExportOptions) -> None:
        """Checks the tables, the callback, the destinations of copies and the addresses of mails."""
        self._exports.check_urls(project_id, self._checked_tables(project_id, spec) | {"callback": options.callback})
        self._exports.deliveries.check(project_id, options.deliver)
        self._exports.mail.check(options.email)

    def submit(self, project_id: str, spec: ExportSpec, options: ExportOptions, who: str) -> str:
        """Checks and queues an order. Returns the task_id of the export."""
        self.check_order(project_id, spec, options)
        return self.queue_order(project_id, spec, options, who)

    def queue_order(
        self,
        project_id: str,
        spec: ExportSpec,
        options: ExportOptions,
        who: str,
        *,
        task_id: str | None = None,
        schedule_id: str | None = None,
        extra_writes: Sequence[Any] = (),
    ) -> str:
        """Queues an order that was checked, and returns its task_id. Idempotent if `task_id` is given."""
        now = self._exports.clock()
        spec = self.with_masks(project_id, spec)
        task_id = task_id or new_id(domain.PREFIX, now)
        if spec.password:
            from tidegate.projects.secrets import sealed

            kept = sealed(self._exports.root_secret(), spec.password, project_id, task_id)
            spec = replace(spec, password=None, sealed_password=kept)
        spec_key = spec_object(project_id, task_id)
        from tidegate.sheets.values import write_exact

        self._exports.objects.put(spec_key, write_exact(spec.as_data()))
        if spec.fill:
            self._exports.objects.put(fill_object(project_id, task_id), template_of(self._exports, project_id, spec))
        labels: dict[str, Any] = {name: getattr(options, name) for name in domain.LABELS}
        fields = labels | {"type": spec.type, "schedule_id": schedule_id}
        # Lists are filtered by text; the record shows the id with the type that the caller gave.
        listed = fields | {"merchant_id": None if options.merchant_id is None else str(options.merchant_id)}
        export = Export(task_id=task_id, project_id=project_id, created_at=iso(now), **listed)
        payload = fields | {"file_name": options.file_name or domain.default_file_name(now, task_id)}
        payload["unmask"] = spec.unmask or None
        payload["deliver"] = [asdict(each) for each in options.deliver] or None
        payload["email"] = list(options.email) or None
        self._exports.queue.submit(
            project_id,
            domain.TYPE,
            payload={name: value for name, value in payload.items() if value is not None},
            priority=options.priority,
            request_id=task_id,
            callback=options.callback,
            extra_writes=[
                self._exports.store.write(export),
                *_unmasked(project_id, task_id, now, who, spec),
                *extra_writes,
            ],
            timeout=options.max_exec_time,
            who=who,
        )
        return task_id

    def with_masks(self, project_id: str, spec: ExportSpec) -> ExportSpec:
        """Returns the order with the masks that the project has now; without masks if the order is unmasked."""
        # An admin may act without a project.
        project = None if spec.unmask else self._exports.project_store.get(project_id, consistent=True)
        return replace(spec, masks=project.masks if project and project.masks else None)

    def view(self, request: Request) -> dict[str, Any]:
        return export_view(request, self._exports.clock(), self._exports.settings.api_url)

    def get(self, project_id: str, task_id: str) -> dict[str, Any]:
        found = self.get_many(project_id, [task_id])
        # The request's own error says what was not found.
        return found.get(task_id) or self.view(self._request(project_id, task_id))

    def update(self, project_id: str, task_id: str, changes: Mapping[str, Any], who: str) -> dict[str, Any]:
        """Changes labels of an export, whatever its state. Callbacks keep the labels of the order."""
        self._request(project_id, task_id)
        why = ", ".join(f"no {name}" if value is None else f"{name} {value}" for name, value in changes.items())
        line = act(project_id, task_id, self._exports.clock(), who, "export.change", why)
        if changes and not self._exports.store.change(project_id, task_id, changes, line):
            raise RecordNotFound(f"this project has no export with the id {task_id[:200]}")
        return self.get(project_id, task_id)

    def _as_listed(self, request: Request, entry: Export | None) -> dict[str, Any]:
        """Returns the export as callers see it, with the labels that were changed since it was ordered."""
        view = self.view(request)
        if entry is None:
            return view
        changeable = {field.name: getattr(entry, field.name) for field in declared(Export).values() if field.f.changes}
        kept = {name: value for name, value in view.items() if name not in changeable}
        return kept | {name: value for name, value in changeable.items() if value is not None}

    def get_many(self, project_id: str, task_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Returns the exports that still exist, as callers see them, by task_id."""
        found = self._exports.store.records(project_id, task_ids)
        return {each.request_id: self._as_listed(each, entry) for entry, each in found if each.type == domain.TYPE}

    def list(
        self, project_id: str, *, status: str | None, wanted: Mapping[str, Any], limit: int, cursor: str | None
    ) -> Listed[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        after = None
        for _ in range(_ROUNDS):
            # When the page is full, read on only to learn whether another export follows.
            page = self._exports.store.page(project_id, limit - len(found) or limit, cursor, wanted)
            records = [self._as_listed(request, entry) for entry, request in page.items if request is not None]
            matching = [record for record in records if status in (None, record["status"])]
            if len(found) == limit and matching:
                return Listed(found, after)
            found += matching
            cursor = page.next_cursor
            if cursor is None:
                break
            after = after or (cursor if len(found) == limit else None)
            if after and status is None:
                break
        return Listed(found, (after or cursor) if cursor else None)

    def link(self, project_id: str, task_id: str, require: Callable[[str], None]) -> DownloadLink:
        """Returns a presigned link to the file. Raises NotReady if there is no file, and Expired if it was deleted.

        `require` raises an error if the caller's key does not have the scope.
        """
        request = self._request(project_id, task_id)
        if request.payload.get("unmask"):
            require("unmask")
        view = self.view(request)
        if view["status"] == EXPIRED:
            raise Expired("the file was deleted after 7 days: order the export again")
        if request.status != COMPLETED or not request.result:
            then = "order the export again" if request.is_over else "its file can be downloaded once it is completed"
            raise NotReady(f"the status of the export is {request.status}: {then}")
        url = self._exports.objects.link(request.result["key"], LINK_SECONDS, request.result["file_name"])
        return DownloadLink(url, iso(self._exports.clock() + timedelta(seconds=LINK_SECONDS)))

    def delete(self, project_id: str, task_ids: Sequence[str], who: str) -> int:
        """Cancels running exports, then deletes files and records. Returns how many exports existed."""
        return sum(self._delete(project_id, task_id, who) for task_id in dict.fromkeys(task_ids))

    def _delete(self, project_id: str, task_id: str, who: str) -> bool:
        try:
            request = self._request(project_id, task_id)
        except RecordNotFound:
            return False
        if not request.is_over:
            # It may have ended meanwhile.
            with suppress(WrongState):
                control.cancel(self._exports.queue, project_id, task_id, who, "deleted")
        self.forget_files(project_id, task_id)
        self._exports.store.remove(
            project_id, task_id, act(project_id, task_id, self._exports.clock(), who, "export.delete")
        )
        return True

    def forget_files(self, project_id: str, task_id: str) -> None:
        self._exports.objects.abort_uploads(output_prefix(project_id, task_id))
        self._exports.objects.remove(output_prefix(project_id, task_id))
        self._exports.objects.remove(staging_prefix(project_id, task_id))

    def _request(self, project_id: str, task_id: str) -> Request:
        request = self._exports.queue.get(project_id, task_id)
        if request.type != domain.TYPE:
            raise RecordNotFound(f"this project has no export with the id {task_id[:200]}")
        return request


def _unmasked(project_id: str, task_id: str, now: datetime, who: str, spec: ExportSpec) -> list[Write]:
    """Returns the audit line of an order that lifts the project's masks; none for other orders."""
    return [audit_write(act(project_id, task_id, now, who, "export.unmask"))] if spec.unmask else []


def template_of(exports: Exports, project_id: str, spec: ExportSpec) -> bytes:
    """Returns the content of the template that the order fills. Raises BadTable if these tables cannot fill it."""
    from tidegate.sheets.fill import check_lists
    from tidegate.sheets.fill_template import FillTemplate

    assert spec.fill is not None
    if spec.type != EXCEL:
        raise BadTable("only an export of type excel can fill a template: set type to excel, or leave out fill")
    if any(spec.table(number).template.rows for number in range(len(spec.tables))):
        raise BadTable("a template is filled with rows, not with row heads: leave out `row` of the template")
    data = template_bytes(exports, project_id, spec.fill.file_id)
    check_lists(FillTemplate(data), [table.title or "" for table in spec.tables])
    return data


def template_bytes(exports: Exports, project_id: str, file_id: str) -> bytes:
    """Returns the content of a library file that is a template.

    Raises BadTable if the file is not ready or too large.
    """
    from tidegate.files.library import ContentStore
    from tidegate.files.model import READY
    from tidegate.files.store import FileStore
    from tidegate.sheets.fill_template import MAX_BYTES

    file = FileStore(exports.table).require(project_id, file_id)
    if file.state != READY or file.signature is None:
        raise BadTable(f"the file {file.file_id} is {file.state}: wait until it is ready")
    if (file.size or 0) > MAX_BYTES:
        raise BadTable(f"the file {file.file_id} has {file.size} bytes, but a template may have {MAX_BYTES}")
    key = ContentStore(exports.table).objects_of(project_id, [file.signature])[file.signature]
    data = exports.objects.get(key)
    if data is None:
        raise RecordNotFound(f"the content of the file {file.file_id} is gone: upload it again")
    return data


def kept_template(objects: ExportBucket, request: Request) -> bytes:
    """Returns the template as it was when the export was ordered. Raises RecordNotFound if this copy was deleted."""
    data = objects.get(fill_object(request.project_id, request.request_id))
    if data is None:
        raise RecordNotFound("the template of this export was deleted: submit the export again")
    return data


def filling_of(spec: ExportSpec, data: bytes, tables: Sequence[TableRows]) -> Filling:
    """Returns the template with the values for its placeholders, from the order and its tables."""
    from tidegate.sheets.fill import Filling, values_of
    from tidegate.sheets.fill_template import FillTemplate

    given = spec.fill.values if spec.fill else None
    return Filling(FillTemplate(data), values_of(given, [each.table for each in tables]))


@contextmanager
def _blamed_on(field: str) -> Iterator[None]:
    try:
        yield
    except BadTable as error:
        raise BadTable(error.detail, errors=[{"loc": ["body", field], "msg": error.detail}]) from error


# --- sync
# A small export that is pulled, rendered and returned within one HTTP call.

MAX_ROWS = 50_000
MAX_BYTES = 4_500_000
# Seconds for pulling all tables: API Gateway gives up after 29 s, and the rows have to be rendered and sent as well.
SECONDS = 20.0
_WITHIN_A_CALL = Limits(total=15.0)


@dataclass(frozen=True, slots=True)
class SyncFile:
    """The file of a synchronous export: its bytes, or a URL if they are too many for one response."""

    file_name: str
    content_type: str
    body: bytes = b""
    url: str | None = None
    # The warnings that the record of a queued export would have.
    warnings: Sequence[str] = ()


def sync_file(
    exports: Exports, project_id: str, spec: ExportSpec, file_name: str | None, seconds: float = SECONDS, who: str = ""
) -> SyncFile:
    """Pulls and renders a small export and returns its file.

    Raises UseAsync if the export has too many rows, or if the rows do not arrive within `seconds`. `seconds` is limited
    to SECONDS.
    """
    from tidegate.sheets.files import content_type, extension, render
    from tidegate.sheets.xlsx import TableRows

    exports.orders.check(project_id, spec)
    spec = exports.orders.with_masks(project_id, spec)
    now = exports.clock()
    task_id = new_id(PREFIX, now)
    for line in _unmasked(project_id, task_id, now, who, spec):
        exports.table.write(line)
    until = time.monotonic() + min(seconds, SECONDS)
    tables: list[TableRows] = []
    warnings, notes = list[str](), Notes()
    total = blank_rows = 0
    for number in range(len(spec.tables)):
        rows, pages = _rows(exports, project_id, task_id, spec, number, until)
        table = spec.table(number, pages.answered)
        total += len(rows)
        # Row heads may add blank rows.
        blank_rows += sum(leaf.row_count for leaf in leaves(table.template.rows))
        _refuse_many(max(total, blank_rows))
        tables.append(TableRows(table, keys_of(rows), shaped(table)(rows), len(rows)))
        warnings += [*pages.warnings(), *table.template.warnings(tables[-1].keys)]
    output = spec.output()
    ending = extension(output, tables, total)
    filling = filling_of(spec, template_of(exports, project_id, spec), tables) if spec.fill else None
    if filling:
        from tidegate.sheets.fill import unfilled

        warnings += unfilled(filling, tables)
    body = b"".join(render(output, tables, total, notes, filling))
    warnings = [*warnings, *notes.warnings()][:MAX_WARNINGS]
    name = file_name_for(file_name or default_file_name(now, task_id), ending)
    made = SyncFile(name, content_type(output, ending), body, warnings=warnings)
    if len(body) <= MAX_BYTES:
        return made
    key = sync_object(project_id, task_id)
    exports.objects.put(key, body, made.content_type)
    return replace(made, body=b"", url=exports.objects.link(key, LINK_SECONDS, name))


def _rows(
    exports: Exports, project_id: str, task_id: str, spec: ExportSpec, number: int, until: float
) -> tuple[list[dict[str, Any]], TablePages]:
    table = spec.tables[number]
    if table.data is not None:
        return flat_rows(table.data), TablePages()
    read = page_source(exports, project_id, task_id, spec, limits=_WITHIN_A_CALL, for_caller=True)
    at_once = min(PARALLEL, spec.parallel or PARALLEL)
    pages, rows = TablePages(step=spec.step), dict[int, list[dict[str, Any]]]()

    def fetch(number: int) -> tuple[int, SourcePage]:
        left = until - time.monotonic()
        try:
            body = read(table.address, pages.page_place(number), spec.step, left) if left > 0 else None
        except FetchTimeout:
            if time.monotonic() < until:
                raise
            body = None
        except NotSent as error:
            raise UseAsync(f"{error.detail}, too few for a synchronous export: use POST /v1/task instead") from error
        if body is None:
            raise UseAsync("the source did not return all rows in time: use POST /v1/task instead")
        return number, read_page(body, number)

    def record(number: int, page: SourcePage) -> None:
        pages.record(number, page)
        if number in pages.counts:
            rows[number] = page.rows
        _refuse_many(max(pages.rows, pages.total or 0))

    record(*fetch(0))
    with ThreadPoolExecutor(at_once) as threads:
        # A few at a time: an empty page ends the plan.
        while some := list(islice(pages.planned(), at_once)):
            for number, page in threads.map(fetch, some):
                record(number, page)
    if not pages.sequential:
        pages.continue_after_plan()
    while pages.upcoming is not None:
        try:
            record(*fetch(pages.upcoming))
        except DomainError:
            if not pages.confirms_total(pages.upcoming):
                raise
            break
    return [row for page in sorted(rows) for row in rows[page]], pages


def _refuse_many(rows: int) -> None:
    if rows > MAX_ROWS:
        raise UseAsync(
            f"the export has {rows} rows, but a synchronous one may have {MAX_ROWS}: use POST /v1/task instead"
        )


# The smallest page size of an export; a sample is the first rows of such a page.
STEP = 100
ROWS = 20
_SECONDS = 15.0
# Doubles have no gaps up to here.
_MOST_EXACT = 2**53


@dataclass(frozen=True, slots=True)
class Sample:
    """The first rows of a source. `answered` has the table settings that the source sent: header, footer, template."""

    rows: list[Any]
    total: int | None
    answered: dict[str, Any]


def take_sample(exports: Exports, project_id: str, source_url: str) -> Sample:
    """Returns the first rows of a source, from a signed request like that of an export. Stores and queues nothing."""
    read = page_source(exports, project_id, new_id(PREFIX, exports.clock()), for_caller=True)
    page = read_page(read(source_url, PagePlace(0), STEP, _SECONDS), 0)
    spec = exports.orders.with_masks(project_id, ExportSpec((TableSpec(source_url=source_url),)))
    return Sample([_as_double(row) for row in shaped(spec.table(0))(page.rows[:ROWS])], page.total, page.answered)


def _as_double(value: Any) -> Any:
    """Returns the value for programs that read all numbers as doubles.

    Numbers that such a program would change become text.
    """
    if isinstance(value, dict):
        return {key: _as_double(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_as_double(inner) for inner in value]
    if isinstance(value, Digits):
        text = digits_of(value)
        return float(text) if repr(float(text)) == text else text
    return str(value) if type(value) is int and abs(value) > _MOST_EXACT else value
