"""One swarm of this host: follows its neighbours, fetches what the chooser says, and serves what it has."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from tidegate_client.agent.rate_limit import RateLimit
from tidegate_client.content import Progress
from tidegate_client.download import Cancelled
from tidegate_client.download import Stalled as NoBytes
from tidegate_client.errors import ChecksumMismatch, TransferError
from tidegate_client.swarm.chooser import Chooser, Rules
from tidegate_client.swarm.identity import client_context
from tidegate_client.swarm.layout import DIGEST_BYTES
from tidegate_client.swarm.neighbours import ORIGIN, Failure, Link, Mode, Neighbour, Step
from tidegate_client.swarm.news import News, frame_bytes, read_frame
from tidegate_client.swarm.origin import Origin, OriginFailed
from tidegate_client.swarm.peers import Broken, NotStarted, Peer, Stalled, Unreachable
from tidegate_client.swarm.ranks import Ranks
from tidegate_client.swarm.store import PieceStore, Sink, StaleFile
from tidegate_client.swarm.terms import Terms, is_piece_list

log = logging.getLogger("tidegate.agent")
T = TypeVar("T")

TICK = 0.1
_TRY_AGAIN_REFUSED, _TRY_AGAIN_SILENT, _LONGEST_SILENCE = 1.0, 10.0, 120.0
_NEWS_PAUSE = 0.02
_MOST_RECHECKS = 2
_MOST_BAD_PEERS = 4
_LIST_TRIES = 4


class NoList(Exception):
    """Neither a neighbour nor S3 gave the list of pieces: the file is downloaded without a swarm."""


class Phase(Enum):
    FETCHING = "fetching"
    SEEDING = "seeding"
    OVER = "over"


@dataclass(slots=True)
class Figures:
    """What the host says of a delivery when it has ended."""

    origin_bytes: int = 0
    peer_bytes: int = 0
    bad_pieces: int = 0
    fell_back: str = Mode.NONE.value
    bad_peers: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Tools:
    """What sessions of one agent share."""

    agent_id: str
    disk: Executor
    network: Executor
    download: RateLimit | None


@dataclass(slots=True, eq=False)
class _Flight:
    """One piece on its way from one source."""

    step: Step
    sink: Sink
    cancelled: threading.Event = field(default_factory=threading.Event)
    # Two sources wrote to the same place of the file at some time: then only the disk tells what is there.
    contested: bool = False
    task: asyncio.Task[None] | None = None

    def call_off(self) -> None:
        self.cancelled.set()
        self.sink.close()
        if self.task is not None:
            self.task.cancel()


class Session:
    """Lives in one event loop; `fetch` ends when the file is whole, serving goes on until `close`."""

    def __init__(
        self,
        terms: Terms,
        descriptor: int,
        origin: Origin,
        tools: Tools,
        *,
        cancelled: Callable[[], bool],
        on_progress: Progress,
        patience: float,
    ) -> None:
        self.terms = terms
        self.accept = terms.accept
        self.figures = Figures()
        self.phase = Phase.FETCHING
        self.reached = False
        self.store: PieceStore | None = None
        self._descriptor = descriptor
        self._origin = origin
        self._tools = tools
        self._cancelled = cancelled
        self._on_progress = on_progress
        self._patience = patience
        context = client_context()
        self._peers = [Peer(peer, terms.id, tools.agent_id, context) for peer in terms.peers]
        self._near = {peer.id for peer in terms.peers if peer.near}
        self._wake = asyncio.Event()
        self._list_found: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._list_found.add_done_callback(lambda found: found.cancelled() or found.exception())
        self._news = News(terms.layout, self._pieces_told)
        self._flights: dict[tuple[int, int], _Flight] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_byte = time.monotonic()
        self._broken: BaseException | None = None
        self.met_anyone = False
        layout = terms.layout
        self._ranking = Ranks(terms.number, terms.members, terms.seed, layout.count)
        line = tools.download.bytes_a_second if tools.download else None
        rules = Rules(terms.ranks, terms.hold, terms.patience, line, terms.lasts)
        neighbours = [Neighbour(near=peer.near) for peer in terms.peers]
        self._chooser = Chooser(layout, self._ranking, rules, neighbours, time.monotonic())

    @property
    def mode(self) -> Mode:
        return self._chooser.mode

    # --- fetching

    async def fetch(self, signature: str) -> None:
        """Returns when the whole file is on the disk and right."""
        try:
            for place, peer in enumerate(self._peers):
                self._spawn(self._follow(place, peer))
            self._spawn(self._find_list())
            await self._open_store()
            for _ in range(_MOST_RECHECKS + 1):
                await self._fetch_missing()
                if await self._on_disk(self._whole_digest) == signature.lower():
                    return
                await self._recheck()
            raise ChecksumMismatch(f"the pieces are right and the file is not the announced {signature.lower()}")
        finally:
            self.figures.origin_bytes = self._origin.received
            self.figures.fell_back = self._chooser.mode.value
            await self._stop_fetching()

    async def _open_store(self) -> None:
        while not self._list_found.done():
            self._check_on_things()
            await asyncio.wait([self._list_found], timeout=TICK)
        store = PieceStore(self._descriptor, self.terms.layout, self._list_found.result())
        self._chooser.begin(await self._on_disk(store.take_over), time.monotonic())
        self.store = store
        self._news.changed()

    async def _fetch_missing(self) -> None:
        while not self._chooser.complete:
            self._check_on_things()
            for step in self._chooser.next(time.monotonic()):
                self._start(step)
            self._wake.clear()
            try:
                async with asyncio.timeout(TICK):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _check_on_things(self) -> None:
        if self._cancelled():
            raise Cancelled
        if self._broken is not None:
            raise self._broken
        if time.monotonic() - self._last_byte > self._patience:
            raise NoBytes(f"no byte for {self._patience:.0f} s from any peer or the store")

    def _whole_digest(self) -> str:
        assert self.store is not None
        try:
            return self.store.whole_digest()
        except StaleFile:
            return ""

    async def _recheck(self) -> None:
        assert self.store is not None
        lost = await self._on_disk(self.store.recheck)
        log.warning("%d pieces of the part file were changed underneath", lost.bit_count())
        self._chooser.lost(lost)
        self._news.changed()

    async def _stop_fetching(self) -> None:
        for flight in self._flights.values():
            flight.call_off()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for peer in self._peers:
            peer.close()

    # --- neighbours

    async def _follow(self, place: int, peer: Peer) -> None:
        silence = _TRY_AGAIN_SILENT
        while True:
            pause = _TRY_AGAIN_REFUSED * random.uniform(0.7, 1.3)  # noqa: S311
            try:
                await self._listen_to(place, peer)
            except (NotStarted, Broken):
                self._chooser.linked(place, Link.REFUSED)
                silence = _TRY_AGAIN_SILENT
            except (Unreachable, Stalled):
                self._chooser.linked(place, Link.SILENT)
                pause, silence = silence, min(_LONGEST_SILENCE, 2 * silence)
            self._wake.set()
            await asyncio.sleep(pause)

    async def _listen_to(self, place: int, peer: Peer) -> None:
        connection = await peer.connect()
        try:
            status, _ = await peer.get(connection, "have")
            if status != 200:
                raise Broken(f"HTTP {status}")
            layout = self.terms.layout
            async for frame in connection.frames(frame_bytes(layout)):
                self.met_anyone = True
                self._chooser.linked(place, Link.UP)
                self._chooser.told(place, *read_frame(frame, layout))
                if not self._list_found.done():
                    await self._ask_for_list(peer)
                self._wake.set()
                # A peer that talks without end costs no more than this.
                await asyncio.sleep(_NEWS_PAUSE)
        finally:
            connection.close()

    async def _ask_for_list(self, peer: Peer) -> None:
        wanted = self.terms.layout.count * DIGEST_BYTES
        async with peer.connection() as connection:
            status, length = await peer.get(connection, "pieces")
            if status != 200 or length != wanted:
                if length:
                    raise Broken("that is not the list")
                return
            listed = b"".join([bytes(chunk) async for chunk in connection.body(wanted)])
        self._found(listed)

    async def _find_list(self) -> None:
        """From S3 if no neighbour has it: the first in the ring at once, the others when they had time to tell."""
        rank = self._ranking.rank(0)
        await asyncio.sleep(0.3 if rank < 2 else 0.3 + min(3.0, 0.5 + 0.02 * rank))
        wanted = self.terms.layout.count * DIGEST_BYTES
        for attempt in range(_LIST_TRIES):
            if self._list_found.done():
                return
            try:
                self._found(await self._on_network(self._origin.piece_list, self.terms.pieces_url, wanted))
                break
            except OriginFailed as error:
                log.info("the list of pieces did not come from the store: %s", error)
            await asyncio.sleep(0.5 + attempt)
        if not self._list_found.done():
            self._list_found.set_exception(NoList("no list of pieces"))

    def _found(self, listed: bytes) -> None:
        if is_piece_list(listed, self.terms) and not self._list_found.done():
            self._last_byte = time.monotonic()
            self._list_found.set_result(listed)

    # --- transfers

    def _start(self, step: Step) -> None:
        assert self.store is not None
        flight = _Flight(step, Sink(self.store, step.piece))
        for twin in self._twins(flight):
            twin.contested = flight.contested = True
        self._flights[step.source, step.piece] = flight
        if step.source == ORIGIN:
            flight.task = self._spawn(self._from_origin(flight))
            self._news.changed()
        else:
            flight.task = self._spawn(self._from_peer(flight))

    def _twins(self, flight: _Flight) -> list[_Flight]:
        same = (other for other in self._flights.values() if other.step.piece == flight.step.piece)
        return [other for other in same if other is not flight]

    async def _from_origin(self, flight: _Flight) -> None:
        piece, layout = flight.step.piece, self.terms.layout
        start, length = layout.start(piece), layout.length(piece)

        loop = asyncio.get_running_loop()

        def keep(chunk: bytes) -> None:
            flight.sink.write(chunk)
            loop.call_soon_threadsafe(self._note_bytes, len(chunk), False)

        try:
            await self._on_network(self._origin.fetch, start, length, keep, flight.cancelled)
        except OriginFailed as error:
            log.info("a piece did not come from the store: %s", error)
            self._fail(flight, Failure.BROKEN)
        except (OSError, TransferError, Cancelled) as error:
            self._break(flight, error)
        else:
            await self._finish(flight)

    async def _from_peer(self, flight: _Flight) -> None:
        step = flight.step
        peer = self._peers[step.source]
        length = self.terms.layout.length(step.piece)
        try:
            async with peer.connection() as connection:
                status, announced = await peer.get(connection, f"piece/{step.piece}")
                if status in (404, 429):
                    self._fail(flight, Failure.MISSING if status == 404 else Failure.BUSY)
                    return
                if status != 200 or announced != length:
                    raise Broken(f"HTTP {status} with {announced} bytes")
                async for chunk in connection.body(length):
                    await self._on_disk(flight.sink.write, chunk)
                    self._note_bytes(len(chunk), True)
                    if self._tools.download is not None:
                        await asyncio.sleep(self._tools.download.reserve(len(chunk)))
        except Stalled:
            self._fail(flight, Failure.STALLED)
        except (Broken, NotStarted, Unreachable):
            self._fail(flight, Failure.BROKEN)
        except OSError as error:
            self._break(flight, error)
        else:
            await self._finish(flight)

    def _note_bytes(self, length: int, from_peer: bool) -> None:
        self._last_byte = time.monotonic()
        self._chooser.received(length, self._last_byte, from_peer=from_peer)

    async def _finish(self, flight: _Flight) -> None:
        """A piece counts if what came is right and, had two been at it, if what is on the disk is right too."""
        assert self.store is not None
        step = flight.step
        if not flight.sink.is_right():
            self._is_bad(flight)
            return
        for twin in self._twins(flight):
            twin.call_off()
            del self._flights[twin.step.source, twin.step.piece]
            self._chooser.called_off(twin.step.source, twin.step.piece)
        flight.sink.close()
        if flight.contested and not await self._on_disk(self.store.on_disk_is_right, step.piece):
            self._fail(flight, Failure.BUSY)
            return
        if self._flights.pop((step.source, step.piece), None) is None:
            return
        self._chooser.arrived(step.source, step.piece, time.monotonic())
        self.store.have |= 1 << step.piece
        if step.source != ORIGIN:
            self.figures.peer_bytes += self.terms.layout.length(step.piece)
        self._on_progress(self.terms.layout.bytes_of(self.store.have), self.terms.layout.size)
        self._news.changed()
        self._wake.set()
        await self._on_disk(self._hash_ahead)

    def _hash_ahead(self) -> None:
        assert self.store is not None
        try:
            self.store.hash_ahead()
        except StaleFile:
            return

    def _is_bad(self, flight: _Flight) -> None:
        if flight.step.source == ORIGIN:
            self._break(flight, ChecksumMismatch(f"the store's piece {flight.step.piece} is not the announced one"))
            return
        name = self.terms.peers[flight.step.source].id
        log.warning("%s sent a bad piece %d and is asked no more", name, flight.step.piece)
        self.figures.bad_pieces += 1
        if name not in self.figures.bad_peers and len(self.figures.bad_peers) < _MOST_BAD_PEERS:
            self.figures.bad_peers.append(name)
        self._fail(flight, Failure.BAD)

    def _fail(self, flight: _Flight, failure: Failure) -> None:
        flight.sink.close()
        if self._flights.pop((flight.step.source, flight.step.piece), None) is flight:
            self._chooser.failed(flight.step.source, flight.step.piece, failure, time.monotonic())
            if flight.step.source == ORIGIN:
                self._news.changed()
            self._wake.set()

    def _break(self, flight: _Flight, error: BaseException) -> None:
        """The disk or the store failed in a way that no other source mends."""
        self._fail(flight, Failure.BROKEN)
        self._broken = self._broken or error

    # --- serving

    def piece_list(self) -> bytes | None:
        return self.store.piece_list if self.store else None

    def has(self, piece: int) -> bool:
        return self.store is not None and bool(self.store.have >> piece & 1)

    def piece_length(self, piece: int) -> int:
        return self.terms.layout.length(piece)

    async def read(self, piece: int, offset: int, length: int) -> bytes:
        assert self.store is not None
        try:
            return await self._on_disk(self.store.read, piece, offset, length)
        except StaleFile:
            # Say so to everyone who follows: there is nothing here any more.
            self.store.have = 0
            self._news.changed()
            raise

    def is_near(self, caller: str) -> bool:
        return caller in self._near

    def called(self) -> None:
        self.reached = True

    def subscribe(self, writer: asyncio.StreamWriter) -> None:
        self._news.follow(writer)

    def unsubscribe(self, writer: asyncio.StreamWriter) -> None:
        self._news.leave(writer)

    def _pieces_told(self) -> tuple[int, int]:
        bringing = self._chooser.bringing if self.phase is Phase.FETCHING else 0
        return self.store.have if self.store else 0, bringing

    def hold(self, store: PieceStore) -> None:
        """The host had the file already."""
        self.store = store
        self._chooser.have = store.have

    def seed(self) -> None:
        """The file has its final name: from now on only serve."""
        if self.store is not None:
            self.store.seal()
        self.phase = Phase.SEEDING

    def close(self) -> None:
        self.phase = Phase.OVER
        self._news.close()
        if self.store is not None:
            self.store.close()

    # --- tasks and threads

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken = self._broken or error
            self._wake.set()

    async def _on_disk(self, call: Callable[..., T], *values: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._tools.disk, call, *values)

    async def _on_network(self, call: Callable[..., T], *values: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._tools.network, call, *values)
