"""Joins what range workers made into one file: on S3, without another pass over its bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from tidegate.aws.part_plan import Stored, plan_parts
from tidegate.errors import WorkerLost
from tidegate.exports.model import ExportSpec, file_name_for, output_object, output_prefix
from tidegate.exports.objects import ExportBucket
from tidegate.exports.ranges.context import JoinedFile, RangeContext
from tidegate.exports.ranges.plan import RangeRecord, given_up_object, record_object
from tidegate.exports.ranges.worker import sums_of
from tidegate.exports.render import MAX_WARNINGS, Rendered, output_of
from tidegate.exports.rendering.files import content_type
from tidegate.exports.rendering.fragments import Measure
from tidegate.exports.rendering.joined_files import Made, SheetRows
from tidegate.exports.rendering.notes import Notes
from tidegate.exports.rendering.parquet_writer import Group
from tidegate.queue.model import Request

_SIDE_BY_SIDE = 16


class Joiner:
    def __init__(self, objects: ExportBucket) -> None:
        self._objects = objects

    def join(self, request: Request, spec: ExportSpec) -> Rendered | None:
        """None: the ranges do not make a file, the export has to go the way of staged pages."""
        here = request.project_id, request.request_id
        # What an attempt that was killed had begun to upload would be kept, and paid for.
        self._objects.abort_uploads(output_prefix(*here))
        context = RangeContext(self._objects, request, spec)
        records = self._records(context)
        if records is None:
            return None
        rows = sum(record.rows for table in records for record in table)
        made = [_sheets(table) for table in records]
        footers = [next((each.footer for each in reversed(table) if each.footer), None) for table in records]
        file = context.file(footers)
        planned = context.file() if any(footers) else file
        if why := file.unfit(made) or _unfit(context, made, file, planned):
            context.give_up(why)
            return None
        key = output_object(*here, request.attempt)
        parts = plan_parts(file.pieces(made, [sums_of(table) for table in records], _groups(records)))
        size = self._objects.assemble(key, content_type(output_of(spec), file.ending), parts)
        name = file_name_for(str(request.payload["file_name"]), file.ending)
        return Rendered(key, name, size, rows, _warnings(context, records)[:MAX_WARNINGS])

    def _records(self, context: RangeContext) -> list[list[RangeRecord]] | None:
        """Every table's records, each beginning where the one before ends; None where a worker gave up."""
        firsts = [(number, first) for number, pages in enumerate(context.plan.tables) for first in pages[:-1] or [0]]
        with ThreadPoolExecutor(_SIDE_BY_SIDE) as threads:
            kept = dict(zip(firsts, threads.map(lambda each: context.record(*each), firsts), strict=True))
        tables = [self._of_table(context, number, kept) for number in range(len(context.plan.tables))]
        found = [records for records in tables if records is not None]
        return found if len(found) == len(tables) else None

    def _of_table(
        self, context: RangeContext, table: int, kept: Mapping[tuple[int, int], RangeRecord | None]
    ) -> list[RangeRecord] | None:
        here = context.request.project_id, context.request.request_id
        records, page = list[RangeRecord](), 0
        while True:
            # Where a worker's time was up, the next began at a page that no plan names.
            record = kept.get((table, page)) or context.record(table, page)
            if record is None or (record.past <= page and not record.ended):
                if self._objects.get(given_up_object(*here)) is not None:
                    return None
                key = record_object(*here, table, page)
                raise WorkerLost(f"{key} is not there; the next attempt renders that range")
            records.append(record)
            if record.ended:
                return records
            page = record.past


def _groups(records: Sequence[Sequence[RangeRecord]]) -> list[Group]:
    return [Group(**group) for table in records for record in table for group in record.groups]


def _sheets(records: Sequence[RangeRecord]) -> list[SheetRows]:
    found: dict[int, list[tuple[Stored, Measure]]] = {}
    for record in records:
        for each in record.fragments:
            stored = Stored(each["key"], each["etag"], each["packed"])
            measure = Measure(each["size"], each["crc"], each["packed"], each["rows"])
            found.setdefault(each["sheet"], []).append((stored, measure))
    return [SheetRows(found[number]) for number in sorted(found)]


def _unfit(context: RangeContext, made: Made, file: JoinedFile, planned: JoinedFile) -> str:
    limit = context.spec.rows_per_file
    if limit and len(made) == 1 and sum(sheet.measure.rows for sheet in made[0]) > limit:
        return f"more rows than {limit}, and no more belong into a file"
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


def _warnings(context: RangeContext, records: Sequence[Sequence[RangeRecord]]) -> list[str]:
    found, cut = list[str](), 0
    for table, own in zip(context.tables, records, strict=True):
        pages = table.pages
        pages.rows = sum(record.rows for record in own)
        pages.counts = dict.fromkeys(range(own[-1].past), 0)
        pages.other_total = next((each.other_total for each in own if each.other_total is not None), None)
        found += [*pages.warnings(), *table.source().table.template.warnings(table.keys)]
        cut += sum(record.cut for record in own)
    return [*found, *Notes(cut, sum(record.refused for own in records for record in own)).warnings()]
