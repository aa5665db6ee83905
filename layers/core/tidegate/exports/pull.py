"""Pulls a source's pages into the staging area, side by side within a limit; what is staged is not pulled again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import Any

from tidegate.errors import DomainError
from tidegate.exports.model import ExportSpec, ledger_object, page_object, pages_prefix, progress_of
from tidegate.exports.objects import ExportBucket
from tidegate.exports.paging import TablePages, rows_pulled, total_of
from tidegate.exports.ports import ReadPage
from tidegate.exports.ranges.plan import RangePlan, can_be_in_ranges, given_up_object, make_plan, plan_object
from tidegate.exports.rendering.columns import flat_rows, keys_of
from tidegate.exports.source import Sources
from tidegate.exports.source_page import Page, read_page
from tidegate.queue.model import Request

PARALLEL = 4
# A page that failed is asked for again at once, except the first: a source that is down should rest.
_TRIES = 3
_RESERVE_SECONDS = 100.0
_LOOK_SECONDS = 5.0


class PageList:
    """What is staged, table by table. For pulling it is only a short cut: the staged pages themselves tell."""

    def __init__(self, tables: list[TablePages]) -> None:
        self.tables = tables

    @classmethod
    def load(cls, objects: ExportBucket, request: Request, count: int, step: int) -> PageList:
        kept = objects.get(ledger_object(request.project_id, request.request_id, request.attempt))
        if kept is None:
            return cls([TablePages(step=step) for _ in range(count)])
        return cls([TablePages.from_data(table) for table in json.loads(kept)])

    def save(self, objects: ExportBucket, request: Request) -> None:
        data = json.dumps([table.as_data() for table in self.tables], ensure_ascii=False)
        objects.put(ledger_object(request.project_id, request.request_id, request.attempt), data.encode())

    def progress(self) -> dict[str, Any]:
        return progress_of(rows_pulled(self.tables), total_of(self.tables))


class Puller:
    def __init__(
        self,
        objects: ExportBucket,
        source: Sources,
        parallel: int = PARALLEL,
        sleep: Callable[[float], None] = time.sleep,
        most_lanes: int = 0,
    ) -> None:
        self._objects = objects
        self._source = source
        self._parallel = parallel
        self._sleep = sleep
        # Workers that may pull and render ranges of one export side by side; 0: pages are staged always.
        self._most_lanes = most_lanes

    def pull(
        self, request: Request, spec: ExportSpec, pulse: Callable[[dict[str, Any]], None], seconds_left: float
    ) -> bool | RangePlan:
        """Whether all is staged. False: the time is up, go on in another invocation.

        A plan: the rest need not be staged, but be pulled and rendered in ranges.
        """
        until = time.monotonic() + seconds_left - _RESERVE_SECONDS
        staged = self.staged(request)
        if (plan := self._known_plan(request, staged)) is not None:
            return plan
        page_list = PageList.load(self._objects, request, len(spec.tables), spec.step)
        run = _Run(self, request, spec, page_list, pulse, until, staged)
        if (plan := self._plan(request, spec, run)) is not None:
            return plan
        try:
            return all(run.table(number) for number in range(len(spec.tables)))
        finally:
            page_list.save(self._objects, request)

    def _known_plan(self, request: Request, staged: set[str]) -> RangePlan | None:
        here = request.project_id, request.request_id
        if plan_object(*here) not in staged or given_up_object(*here) in staged:
            return None
        kept = self._objects.get(plan_object(*here))
        return RangePlan(**json.loads(kept)) if kept else None

    def _plan(self, request: Request, spec: ExportSpec, run: _Run) -> RangePlan | None:
        here = request.project_id, request.request_id
        if not self._most_lanes or all(table.data is not None for table in spec.tables):
            return None
        if given_up_object(*here) in run.staged or run.is_begun():
            return None
        tables = run.first_pages()
        if not can_be_in_ranges(spec, tables):
            return None
        plan = make_plan(spec, tables, run.page_seconds, self._most_lanes, spec.parallel or self._parallel)
        kept = self._objects.put_first(plan_object(*here), json.dumps(plan.as_data()).encode())
        return RangePlan(**json.loads(kept))

    def page(self, key: str, number: int, staged: set[str], ask: Callable[[], bytes]) -> Page:
        """A page, from the staging area where it lies already."""
        kept = self._objects.get(key) if key in staged else None
        if kept is not None:
            return read_page(kept, number)
        body = self.patiently(ask, number)
        page = read_page(body, number)
        kept = self._objects.put_first(key, body)
        return page if kept == body else read_page(kept, number)

    def patiently(self, ask: Callable[[], bytes], number: int) -> bytes:
        failures = 0
        while True:
            try:
                return ask()
            except DomainError as error:
                failures += 1
                if number == 0 or not error.retryable or failures == _TRIES:
                    raise
                self._sleep(min(10.0, max(2.0**failures, error.retry_after or 0.0)))

    def reader(self, request: Request, spec: ExportSpec) -> ReadPage:
        return self._source.reader(request.project_id, request.request_id, spec.credential, spec.source_rate)

    def staged(self, request: Request) -> set[str]:
        return set(self._objects.keys(pages_prefix(request.project_id, request.request_id)))

    def side_by_side(self, numbers: Iterable[int], fetch: Callable[[int], Page]) -> Iterator[tuple[int, Page] | None]:
        """Pages as they come; None now and then while all are slow, so that someone can look at the clock."""
        waiting = iter(numbers)
        with ThreadPoolExecutor(self._parallel) as threads:
            open_: dict[Future[Page], int] = {}
            try:
                while True:
                    for number in islice(waiting, self._parallel - len(open_)):
                        open_[threads.submit(fetch, number)] = number
                    if not open_:
                        return
                    ended, _ = wait(open_, timeout=_LOOK_SECONDS, return_when=FIRST_COMPLETED)
                    if not ended:
                        yield None
                    for future in ended:
                        yield open_.pop(future), future.result()
            finally:
                threads.shutdown(wait=True, cancel_futures=True)


class _Run:
    def __init__(
        self,
        puller: Puller,
        request: Request,
        spec: ExportSpec,
        page_list: PageList,
        pulse: Callable[[dict[str, Any]], None],
        until: float,
        staged: set[str],
    ) -> None:
        self._puller, self._request, self._spec, self._page_list = puller, request, spec, page_list
        self._pulse, self._until = pulse, until
        self.staged = staged
        self._read = puller.reader(request, spec)
        # How long page 0 took, where it was asked for just now.
        self.page_seconds = 0.5

    def first_pages(self) -> list[TablePages]:
        """Page 0 of every table, which says what the others are."""
        tables = self._page_list.tables
        for number, given in enumerate(self._spec.tables):
            if given.data is not None:
                rows = flat_rows(given.data)
                tables[number].take_given(keys_of(rows), len(rows))
        missing = [number for number, pages in enumerate(tables) if 0 not in pages.counts]

        def first(number: int) -> Page:
            began = time.monotonic()
            page = self._page(number, tables[number], 0)
            self.page_seconds = time.monotonic() - began
            return page

        for came in self._puller.side_by_side(missing, first):
            if came:
                number, page = came
                self._take(tables[number], 0, page)
            else:
                self._pulse(self._page_list.progress())
        return tables

    def is_begun(self) -> bool:
        """Whether further pages are staged already: then the rest follows them."""
        here = self._request.project_id, self._request.request_id
        tables = range(len(self._spec.tables))
        return any(len(pages.counts) > 1 for pages in self._page_list.tables) or any(
            page_object(*here, number, 1) in self.staged for number in tables
        )

    def table(self, number: int) -> bool:
        pages = self._page_list.tables[number]
        if pages.done or self._spec.tables[number].data is not None:
            return True
        if 0 not in pages.counts:
            self._take(pages, 0, self._page(number, pages, 0))
        if not self._all_at_once(number, pages):
            return False
        if not pages.sequential:
            pages.go_on_after_plan()
        if not self._one_by_one(number, pages):
            return False
        pages.finish()
        return True

    def _all_at_once(self, table: int, pages: TablePages) -> bool:
        late = False

        def in_time() -> Iterator[int]:
            nonlocal late
            for number in pages.planned():
                late = time.monotonic() >= self._until
                if late:
                    return
                yield number

        for came in self._puller.side_by_side(in_time(), lambda number: self._page(table, pages, number)):
            if came:
                self._take(pages, *came)
            else:
                self._pulse(self._page_list.progress())
        return not late

    def _one_by_one(self, table: int, pages: TablePages) -> bool:
        while (number := pages.upcoming) is not None:
            if time.monotonic() >= self._until:
                return False
            try:
                page = self._page(table, pages, number)
            except DomainError:
                if not pages.met(number):
                    raise
                pages.upcoming = None
                return True
            self._take(pages, number, page)
        return True

    def _page(self, table: int, pages: TablePages, number: int) -> Page:
        url, place = self._spec.tables[table].address, pages.place(number)
        key = page_object(self._request.project_id, self._request.request_id, table, number)
        return self._puller.page(key, number, self.staged, lambda: self._read(url, place, self._spec.step))

    def _take(self, pages: TablePages, number: int, page: Page) -> None:
        pages.record(number, page)
        self._pulse(self._page_list.progress())
