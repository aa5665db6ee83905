"""Pages of a table in order, with the next ones on their way while one is rendered.

Threads only bring bytes: reading them holds the interpreter anyway, and bytes take less memory than rows.
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

_LOOK_SECONDS = 5.0
# Pages that wait to be rendered while as many are asked for: a slow page holds up no other request.
_WAITING = 2


class PagesAhead:
    def __init__(
        self,
        table: TableContext,
        ask: ReadPage,
        puller: Puller,
        in_flight: int,
        until: float,
        alive: Callable[[], None],
    ) -> None:
        self._table, self._ask, self._puller = table, ask, puller
        self._in_flight, self._until, self._alive = in_flight, until, alive
        self._threads = ThreadPoolExecutor(in_flight)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    def side_by_side(self, first: int, past: int) -> Iterator[tuple[int, Page | None]]:
        """Pages in order. The first ones are asked for by this call, before the caller takes one.

        Stops where the time is up. None: the page past the plan could not be had, which may be the source's way.
        """
        ahead: deque[tuple[int, Future[bytes]]] = deque()
        numbers = iter(range(first, past))

        def ask_for_more() -> None:
            nonlocal numbers
            while len(ahead) < self._in_flight * _WAITING and (number := next(numbers, None)) is not None:
                if time.monotonic() >= self._until and number > first:
                    numbers = iter(())
                    return
                ahead.append((number, self._threads.submit(self._body, number)))

        ask_for_more()
        return self._in_order(ahead, ask_for_more)

    def _in_order(
        self, ahead: deque[tuple[int, Future[bytes]]], ask_for_more: Callable[[], None]
    ) -> Iterator[tuple[int, Page | None]]:
        while ahead:
            number, future = ahead.popleft()
            try:
                page = self._read(self._patient(future), number)
            except DomainError:
                if number < self._table.pages.announced:
                    raise
                yield number, None
                return
            ask_for_more()
            yield number, page

    def one_by_one(self, first: int) -> Iterator[tuple[int, Page]]:
        """The pages of a source that tells of the next page only in the page itself."""
        pages, number = self._table.pages, first
        body: Future[bytes] | None = None
        while True:
            page = self._read(self._patient(body) if body else self._body(number), number)
            if number:
                pages.upcoming = pages.next_after(number, page)
            upcoming = pages.upcoming
            body = None if upcoming is None else self._threads.submit(self._body, upcoming)
            yield number, page
            if upcoming is None:
                return
            number = upcoming

    def page(self, number: int) -> Page:
        return self._read(self._body(number), number)

    def _body(self, number: int) -> bytes:
        table = self._table
        if number == 0:
            return table.first_body
        place = Place(number, table.pages.cursor if table.pages.by_cursor else None, table.pages.snapshot)
        return self._puller.patiently(lambda: self._ask(table.url, place, table.spec.step), number)

    def _read(self, body: bytes, number: int) -> Page:
        return self._table.read(body, number)

    def _patient(self, future: Future[bytes]) -> bytes:
        while True:
            try:
                return future.result(timeout=_LOOK_SECONDS)
            except TimeoutError:
                if future.done():
                    raise
                self._alive()
