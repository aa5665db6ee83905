"""Pulls ranges of pages and renders them straight into fragments: nothing is staged, nothing is read twice.

Idempotent: a range's record is written once, by whoever finishes first, after its fragments; a range with a record
is not done again, by later attempts neither.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import cached_property
from secrets import token_hex
from typing import Any

from tidegate.errors import DomainError, FetchError, SourceBroken
from tidegate.exports.model import ExportSpec, progress_of
from tidegate.exports.objects import ExportBucket
from tidegate.exports.pull import Puller
from tidegate.exports.ranges.context import JoinedFile, RangeContext, TableContext
from tidegate.exports.ranges.pages_ahead import PagesAhead
from tidegate.exports.ranges.plan import (
    RANGE_SECONDS,
    RangePlan,
    RangeRecord,
    Span,
    fragment_object,
    given_up_object,
    record_object,
)
from tidegate.exports.ranges.process_settings import set_up_process
from tidegate.exports.rendering.blocks import BLOCK_ROWS
from tidegate.exports.rendering.columns import Row, keys_of
from tidegate.exports.rendering.fragments import FragmentWriter, Measure
from tidegate.exports.rendering.xlsx.writer import SHEET_ROWS
from tidegate.exports.source_page import Page
from tidegate.queue.model import Request

_RESERVE_SECONDS = 60.0

Progress = Callable[[dict[str, Any]], None]


class GivenUp(Exception):
    """The rows cannot be rendered in ranges after all; the export goes on by staged pages."""


class RangeWorker:
    def __init__(self, objects: ExportBucket, puller: Puller) -> None:
        self._objects = objects
        self._puller = puller
        set_up_process()

    def work(
        self,
        request: Request,
        spec: ExportSpec,
        lane: int,
        pulse: Progress,
        seconds_left: float,
        plan: RangePlan | None = None,
    ) -> bool:
        """Whether the lane is done. False: the time is up, go on in another invocation."""
        until = time.monotonic() + seconds_left - _RESERVE_SECONDS
        context = RangeContext(self._objects, request, spec, plan)
        done = context.done()
        here = request.project_id, request.request_id
        if given_up_object(*here) in done:
            return True
        try:
            for span in context.plan.of_lane(lane):
                page, before, cursor = span.first, None, None
                while True:
                    record = (
                        context.record(span.table, page) if record_object(*here, span.table, page) in done else None
                    )
                    if record is None:
                        if time.monotonic() >= until:
                            return False
                        record = _Range(context, self._puller, span, lane, pulse, until).run(page, before, cursor)
                    page, before, cursor = record.past, record.before + record.rows, record.cursor
                    if record.ended or (span.past is not None and page >= span.past and not span.last):
                        break
        except GivenUp as error:
            context.give_up(str(error))
        return True


class _Range:
    """One range, from its first page to its record."""

    def __init__(
        self, context: RangeContext, puller: Puller, span: Span, lane: int, pulse: Progress, until: float
    ) -> None:
        self._context, self._puller, self._span, self._lane = context, puller, span, lane
        self._table: TableContext = context.tables[span.table]
        self._pulse, self._until = pulse, until
        self._nonce = token_hex(6)
        self._writer: FragmentWriter | None = None
        self._sheet = -1

    def run(self, first: int, before: int | None, cursor: str | None) -> RangeRecord:
        """`before` and `cursor` are what the record before this one says, where pages come one by one."""
        table, span, pages = self._table, self._span, self._table.pages
        self._record = RangeRecord(span.table, first, first, before=before or 0, cursor=cursor)
        # Row n · size starts page n: what came before is known to be full wherever that matters.
        self._position = self._record.before if pages.sequential else first * pages.size
        failure = None
        if table.given is not None:
            self._take(0, table.first_page(), final=True)
            self._record.past, self._record.ended = 1, True
        else:
            ask = self._puller.reader(self._context.request, self._context.spec)
            with PagesAhead(
                table, ask, self._puller, self._context.plan.threads, self._until, lambda: self._tell(0, 1)
            ) as ahead:
                try:
                    if span.past is None:
                        self._one_by_one(ahead, first, cursor)
                    else:
                        self._side_by_side(ahead, first, span.past)
                except (FetchError, SourceBroken) as error:
                    # What came before the page that failed is kept: the next attempt goes on with that page.
                    if self._record.past == first:
                        raise
                    failure = error
        own = self._rendering.tables[span.table]
        if self._writer:
            if held := own.end():
                self._writer.add(held, 0)
            self._writer.end()
        self._record.groups = [group.as_data() for group in own.groups]
        self._record.refused = own.refused
        self._record.cut = own.cut
        self._record.sums = [None if each is None else str(each) for each in own.sums]
        kept = self._context.keep(self._record)
        if failure:
            raise failure
        return kept

    @cached_property
    def _rendering(self) -> JoinedFile:
        return self._context.file()

    def _one_by_one(self, ahead: PagesAhead, first: int, cursor: str | None) -> None:
        """Each page tells of the next, which is on its way while this one is rendered; a record about every minute."""
        record, pages = self._record, self._table.pages
        until = min(self._until, time.monotonic() + RANGE_SECONDS)
        if first:
            pages.cursor = cursor
        for number, page in ahead.one_by_one(first):
            self._take(number, page, final=True)
            self._tell(1, 1)
            record.past, record.cursor = number + 1, pages.cursor
            record.ended = pages.upcoming is None
            if time.monotonic() >= until:
                return

    def _side_by_side(self, ahead: PagesAhead, first: int, past: int) -> None:
        record, pages, last = self._record, self._table.pages, self._span.last
        count, full = max(1, past - first), True
        # A full last page means that more may follow: that page is asked for with the others.
        more = last and first < past and pages.total == past * pages.size
        coming = ahead.side_by_side(first, past + 1 if more else past)
        # A workbook's frame takes some time to make: it is made now, while the first pages are on their way.
        _ = self._rendering
        for number, page in coming:
            if number == past:
                if full and page is not None and page.rows and not pages.is_last_again(number, page):
                    self._take(number, page, final=True)
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
            self._take(number, page, final=last and number == past - 1)
            self._tell(number - first + 1, count)
            record.past = number + 1
            full = len(page.rows) >= pages.size
            if not page.rows:
                # None is asked for past a page without rows.
                record.past = past
                break
        if not last or record.past < past:
            return
        while full and time.monotonic() < self._until:
            number = record.past
            try:
                page = ahead.page(number)
            except DomainError:
                # Past its last page a source may answer as it likes.
                if number != past:
                    raise
                break
            if pages.is_last_again(number, page):
                break
            self._take(number, page, final=True)
            self._tell(1, 1)
            record.past = number + 1
            full = len(page.rows) >= pages.size
            if full:
                pages.refuse_repeats(number, page)
        else:
            if full:
                return
        record.ended = True

    def _take(self, number: int, page: Page, *, final: bool) -> None:
        table, record = self._table, self._record
        if not table.pages.sequential and (page.force_continue is not None or page.by_cursor):
            raise GivenUp(f"page {number} tells of the next page itself, page 0 did not")
        if number and page.total is not None and page.total != table.pages.total:
            record.other_total = page.total
        known = table.pages.answered
        for name in ("header", "template"):
            if name in page.answered and page.answered[name] != known.get(name):
                raise GivenUp(f"page {number} has another {name} than page 0")
        record.footer = page.answered.get("footer", record.footer)
        if table.fixed_keys and page.rows and isinstance(page.rows[0], dict):
            late = [key for key in keys_of(page.rows) if key not in table.keys]
            if late:
                raise GivenUp(f"page {number} is the first with {', '.join(late[:5])}")
        several = table.several_sheets(self._rendering.tables[self._span.table].capacity)
        if several and not final and len(page.rows) != table.pages.size:
            raise GivenUp(f"page {number} has {len(page.rows)} rows where others have {table.pages.size}")
        record.rows += len(page.rows)
        if self._rendering.ending == "xlsx" and not several and record.before + record.rows > SHEET_ROWS:
            raise GivenUp("the rows do not fit on the one sheet that was planned")
        self._write(page.rows, several=several)

    def _write(self, rows: Sequence[Row], *, several: bool) -> None:
        own, at = self._rendering.tables[self._span.table], 0
        while at < len(rows):
            room, sheet = BLOCK_ROWS, 0
            if several and own.capacity is not None:
                sheet = self._position // own.capacity
                room = min(room, (sheet + 1) * own.capacity - self._position)
            block = rows[at : at + room]
            self._on_sheet(sheet).add(own.text(block), len(block))
            at += len(block)
            self._position += len(block)

    def _on_sheet(self, sheet: int) -> FragmentWriter:
        if self._writer is None or sheet != self._sheet:
            if self._writer:
                self._writer.end()
            self._sheet = sheet
            self._writer = FragmentWriter(self._send, packed=self._rendering.packed)
        return self._writer

    def _send(self, data: bytearray, measure: Measure) -> None:
        record, request = self._record, self._context.request
        here = request.project_id, request.request_id
        key = fragment_object(*here, record.table, record.first, self._nonce, len(record.fragments))
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

    def _tell(self, done: int, pages: int) -> None:
        """An estimate: lanes go through the sources side by side, so each knows about how far all are."""
        context, own = self._context, self._table.pages
        totals = [None if table.pages.total is None else table.pages.total for table in context.tables]
        total = None if None in totals else sum(each or 0 for each in totals)
        if own.sequential:
            self._pulse(progress_of(self._record.before + self._record.rows, total, 0))
            return
        before = self._record.first - min(self._record.first, self._lane * pages)
        rows = min(total or own.total or 0, (before + done * context.plan.lanes) * own.size)
        self._pulse(progress_of(rows, total, rows))


def sums_of(records: Sequence[RangeRecord]) -> list[Decimal | None]:
    columns = zip(*(record.sums for record in records), strict=True)
    return [None if None in column else sum((Decimal(each or 0) for each in column), Decimal(0)) for column in columns]
