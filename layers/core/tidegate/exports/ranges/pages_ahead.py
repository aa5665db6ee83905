"""Pages of a table in order; the next ones are requested while one is rendered.

Threads only fetch bytes. Parsing holds the interpreter lock anyway, and bytes take less memory than rows.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tidegate.errors import DomainError
from tidegate.exports.ports import ReadPage
from tidegate.exports.source_page import Page, Place

if TYPE_CHECKING:
    from tidegate.exports.pull import Puller
    from tidegate.exports.ranges.context import TableContext

_HEARTBEAT_SECONDS = 5.0
# Pages held per request in flight, so that a slow page does not delay the requests after it.
_WAITING = 2


class PagesAhead:
    def __init__(
        self,
        table: TableContext,
        read_page: ReadPage,
        puller: Puller,
        in_flight: int,
        until: float,
        heartbeat: Callable[[], None],
    ) -> None:
        self._table, self._read_page, self._puller = table, read_page, puller
        self._in_flight, self._until, self._heartbeat = in_flight, until, heartbeat
        self._threads = ThreadPoolExecutor(in_flight)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    def parallel(self, first: int, past: int) -> Iterator[tuple[int, Page | None]]:
        """Yields pages `first` up to `past` in order; the call itself sends the first requests.

        Stops requesting when time runs out. Yields None for a page past the announced total that could not be fetched:
        sources answer such a page in many ways.
        """
        ahead: deque[tuple[int, Future[bytes]]] = deque()
        numbers = iter(range(first, past))

        def request_more() -> None:
            nonlocal numbers
            while len(ahead) < self._in_flight * _WAITING and (number := next(numbers, None)) is not None:
                if time.monotonic() >= self._until and number > first:
                    numbers = iter(())
                    return
                ahead.append((number, self._threads.submit(self._body, number)))

        request_more()
        return self._in_order(ahead, request_more)

    def _in_order(
        self, ahead: deque[tuple[int, Future[bytes]]], request_more: Callable[[], None]
    ) -> Iterator[tuple[int, Page | None]]:
        while ahead:
            number, future = ahead.popleft()
            try:
                page = self._parse(self._result(future), number)
            except DomainError:
                if number < self._table.pages.announced:
                    raise
                yield number, None
                return
            request_more()
            yield number, page

    def sequential(self, first: int) -> Iterator[tuple[int, Page]]:
        """Yields the pages of a source where only a page itself shows whether another follows."""
        pages, number = self._table.pages, first
        body: Future[bytes] | None = None
        while True:
            page = self._parse(self._result(body) if body else self._body(number), number)
            if number:
                pages.upcoming = pages.next_after(number, page)
            upcoming = pages.upcoming
            body = None if upcoming is None else self._threads.submit(self._body, upcoming)
            yield number, page
            if upcoming is None:
                return
            number = upcoming

    def page(self, number: int) -> Page:
        return self._parse(self._body(number), number)

    def _body(self, number: int) -> bytes:
        table = self._table
        if number == 0:
            return table.first_body
        place = Place(number, table.pages.cursor if table.pages.by_cursor else None, table.pages.snapshot)
        return self._puller.with_retries(lambda: self._read_page(table.url, place, table.spec.step), number)

    def _parse(self, body: bytes, number: int) -> Page:
        return self._table.read(body, number)

    def _result(self, future: Future[bytes]) -> bytes:
        """Waits for a body, with a heartbeat every few seconds."""
        while True:
            try:
                return future.result(timeout=_HEARTBEAT_SECONDS)
            except TimeoutError:
                if future.done():
                    raise
                self._heartbeat()
