"""Exports in ranges: several workers render ranges of pages as fragments, and a joiner makes one file of them on S3."""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, zip_longest
from secrets import token_hex
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tidegate.aws.s3 import StoredPiece, plan_parts
from tidegate.errors import DomainError, FetchError, RecordNotFound, SourceBroken, WorkerLost
from tidegate.exports.model import EXCEL, JSONL, MAX_WARNINGS, PARQUET, ExportSpec, Rendered, file_name_for, progress_of
from tidegate.exports.pull import (
    RANGE_SECONDS,
    RangePlan,
    RangeRecord,
    Span,
    keys_matter,
    page_seconds,
    retry_wait,
    with_retries,
)
from tidegate.exports.source import (
    PAGE_SECONDS,
    PagePlace,
    ReadPage,
    SourcePage,
    TablePages,
    page_reader,
    page_source,
    read_page,
)
from tidegate.exports.store import (
    ExportBucket,
    fragment_object,
    given_up_object,
    numbered_object,
    output_object,
    output_prefix,
    page_object,
    plan_object,
    ranges_prefix,
    record_object,
)
from tidegate.queue.model import Request
from tidegate.sheets.files import FragmentWriter, Measure, content_type
from tidegate.sheets.fill import unfilled
from tidegate.sheets.joined import JoinedBook, JoinedFill, JoinedParquet, JoinedText, Made, SheetRows, Sums, renumber
from tidegate.sheets.parquet import Group
from tidegate.sheets.rows import BLOCK_ROWS, shaped
from tidegate.sheets.table import Notes, Row, flat_rows, keys_of
from tidegate.sheets.xlsx import SHEET_ROWS, TableRows
from tidegate.sheets.xlsx_cells import Total

if TYPE_CHECKING:
    from tidegate.exports import Exports

# --- context
# What the range workers and the joiner of an export share: the plan, and what page 0 of each table determines.

_SIDE_BY_SIDE = 8

JoinedFile = JoinedText | JoinedBook | JoinedParquet | JoinedFill


class TableContext:
    """What the workers need to know about one table.

    It comes from page 0 of the table, or from the rows that came with the order.
    """

    def __init__(self, spec: ExportSpec, number: int, first_body: bytes | None) -> None:
        self.spec, self.number, self.first_body = spec, number, first_body or b""
        self.pages = TablePages(step=spec.step)
        self.given = None if spec.tables[number].data is None else flat_rows(spec.tables[number].data)
        rows: Sequence[Row] = ()
        if self.given is not None:
            rows = self.given
            self.pages.record_given(keys_of(rows), len(rows))
        elif first_body is not None:
            page = read_page(first_body, 0)
            rows = page.rows
            self.pages.record(0, page)
        self.shape = shaped(spec.table(number, self.pages.answered))
        # The rows that column widths are measured by.
        self.sample = self.shape(rows[:BLOCK_ROWS])
        self.keys = self.pages.all_keys()
        self.fixed_keys = keys_matter(spec, number, self.pages)
        # A JSON line has only the keys of its own row.
        self.read = read_page if spec.type == JSONL else page_reader(self.keys)

    @property
    def url(self) -> str:
        return self.spec.tables[self.number].address

    def first_page(self) -> SourcePage:
        return SourcePage(self.given) if self.given is not None else self.read(self.first_body, 0)

    def source(self, footer: Any = None) -> TableRows:
        answered = self.pages.answered | ({"footer": footer} if footer else {})
        return TableRows(self.spec.table(self.number, answered), self.keys, ())

    def several_sheets(self, capacity: int | None) -> bool:
        """Whether the rows may need several sheets of `capacity` rows each. False if there is no capacity.

        With a capacity, always true for a sequential source, because its total is not known.
        """
        return capacity is not None and (self.pages.sequential or (self.pages.total or 0) > capacity)


