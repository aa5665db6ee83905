"""The same client for asyncio. Calls run in threads, so that the loop goes on while they wait."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

from tidegate_client.client import Client
from tidegate_client.model import Page
from tidegate_client.records import Change

_OVER = object()


class AsyncClient:
    """Every method of `Client` as a coroutine:

    async with AsyncClient("https://…", "key") as client:
        file = await client.files.get("file-…")
        async for request in client.all(client.queue.list(status="failed")):
            print(request.request_id)
        export = await client.wait("exp-…", timeout=600)
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self.sync = Client(*args, **options)

    def __getattr__(self, name: str) -> AsyncResource:
        return AsyncResource(getattr(self.sync, name))

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *vars(self.sync)})

    async def all(self, page: Any) -> AsyncIterator[Any]:
        """Every item of every page of a list."""
        found: Page[Any] = await page if inspect.isawaitable(page) else page
        items = iter(found)
        while (item := await asyncio.to_thread(next, items, _OVER)) is not _OVER:
            yield item

    async def watch(self, *record_ids: str, timeout: float | None = None) -> AsyncIterator[Change]:
        changes = iter(self.sync.watch(*record_ids, timeout=timeout))
        while (change := await asyncio.to_thread(next, changes, None)) is not None:
            yield change

    async def wait(self, record_id: str, *, timeout: float | None = None) -> Change:
        return await asyncio.to_thread(self.sync.wait, record_id, timeout=timeout)

    async def close(self) -> None:
        await asyncio.to_thread(self.sync.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncResource:
    """A part of the client, as in `client.files`, whose methods are awaited."""

    def __init__(self, sync: object) -> None:
        self._sync = sync

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._sync, name)
        if not callable(method):
            return method

        async def call(*args: Any, **options: Any) -> Any:
            return await asyncio.to_thread(method, *args, **options)

        call.__name__, call.__doc__ = name, method.__doc__
        return call

    def __dir__(self) -> list[str]:
        return [name for name in dir(self._sync) if not name.startswith("_")]
