"""The client for asyncio. Each call runs in a thread, so that the event loop is not blocked.

The types of its methods are in async_client.pyi, generated from `Client` by `python -m local.async_stub`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tidegate_client.client import Client
from tidegate_client.model import Page
from tidegate_client.records import Change

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")
_END = object()


class AsyncClient:
    """Every method of `Client` as a coroutine:

    async with AsyncClient("https://…", "key") as client:
        file = await client.files.get("file-…")
        async for request in await client.queue.list(status="failed"):
            print(request.request_id)
        export = await client.wait("exp-…", timeout=600)
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self.sync = Client(*args, **options)
        for name, part in resources_of(self.sync).items():
            setattr(self, name, _async_class(type(part))(part))

    async def all(self, page: Any) -> AsyncIterator[Any]:
        """Every item of every page. `page` is a list, awaited or not: `client.all(client.files.list())`."""
        first: AsyncPage[Any] = await page if inspect.isawaitable(page) else page
        async for item in first:
            yield item

    async def watch(self, *record_ids: str, timeout: float | None = None) -> AsyncIterator[Change]:
        """Yields each record as it is now, then after each change, until all have ended."""
        changes = iter(self.sync.watch(*record_ids, timeout=timeout))
        while (change := await asyncio.to_thread(next, changes, None)) is not None:
            yield change

    async def wait(self, record_id: str, *, timeout: float | None = None) -> Change:
        """Waits until the record has ended and returns it: `.succeeded`, `.status`, `.record`."""
        return await asyncio.to_thread(self.sync.wait, record_id, timeout=timeout)

    async def close(self) -> None:
        await asyncio.to_thread(self.sync.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncPage(Generic[T]):
    """One page of a list, in `items`. `async for` yields the items of all pages, each fetched when it is needed."""

    def __init__(self, page: Page[T]) -> None:
        self._page = page
        self.items = page.items
        self.next_cursor = page.next_cursor

    def __len__(self) -> int:
        """The number of items on this page."""
        return len(self.items)

    async def __aiter__(self) -> AsyncIterator[T]:
        items = iter(self._page)
        while (item := await asyncio.to_thread(next, items, _END)) is not _END:
            yield item  # type: ignore[misc]


def resources_of(client: Client) -> dict[str, object]:
    """The resources of a client by name, as in `client.files`."""
    package = "tidegate_client.resources."
    return {name: part for name, part in vars(client).items() if type(part).__module__.startswith(package)}


def methods_of(kind: type) -> dict[str, Callable[..., Any]]:
    """The public methods that a class declares itself."""
    return {name: method for name, method in vars(kind).items() if callable(method) and not name.startswith("_")}


@functools.cache
def _async_class(kind: type) -> type:
    """A class with the methods of `kind` as coroutines. A real class, so that `help(client.files)` shows them."""

    def init(self: Any, sync: object) -> None:
        self._sync = sync

    methods = {name: _as_coroutine(name, method) for name, method in methods_of(kind).items()}
    return type(f"Async{kind.__name__}", (), {"__init__": init, "__doc__": kind.__doc__, **methods})


def _as_coroutine(name: str, method: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(method)
    async def call(self: Any, *args: Any, **options: Any) -> Any:
        answer = await asyncio.to_thread(getattr(self._sync, name), *args, **options)
        return AsyncPage(answer) if isinstance(answer, Page) else answer

    return call