class RangeContext:
    """The plan and all tables of one export."""

    def __init__(
        self, objects: ExportBucket, request: Request, spec: ExportSpec, plan: RangePlan | None = None
    ) -> None:
        self.objects, self.request, self.spec = objects, request, spec
        self._ids = request.project_id, request.request_id
        self.plan = plan or self._stored_plan()

    def _stored_plan(self) -> RangePlan:
        data = self.objects.get(plan_object(*self._ids))
        if data is None:
            raise RecordNotFound("the stored plan of this export is gone: retry the export")
        return RangePlan(**json.loads(data))

    @cached_property
    def tables(self) -> list[TableContext]:
        """All tables of the export.

        A worker that renders one table needs the others too, because all tables share the style numbers.
        """
        numbers = range(len(self.spec.tables))
        if len(numbers) == 1:
            return [self._table(0)]
        with ThreadPoolExecutor(min(_SIDE_BY_SIDE, len(numbers))) as threads:
            return list(threads.map(self._table, numbers))

    def _table(self, number: int) -> TableContext:
        if self.spec.tables[number].data is not None:
            return TableContext(self.spec, number, None)
        body = self.objects.get(page_object(*self._ids, number, 0))
        if body is None:
            raise RecordNotFound(f"the stored first page of table {number + 1} is gone: retry the export")
        return TableContext(self.spec, number, body)

    def file(self, footers: Sequence[Any] = ()) -> JoinedFile:
        """Returns the file to render into. `footers`: per table, the footer that the source sent with a later page."""
        footers = footers or [None] * len(self.tables)
        sources = [table.source(footer) for table, footer in zip(self.tables, footers, strict=True)]
        output = self.spec.output()
        if self.spec.fill:
            from tidegate.exports.exports import filling_of

            return JoinedFill(filling_of(self.spec, self._template, sources), sources)
        if self.spec.type == EXCEL:
            return JoinedBook(sources, [table.sample for table in self.tables], output.multi_type, SHEET_ROWS)
        return JoinedParquet(sources[0]) if self.spec.type == PARQUET else JoinedText(output, sources)

    @cached_property
    def _template(self) -> bytes:
        from tidegate.exports.exports import kept_template

        return kept_template(self.objects, self.request)

    def record(self, table: int, first: int) -> RangeRecord | None:
        data = self.objects.get(record_object(*self._ids, table, first))
        return None if data is None else RangeRecord.from_data(json.loads(data))

    def store(self, record: RangeRecord) -> RangeRecord:
        """Stores the record of a range, unless the range has one. Returns the stored record.

        A duplicate run of the range may have stored it.
        """
        data = json.dumps(record.as_data(), ensure_ascii=False).encode()
        stored = self.objects.put_first(record_object(*self._ids, record.table, record.first), data)
        return RangeRecord.from_data(json.loads(stored))

    def stored_keys(self) -> set[str]:
        """Returns the keys of all objects of this export's ranges: records, fragments, the plan."""
        return set(self.objects.keys(ranges_prefix(*self._ids)))

    def give_up(self, reason: str) -> None:
        """Makes the export stage its pages instead, also in later attempts."""
        self.objects.put_first(given_up_object(*self._ids), reason.encode())


# --- process settings
# Settings of a range worker's process, which limit its memory and keep its requests prompt.

# mallopt's M_MMAP_THRESHOLD.
_MMAP_THRESHOLD = -3
_LARGE_BYTES = 1024 * 1024
# Python's default lets a thread wait 5 ms for the interpreter lock while another computes.
_SWITCH_SECONDS = 0.0005


def set_up_process() -> None:
    """Sets limits of memory and thread switching for this process. Calling it again changes nothing."""
    # Each time glibc frees a mapped block, it raises the size from which it maps blocks. Fragments would then grow on
    # the heap and fragment it: a worker took 22 MB more after 5 million rows than after 200,000. With a fixed
    # threshold each fragment is mapped, grows without being copied, and is returned to the system when sent.
    with suppress(OSError, AttributeError):
        # A C library without mallopt has no such threshold.
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
    # When a page arrives, the next request has to go out at once, even while rows are being rendered.
    sys.setswitchinterval(min(_SWITCH_SECONDS, sys.getswitchinterval()))


