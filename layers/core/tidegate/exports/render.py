"""Staged rows into a file, streamed straight into the bucket: memory does not grow with rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tidegate.errors import RecordNotFound, WorkerLost
from tidegate.exports.model import (
    ExportSpec,
    file_name_for,
    output_object,
    output_prefix,
    page_object,
    progress_of,
)
from tidegate.exports.objects import ExportBucket
from tidegate.exports.paging import TablePages, read_page
from tidegate.exports.pull import PageList
from tidegate.exports.rendering.columns import Row, flat_rows, keys_of
from tidegate.exports.rendering.csv_writer import CsvOptions
from tidegate.exports.rendering.files import CONTENT_TYPES, Output, extension, render
from tidegate.exports.rendering.xlsx_writer import TableRows
from tidegate.queue.model import Request

_READ_AHEAD = 4
_PULSE_ROWS = 5000


@dataclass(frozen=True, slots=True)
class Rendered:
    key: str
    file_name: str
    size: int
    rows: int


def output_of(spec: ExportSpec) -> Output:
    options = CsvOptions(bom=spec.bom, header=spec.csv_header, guard=spec.csv_guard)
    return Output(spec.type, spec.multi_type, spec.rows_per_file, options)


class Renderer:
    def __init__(self, objects: ExportBucket) -> None:
        self._objects = objects

    def render(self, request: Request, spec: ExportSpec, pulse: Callable[[dict[str, Any]], None]) -> Rendered:
        # What an attempt that was killed had begun to upload would be kept, and paid for.
        self._objects.abort_uploads(output_prefix(request.project_id, request.request_id))
        ledger = PageList.load(self._objects, request, len(spec.tables))
        # A pull that runs twice may write the lesser ledger last. A file without its last rows would look whole.
        if not all(
            pages.done or given.data is not None for pages, given in zip(ledger.tables, spec.tables, strict=True)
        ):
            raise WorkerLost("not all pages are known to be staged; the next attempt looks again")
        counter = _Counter(pulse)
        tables, total = [], 0
        for number, pages in enumerate(ledger.tables):
            keys, rows, count = self._rows(request, spec, number, pages)
            tables.append(TableRows(spec.table(number, pages.answered), keys, counter.counted(rows)))
            total += count
        counter.total = total
        output = output_of(spec)
        ending = extension(output, tables, total)
        key = output_object(request.project_id, request.request_id, request.attempt)
        sink = self._objects.sink(key, CONTENT_TYPES[ending])
        try:
            for chunk in render(output, tables, total):
                sink.write(chunk)
            sink.close()
        except BaseException:
            sink.abort()
            raise
        return Rendered(key, file_name_for(str(request.payload["file_name"]), ending), sink.size, total)

    def _rows(
        self, request: Request, spec: ExportSpec, number: int, pages: TablePages
    ) -> tuple[list[str], Iterator[Row], int]:
        given = spec.tables[number].data
        if given is not None:
            rows = flat_rows(given)
            return keys_of(rows), iter(rows), len(rows)
        return pages.all_keys(), self._staged(request, number, sorted(pages.counts)), pages.rows

    def _staged(self, request: Request, table: int, numbers: list[int]) -> Iterator[Row]:
        """Reads a few pages ahead, so that the bucket's latency is not paid page by page."""
        with ThreadPoolExecutor(_READ_AHEAD) as threads:
            ahead: deque[tuple[int, Future[bytes | None]]] = deque()
            waiting = iter(numbers)
            while True:
                while len(ahead) < _READ_AHEAD and (number := next(waiting, None)) is not None:
                    key = page_object(request.project_id, request.request_id, table, number)
                    ahead.append((number, threads.submit(self._objects.get, key)))
                if not ahead:
                    return
                number, body = ahead.popleft()
                yield from read_page(self._there(body.result(), number), number).rows

    @staticmethod
    def _there(body: bytes | None, number: int) -> bytes:
        if body is None:
            raise RecordNotFound(f"staged page {number} is gone")
        return body


class _Counter:
    def __init__(self, pulse: Callable[[dict[str, Any]], None]) -> None:
        self._pulse = pulse
        self.total = 0
        self._seen = 0

    def counted(self, rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            if self._seen % _PULSE_ROWS == 0:
                self._pulse(progress_of(self.total, self.total, self._seen))
            self._seen += 1
            yield row
