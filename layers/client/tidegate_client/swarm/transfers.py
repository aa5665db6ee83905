"""Fetches pieces from other hosts and from S3, in tasks and threads, and verifies them."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeVar

from tidegate_client.download import Cancelled
from tidegate_client.errors import ChecksumMismatch, TransferError
from tidegate_client.rates import RateLimit
from tidegate_client.swarm.chooser import ORIGIN, Chooser, Failure, FellBack, Step
from tidegate_client.swarm.peers import (
    Broken,
    Connection,
    NotStarted,
    Origin,
    OriginFailed,
    Peer,
    PeerStalled,
    Unreachable,
    WholePieceOnly,
)
from tidegate_client.swarm.store import PieceStore, Sink, StaleFile
from tidegate_client.swarm.wire import BUFFER_BYTES, Terms
from tidegate_client.uploads import Progress

# --- tasks
# How a session runs its work: as tasks of its event loop, and blocking calls in threads.

T = TypeVar("T")


class DaemonThreads(Executor):
    """A thread pool whose threads do not delay the end of the process, even if a call hangs.

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


@dataclass
class Tools:
    """The thread pools and the download limit that all sessions of one agent share."""

    agent_id: str
    disk: Executor
    network: Executor
    download: RateLimit | None
    # Called with the length of each chunk that arrives, from a peer or from S3.
    on_bytes: Callable[[int], None] = lambda _count: None

    async def on_disk(self, call: Callable[..., T], *values: object) -> T:
        """Runs a call in a thread. The call reads or writes files."""
        return await asyncio.get_running_loop().run_in_executor(self.disk, call, *values)

    async def on_network(self, call: Callable[..., T], *values: object) -> T:
        """Runs a call in a thread. The call uses S3."""
        return await asyncio.get_running_loop().run_in_executor(self.network, call, *values)


class Tasks:
    """The asyncio tasks of one session. When a task fails unexpectedly, keeps the first such error and sets `wake`."""

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


# --- transfers
# Receives pieces from peers and from S3, verifies them, and marks them as complete or as failed.

log = logging.getLogger("tidegate.agent")

_MOST_BAD_PEERS = 4
# With a rate limit a chunk is at most what the rate allows in an eighth of a second: several pieces share the rate, and
# a sender gives up after ten seconds in which nothing was read.
_CHUNKS_A_SECOND, _SMALLEST_CHUNK = 8, 16 * 1024


@dataclass
class Figures:
    """The figures of a delivery, which the host reports with its result."""

    origin_bytes: int = 0
    peer_bytes: int = 0
    bad_pieces: int = 0
    fell_back: str = FellBack.NONE.value
    bad_peers: list[str] = field(default_factory=list)
    # Bytes found in an older version; None if no block list was used, as with an older API.
    reused_bytes: int | None = None


@dataclass(eq=False)
class _Flight:
    """A piece that is being fetched from one source."""

    step: Step
    sink: Sink
    cancelled: threading.Event = field(default_factory=threading.Event)
    # Two sources wrote to the same range of the file, so the piece must be verified on disk.
    contested: bool = False
    task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        self.cancelled.set()
        self.sink.close()
        if self.task is not None:
            self.task.cancel()


