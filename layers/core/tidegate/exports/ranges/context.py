"""Shared by the range workers and the joiner of an export: the plan, and all that follows from page 0 of each table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

from tidegate.errors import RecordNotFound
from tidegate.exports.model import EXCEL, JSONL, PARQUET, ExportSpec, page_object
from tidegate.exports.objects import ExportBucket
from tidegate.exports.paging import TablePages
from tidegate.exports.ranges.plan import (
    RangePlan,
    RangeRecord,
    given_up_object,
    keys_matter,
    plan_object,
    ranges_prefix,
    record_object,
)
from tidegate.exports.render import output_of
from tidegate.exports.rendering.blocks import BLOCK_ROWS
from tidegate.exports.rendering.columns import Row, flat_rows, keys_of
from tidegate.exports.rendering.joined_files import JoinedParquet, JoinedText
from tidegate.exports.rendering.xlsx.joined_book import JoinedBook
from tidegate.exports.rendering.xlsx.writer import SHEET_ROWS, TableRows
from tidegate.exports.source_page import Page, page_reader, read_page
from tidegate.queue.model import Request

_SIDE_BY_SIDE = 8

JoinedFile = JoinedText | JoinedBook | JoinedParquet


class TableContext:
    """One table, as described by its page 0 or by the rows given with the order."""

    def __init__(self, spec: ExportSpec, number: int, first_body: bytes | None) -> None:
        self.spec, self.number, self.first_body = spec, number, first_body or b""
        self.pages = TablePages(step=spec.step)
        self.given = None if spec.tables[number].data is None else flat_rows(spec.tables[number].data)
        rows: Sequence[Row] = ()
        if self.given is not None:
            rows = self.given
            self.pages.take_given(keys_of(rows), len(rows))
        elif first_body is not None:
            page = read_page(first_body, 0)
            rows = page.rows
            self.pages.record(0, page)
        # The rows that column widths are measured by.
        self.sample = rows[:BLOCK_ROWS]
        self.keys = self.pages.all_keys()
        self.fixed_keys = keys_matter(spec, number, self.pages)
        # A JSON line has only the keys of its own row.
        self.read = read_page if spec.type == JSONL else page_reader(self.keys)

    @property
    def url(self) -> str:
        return self.spec.tables[self.number].address

    def first_page(self) -> Page:
        return Page(self.given) if self.given is not None else self.read(self.first_body, 0)

    def source(self, footer: Any = None) -> TableRows:
        answered = self.pages.answered | ({"footer": footer} if footer else {})
        return TableRows(self.spec.table(self.number, answered), self.keys, ())

    def several_sheets(self, capacity: int | None) -> bool:
        """Whether the rows may need more than one sheet. A sequential source always may: its total is not known."""
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
        """All tables, also for a worker that renders one: style numbers run through all tables of a workbook."""
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
        """The file to render into; `footers` are those that the source sent with later pages, one per table."""
        footers = footers or [None] * len(self.tables)
        sources = [table.source(footer) for table, footer in zip(self.tables, footers, strict=True)]
        output = output_of(self.spec)
        if self.spec.type == EXCEL:
            return JoinedBook(sources, [table.sample for table in self.tables], output.multi_type, SHEET_ROWS)
        return JoinedParquet(sources[0]) if self.spec.type == PARQUET else JoinedText(output, sources)

    def record(self, table: int, first: int) -> RangeRecord | None:
        data = self.objects.get(record_object(*self._ids, table, first))
        return None if data is None else RangeRecord.from_data(json.loads(data))

    def store(self, record: RangeRecord) -> RangeRecord:
        """Stores the record of a range once. Returns the one that counts: this one, or that of a faster duplicate."""
        data = json.dumps(record.as_data(), ensure_ascii=False).encode()
        stored = self.objects.put_first(record_object(*self._ids, record.table, record.first), data)
        return RangeRecord.from_data(json.loads(stored))

    def stored_keys(self) -> set[str]:
        """The keys of all objects of this export's ranges: records, fragments, the plan."""
        return set(self.objects.keys(ranges_prefix(*self._ids)))

    def give_up(self, reason: str) -> None:
        """Makes the export stage its pages instead, also in later attempts."""
        self.objects.put_first(given_up_object(*self._ids), reason.encode())
