"""`AsyncClient`: the API client for asyncio. Each call runs in a thread, so it does not block the event loop.

The types of its methods are in async_client.pyi, which `python -m local.async_stub` generates from `Client`."""

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
    """The API client for asyncio: every method of `Client`, as a coroutine.

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
        """Yields every item of every page of a list, as in `client.all(client.files.list())`.

        The list need not be awaited."""
        first: AsyncPage[Any] = await page if inspect.isawaitable(page) else page
        async for item in first:
            yield item

    async def watch(self, *record_ids: str, timeout: float | None = None) -> AsyncIterator[Change]:
        """Yields the current state of each record, then every change, until all records have ended."""
        changes = iter(self.sync.watch(*record_ids, timeout=timeout))
        while (change := await asyncio.to_thread(next, changes, None)) is not None:
            yield change

    async def wait(self, record_id: str, *, timeout: float | None = None) -> Change:
        """Waits until the record has ended. The result has `.succeeded`, `.status` and `.record`."""
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
    """One page of a list: `items` has its records. `async for` also fetches the following pages."""

    def __init__(self, page: Page[T]) -> None:
        self._page = page
        self.items = page.items
        self.next_cursor = page.next_cursor

    def __len__(self) -> int:
        """Returns the number of items on this page."""
        return len(self.items)

    async def __aiter__(self) -> AsyncIterator[T]:
        items = iter(self._page)
        while (item := await asyncio.to_thread(next, items, _END)) is not _END:
            yield item  # type: ignore[misc]


def resources_of(client: Client) -> dict[str, object]:
    """Returns the client's resources by attribute name, such as `files` and `exports`."""
    package = "tidegate_client.resources."
    return {name: part for name, part in vars(client).items() if type(part).__module__.startswith(package)}


def methods_of(kind: type) -> dict[str, Callable[..., Any]]:
    """Returns the public methods that this class defines itself, by name; inherited methods are left out."""
    return {name: method for name, method in vars(kind).items() if callable(method) and not name.startswith("_")}


@functools.cache
def _async_class(kind: type) -> type:
    """Creates a class that has the methods of `kind` as coroutines, so that `help(client.files)` lists them."""

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