_HEARTBEAT_SECONDS = 5.0
# Pages held per request in flight, so that a slow page does not delay the requests after it.
_WAITING = 2
_T = TypeVar("_T")


class PagesAhead:
    """Reads the pages of a table in order. While one page is rendered, the next pages are requested.

    Threads only fetch bytes. Parsing holds the interpreter lock anyway, and bytes take less memory than rows.
    """

    def __init__(
        self,
        table: TableContext,
        read_page: ReadPage,
        exports: Exports,
        in_flight: int,
        until: float,
        heartbeat: Callable[[], None],
    ) -> None:
        self._table, self._read_page, self._exports = table, read_page, exports
        self._in_flight, self._until, self._heartbeat = in_flight, until, heartbeat
        # If pages may take long, none waits for a free thread: its request might begin when the time has run out.
        self._most = in_flight * (_WAITING if page_seconds(table.spec) <= PAGE_SECONDS else 1)
        self._threads = ThreadPoolExecutor(in_flight)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    def parallel(self, first: int, past: int) -> Iterator[tuple[int, SourcePage | None]]:
        """Yields (number, page) from page `first` up to, not including, `past`.

        The call itself sends the first requests. Stops requesting when time runs out. The page is None if its number is
        past the announced total and it could not be fetched, because sources answer such a request in many ways.
        """
        ahead: deque[tuple[int, Future[bytes]]] = deque()
        numbers = iter(range(first, past))

        def request_more() -> None:
            nonlocal numbers
            while len(ahead) < self._most and (number := next(numbers, None)) is not None:
                if time.monotonic() >= self._until and number > first:
                    numbers = iter(())
                    return
                ahead.append((number, self._threads.submit(self._body, number)))

        request_more()
        return self._in_order(ahead, request_more)

    def _in_order(
        self, ahead: deque[tuple[int, Future[bytes]]], request_more: Callable[[], None]
    ) -> Iterator[tuple[int, SourcePage | None]]:
        while ahead:
            number, future = ahead.popleft()
            try:
                page = self._parse(future, number)
            except DomainError:
                if number < self._table.pages.announced:
                    raise
                yield number, None
                return
            request_more()
            yield number, page

    def sequential(self, first: int) -> Iterator[tuple[int, SourcePage]]:
        """Yields (number, page) of a source in which only each page shows whether another one follows."""
        pages, number = self._table.pages, first
        body = self._threads.submit(self._body, number)
        while True:
            page = self._parse(body, number)
            if number:
                pages.upcoming = pages.next_after(number, page)
            upcoming = pages.upcoming
            if upcoming is not None:
                body = self._threads.submit(self._body, upcoming)
            yield number, page
            if upcoming is None:
                return
            number = upcoming

    def page(self, number: int) -> SourcePage:
        return self._parse(self._threads.submit(self._body, number), number)

    def _body(self, number: int) -> bytes:
        return with_retries(self._exports, lambda: self._fetch(number), number, self._until)

    def _fetch(self, number: int) -> bytes:
        table = self._table
        if number == 0:
            return table.first_body
        place = PagePlace(number, table.pages.cursor if table.pages.by_cursor else None, table.pages.snapshot)
        return self._read_page(table.url, place, table.spec.step)

    def _parse(self, body: Future[bytes], number: int) -> SourcePage:
        try:
            return self._table.read(self._result(body), number)
        except FetchError as error:
            # `_body` has already retried failed requests. Here a response says that the source failed.
            wait = retry_wait(error, number, 1) if body.exception() is None else None
            if wait is None:
                raise

        def again() -> SourcePage:
            return self._table.read(self._fetch(number), number)

        def after(seconds: float) -> SourcePage:
            self._exports.sleep(seconds)
            return with_retries(self._exports, again, number, self._until, failures=1)

        return self._result(self._threads.submit(after, wait))

    def _result(self, future: Future[_T]) -> _T:
        """Waits for the future and returns its result; sends a heartbeat every few seconds."""
        while True:
            try:
                return future.result(timeout=_HEARTBEAT_SECONDS)
            except TimeoutError:
                if future.done():
                    raise
                self._heartbeat()


