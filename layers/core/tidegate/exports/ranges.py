"""Pulls ranges of pages and renders them straight into fragments: nothing is staged, nothing is read twice.

Idempotent: a range's record is written once, by whoever finishes first, after its fragments; a range with a record
is not done again, by later attempts neither.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from decimal import Decimal
from functools import cached_property
from secrets import token_hex
from typing import Any

from tidegate.errors import DomainError
from tidegate.exports.model import ExportSpec, progress_of
from tidegate.exports.objects import ExportBucket
from tidegate.exports.pull import Puller
from tidegate.exports.range_context import RangeContext
from tidegate.exports.range_plan import (
    RangeRecord,
    fragment_object,
    given_up_object,
    record_object,
)
from tidegate.exports.rendering.blocks import BLOCK_ROWS
from tidegate.exports.rendering.columns import Row, keys_of
from tidegate.exports.rendering.fragments import FragmentWriter, Measure
from tidegate.exports.rendering.joined_files import JoinedFile
from tidegate.exports.source_page import Page, Place
from tidegate.queue.model import Request

_RESERVE_SECONDS = 60.0
_LOOK_SECONDS = 5.0

Progress = Callable[[dict[str, Any]], None]


class GivenUp(Exception):
    """The rows cannot be rendered in ranges after all; the export goes on by staged pages."""


class RangeWorker:
    def __init__(self, objects: ExportBucket, puller: Puller) -> None:
        self._objects = objects
        self._puller = puller

    def work(
        self,
        request: Request,
        spec: ExportSpec,
        lane: int,
        pulse: Progress,
        seconds_left: float,
        *,
        fresh: bool = False,
    ) -> bool:
        """Whether the lane is done. False: the time is up, go on in another invocation.

        `fresh`: nothing can be done yet, so nobody looks for it.
        """
        until = time.monotonic() + seconds_left - _RESERVE_SECONDS
        context = RangeContext(self._objects, request, spec)
        done = set[str]() if fresh else context.done()
        here = request.project_id, request.request_id
        if given_up_object(*here) in done:
            return True
        try:
            for start, past in context.plan.of_lane(lane):
                last = past == context.plan.end
                page, ended = start, False
                while page < past or (last and not ended):
                    record = context.record(page) if record_object(*here, page) in done else None
                    if record is None:
                        if time.monotonic() >= until:
                            return False
                        record = _Range(context, self._puller, lane, pulse, until).run(page, past, last=last)
                    page, ended = record.past, record.ended
        except GivenUp as error:
            context.give_up(str(error))
        return True


class _Range:
    """One range, from its first page to its record."""

    def __init__(self, context: RangeContext, puller: Puller, lane: int, pulse: Progress, until: float) -> None:
        self._context, self._puller, self._lane = context, puller, lane
        self._pulse, self._until = pulse, until
        self._ask = puller.reader(context.request)
        self._nonce = token_hex(6)
        self._writer: FragmentWriter | None = None
        self._sheet = -1

    @cached_property
    def _file(self) -> JoinedFile:
        """Made while the first pages are on their way."""
        return self._context.file()

    def run(self, first: int, past: int, *, last: bool) -> RangeRecord:
        context = self._context
        self._record = RangeRecord(first, first)
        # Row n · size starts page n: what came before is known to be full wherever that matters.
        self._position = first * context.pages.size
        began, pages = first, max(1, past - first)
        for number, page in self._in_order(first, past):
            self._take(number, page, final=last and number == past - 1)
            self._tell(number - began + 1, pages)
            self._record.past = number + 1
            if not page.rows:
                # None is asked for past a page without rows.
                self._record.past = past
                break
        if last and self._record.past >= past:
            self._past_the_plan(past)
        if self._writer:
            self._writer.end()
        self._record.cut = self._file.cut
        self._record.sums = [None if each is None else str(each) for each in self._file.sums]
        return context.keep(self._record)

    def _past_the_plan(self, past: int) -> None:
        """A full last page means that more may follow: page by page, to the source's end."""
        pages, record = self._context.pages, self._record
        full = record.past == record.first or self._last_count >= pages.size
        while full and time.monotonic() < self._until:
            number = record.past
            try:
                page = self._page(number)
            except DomainError:
                # Past its last page a source may answer as it likes.
                if number != past:
                    raise
                break
            self._take(number, page, final=True)
            self._tell(1, 1)
            record.past = number + 1
            full = len(page.rows) >= pages.size
        else:
            if full:
                return
        record.ended = True

    def _take(self, number: int, page: Page, *, final: bool) -> None:
        context, record = self._context, self._record
        if page.force_continue is not None or page.by_cursor:
            raise GivenUp(f"page {number} tells of the next page itself, page 0 did not")
        if number and page.total is not None and page.total != context.pages.total:
            record.other_total = page.total
        known = context.pages.answered
        for name in ("header", "template"):
            if name in page.answered and page.answered[name] != known.get(name):
                raise GivenUp(f"page {number} has another {name} than page 0")
        record.footer = page.answered.get("footer", record.footer)
        if context.fixed_keys and page.rows and isinstance(page.rows[0], dict):
            late = [key for key in keys_of(page.rows) if key not in context.keys]
            if late:
                raise GivenUp(f"page {number} is the first with {', '.join(late[:5])}")
        if context.several_sheets(self._file.capacity) and not final and len(page.rows) != context.pages.size:
            raise GivenUp(f"page {number} has {len(page.rows)} rows where others have {context.pages.size}")
        self._last_count = len(page.rows)
        record.rows += len(page.rows)
        self._write(page.rows)

    def _write(self, rows: Sequence[Row]) -> None:
        capacity, at = self._file.capacity, 0
        while at < len(rows):
            room = BLOCK_ROWS
            sheet = 0
            if capacity is not None and self._context.several_sheets(capacity):
                sheet = self._position // capacity
                room = min(room, (sheet + 1) * capacity - self._position)
            block = rows[at : at + room]
            self._on_sheet(sheet).add(self._file.text(block), len(block))
            at += len(block)
            self._position += len(block)

    def _on_sheet(self, sheet: int) -> FragmentWriter:
        if self._writer is None or sheet != self._sheet:
            if self._writer:
                self._writer.end()
            self._sheet = sheet
            self._writer = FragmentWriter(self._send, packed=self._file.packed)
        return self._writer

    def _send(self, data: bytearray, measure: Measure) -> None:
        record, request = self._record, self._context.request
        number = len(record.fragments)
        key = fragment_object(request.project_id, request.request_id, record.first, self._nonce, number)
        etag = self._context.objects.store(key, data)
        record.fragments.append(
            {
                "sheet": self._sheet,
                "key": key,
                "etag": etag,
                "size": measure.size,
                "crc": measure.crc,
                "packed": len(data),
                "rows": measure.rows,
            }
        )

    def _in_order(self, first: int, past: int) -> Iterator[tuple[int, Page]]:
        """Pages one after another, a few of them asked for ahead; stops where the time is up."""
        with ThreadPoolExecutor(self._context.plan.threads) as threads:
            ahead: deque[tuple[int, Future[Page]]] = deque()
            waiting = iter(range(first, past))
            try:
                while True:
                    while len(ahead) < self._context.plan.threads and (number := next(waiting, None)) is not None:
                        if time.monotonic() >= self._until and number > first:
                            waiting = iter(())
                            break
                        ahead.append((number, threads.submit(self._page, number)))
                    if not ahead:
                        return
                    number, future = ahead.popleft()
                    yield number, self._patient(future)
            finally:
                threads.shutdown(wait=True, cancel_futures=True)

    def _patient(self, future: Future[Page]) -> Page:
        while True:
            try:
                return future.result(timeout=_LOOK_SECONDS)
            except TimeoutError:
                if future.done():
                    raise
                self._tell(0, 1)

    def _page(self, number: int) -> Page:
        context = self._context
        if number == 0:
            return context.read(context.first_body, 0)
        url, place = context.spec.tables[0].source_url or "", Place(number, None, context.pages.snapshot)
        body = self._puller.patiently(lambda: self._ask(url, place, context.spec.step), number)
        return context.read(body, number)

    def _tell(self, done: int, pages: int) -> None:
        """An estimate: lanes go through the source side by side, so each knows about how far all are."""
        plan, total = self._context.plan, self._context.pages.total or 0
        before = self._record.first - min(self._record.first, self._lane * pages)
        rows = min(total, (before + done * plan.lanes) * self._context.pages.size)
        self._pulse(progress_of(rows, total, rows))


def sums_of(records: Sequence[RangeRecord]) -> list[Decimal | None]:
    columns = zip(*(record.sums for record in records), strict=True)
    return [None if None in column else sum((Decimal(each or 0) for each in column), Decimal(0)) for column in columns]
