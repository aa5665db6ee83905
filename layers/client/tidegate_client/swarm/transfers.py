"""Pieces on their way to a host, each from one source: received, checked, and counted or fetched elsewhere."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tidegate_client.content import Progress
from tidegate_client.download import Cancelled
from tidegate_client.errors import ChecksumMismatch, TransferError
from tidegate_client.swarm.choosing.chooser import Chooser
from tidegate_client.swarm.choosing.neighbours import ORIGIN, Failure, FellBack, Step
from tidegate_client.swarm.origin import Origin, OriginFailed
from tidegate_client.swarm.peers import Broken, Connection, NotStarted, Peer, Stalled, Unreachable, WholePieceOnly
from tidegate_client.swarm.store import PieceStore, Sink, StaleFile
from tidegate_client.swarm.tasks import Tasks, Tools
from tidegate_client.swarm.terms import Terms
from tidegate_client.swarm.wire import BUFFER_BYTES

log = logging.getLogger("tidegate.agent")

_MOST_BAD_PEERS = 4
# With a limited rate a chunk is at most what comes in an eighth of a second: a sender closes after ten seconds in which
# nothing was read, and several pieces share the rate.
_CHUNKS_A_SECOND, _SMALLEST_CHUNK = 8, 16 * 1024


@dataclass(slots=True)
class Figures:
    """What the host says of a delivery when it has ended."""

    origin_bytes: int = 0
    peer_bytes: int = 0
    bad_pieces: int = 0
    fell_back: str = FellBack.NONE.value
    bad_peers: list[str] = field(default_factory=list)
    # Found in an older version; None if the API does not speak of blocks.
    reused_bytes: int | None = None


@dataclass(slots=True, eq=False)
class _Flight:
    """One piece on its way from one source."""

    step: Step
    sink: Sink
    cancelled: threading.Event = field(default_factory=threading.Event)
    # Two sources wrote to the same place of the file: the piece must be read back from the disk and checked.
    contested: bool = False
    task: asyncio.Task[None] | None = None

    def call_off(self) -> None:
        self.cancelled.set()
        self.sink.close()
        if self.task is not None:
            self.task.cancel()


class Transfers:
    """`changed` is called when the host has more to tell its neighbours, or has to decide anew."""

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
        # Neighbours of an older version, which know no ranges.
        self._whole_only: set[int] = set()
        limit = tools.download
        self._chunk = max(_SMALLEST_CHUNK, int(limit.bytes_a_second / _CHUNKS_A_SECOND)) if limit else BUFFER_BYTES
        self.figures = Figures()
        self.last_byte = time.monotonic()
        self.store: PieceStore | None = None

    def start(self, step: Step) -> None:
        assert self.store is not None
        flight = _Flight(step, Sink(self.store, step.piece, whole=step.source in self._whole_only))
        for twin in self._twins(flight):
            twin.contested = flight.contested = True
        self._flights[step.source, step.piece] = flight
        if step.source == ORIGIN:
            flight.task = self._tasks.spawn(self._from_origin(flight))
            self._changed()
        else:
            flight.task = self._tasks.spawn(self._from_peer(flight))

    def call_off(self) -> None:
        for flight in self._flights.values():
            flight.call_off()

    def _twins(self, flight: _Flight) -> list[_Flight]:
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
            log.info("a piece did not come from the store: %s", error)
            self._fail(flight, Failure.BROKEN)
        except (OSError, TransferError, Cancelled) as error:
            self._break(flight, error)
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
        except Stalled:
            self._fail(flight, Failure.STALLED)
        except (Broken, NotStarted, Unreachable):
            self._fail(flight, Failure.BROKEN)
        except OSError as error:
            self._break(flight, error)
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
        self._chooser.received(length, self.last_byte, from_peer=from_peer)

    # --- ends

    async def _finish(self, flight: _Flight) -> None:
        """A piece counts if what came is right and, had two been at it or were parts of it here, if the disk is too."""
        store, step = self.store, flight.step
        assert store is not None
        if not flight.sink.is_right():
            self._is_bad(flight)
            return
        flight.sink.close()
        self._call_off_twins(flight)
        while flight.contested or flight.sink.partial:
            flight.contested = False
            right = await self._tools.on_disk(store.on_disk_is_right, step.piece)
            if flight.contested:
                # Another source began to write there meanwhile, and may have ended already.
                self._call_off_twins(flight)
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

    def _call_off_twins(self, flight: _Flight) -> None:
        for twin in self._twins(flight):
            twin.call_off()
            del self._flights[twin.step.source, twin.step.piece]
            self._chooser.called_off(twin.step.source, twin.step.piece)

    def _is_bad(self, flight: _Flight) -> None:
        if flight.step.source == ORIGIN:
            self._break(flight, ChecksumMismatch(f"the store's piece {flight.step.piece} is not the announced one"))
            return
        name = self._terms.peers[flight.step.source].id
        log.warning("%s sent a bad piece %d and is asked no more", name, flight.step.piece)
        self.figures.bad_pieces += 1
        if name not in self.figures.bad_peers and len(self.figures.bad_peers) < _MOST_BAD_PEERS:
            self.figures.bad_peers.append(name)
        self._fail(flight, Failure.BAD)

    def _fail(self, flight: _Flight, failure: Failure) -> None:
        flight.sink.close()
        if self._flights.get((flight.step.source, flight.step.piece)) is flight:
            del self._flights[flight.step.source, flight.step.piece]
            self._chooser.failed(flight.step.source, flight.step.piece, failure, time.monotonic())
            self._changed()

    def _break(self, flight: _Flight, error: BaseException) -> None:
        """The disk or the store failed in a way that no other source mends."""
        self._fail(flight, Failure.BROKEN)
        self._tasks.fail(error)


def _hash_ahead(store: PieceStore) -> None:
    try:
        store.hash_ahead()
    except StaleFile:
        return
