"""Renders staged pages into a file, streamed into the bucket: memory does not grow with the number of rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tidegate.errors import RecordNotFound, WorkerLost
from tidegate.exports.model import (
    JSONL,
    ExportSpec,
    file_name_for,
    output_object,
    output_prefix,
    page_object,
    progress_of,
)
from tidegate.exports.paging import TablePages
from tidegate.exports.pull import PageList
from tidegate.exports.source import Page, page_reader, read_page
from tidegate.exports.store import ExportBucket
from tidegate.queue.model import Request
from tidegate.sheets.files import Output, content_type, extension, render
from tidegate.sheets.rows import RowBlocks, shaped
from tidegate.sheets.table import ROW_HEAD, Row, flat_rows, keys_of
from tidegate.sheets.text import CsvOptions
from tidegate.sheets.xlsx import TableRows
from tidegate.sheets.xlsx_cells import Notes

_READ_AHEAD = 4
MAX_WARNINGS = 20


@dataclass(frozen=True, slots=True)
class Rendered:
    key: str
    file_name: str
    size: int
    rows: int
    warnings: list[str]


def output_of(spec: ExportSpec) -> Output:
    options = CsvOptions(spec.bom, spec.csv_header, spec.csv_guard, spec.delimiter, spec.encoding, spec.line_end)
    return Output(spec.type, spec.multi_type, spec.rows_per_file, options, spec.compression)


def render_pages(
    objects: ExportBucket, request: Request, spec: ExportSpec, heartbeat: Callable[[dict[str, Any]], None]
) -> Rendered:
    """Renders the staged pages into one file."""
    # S3 bills the parts of an upload that a killed attempt began until it is aborted.
    objects.abort_uploads(output_prefix(request.project_id, request.request_id))
    page_list = PageList.load(objects, request, len(spec.tables), spec.step)
    # A pull that ran twice may have saved the shorter page list last; the file would silently lack rows.
    if not all(
        pages.done or given.data is not None for pages, given in zip(page_list.tables, spec.tables, strict=True)
    ):
        raise WorkerLost("the page list is incomplete; the next attempt pulls the missing pages")
    tables, total, warnings, seen = list[TableRows](), 0, list[str](), 0

    def counted(rows: RowBlocks) -> Iterator[Sequence[Row]]:
        nonlocal seen
        for block in rows:
            heartbeat(progress_of(total, total, seen))
            seen += len(block)
            yield block

    for number, pages in enumerate(page_list.tables):
        table = spec.table(number, pages.answered)
        keys, rows, count = _rows(objects, request, spec, number, pages)
        warnings += [*pages.warnings(), *table.template.warnings(keys)]
        tables.append(TableRows(table, keys, RowBlocks(map(shaped(table), counted(rows)))))
        total += count
    output = output_of(spec)
    ending = extension(output, tables, total)
    key = output_object(request.project_id, request.request_id, request.attempt)
    sink, notes = objects.sink(key, content_type(output, ending)), Notes()
    try:
        for chunk in render(output, tables, total, notes):
            sink.write(chunk)
        sink.close()
    except BaseException:
        sink.abort()
        raise
    warnings += notes.warnings()
    name = file_name_for(str(request.payload["file_name"]), ending)
    return Rendered(key, name, sink.size, total, warnings[:MAX_WARNINGS])


def _rows(
    objects: ExportBucket, request: Request, spec: ExportSpec, number: int, pages: TablePages
) -> tuple[list[str], RowBlocks, int]:
    given = spec.tables[number].data
    if given is not None:
        rows = flat_rows(given)
        return keys_of(rows), RowBlocks.of(rows), len(rows)
    keys = pages.all_keys()
    # Rows under row heads are handled one by one, as dictionaries. A JSON line has only the keys of its own row.
    read = read_page if ROW_HEAD in keys or spec.type == JSONL else page_reader(keys)
    return keys, RowBlocks(_staged(objects, request, number, sorted(pages.counts), read)), pages.rows


def _staged(
    objects: ExportBucket, request: Request, table: int, numbers: list[int], read: Callable[[bytes, int], Page]
) -> Iterator[list[Row]]:
    """Reads a few pages ahead, to hide the latency of the bucket."""
    with ThreadPoolExecutor(_READ_AHEAD) as threads:
        ahead: deque[tuple[int, Future[bytes | None]]] = deque()
        waiting = iter(numbers)
        # The first page alone: it may be needed long before the others, to measure the columns.
        most = 1
        while True:
            while len(ahead) < most and (number := next(waiting, None)) is not None:
                key = page_object(request.project_id, request.request_id, table, number)
                ahead.append((number, threads.submit(objects.get, key)))
            if not ahead:
                return
            number, future = ahead.popleft()
            body = future.result()
            if body is None:
                raise RecordNotFound(f"the stored page {number} of the source is gone: retry the export")
            yield read(body, number).rows
            most = _READ_AHEAD
