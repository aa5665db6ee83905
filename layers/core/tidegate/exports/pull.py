"""Pulls the pages of a source into S3 staging, several at a time, or plans the ranges that workers pull and render."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from itertools import islice, pairwise
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

from tidegate.errors import DomainError
from tidegate.exports.model import EXCEL, JSONL, ExportSpec, progress_of
from tidegate.exports.source import (
    MAX_PAGES,
    PAGE_SECONDS,
    SourcePage,
    TablePages,
    page_source,
    read_page,
    rows_pulled,
    total_of,
)
from tidegate.exports.store import ExportBucket, given_up_object, ledger_object, page_object, pages_prefix, plan_object
from tidegate.queue.model import Request
from tidegate.sheets.table import ROW_HEAD, flat_rows, keys_of

if TYPE_CHECKING:
    from tidegate.exports import Exports

# Retry a failed page within the attempt, except page 0: if that fails, the source is probably down.
_TRIES = 3
_HEARTBEAT_SECONDS = 5.0
# Seconds that remain after the last request of an invocation, to stage its page and to save the list of pages.
_MARGIN_SECONDS = 50.0
T = TypeVar("T")


def page_seconds(spec: ExportSpec) -> float:
    """Returns how many seconds one request for a page may take."""
    return spec.source_timeout or PAGE_SECONDS


class PageList:
    """The list of the staged pages of each table. It saves requests to S3.

    A staged page that is not in the list is read from its object and is not fetched again.
    """

    def __init__(self, tables: list[TablePages]) -> None:
        self.tables = tables

    @classmethod
    def load(cls, objects: ExportBucket, request: Request, count: int, step: int) -> PageList:
        data = objects.get(ledger_object(request.project_id, request.request_id, request.attempt))
        if data is None:
            return cls([TablePages(step=step) for _ in range(count)])
        return cls([TablePages.from_data(table) for table in json.loads(data)])

    def save(self, objects: ExportBucket, request: Request) -> None:
        data = json.dumps([table.as_data() for table in self.tables], ensure_ascii=False)
        objects.put(ledger_object(request.project_id, request.request_id, request.attempt), data.encode())

    def progress(self) -> dict[str, Any]:
        return progress_of(rows_pulled(self.tables), total_of(self.tables))


def pull(
    exports: Exports,
    request: Request,
    spec: ExportSpec,
    heartbeat: Callable[[dict[str, Any]], None],
    seconds_left: float,
) -> bool | RangePlan:
    """Returns True when all pages are staged, False when time ran out and another invocation must continue.

    Returns a plan if the pages after the first are to be pulled and rendered in ranges instead of staged.
    """
    deadline = time.monotonic() + seconds_left - _MARGIN_SECONDS
    staged = set(exports.objects.keys(pages_prefix(request.project_id, request.request_id)))
    if (plan := _stored_plan(exports, request, staged)) is not None:
        return plan
    page_list = PageList.load(exports.objects, request, len(spec.tables), spec.step)
    run = _Run(exports, request, spec, page_list, heartbeat, deadline, staged)
    if (plan := _plan(exports, request, spec, run)) is not None:
        return plan
    try:
        return all(run.table(number) for number in range(len(spec.tables)))
    finally:
        page_list.save(exports.objects, request)


def _stored_plan(exports: Exports, request: Request, staged: set[str]) -> RangePlan | None:
    ids = request.project_id, request.request_id
    if plan_object(*ids) not in staged or given_up_object(*ids) in staged:
        return None
    data = exports.objects.get(plan_object(*ids))
    return RangePlan(**json.loads(data)) if data else None


def _plan(exports: Exports, request: Request, spec: ExportSpec, run: _Run) -> RangePlan | None:
    ids = request.project_id, request.request_id
    if not exports.most_lanes or all(table.data is not None for table in spec.tables):
        return None
    if given_up_object(*ids) in run.staged or run.has_later_pages():
        return None
    tables = run.first_pages()
    if not can_be_in_ranges(spec, tables) or (spec.fill and not _can_be_filled(exports, request, spec, tables)):
        return None
    plan = make_plan(spec, tables, run.page_seconds, exports.most_lanes, spec.parallel or exports.parallel)
    stored = exports.objects.put_first(plan_object(*ids), json.dumps(plan.as_data()).encode())
    return RangePlan(**json.loads(stored))


def _staged_page(
    exports: Exports, key: str, number: int, staged: set[str], fetch: Callable[[], bytes], deadline: float
) -> SourcePage:
    """Returns a page from its staged object, or fetches the page and stages it.

    If two workers stage the page at the same time, both return the content that was stored first.
    """
    staged_body = exports.objects.get(key) if key in staged else None
    if staged_body is not None:
        return read_page(staged_body, number)

    def fetched() -> tuple[bytes, SourcePage]:
        body = fetch()
        return body, read_page(body, number)

    body, page = with_retries(exports, fetched, number, deadline)
    staged_body = exports.objects.put_first(key, body)
    return page if staged_body == body else read_page(staged_body, number)


def with_retries(exports: Exports, fetch: Callable[[], T], number: int, deadline: float = inf, failures: int = 0) -> T:
    """Fetches page `number`, with retries. No retry begins after `deadline`.

    `failures`: how many requests for this page have failed before.
    """
    while True:
        try:
            return fetch()
        except DomainError as error:
            failures += 1
            wait = retry_wait(error, number, failures)
            if wait is None or time.monotonic() + wait > deadline:
                raise
            exports.sleep(wait)


def in_parallel(
    exports: Exports, numbers: Iterable[int], fetch: Callable[[int], SourcePage], wanted: int | None = None
) -> Iterator[tuple[int, SourcePage] | None]:
    """Yields (number, page) in the order in which pages arrive, and None every few seconds while none arrives.

    `wanted`: the most requests at a time that the order allows.
    """
    waiting, at_once = iter(numbers), min(exports.parallel, wanted or exports.parallel)
    with ThreadPoolExecutor(at_once) as threads:
        in_flight: dict[Future[SourcePage], int] = {}
        try:
            while True:
                for number in islice(waiting, at_once - len(in_flight)):
                    in_flight[threads.submit(fetch, number)] = number
                if not in_flight:
                    return
                done, _ = wait(in_flight, timeout=_HEARTBEAT_SECONDS, return_when=FIRST_COMPLETED)
                if not done:
                    yield None
                for future in done:
                    yield in_flight.pop(future), future.result()
        finally:
            threads.shutdown(wait=True, cancel_futures=True)


def retry_wait(error: DomainError, number: int, failures: int) -> float | None:
    """Returns the seconds to wait before page `number` is requested again.

    None if this attempt does not request it again.
    """
    if number == 0 or not error.retryable or failures >= _TRIES:
        return None
    return min(10.0, max(2.0**failures, error.retry_after or 0.0))


class _Run:
    """One invocation of the pull step."""

    def __init__(
        self,
        exports: Exports,
        request: Request,
        spec: ExportSpec,
        page_list: PageList,
        heartbeat: Callable[[dict[str, Any]], None],
        deadline: float,
        staged: set[str],
    ) -> None:
        self._exports, self._request, self._spec, self._page_list = exports, request, spec, page_list
        # No request begins after this time: it might not end before the invocation ends.
        self._heartbeat, self._until = heartbeat, deadline - page_seconds(spec)
        self.staged = staged
        self._read = page_source(exports, request.project_id, request.request_id, spec)
        # How long page 0 took; the default is for a page that was staged before.
        self.page_seconds = 0.5

    def first_pages(self) -> list[TablePages]:
        """Pulls page 0 of every table, which shows how many pages follow. Returns the state of each table."""
        tables = self._page_list.tables
        for number, given in enumerate(self._spec.tables):
            if given.data is not None:
                rows = flat_rows(given.data)
                tables[number].record_given(keys_of(rows), len(rows))
        missing = [number for number, pages in enumerate(tables) if 0 not in pages.counts]

        def first(number: int) -> SourcePage:
            began = time.monotonic()
            page = self._page(number, tables[number], 0)
            self.page_seconds = time.monotonic() - began
            return page

        for result in in_parallel(self._exports, missing, first, self._spec.parallel):
            if result:
                number, page = result
                self._record(tables[number], 0, page)
            else:
                self._heartbeat(self._page_list.progress())
        return tables

    def has_later_pages(self) -> bool:
        """Whether pages after page 0 were staged in an earlier step. If so, the remaining pages are staged, too."""
        ids = self._request.project_id, self._request.request_id
        tables = range(len(self._spec.tables))
        return any(len(pages.counts) > 1 for pages in self._page_list.tables) or any(
            page_object(*ids, number, 1) in self.staged for number in tables
        )

    def table(self, number: int) -> bool:
        """Pulls the missing pages of a table. Returns True when all are staged, False when time ran out."""
        pages = self._page_list.tables[number]
        if pages.done or self._spec.tables[number].data is not None:
            return True
        if 0 not in pages.counts:
            self._record(pages, 0, self._one_page(number, pages, 0))
        if not self._pull_planned(number, pages):
            return False
        if not pages.sequential:
            pages.continue_after_plan()
        if not self._pull_sequential(number, pages):
            return False
        pages.done = True
        return True

    def _pull_planned(self, table: int, pages: TablePages) -> bool:
        late = False

        def in_time() -> Iterator[int]:
            nonlocal late
            for number in pages.planned():
                late = time.monotonic() >= self._until
                if late:
                    return
                yield number

        def fetch(number: int) -> SourcePage:
            return self._page(table, pages, number)

        for result in in_parallel(self._exports, in_time(), fetch, self._spec.parallel):
            if result:
                self._record(pages, *result)
            else:
                self._heartbeat(self._page_list.progress())
        return not late

    def _pull_sequential(self, table: int, pages: TablePages) -> bool:
        while (number := pages.upcoming) is not None:
            if time.monotonic() >= self._until:
                return False
            try:
                page = self._one_page(table, pages, number)
            except DomainError:
                if not pages.confirms_total(number):
                    raise
                pages.upcoming = None
                return True
            self._record(pages, number, page)
        return True

    def _one_page(self, table: int, pages: TablePages, number: int) -> SourcePage:
        """Returns one page, and sends heartbeats while it is fetched."""
        while True:
            for result in in_parallel(self._exports, [number], lambda _: self._page(table, pages, number)):
                if result:
                    return result[1]
                self._heartbeat(self._page_list.progress())

    def _page(self, table: int, pages: TablePages, number: int) -> SourcePage:
        url, place = self._spec.tables[table].address, pages.page_place(number)
        key = page_object(self._request.project_id, self._request.request_id, table, number)
        fetch = partial(self._read, url, place, self._spec.step)
        return _staged_page(self._exports, key, number, self.staged, fetch, self._until)

    def _record(self, pages: TablePages, number: int, page: SourcePage) -> None:
        pages.record(number, page)
        self._heartbeat(self._page_list.progress())


# --- plan
# The plan of an export in ranges of pages, each pulled and rendered by one worker.
#
# The plan is made from the first page of every table. A range is identified by its table and its first page; its record
# has the page it ended at and the fragments that hold its rows. Each record starts at the page where the one before
# ended, so a worker may stop at any page.

# The most requests that one worker has in flight.
THREADS = 4
# An export with fewer pages is faster in one step.
MIN_PAGES = 16
RANGE_SECONDS = 60.0
# A low estimate of how fast a worker renders, which limits the size of a range if the source is fast.
ROWS_PER_SECOND = 100_000
MOST_RANGES = 3000
# The most page numbers in all copies of a plan, one per worker; each takes about eight characters, and the state of a
# state machine holds 256 KB.
_STATE_PAGES = 10_000


@dataclass(frozen=True, slots=True)
class Span:
    """The pages of one table that one worker renders: from `first` up to, not including, `past`.

    If `past` is None, the pages are rendered up to the last one.
    """

    table: int
    first: int
    past: int | None
    # Whether the plan has no page of this table after these.
    last: bool


@dataclass(frozen=True, slots=True)
class RangePlan:
    """How the pages of an export are divided among its workers.

    For each table, `tables` has the first page of each range, followed by the number of announced pages. A sequential
    table, or one whose rows came with the order, has the single entry 0.
    """

    lanes: int
    threads: int
    tables: list[list[int]]
    # Whether a template is filled. Release 1.1.0 refuses a plan with this field; it would make a plain workbook.
    filled: bool = False

    def of_lane(self, lane: int) -> list[Span]:
        """Returns the ranges of one of n workers: every n-th range, so that all workers reach a table together."""
        sequential = [Span(number, 0, None, True) for number, firsts in enumerate(self.tables) if len(firsts) == 1]
        return [*sequential, *self._ranges()][lane :: self.lanes]

    def _ranges(self) -> list[Span]:
        return [
            Span(number, first, past, past == firsts[-1])
            for number, firsts in enumerate(self.tables)
            for first, past in pairwise(firsts)
        ]

    @property
    def is_small(self) -> bool:
        """Whether copies of the plan for all workers fit into the state of the state machine."""
        return sum(map(len, self.tables)) * self.lanes <= _STATE_PAGES

    def as_data(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value or name != "filled"}


def can_be_in_ranges(spec: ExportSpec, tables: Sequence[TablePages]) -> bool:
    """Whether several workers can render the export.

    They cannot if the export is short, has too many pages, is encrypted, or may be split into several files. They
    cannot render row heads either, because one worker has to collect all rows for them.
    """
    # Encryption goes from the first byte to the last, so it cannot be divided.
    if spec.sealed_password or any(ROW_HEAD in pages.all_keys() for pages in tables):
        return False
    if any(spec.table(number, pages.answered).template.rows for number, pages in enumerate(tables)):
        return False
    if (
        len(tables) == 1
        and spec.rows_per_file
        and (tables[0].sequential or (tables[0].total or 0) > spec.rows_per_file)
    ):
        return False
    # A total beyond the page limit cannot be planned: such a source is read until a page is empty.
    if any(not pages.sequential and pages.announced > MAX_PAGES for pages in tables):
        return False
    pulled = [pages for number, pages in enumerate(tables) if spec.tables[number].data is None]
    return sum(MIN_PAGES if _is_endless(pages) else pages.announced for pages in pulled) >= MIN_PAGES


def _can_be_filled(exports: Exports, request: Request, spec: ExportSpec, tables: Sequence[TablePages]) -> bool:
    from tidegate.exports.exports import filling_of, kept_template
    from tidegate.sheets.fill import can_be_in_parts
    from tidegate.sheets.xlsx import TableRows

    laid = [(spec.table(number, pages.answered), pages.all_keys()) for number, pages in enumerate(tables)]
    sources = [TableRows(table, keys, ()) for table, keys in laid]
    return can_be_in_parts(filling_of(spec, kept_template(exports.objects, request), sources), sources)


def _is_endless(pages: TablePages) -> bool:
    """Whether an unknown number of pages follows page 0."""
    return pages.sequential and pages.upcoming is not None


def make_plan(
    spec: ExportSpec, tables: Sequence[TablePages], page_seconds: float, most: int, parallel: int
) -> RangePlan:
    """Returns a plan with ranges of about a minute each, so that little is repeated after a worker dies.

    The minute is estimated from the time and the rows of page 0. At most `parallel` requests are in flight. A
    sequential table occupies one worker, which has one request in flight.
    """
    pulled = [pages for number, pages in enumerate(tables) if spec.tables[number].data is None]
    sequential = sum(pages.sequential for pages in pulled)
    ranged = sum(pages.announced for pages in pulled if not pages.sequential)
    lanes = min(sequential, parallel)
    if ranged:
        lanes += -(-max(0, parallel - lanes) // THREADS)
    lanes = max(1, min(most, lanes))
    threads = max(1, min(THREADS, parallel // lanes))
    rows = max((pages.size for pages in pulled if not pages.sequential), default=1)
    seconds_a_page = max(page_seconds / threads, rows / ROWS_PER_SECOND)
    requests = sum(_requests(pages) for pages in pulled if not pages.sequential)
    each = min(-(-requests // lanes), int(RANGE_SECONDS / seconds_a_page))
    each = max(1, each, -(-ranged // MOST_RANGES))
    plans = [
        [0] if pages.sequential or spec.tables[number].data is not None else _range_starts(pages.announced, each)
        for number, pages in enumerate(tables)
    ]
    return RangePlan(lanes, threads, plans, bool(spec.fill))


def _requests(pages: TablePages) -> int:
    """Returns how many requests the table still needs.

    Page 0 is staged already. After a full last page, one more page is requested, because there may be more rows than
    announced.
    """
    return max(1, pages.announced - 1 + (pages.total == pages.announced * pages.size))


def _range_starts(count: int, each: int) -> list[int]:
    """Returns the first page of each range, and at the end `count`. A range needs `each` requests.

    The first range also has page 0, which is staged already.
    """
    return [0, *range(1 + each, count, each), count]


def keys_matter(spec: ExportSpec, number: int, pages: TablePages) -> bool:
    """Whether a key that page 0 does not have would add a column."""
    if spec.type == JSONL:
        return False
    # The placeholders of a filled template may name any key.
    return bool(spec.fill) or spec.type != EXCEL or not spec.table(number, pages.answered).template.cols


@dataclass(slots=True)
class RangeRecord:
    """The result of one worker for the pages of a table from `first` up to `past`."""

    table: int
    first: int
    past: int
    # With a sequential source: the number of rows before these, which decides where a sheet ends.
    before: int = 0
    rows: int = 0
    # Whether the source has no page after these.
    ended: bool = False
    # The cursor of the next page.
    cursor: str | None = None
    other_total: int | None = None
    footer: Any = None
    cut: int = 0
    # The totals of the columns; None for those without one.
    sums: list[Any] = field(default_factory=list)
    # Each: sheet, key, etag, size, crc, packed, rows.
    fragments: list[dict[str, Any]] = field(default_factory=list)
    # For each sheet: the widths of the widest texts of its columns.
    widths: list[tuple[int, list[int]]] = field(default_factory=list)
    # For each sheet: the equal neighbours in the columns that the template merges.
    equal: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    # Parquet: the rows and column sizes of each row group, and how many values were not of their column's type.
    groups: list[dict[str, Any]] = field(default_factory=list)
    refused: int = 0
    # If a template is filled: the columns of the sheet that have numbers as text.
    as_text: list[int] = field(default_factory=list)

    def as_data(self) -> dict[str, Any]:
        """Returns the record as it is stored. An empty `as_text` is left out.

        Workers of release 1.1.0 refuse a field that they do not know, and they may share the export during a
        deployment.
        """
        return {name: value for name, value in asdict(self).items() if value or name != "as_text"}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> RangeRecord:
        return cls(**{each.name: data[each.name] for each in fields(cls) if each.name in data})
