"""Pulls ranges of pages and renders them directly into fragments: no page is staged or read twice.

Idempotent: the record of a range is stored after its fragments, once, by the first worker that finishes it. A range
with a record is skipped, also by later attempts.
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
    """The rows cannot be rendered in ranges after all; the export stages its pages instead."""


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
        heartbeat: Progress,
        seconds_left: float,
        plan: RangePlan | None = None,
    ) -> bool:
        """Returns True when the lane is finished, False when time ran out and another invocation must continue."""
        until = time.monotonic() + seconds_left - _RESERVE_SECONDS
        context = RangeContext(self._objects, request, spec, plan)
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
                        record = _Range(context, self._puller, span, lane, heartbeat, until).run(page, before, cursor)
                    page, before, cursor = record.past, record.before + record.rows, record.cursor
                    if record.ended or (span.past is not None and page >= span.past and not span.last):
                        break
        except GivenUp as error:
            context.give_up(str(error))
        return True


class _Range:
    """One range, from its first page to its record."""

    def __init__(
        self, context: RangeContext, puller: Puller, span: Span, lane: int, heartbeat: Progress, until: float
    ) -> None:
        self._context, self._puller, self._span, self._lane = context, puller, span, lane
        self._table: TableContext = context.tables[span.table]
        self._heartbeat, self._until = heartbeat, until
        self._nonce = token_hex(6)
        self._writer: FragmentWriter | None = None
        self._sheet = -1

    def run(self, first: int, before: int | None, cursor: str | None) -> RangeRecord:
        """Renders the range and returns its record.

        For a sequential source, `before` (rows before this range) and `cursor` come from the record before this one.
        """
        table, span, pages = self._table, self._span, self._table.pages
        self._record = RangeRecord(span.table, first, first, before=before or 0, cursor=cursor)
        # Page n starts with row n · size: where the position matters, every earlier page was checked to be full.
        self._position = self._record.before if pages.sequential else first * pages.size
        failure = None
        if table.given is not None:
            self._take(0, table.first_page(), final=True)
            self._record.past, self._record.ended = 1, True
        else:
            read_page = self._puller.reader(self._context.request, self._context.spec)
            in_flight = self._context.plan.threads
            with PagesAhead(
                table, read_page, self._puller, in_flight, self._until, lambda: self._report_progress(0, 1)
            ) as ahead:
                try:
                    if span.past is None:
                        self._sequential(ahead, first, cursor)
                    else:
                        self._parallel(ahead, first, span.past)
                except (FetchError, SourceBroken) as error:
                    # Keep the pages before the one that failed: the next attempt continues with the failed page.
                    if self._record.past == first:
                        raise
                    failure = error
        rendering = self._rendering.tables[span.table]
        if self._writer:
            if rest := rendering.end():
                self._writer.add(rest, 0)
            self._writer.end()
        self._record.groups = [group.as_data() for group in rendering.groups]
        self._record.refused = rendering.refused
        self._record.cut = rendering.cut
        self._record.sums = [None if each is None else str(each) for each in rendering.sums]
        stored = self._context.store(self._record)
        if failure:
            raise failure
        return stored

    @cached_property
    def _rendering(self) -> JoinedFile:
        return self._context.file()

    def _sequential(self, ahead: PagesAhead, first: int, cursor: str | None) -> None:
        """Renders pages one after another while the next one is fetched, for about a minute."""
        record, pages = self._record, self._table.pages
        until = min(self._until, time.monotonic() + RANGE_SECONDS)
        if first:
            pages.cursor = cursor
        for number, page in ahead.sequential(first):
            self._take(number, page, final=True)
            self._report_progress(1, 1)
            record.past, record.cursor = number + 1, pages.cursor
            record.ended = pages.upcoming is None
            if time.monotonic() >= until:
                return

    def _parallel(self, ahead: PagesAhead, first: int, past: int) -> None:
        record, pages, last = self._record, self._table.pages, self._span.last
        count, full = max(1, past - first), True
        # After a full last page more may follow, so the page past the total is requested with the others.
        more = last and first < past and pages.total == past * pages.size
        fetched = ahead.parallel(first, past + 1 if more else past)
        # Make the workbook's frame while the first requests are in flight.
        _ = self._rendering
        for number, page in fetched:
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
            self._report_progress(number - first + 1, count)
            record.past = number + 1
            full = len(page.rows) >= pages.size
            if not page.rows:
                # An empty page ends the table.
                record.past = past
                break
        if not last or record.past < past:
            return
        while full and time.monotonic() < self._until:
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
            self._take(number, page, final=True)
            self._report_progress(1, 1)
            record.past = number + 1
            full = len(page.rows) >= pages.size
            if full:
                pages.refuse_repeats(number, page)
        else:
            if full:
                return
        record.ended = True

    def _take(self, number: int, page: Page, *, final: bool) -> None:
        """Renders a page. GivenUp if it contradicts page 0; `final`: the page may be shorter than the others."""
        table, record = self._table, self._record
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
        several = table.several_sheets(self._rendering.tables[self._span.table].capacity)
        if several and not final and len(page.rows) != table.pages.size:
            raise GivenUp(f"page {number} has {len(page.rows)} rows where others have {table.pages.size}")
        record.rows += len(page.rows)
        if self._rendering.ending == "xlsx" and not several and record.before + record.rows > SHEET_ROWS:
            raise GivenUp("the rows do not fit on the one sheet that was planned")
        self._write(page.rows, several=several)

    def _write(self, rows: Sequence[Row], *, several: bool) -> None:
        rendering, at = self._rendering.tables[self._span.table], 0
        while at < len(rows):
            room, sheet = BLOCK_ROWS, 0
            if several and rendering.capacity is not None:
                sheet = self._position // rendering.capacity
                room = min(room, (sheet + 1) * rendering.capacity - self._position)
            block = rows[at : at + room]
            self._on_sheet(sheet).add(rendering.text(block), len(block))
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
        ids = request.project_id, request.request_id
        key = fragment_object(*ids, record.table, record.first, self._nonce, len(record.fragments))
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

    def _report_progress(self, done: int, pages: int) -> None:
        """Reports an estimate: all lanes advance at about the same speed, so a lane extrapolates from its own pages."""
        context, table_pages = self._context, self._table.pages
        totals = [table.pages.total for table in context.tables]
        total = None if None in totals else sum(each or 0 for each in totals)
        if table_pages.sequential:
            self._heartbeat(progress_of(self._record.before + self._record.rows, total, 0))
            return
        before = self._record.first - min(self._record.first, self._lane * pages)
        rows = min(total or table_pages.total or 0, (before + done * context.plan.lanes) * table_pages.size)
        self._heartbeat(progress_of(rows, total, rows))


def sums_of(records: Sequence[RangeRecord]) -> list[Decimal | None]:
    """The totals of a table's columns over all ranges; None for columns without one."""
    columns = zip(*(record.sums for record in records), strict=True)
    return [None if None in column else sum((Decimal(each or 0) for each in column), Decimal(0)) for column in columns]
