"""How a session runs its work: as tasks of its event loop, and blocking calls in threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

from tidegate_client.agent.rate_limit import RateLimit

T = TypeVar("T")


class DaemonThreads(Executor):
    """A thread pool whose threads are daemons: a call that hangs does not delay the end of the process.

    The interpreter waits for the threads of a ThreadPoolExecutor when it exits, even after `shutdown(wait=False)`."""

    def __init__(self, threads: int, name: str) -> None:
        self._most = threads
        self._name = name
        self._lock = threading.Lock()
        self._threads = 0
        self._closed = False
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._calls.put((future, lambda: fn(*args, **kwargs)))
            if self._threads < self._most:
                threading.Thread(target=self._work, name=f"{self._name}_{self._threads}", daemon=True).start()
                self._threads += 1
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002 - Executor's names
        """Ends each thread after its current call. Calls that have not started are cancelled."""
        with self._lock:
            self._closed = True
            while not self._calls.empty():
                if (waiting := self._calls.get()) is not None:
                    waiting[0].cancel()
            for _ in range(self._threads):
                self._calls.put(None)

    def _work(self) -> None:
        while (waiting := self._calls.get()) is not None:
            future, call = waiting
            if future.set_running_or_notify_cancel():
                try:
                    result = call()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            # Do not keep the call's arguments while waiting for the next one.
            del waiting, future, call


@dataclass(slots=True)
class Tools:
    """What the sessions of one agent share."""

    agent_id: str
    disk: Executor
    network: Executor
    download: RateLimit | None
    # Called with the length of each chunk that arrives, from a peer or from S3.
    on_bytes: Callable[[int], None] = lambda _count: None

    async def on_disk(self, call: Callable[..., T], *values: object) -> T:
        """Runs a call that reads or writes files in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self.disk, call, *values)

    async def on_network(self, call: Callable[..., T], *values: object) -> T:
        """Runs a call to S3 in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self.network, call, *values)


class Tasks:
    """The tasks of one session. Keeps the first unexpected error of any of them, and then sets `wake`."""

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
        """Cancels all tasks and waits until they have ended."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)
