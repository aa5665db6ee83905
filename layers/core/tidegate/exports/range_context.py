"""What all workers of an export in ranges, and the one who joins, know alike: the plan and what follows from page 0."""

from __future__ import annotations

import json
from typing import Any

from tidegate.errors import RecordNotFound
from tidegate.exports.model import JSONL, ExportSpec, page_object
from tidegate.exports.objects import ExportBucket
from tidegate.exports.paging import TablePages
from tidegate.exports.range_plan import (
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
from tidegate.exports.rendering.joined_files import JoinedFile, joined_file
from tidegate.exports.rendering.xlsx.writer import SHEET_ROWS, TableRows
from tidegate.exports.source_page import page_reader, read_page
from tidegate.queue.model import Request


class RangeContext:
    """What all workers of an export and the one who joins know alike: the plan, page 0 and what follows from it."""

    def __init__(self, objects: ExportBucket, request: Request, spec: ExportSpec) -> None:
        self.objects, self.request, self.spec = objects, request, spec
        self._here = request.project_id, request.request_id
        kept = objects.get(plan_object(*self._here))
        first = objects.get(page_object(*self._here, 0, 0))
        if kept is None or first is None:
            raise RecordNotFound("the plan of this export is gone")
        self.plan = RangePlan(**json.loads(kept))
        self.first_body = first
        self.pages = TablePages(step=spec.step)
        self.pages.record(0, read_page(first, 0))
        self.keys = self.pages.all_keys()
        self.fixed_keys = keys_matter(spec, self.pages)
        # JSON lines keep the keys that a row has, and no others.
        self.read = read_page if spec.type == JSONL else page_reader(self.keys)

    def file(self, footer: Any = None) -> JoinedFile:
        answered = self.pages.answered | ({"footer": footer} if footer else {})
        source = TableRows(self.spec.table(0, answered), self.keys, ())
        sample = self.read(self.first_body, 0).rows[:BLOCK_ROWS]
        return joined_file(output_of(self.spec), source, sample, SHEET_ROWS)

    def several_sheets(self, capacity: int | None) -> bool:
        return capacity is not None and (self.pages.total or 0) > capacity

    def record(self, first: int) -> RangeRecord | None:
        kept = self.objects.get(record_object(*self._here, first))
        return None if kept is None else RangeRecord.from_data(json.loads(kept))

    def keep(self, record: RangeRecord) -> RangeRecord:
        """The record that counts: this one, or that of a twin who was first."""
        data = json.dumps(record.as_data(), ensure_ascii=False).encode()
        kept = self.objects.put_first(record_object(*self._here, record.first), data)
        return RangeRecord.from_data(json.loads(kept))

    def done(self) -> set[str]:
        return set(self.objects.keys(ranges_prefix(*self._here)))

    def give_up(self, why: str) -> None:
        self.objects.put_first(given_up_object(*self._here), why.encode())
