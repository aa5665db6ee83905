"""Joins the fragments of all range workers into one file on S3, without reading them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from tidegate.aws.part_plan import Stored, plan_parts
from tidegate.errors import WorkerLost
from tidegate.exports.model import ExportSpec, file_name_for, output_object, output_prefix
from tidegate.exports.objects import ExportBucket
from tidegate.exports.ranges.context import JoinedFile, RangeContext
from tidegate.exports.ranges.plan import RangeRecord, given_up_object
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
        """Returns the file, or None if the ranges do not make one: the export then has to stage its pages."""
        ids = request.project_id, request.request_id
        context = RangeContext(self._objects, request, spec)
        with ThreadPoolExecutor(_SIDE_BY_SIDE) as threads:
            # S3 bills the parts of an upload that a killed attempt began until it is aborted.
            aborted = threads.submit(self._objects.abort_uploads, output_prefix(*ids))
            firsts = [(table, first) for table, pages in enumerate(context.plan.tables) for first in pages[:-1] or [0]]
            planned_records = threads.map(lambda each: context.record(*each), firsts)
            planned_file = context.file()
            by_first = dict(zip(firsts, planned_records, strict=True))
            aborted.result()
        records = self._records(context, by_first)
        if records is None:
            return None
        rows = sum(record.rows for table in records for record in table)
        made = [_sheets(table) for table in records]
        footers = [next((each.footer for each in reversed(table) if each.footer), None) for table in records]
        file = context.file(footers) if any(footers) else planned_file
        if reason := file.unfit(made) or _unfit(context, made, file, planned_file):
            context.give_up(reason)
            return None
        key = output_object(*ids, request.attempt)
        parts = plan_parts(file.pieces(made, [sums_of(table) for table in records], _groups(records)))
        size = self._objects.assemble(key, content_type(output_of(spec), file.ending), parts)
        name = file_name_for(str(request.payload["file_name"]), file.ending)
        return Rendered(key, name, size, rows, _warnings(context, records)[:MAX_WARNINGS])

    def _records(
        self, context: RangeContext, by_first: Mapping[tuple[int, int], RangeRecord | None]
    ) -> list[list[RangeRecord]] | None:
        """Every table's records, each beginning where the one before ends; None if a worker gave up."""
        tables = [self._of_table(context, number, by_first) for number in range(len(context.plan.tables))]
        found = [records for records in tables if records is not None]
        return found if len(found) == len(tables) else None

    def _of_table(
        self, context: RangeContext, table: int, by_first: Mapping[tuple[int, int], RangeRecord | None]
    ) -> list[RangeRecord] | None:
        ids = context.request.project_id, context.request.request_id
        records, page = list[RangeRecord](), 0
        while True:
            # A worker that ran out of time was followed by one that began at a page not in the plan.
            record = by_first.get((table, page)) or context.record(table, page)
            if record is None or (record.past <= page and not record.ended):
                if self._objects.get(given_up_object(*ids)) is not None:
                    return None
                raise WorkerLost(
                    f"the rows of table {table + 1} from page {page} on were not rendered; the next attempt does it"
                )
            records.append(record)
            if record.ended:
                return records
            page = record.past


def _groups(records: Sequence[Sequence[RangeRecord]]) -> list[Group]:
    return [Group(**group) for table in records for record in table for group in record.groups]


def _sheets(records: Sequence[RangeRecord]) -> list[SheetRows]:
    """The fragments of one table, by sheet."""
    found: dict[int, list[tuple[Stored, Measure]]] = {}
    for record in records:
        for each in record.fragments:
            stored = Stored(each["key"], each["etag"], each["packed"])
            measure = Measure(each["size"], each["crc"], each["packed"], each["rows"])
            found.setdefault(each["sheet"], []).append((stored, measure))
    return [SheetRows(found[number]) for number in sorted(found)]


def _unfit(context: RangeContext, made: Made, file: JoinedFile, planned: JoinedFile) -> str:
    """Why the rows do not fit the plan that they were rendered for; empty if they do."""
    limit = context.spec.rows_per_file
    if limit and len(made) == 1 and sum(sheet.measure.rows for sheet in made[0]) > limit:
        return f"there are more than {limit} rows, the limit of one file"
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
    warnings, cut = list[str](), 0
    for table, table_records in zip(context.tables, records, strict=True):
        pages = table.pages
        pages.rows = sum(record.rows for record in table_records)
        pages.counts = dict.fromkeys(range(table_records[-1].past), 0)
        pages.other_total = next((each.other_total for each in table_records if each.other_total is not None), None)
        warnings += [*pages.warnings(), *table.source().table.template.warnings(table.keys)]
        cut += sum(record.cut for record in table_records)
    refused = sum(record.refused for table_records in records for record in table_records)
    return [*warnings, *Notes(cut, refused).warnings()]