# --- worker
# Pulls ranges of pages and renders them directly into fragments: no page is staged or read twice.
#
# Idempotent: the record of a range is stored after its fragments, once, by the first worker that finishes it. A range
# with a record is skipped, also by later attempts.

# Seconds that remain after the last request of a range, to render its page and to store the last fragments.
_MARGIN_SECONDS = 30.0

Heartbeat = Callable[[dict[str, Any]], None]
# Called with (pages done, all pages).
Report = Callable[[int, int], None]


class GivenUp(Exception):
    """Raised if the rows cannot be rendered in ranges after all: the export stages its pages instead."""


def work(
    exports: Exports,
    request: Request,
    spec: ExportSpec,
    lane: int,
    heartbeat: Heartbeat,
    seconds_left: float,
    plan: RangePlan | None = None,
) -> bool:
    """Renders the ranges of one worker (`lane`). Returns False if time ran out and another invocation must continue."""
    set_up_process()
    until = time.monotonic() + seconds_left - page_seconds(spec) - _MARGIN_SECONDS
    context = RangeContext(exports.objects, request, spec, plan)
    stored = context.stored_keys()
    ids = request.project_id, request.request_id
    if given_up_object(*ids) in stored:
        return True
    try:
        for span in context.plan.of_lane(lane):
            page, before, cursor = span.first, None, None
            while True:
                key = record_object(*ids, span.table, page)
                record = context.record(span.table, page) if key in stored else None
                if record is None:
                    if time.monotonic() >= until:
                        return False
                    rows = _RangeRows(context, span, page, before, cursor)
                    record = _render_range(exports, rows, page, cursor, heartbeat, lane, until)
                page, before, cursor = record.past, record.before + record.rows, record.cursor
                if record.ended or (span.past is not None and page >= span.past and not span.last):
                    break
    except GivenUp as error:
        context.give_up(str(error))
    return True


def _render_range(
    exports: Exports, rows: _RangeRows, first: int, cursor: str | None, heartbeat: Heartbeat, lane: int, until: float
) -> RangeRecord:
    """Pulls and renders a range from page `first` on.

    Returns the record, which may end at an earlier page than the range.
    """
    table, record, failure = rows.table, rows.record, None

    def report(done: int, pages: int) -> None:
        heartbeat(_estimate(rows, lane, done, pages))

    if table.given is not None:
        rows.render(0, table.first_page(), final=True)
        record.past, record.ended = 1, True
    else:
        request = rows.context.request
        read_page = page_source(exports, request.project_id, request.request_id, rows.context.spec)
        in_flight = rows.context.plan.threads
        with PagesAhead(table, read_page, exports, in_flight, until, lambda: report(0, 1)) as ahead:
            try:
                if rows.span.past is None:
                    _sequential(rows, ahead, first, cursor, until, report)
                else:
                    _parallel(rows, ahead, first, rows.span.past, until, report)
            except (FetchError, SourceBroken) as error:
                # Keep the pages before the one that failed: the next attempt continues with the failed page.
                if record.past == first:
                    raise
                failure = error
    stored = rows.end()
    if failure:
        raise failure
    return stored


def _sequential(
    rows: _RangeRows, ahead: PagesAhead, first: int, cursor: str | None, until: float, report: Report
) -> None:
    """Renders pages one after another, for about a minute. While one page is rendered, the next one is fetched."""
    record, pages = rows.record, rows.table.pages
    until = min(until, time.monotonic() + RANGE_SECONDS)
    if first:
        pages.cursor = cursor
    for number, page in ahead.sequential(first):
        rows.render(number, page, final=True)
        report(1, 1)
        record.past, record.cursor = number + 1, pages.cursor
        record.ended = pages.upcoming is None
        if time.monotonic() >= until:
            return


