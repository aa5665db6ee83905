"""What all workers of an export in ranges, and the one who joins, know alike: the plan and what follows from page 0."""

from __future__ import annotations

import json
from collections.abc import Sequence
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

JoinedFile = JoinedText | JoinedBook | JoinedParquet


class TableContext:
    """One table: what its page 0, or its given rows, say of it."""

    def __init__(self, spec: ExportSpec, number: int, first: bytes | None) -> None:
        self.spec, self.number, self.first_body = spec, number, first or b""
        self.pages = TablePages(step=spec.step)
        self.given = None if spec.tables[number].data is None else flat_rows(spec.tables[number].data)
        if self.given is not None:
            self.pages.take_given(keys_of(self.given), len(self.given))
        elif first is not None:
            self.pages.record(0, read_page(first, 0))
        self.keys = self.pages.all_keys()
        self.fixed_keys = keys_matter(spec, number, self.pages)
        # JSON lines keep the keys that a row has, and no others.
        self.read = read_page if spec.type == JSONL else page_reader(self.keys)

    @property
    def url(self) -> str:
        return self.spec.tables[self.number].address

    def first_page(self) -> Page:
        return Page(self.given) if self.given is not None else self.read(self.first_body, 0)

    def source(self, footer: Any = None) -> TableRows:
        answered = self.pages.answered | ({"footer": footer} if footer else {})
        return TableRows(self.spec.table(self.number, answered), self.keys, ())

    def sample(self) -> Sequence[Row]:
        return self.first_page().rows[:BLOCK_ROWS]

    def several_sheets(self, capacity: int | None) -> bool:
        """Where pages come one by one it is known how many rows came before, so sheets end where they are full."""
        return capacity is not None and (self.pages.sequential or (self.pages.total or 0) > capacity)


class RangeContext:
    """The plan, and every table with what its page 0 says."""

    def __init__(
        self, objects: ExportBucket, request: Request, spec: ExportSpec, plan: RangePlan | None = None
    ) -> None:
        self.objects, self.request, self.spec = objects, request, spec
        self._here = request.project_id, request.request_id
        self.plan = plan or self._kept_plan()

    def _kept_plan(self) -> RangePlan:
        kept = self.objects.get(plan_object(*self._here))
        if kept is None:
            raise RecordNotFound("the plan of this export is gone")
        return RangePlan(**json.loads(kept))

    @cached_property
    def tables(self) -> list[TableContext]:
        """All of them: the styles of a workbook are numbered through all its tables."""
        return [self._table(number) for number in range(len(self.spec.tables))]

    def _table(self, number: int) -> TableContext:
        if self.spec.tables[number].data is not None:
            return TableContext(self.spec, number, None)
        first = self.objects.get(page_object(*self._here, number, 0))
        if first is None:
            raise RecordNotFound("the first page of this export is gone")
        return TableContext(self.spec, number, first)

    def file(self, footers: Sequence[Any] = ()) -> JoinedFile:
        said = footers or [None] * len(self.tables)
        sources = [table.source(footer) for table, footer in zip(self.tables, said, strict=True)]
        output = output_of(self.spec)
        if self.spec.type == EXCEL:
            return JoinedBook(sources, [table.sample() for table in self.tables], output.multi_type, SHEET_ROWS)
        return JoinedParquet(sources[0]) if self.spec.type == PARQUET else JoinedText(output, sources)

    def record(self, table: int, first: int) -> RangeRecord | None:
        kept = self.objects.get(record_object(*self._here, table, first))
        return None if kept is None else RangeRecord.from_data(json.loads(kept))

    def keep(self, record: RangeRecord) -> RangeRecord:
        """The record that counts: this one, or that of a twin who was first."""
        data = json.dumps(record.as_data(), ensure_ascii=False).encode()
        kept = self.objects.put_first(record_object(*self._here, record.table, record.first), data)
        return RangeRecord.from_data(json.loads(kept))

    def done(self) -> set[str]:
        return set(self.objects.keys(ranges_prefix(*self._here)))

    def give_up(self, why: str) -> None:
        self.objects.put_first(given_up_object(*self._here), why.encode())
