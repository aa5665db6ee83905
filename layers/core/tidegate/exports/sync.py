"""A small export that is pulled, rendered and returned within one HTTP call."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tidegate.common.ids import Clock, new_id
from tidegate.errors import DomainError, FetchTimeout, UseAsync
from tidegate.exports.model import PREFIX, ExportSpec, default_file_name, file_name_for, sync_object
from tidegate.exports.objects import ExportBucket
from tidegate.exports.paging import TablePages
from tidegate.exports.pull import PARALLEL
from tidegate.exports.render import output_of
from tidegate.exports.rendering.columns import flat_rows, keys_of
from tidegate.exports.rendering.files import content_type, extension, render
from tidegate.exports.rendering.header_tree import leaves
from tidegate.exports.rendering.xlsx.writer import TableRows
from tidegate.exports.source import Sources
from tidegate.exports.source_page import Page, read_page

MAX_ROWS = 50_000
MAX_BYTES = 4_500_000
# For pulling all tables: API Gateway gives up after 29 s, and the rows have to be rendered and sent as well.
SECONDS = 20.0
LINK_SECONDS = 300


@dataclass(frozen=True, slots=True)
class SyncFile:
    """The bytes, or a URL to download them if they are too many for one response."""

    file_name: str
    content_type: str
    body: bytes = b""
    url: str | None = None


class SyncExports:
    def __init__(
        self,
        objects: ExportBucket,
        source: Sources,
        check: Callable[[str, ExportSpec], None],
        clock: Clock,
    ) -> None:
        self._objects = objects
        self._source = source
        self._check = check
        self._clock = clock

    def make(self, project_id: str, spec: ExportSpec, file_name: str | None) -> SyncFile:
        self._check(project_id, spec)
        now = self._clock()
        task_id = new_id(PREFIX, now)
        until = time.monotonic() + SECONDS
        tables: list[TableRows] = []
        total = blank_rows = 0
        for number in range(len(spec.tables)):
            rows, answered = self._rows(project_id, task_id, spec, number, until)
            table = spec.table(number, answered)
            total += len(rows)
            # Row heads may add blank rows.
            blank_rows += sum(leaf.row_count for leaf in leaves(table.template.rows))
            _refuse_many(max(total, blank_rows))
            tables.append(TableRows(table, keys_of(rows), rows))
        output = output_of(spec)
        ending = extension(output, tables, total)
        body = b"".join(render(output, tables, total))
        name = file_name_for(file_name or default_file_name(now, task_id), ending)
        made = SyncFile(name, content_type(output, ending), body)
        return made if len(body) <= MAX_BYTES else self._stored(project_id, task_id, made)

    def _stored(self, project_id: str, task_id: str, made: SyncFile) -> SyncFile:
        key = sync_object(project_id, task_id)
        self._objects.put(key, made.body, made.content_type)
        url = self._objects.link(key, LINK_SECONDS, made.file_name)
        return SyncFile(made.file_name, made.content_type, url=url)

    def _rows(
        self, project_id: str, task_id: str, spec: ExportSpec, number: int, until: float
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        table = spec.tables[number]
        if table.data is not None:
            return flat_rows(table.data), {}
        read = self._source.reader(project_id, task_id, spec.credential)

        pages, rows = TablePages(step=spec.step), dict[int, list[dict[str, Any]]]()

        def fetch(number: int) -> tuple[int, Page]:
            left = until - time.monotonic()
            try:
                body = read(table.address, pages.place(number), spec.step, left) if left > 0 else None
            except FetchTimeout:
                if time.monotonic() < until:
                    raise
                body = None
            if body is None:
                raise UseAsync(f"the source did not return all rows within {SECONDS:g} s: use POST /v1/task instead")
            return number, read_page(body, number)

        def take(number: int, page: Page) -> None:
            pages.record(number, page)
            if number in pages.counts:
                rows[number] = page.rows
            _refuse_many(max(pages.rows, pages.total or 0))

        take(*fetch(0))
        with ThreadPoolExecutor(PARALLEL) as threads:
            # A few at a time: an empty page ends the plan.
            while some := list(islice(pages.planned(), PARALLEL)):
                for number, page in threads.map(fetch, some):
                    take(number, page)
        if not pages.sequential:
            pages.continue_after_plan()
        while pages.upcoming is not None:
            try:
                take(*fetch(pages.upcoming))
            except DomainError:
                if not pages.confirms_total(pages.upcoming):
                    raise
                break
        return [row for page in sorted(rows) for row in rows[page]], pages.answered


def _refuse_many(rows: int) -> None:
    if rows > MAX_ROWS:
        raise UseAsync(
            f"the export has {rows} rows, but a synchronous one may have {MAX_ROWS}: use POST /v1/task instead"
        )
