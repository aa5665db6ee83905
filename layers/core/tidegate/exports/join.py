"""Joins what range workers made into one file: on S3, without another pass over its bytes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tidegate.aws.part_plan import Stored, plan_parts
from tidegate.errors import WorkerLost
from tidegate.exports.model import ExportSpec, file_name_for, output_object, output_prefix
from tidegate.exports.objects import ExportBucket
from tidegate.exports.range_context import RangeContext
from tidegate.exports.range_plan import RangeRecord, given_up_object, record_object
from tidegate.exports.ranges import sums_of
from tidegate.exports.render import MAX_WARNINGS, Rendered, output_of
from tidegate.exports.rendering.files import ENDINGS, content_type
from tidegate.exports.rendering.fragments import Measure
from tidegate.exports.rendering.joined_files import SheetRows
from tidegate.exports.rendering.notes import Notes
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
        rows = sum(record.rows for record in records)
        sheets = _sheets(records)
        footer = next((record.footer for record in reversed(records) if record.footer), None)
        file = context.file(footer)
        planned = context.file().capacity if footer else file.capacity
        if why := _unfit(context, sheets, rows, file.capacity, planned):
            context.give_up(why)
            return None
        output = output_of(spec)
        ending = ENDINGS[output.type] + (".gz" if output.is_packed else "")
        key = output_object(*here, request.attempt)
        parts = plan_parts(file.pieces(sheets, sums_of(records)))
        size = self._objects.assemble(key, content_type(output, ending), parts)
        name = file_name_for(str(request.payload["file_name"]), ending)
        return Rendered(key, name, size, rows, _warnings(context, records, rows)[:MAX_WARNINGS])

    def _records(self, context: RangeContext) -> list[RangeRecord] | None:
        """Every range's record, each beginning where the one before ends; None where a worker gave up."""
        here = context.request.project_id, context.request.request_id
        firsts = context.plan.ranges[:-1]
        with ThreadPoolExecutor(_SIDE_BY_SIDE) as threads:
            kept = dict(zip(firsts, threads.map(context.record, firsts), strict=True))
        records, page = list[RangeRecord](), 0
        while True:
            # Where a worker's time was up, the next began at a page that no plan names.
            record = kept.get(page) or context.record(page)
            if record is None or (record.past <= page and not record.ended):
                if self._objects.get(given_up_object(*here)) is not None:
                    return None
                raise WorkerLost(f"{record_object(*here, page)} is not there; the next attempt renders that range")
            records.append(record)
            if record.ended:
                return records
            page = record.past


def _sheets(records: Sequence[RangeRecord]) -> list[SheetRows]:
    found: dict[int, list[tuple[Stored, Measure]]] = {}
    for record in records:
        for each in record.fragments:
            stored = Stored(each["key"], each["etag"], each["packed"])
            measure = Measure(each["size"], each["crc"], each["packed"], each["rows"])
            found.setdefault(each["sheet"], []).append((stored, measure))
    return [SheetRows(found[number]) for number in sorted(found)]


def _unfit(
    context: RangeContext, sheets: Sequence[SheetRows], rows: int, capacity: int | None, planned: int | None
) -> str:
    limit = context.spec.rows_per_file
    if limit and rows > limit:
        return f"{rows} rows, and {limit} at most in a file"
    if capacity is None or planned is None:
        return ""
    if not context.several_sheets(planned):
        return f"{rows} rows do not fit on the one sheet that was planned" if rows > capacity else ""
    full = all(sheet.measure.rows == planned for sheet in sheets[:-1])
    return "" if full and capacity == planned else "the sheets are not filled as planned"


def _warnings(context: RangeContext, records: Sequence[RangeRecord], rows: int) -> list[str]:
    pages = context.pages
    pages.rows = rows
    pages.counts = dict.fromkeys(range(records[-1].past), 0)
    pages.other_total = next((each.other_total for each in records if each.other_total is not None), None)
    template = context.spec.table(0, pages.answered).template
    notes = Notes(sum(record.cut for record in records))
    return [*pages.warnings(), *template.warnings(context.keys), *notes.warnings()]