def _parallel(rows: _RangeRows, ahead: PagesAhead, first: int, past: int, until: float, report: Report) -> None:
    record, pages, last = rows.record, rows.table.pages, rows.span.last
    count, full = max(1, past - first), True
    # After a full last page more may follow, so the page past the total is requested with the others.
    more = last and first < past and pages.total == past * pages.size
    fetched = ahead.parallel(first, past + 1 if more else past)
    # Make the workbook's frame while the first requests are in flight.
    _ = rows.rendering
    for number, page in fetched:
        if number == past:
            if full and page is not None and page.rows and not pages.is_last_again(number, page):
                rows.render(number, page, final=True)
                record.past = number + 1
                full = len(page.rows) >= pages.size
                pages.refuse_repeats(number, page)
            else:
                full = False
            break
        if page is None:
            continue
        if last and number == past - 1:
            pages.last_crc = page.crc
        rows.render(number, page, final=last and number == past - 1)
        report(number - first + 1, count)
        record.past = number + 1
        full = len(page.rows) >= pages.size
        if not page.rows:
            # An empty page ends the table.
            record.past = past
            break
    if not last or record.past < past:
        return
    while full and time.monotonic() < until:
        number = record.past
        try:
            page = ahead.page(number)
        except DomainError:
            # Sources may answer anything for the page past their last one.
            if number != past:
                raise
            break
        if pages.is_last_again(number, page):
            break
        rows.render(number, page, final=True)
        report(1, 1)
        record.past = number + 1
        full = len(page.rows) >= pages.size
        if full:
            pages.refuse_repeats(number, page)
    else:
        if full:
            return
    record.ended = True


def _estimate(rows: _RangeRows, lane: int, done: int, pages: int) -> dict[str, Any]:
    """Returns the estimated progress of the export.

    All workers are about equally fast, so the progress of this worker is taken for the progress of all.
    """
    context, table_pages, record = rows.context, rows.table.pages, rows.record
    totals = [table.pages.total for table in context.tables]
    total = None if None in totals else sum(each or 0 for each in totals)
    if table_pages.sequential:
        return progress_of(record.before + record.rows, total, 0)
    before = record.first - min(record.first, lane * pages)
    count = min(total or table_pages.total or 0, (before + done * context.plan.lanes) * table_pages.size)
    return progress_of(count, total, count)