class Transfers:
    """The pieces that a session is fetching.

    `changed` is called when there is something to announce to peers, or something to decide."""

    def __init__(
        self,
        terms: Terms,
        peers: Sequence[Peer],
        origin: Origin,
        chooser: Chooser,
        tools: Tools,
        tasks: Tasks,
        *,
        changed: Callable[[], None],
        on_progress: Progress,
    ) -> None:
        self._terms = terms
        self._peers = peers
        self._origin = origin
        self._chooser = chooser
        self._tools = tools
        self._tasks = tasks
        self._changed = changed
        self._on_progress = on_progress
        self._flights: dict[tuple[int, int], _Flight] = {}
        # Neighbours with an older agent, which cannot send parts of pieces.
        self._whole_only: set[int] = set()
        limit = tools.download
        wanted = limit.bytes_a_second / _CHUNKS_A_SECOND if limit else math.inf
        self._chunk = int(min(BUFFER_BYTES, max(_SMALLEST_CHUNK, wanted)))
        self.figures = Figures()
        self.last_byte = time.monotonic()
        self.store: PieceStore | None = None

    def start(self, step: Step) -> None:
        assert self.store is not None
        flight = _Flight(step, Sink(self.store, step.piece, whole=step.source in self._whole_only))
        for other in self._others_of_piece(flight):
            other.contested = flight.contested = True
        self._flights[step.source, step.piece] = flight
        if step.source == ORIGIN:
            flight.task = self._tasks.spawn(self._from_origin(flight))
            self._changed()
        else:
            flight.task = self._tasks.spawn(self._from_peer(flight))

    def cancel_all(self) -> None:
        for flight in self._flights.values():
            flight.cancel()

    def _others_of_piece(self, flight: _Flight) -> list[_Flight]:
        same = (other for other in self._flights.values() if other.step.piece == flight.step.piece)
        return [other for other in same if other is not flight]

    # --- sources

    async def _from_origin(self, flight: _Flight) -> None:
        start, loop = self._terms.layout.start(flight.step.piece), asyncio.get_running_loop()

        def keep(chunk: bytes) -> None:
            flight.sink.write(chunk)
            loop.call_soon_threadsafe(self._note_bytes, len(chunk), False)

        def fetch() -> None:
            for offset, length in flight.sink.ranges:
                if not flight.cancelled.is_set():
                    self._origin.fetch(start + offset, length, keep, flight.cancelled)

        try:
            await self._tools.on_network(fetch)
        except OriginFailed as error:
            log.info("fetching piece %d from S3 failed: %s", flight.step.piece, error)
            self._fail(flight, Failure.BROKEN)
        except (OSError, TransferError, Cancelled) as error:
            self._abort_session(flight, error)
        else:
            await self._finish(flight)

    async def _from_peer(self, flight: _Flight) -> None:
        step = flight.step
        peer = self._peers[step.source]
        try:
            async with peer.connection() as connection:
                for offset, length in flight.sink.ranges:
                    whole = length == self._terms.layout.length(step.piece)
                    status = await peer.get_piece(connection, step.piece, length, None if whole else offset)
                    if status != 200:
                        self._fail(flight, Failure.MISSING if status == 404 else Failure.BUSY)
                        return
                    await self._receive(flight, connection, length)
        except WholePieceOnly:
            self._whole_only.add(step.source)
            self._fail(flight, Failure.BUSY)
        except PeerStalled:
            self._fail(flight, Failure.STALLED)
        except (Broken, NotStarted, Unreachable):
            self._fail(flight, Failure.BROKEN)
        except OSError as error:
            self._abort_session(flight, error)
        else:
            await self._finish(flight)

    async def _receive(self, flight: _Flight, connection: Connection, length: int) -> None:
        async for chunk in connection.body(length, self._chunk):
            await self._tools.on_disk(flight.sink.write, chunk)
            self._note_bytes(len(chunk), True)
            if self._tools.download is not None:
                await asyncio.sleep(self._tools.download.reserve(len(chunk)))

    def _note_bytes(self, length: int, from_peer: bool) -> None:
        self.last_byte = time.monotonic()
        self._tools.on_bytes(length)
        self._chooser.received(length, self.last_byte, from_peer=from_peer)

    # --- results

    async def _finish(self, flight: _Flight) -> None:
        """Marks a piece as complete if the received bytes are right.

        If two sources wrote the piece, or some of its blocks were copied, the piece on disk is verified too."""
        store, step = self.store, flight.step
        assert store is not None
        if not flight.sink.is_right():
            self._reject(flight)
            return
        flight.sink.close()
        self._cancel_others(flight)
        while flight.contested or flight.sink.partial:
            flight.contested = False
            right = await self._tools.on_disk(store.is_right_on_disk, step.piece)
            if flight.contested:
                # Another source started to write there meanwhile, and may have finished already.
                self._cancel_others(flight)
                continue
            if right:
                break
            store.forget_blocks(step.piece)
            self._chooser.lengths.pop(step.piece, None)
            self._fail(flight, Failure.BUSY)
            return
        if self._flights.pop((step.source, step.piece), None) is None:
            return
        self._chooser.arrived(step.source, step.piece, time.monotonic())
        store.have |= 1 << step.piece
        if step.source != ORIGIN:
            self.figures.peer_bytes += flight.sink.wanted
        self._on_progress(self._terms.layout.bytes_of(store.have), self._terms.layout.size)
        self._changed()
        await self._tools.on_disk(_hash_ahead, store)

    def _cancel_others(self, flight: _Flight) -> None:
        for other in self._others_of_piece(flight):
            other.cancel()
            del self._flights[other.step.source, other.step.piece]
            self._chooser.cancelled(other.step.source, other.step.piece)

    def _reject(self, flight: _Flight) -> None:
        if flight.step.source == ORIGIN:
            self._abort_session(flight, ChecksumMismatch(f"piece {flight.step.piece} from S3 has a wrong SHA-256"))
            return
        peer_id = self._terms.peers[flight.step.source].id
        log.warning("peer %s sent a wrong piece %d; it is not asked again in this Job", peer_id, flight.step.piece)
        self.figures.bad_pieces += 1
        if peer_id not in self.figures.bad_peers and len(self.figures.bad_peers) < _MOST_BAD_PEERS:
            self.figures.bad_peers.append(peer_id)
        self._fail(flight, Failure.BAD)

    def _fail(self, flight: _Flight, failure: Failure) -> None:
        flight.sink.close()
        if self._flights.get((flight.step.source, flight.step.piece)) is flight:
            del self._flights[flight.step.source, flight.step.piece]
            self._chooser.failed(flight.step.source, flight.step.piece, failure, time.monotonic())
            self._changed()

    def _abort_session(self, flight: _Flight, error: BaseException) -> None:
        """Ends the session, because the disk or S3 failed and another source would not help."""
        self._fail(flight, Failure.BROKEN)
        self._tasks.fail(error)


def _hash_ahead(store: PieceStore) -> None:
    try:
        store.hash_ahead()
    except StaleFile:
        return
