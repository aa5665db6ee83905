"""A small export at once: pulled, rendered and handed over within one call."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tidegate.common.ids import Clock, new_id
from tidegate.errors import UseAsync
from tidegate.exports.model import PREFIX, ExportSpec, default_file_name, file_name_for, sync_object
from tidegate.exports.objects import ExportBucket
from tidegate.exports.paging import SourcePage, TablePages, read_page
from tidegate.exports.pull import PARALLEL
from tidegate.exports.render import output_of
from tidegate.exports.rendering.columns import flat_rows, keys_of
from tidegate.exports.rendering.files import CONTENT_TYPES, extension, render
from tidegate.exports.rendering.xlsx_writer import TableRows
from tidegate.exports.source import SignedSource

MAX_ROWS = 50_000
MAX_BYTES = 4_500_000
SECONDS = 20.0
LINK_SECONDS = 300


@dataclass(frozen=True, slots=True)
class SyncFile:
    """Either the bytes or, where they are too many for one answer, where to get them."""

    file_name: str
    content_type: str
    body: bytes = b""
    url: str | None = None


class SyncExports:
    def __init__(
        self,
        objects: ExportBucket,
        source: SignedSource,
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
        total = 0
        for number in range(len(spec.tables)):
            rows, answered = self._rows(project_id, task_id, spec, number, until)
            total += len(rows)
            _refuse_many(total)
            tables.append(TableRows(spec.table(number, answered), keys_of(rows), rows))
        output = output_of(spec)
        ending = extension(output, tables, total)
        body = b"".join(render(output, tables, total))
        name = file_name_for(file_name or default_file_name(now, task_id), ending)
        made = SyncFile(name, CONTENT_TYPES[ending], body)
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
        read = self._source.reader(project_id, task_id)

        def fetch(page: int) -> SourcePage:
            if time.monotonic() >= until:
                raise UseAsync(f"the source did not bring its rows within {SECONDS:g} s; order the export instead")
            return read_page(read(table.source_url or "", page, spec.step), page)

        pages, rows = TablePages(), dict[int, list[dict[str, Any]]]()
        self._pull(fetch, pages, rows, spec.step)
        pages.finish()
        return [row for page in sorted(rows) for row in rows[page]], pages.answered

    @staticmethod
    def _pull(
        fetch: Callable[[int], SourcePage], pages: TablePages, rows: dict[int, list[dict[str, Any]]], step: int
    ) -> None:
        def take(number: int, page: SourcePage) -> None:
            pages.record(number, page)
            rows[number] = page.rows
            _refuse_many(max(pages.rows, pages.total or 0))

        first = fetch(0)
        take(0, first)
        rest = pages.rest(step)
        if rest is not None:
            with ThreadPoolExecutor(PARALLEL) as threads:
                for number, page in zip(rest, threads.map(fetch, rest), strict=True):
                    take(number, page)
            return
        upcoming = pages.next_after(0, first, step)
        while upcoming is not None:
            page = fetch(upcoming)
            take(upcoming, page)
            upcoming = pages.next_after(upcoming, page, step)


def _refuse_many(rows: int) -> None:
    if rows > MAX_ROWS:
        raise UseAsync(f"{rows} rows: at most {MAX_ROWS} come at once; order the export by POST /v1/task")