class _RangeRows:
    """Renders the rows of one range into fragments, and keeps its record."""

    def __init__(self, context: RangeContext, span: Span, first: int, before: int | None, cursor: str | None) -> None:
        """For a sequential source, `before` and `cursor` come from the previous record.

        `before`: the rows before this range.
        """
        self.context, self.span = context, span
        self.table: TableContext = context.tables[span.table]
        self.record = RangeRecord(span.table, first, first, before=before or 0, cursor=cursor)
        pages = self.table.pages
        # Page n starts with row n · size: where the position matters, every earlier page was checked to be full.
        self._position = self.record.before if pages.sequential else first * pages.size
        self._nonce = token_hex(6)
        self._writer: FragmentWriter | None = None
        self._sheet = -1
        # The row of the sheet with which the next fragment begins.
        self._fragment_row = 0

    @cached_property
    def rendering(self) -> JoinedFile:
        return self.context.file()

    @cached_property
    def _top(self) -> int:
        """The row of the sheet at which the table's data begins, if the tables above have as many rows as announced."""
        file = self.rendering
        counts = [table.pages.total or 0 for table in self.context.tables]
        return file.first_rows(counts)[self.span.table] if isinstance(file, JoinedBook) else 0

    def end(self) -> RangeRecord:
        """Ends the last fragment and stores the record. Returns the stored record."""
        rendering = self.rendering.tables[self.span.table]
        if self._writer:
            if rest := rendering.end():
                self._writer.add(rest, 0)
            self._writer.end()
            self._take_sheet()
        return self.context.store(replace(self.record, **rendering.notes()))

    def render(self, number: int, page: SourcePage, *, final: bool) -> None:
        """Renders a page. Raises GivenUp if the page contradicts page 0.

        `final`: the page may have fewer rows than the others.
        """
        table, record = self.table, self.record
        if not table.pages.sequential and (page.force_continue is not None or page.by_cursor):
            raise GivenUp(f"page {number} has `next` or `force_continue`, page 0 had neither")
        if number and page.total is not None and page.total != table.pages.total:
            record.other_total = page.total
        first_page = table.pages.answered
        for name in ("header", "template"):
            if name in page.answered and page.answered[name] != first_page.get(name):
                raise GivenUp(f"page {number} has another {name} than page 0")
        record.footer = page.answered.get("footer", record.footer)
        if table.fixed_keys and page.rows and isinstance(page.rows[0], dict):
            late = [key for key in keys_of(page.rows) if key not in table.keys]
            if late:
                raise GivenUp(f"page {number} is the first with {', '.join(late[:5])}")
        several = table.several_sheets(self.rendering.tables[self.span.table].capacity)
        # Formulas of filled rows contain row numbers, which cannot be corrected later like those of cells.
        if (several or table.spec.fill) and not final and len(page.rows) != table.pages.size:
            raise GivenUp(f"page {number} has {len(page.rows)} rows where others have {table.pages.size}")
        record.rows += len(page.rows)
        if self.rendering.ending == "xlsx" and not several and record.before + record.rows > SHEET_ROWS:
            raise GivenUp("the rows do not fit on the one sheet that was planned")
        self._write(page.rows, several=several)

    def _write(self, rows: Sequence[Row], *, several: bool) -> None:
        rendering, at = self.rendering.tables[self.span.table], 0
        while at < len(rows):
            room, sheet = BLOCK_ROWS, 0
            if several and rendering.capacity is not None:
                sheet = self._position // rendering.capacity
                room = min(room, (sheet + 1) * rendering.capacity - self._position)
            block = self.table.shape(rows[at : at + room])
            row = self._top + self._position - sheet * (rendering.capacity or 0)
            self._on_sheet(sheet, row).add(rendering.text(block, row), len(block))
            at += len(block)
            self._position += len(block)

    def _on_sheet(self, sheet: int, row: int) -> FragmentWriter:
        if self._writer is None or sheet != self._sheet:
            if self._writer:
                self._writer.end()
                self._take_sheet()
            self._sheet, self._fragment_row = sheet, row
            self._writer = FragmentWriter(self._send, packed=self.rendering.packed)
        return self._writer

    def _take_sheet(self) -> None:
        """Adds the column widths and the equal neighbours of the current sheet to the record, for the joiner."""
        rendering = self.rendering.tables[self.span.table]
        self.record.widths.append((self._sheet, rendering.take_widths()))
        self.record.equal.append((self._sheet, rendering.take_equal()))

    def _send(self, data: bytearray, measure: Measure) -> None:
        record, request = self.record, self.context.request
        ids = request.project_id, request.request_id
        key = fragment_object(*ids, record.table, record.first, self._nonce, len(record.fragments))
        etag = self.context.objects.store(key, data)
        record.fragments.append(
            {
                "sheet": self._sheet,
                "key": key,
                "etag": etag,
                "size": measure.size,
                "crc": measure.crc,
                "packed": len(data),
                "rows": measure.rows,
                "row": self._fragment_row,
            }
        )
        self._fragment_row += measure.rows


def sums_of(records: Sequence[RangeRecord]) -> list[Total | None]:
    """Returns the total of each column of a table over all ranges; None for columns without one."""
    columns = zip(*(record.sums for record in records), strict=True)
    return [None if None in column else sum(map(Total.from_data, column), Total()) for column in columns]


# --- join
# Joins the fragments of all range workers into one file on S3, without reading them again.

_COPIES_TOGETHER = 16


