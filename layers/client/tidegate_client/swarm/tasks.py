"""What a session runs: tasks in its event loop, and calls that block in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, TypeVar

from tidegate_client.agent.rate_limit import RateLimit

T = TypeVar("T")


@dataclass(slots=True)
class Tools:
    """What sessions of one agent share."""

    agent_id: str
    disk: Executor
    network: Executor
    download: RateLimit | None

    async def on_disk(self, call: Callable[..., T], *values: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.disk, call, *values)

    async def on_network(self, call: Callable[..., T], *values: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.network, call, *values)


class Tasks:
    """The tasks of one session. The first error that none of them expected is kept, and `wake` is set."""

    def __init__(self, wake: asyncio.Event) -> None:
        self._wake = wake
        self._running: set[asyncio.Task[None]] = set()
        self.error: BaseException | None = None

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def fail(self, error: BaseException) -> None:
        self.error = self.error or error
        self._wake.set()

    async def stop(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)