def join(objects: ExportBucket, request: Request, spec: ExportSpec) -> Rendered | None:
    """Joins the fragments of all ranges to one file.

    None if they do not fit; the export then stages its pages instead.
    """
    ids = request.project_id, request.request_id
    context = RangeContext(objects, request, spec)
    with ThreadPoolExecutor(_COPIES_TOGETHER) as threads:
        # S3 bills the parts of an upload that a killed attempt began until it is aborted.
        aborted = threads.submit(objects.abort_uploads, output_prefix(*ids))
        firsts = [(table, first) for table, pages in enumerate(context.plan.tables) for first in pages[:-1] or [0]]
        planned_records = threads.map(lambda each: context.record(*each), firsts)
        planned_file = context.file()
        by_first = dict(zip(firsts, planned_records, strict=True))
        aborted.result()
    records = _records(context, by_first)
    if records is None:
        return None
    rows = sum(record.rows for table in records for record in table)
    made = [_sheets(table) for table in records]
    footers = [next((each.footer for each in reversed(table) if each.footer), None) for table in records]
    file = context.file(footers) if any(footers) else planned_file
    if reason := file.unfit(made) or _unfit(context, made, file, planned_file):
        context.give_up(reason)
        return None
    if isinstance(file, JoinedBook):
        made = _numbered(objects, file, made, records)
    key = output_object(*ids, request.attempt)
    sums = [sums_of(table) for table in records]
    parts = plan_parts(file.pieces(made, sums, _groups(records)))
    size = objects.assemble(key, content_type(spec.output(), file.ending), parts)
    name = file_name_for(str(request.payload["file_name"]), file.ending)
    return Rendered(key, name, size, rows, _warnings(context, records, file, sums)[:MAX_WARNINGS])


def _records(
    context: RangeContext, by_first: Mapping[tuple[int, int], RangeRecord | None]
) -> list[list[RangeRecord]] | None:
    """Returns the records of every table in the order of their pages. None if a worker gave up.

    There are no gaps: each record begins with the page that follows the last page of the previous record.
    """
    tables = [_of_table(context, number, by_first) for number in range(len(context.plan.tables))]
    found = [records for records in tables if records is not None]
    return found if len(found) == len(tables) else None


def _of_table(
    context: RangeContext, table: int, by_first: Mapping[tuple[int, int], RangeRecord | None]
) -> list[RangeRecord] | None:
    ids = context.request.project_id, context.request.request_id
    records, page = list[RangeRecord](), 0
    while True:
        # After a worker ran out of time, the next one began at a page that is not in the plan.
        record = by_first.get((table, page)) or context.record(table, page)
        if record is None or (record.past <= page and not record.ended):
            if context.objects.get(given_up_object(*ids)) is not None:
                return None
            raise WorkerLost(
                f"the rows of table {table + 1} from page {page} on were not rendered; the next attempt does it"
            )
        records.append(record)
        if record.ended:
            return records
        page = record.past


def _groups(records: Sequence[Sequence[RangeRecord]]) -> list[Group]:
    return [Group(**group) for table in records for record in table for group in record.groups]


def _sheets(records: Sequence[RangeRecord]) -> list[SheetRows]:
    """Returns the sheets of one table, each with its fragments, column widths and equal neighbours."""
    found: dict[int, list[tuple[StoredPiece, Measure]]] = {}
    for record in records:
        for each in record.fragments:
            stored = StoredPiece(each["key"], each["etag"], each["packed"])
            measure = Measure(each["size"], each["crc"], each["packed"], each["rows"])
            found.setdefault(each["sheet"], []).append((stored, measure))
    widths: dict[int, list[int]] = {}
    for record in records:
        for sheet, seen in record.widths:
            widths[sheet] = [max(pair) for pair in zip_longest(widths.get(sheet, ()), seen, fillvalue=0)]
    equal = {sheet: [part for record in records for at, part in record.equal if at == sheet] for sheet in found}
    return [SheetRows(found[number], widths.get(number, ()), equal[number]) for number in sorted(found)]


def _numbered(
    objects: ExportBucket, file: JoinedBook, made: Made, records: Sequence[Sequence[RangeRecord]]
) -> list[list[SheetRows]]:
    """Returns the sheets with correct row numbers. Rewrites the fragments that have wrong row numbers.

    A worker does not know the row numbers after a short page, or after a table with another number of rows than
    announced.
    """
    assumed = {each["key"]: each.get("row") for table in records for record in table for each in record.fragments}

    def fragment(piece: StoredPiece, measure: Measure, row: int) -> list[tuple[StoredPiece, Measure]]:
        # Workers of an older release wrote no numbers: Excel puts a cell without one after the cell before it.
        if assumed[piece.key] in (row, None):
            return [(piece, measure)]
        found = list[tuple[StoredPiece, Measure]]()

        def store(data: bytearray, measure: Measure) -> None:
            key = numbered_object(piece.key, row, len(found))
            found.append((StoredPiece(key, objects.store(key, data), len(data)), measure))

        data = objects.get(piece.key)
        if data is None:
            raise RecordNotFound("a stored fragment of this export is gone: retry the export")
        renumber(data, row, store)
        return found

    def sheet(rows: SheetRows, first: int) -> SheetRows:
        counts = accumulate((measure.rows for _, measure in rows.fragments), initial=first)
        again = [fragment(*each, row) for each, row in zip(rows.fragments, counts, strict=False)]
        return replace(rows, fragments=[each for fragments in again for each in fragments])

    firsts = file.first_rows([sum(sheet.measure.rows for sheet in sheets) for sheets in made])
    return [[sheet(rows, first) for rows in sheets] for sheets, first in zip(made, firsts, strict=True)]


def _unfit(context: RangeContext, made: Made, file: JoinedFile, planned: JoinedFile) -> str:
    """Returns why the rows do not fit the plan for which they were rendered; empty if they do."""
    limit = context.spec.rows_per_file
    if limit and len(made) == 1 and sum(sheet.measure.rows for sheet in made[0]) > limit:
        return f"there are more than {limit} rows, the limit of one file"
    if isinstance(file, JoinedFill) and isinstance(planned, JoinedFill) and not file.writes_like(planned):
        return "the repeated rows have a value that came with a later page"
    for number, (table, sheets) in enumerate(zip(context.tables, made, strict=True)):
        capacity, assumed = file.tables[number].capacity, planned.tables[number].capacity
        if capacity is None or assumed is None:
            continue
        if not table.several_sheets(assumed):
            if sum(sheet.measure.rows for sheet in sheets) > capacity:
                return "the rows do not fit on the one sheet that was planned"
        elif len(sheets) > 1 or sum(sheet.measure.rows for sheet in sheets) > capacity:
            full = all(sheet.measure.rows == assumed for sheet in sheets[:-1])
            if not full or capacity != assumed:
                return "the sheets are not filled as planned"
    return ""


def _warnings(
    context: RangeContext, records: Sequence[Sequence[RangeRecord]], file: JoinedFile, sums: Sums
) -> list[str]:
    warnings, notes = list[str](), Notes()
    for table, table_records in zip(context.tables, records, strict=True):
        pages = table.pages
        pages.rows = sum(record.rows for record in table_records)
        pages.counts = dict.fromkeys(range(table_records[-1].past), 0)
        pages.other_total = next((each.other_total for each in table_records if each.other_total is not None), None)
        warnings += [*pages.warnings(), *table.source().table.template.warnings(table.keys)]
        notes.cut_cells += sum(record.cut for record in table_records)
        notes.refused_values += sum(record.refused for record in table_records)
    if isinstance(file, JoinedFill):
        warnings += unfilled(file.filling, file.sources)
        as_text = [{column for record in table for column in record.as_text} for table in records]
        notes.not_added.update(dict.fromkeys(file.not_added(as_text)))
    if isinstance(file, JoinedBook):
        for table_frame, totals in zip(file.tables, sums, strict=True):
            notes.add_totals(table_frame.layout.columns, totals)
    return [*warnings, *notes.warnings()]
