"""One file in its swarm (`Session`), and all sessions of a host (`Sessions`)."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable
from enum import Enum

from tidegate_client.compat import count_bits, timeout
from tidegate_client.download import Cancelled
from tidegate_client.download import Stalled as NoBytes
from tidegate_client.errors import ChecksumMismatch
from tidegate_client.swarm.chooser import Chooser, Mode, Neighbour, Ranks, Rules, why_fell_back
from tidegate_client.swarm.peers import Links, Origin, Peer, SharedList
from tidegate_client.swarm.port import News, client_context
from tidegate_client.swarm.store import (
    BLOCKS_A_PIECE,
    ENTRY_BYTES,
    BlockList,
    OldFile,
    PieceStore,
    StaleFile,
    block_count,
)
from tidegate_client.swarm.transfers import Figures, Tasks, Tools, Transfers
from tidegate_client.swarm.wire import DIGEST_BYTES, Terms, pieces_in
from tidegate_client.uploads import Progress

# --- session
# One swarm of this host: follows its neighbours, fetches the pieces that the chooser picks, and serves its own.

log = logging.getLogger("tidegate.agent")

TICK = 0.1
_MOST_RECHECKS = 2
# How long to wait for the list of blocks.
_BLOCKS_SECONDS = 6.0
# An old file is not searched if it is more than this many times as large as the new one.
_OLD_AT_MOST = 4


class NoList(Exception):
    """Neither a neighbour nor S3 sent the list of pieces, so the swarm cannot be used."""


class Phase(Enum):
    FETCHING = "fetching"
    SEEDING = "seeding"
    OVER = "over"


class Session:
    """Fetches one file with its swarm and serves it to other hosts, until `close`. Belongs to one event loop."""

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
        old: OldFile | None = None,
    ) -> None:
        self.terms = terms
        self.accept = terms.accept
        self.phase = Phase.FETCHING
        self.reached = False
        # The Job's deadline has passed: the file is not offered any more.
        self.lapsed = False
        self.timer: asyncio.TimerHandle | None = None
        self.store: PieceStore | None = None
        self._descriptor = descriptor
        self._origin = origin
        self._tools = tools
        self._cancelled = cancelled
        self._patience = patience
        self._old = old
        context = client_context()
        self._peers = [Peer(peer, terms.id, tools.agent_id, context) for peer in terms.peers]
        self._near = {peer.id for peer in terms.peers if peer.near}
        self._wake = asyncio.Event()
        self._news = News(terms.layout, self._announced_pieces)
        layout = terms.layout
        self._ranking = Ranks(terms.number, terms.members, terms.seed, layout.count)
        line = tools.download.bytes_a_second if tools.download else None
        line = line if line != math.inf else None
        rules = Rules(terms.ranks, terms.hold, terms.patience, line, terms.lasts)
        neighbours = [Neighbour(near=peer.near) for peer in terms.peers]
        self._chooser = Chooser(layout, self._ranking, rules, neighbours, time.monotonic())
        self._pieces = SharedList("pieces", layout.count * DIGEST_BYTES, terms.pieces_sha256)
        self._blocks = self._block_list()
        lists = [self._pieces, *([self._blocks] if self._blocks else [])]
        self._links = Links(self._peers, layout, self._chooser, lists, self._wake)
        self._tasks = Tasks(self._wake)
        self._transfers = Transfers(
            terms,
            self._peers,
            origin,
            self._chooser,
            tools,
            self._tasks,
            changed=self._changed,
            on_progress=on_progress,
        )

    def _block_list(self) -> SharedList | None:
        """Returns the block list that is to be fetched; None if there is no suitable older version to copy blocks
        from."""
        layout, old = self.terms.layout, self._old
        if old is None or self.terms.blocks_sha256 is None or layout.piece_size % BLOCKS_A_PIECE:
            return None
        if not layout.piece_size <= old.size <= _OLD_AT_MOST * layout.size:
            return None
        length = block_count(layout) * ENTRY_BYTES
        return SharedList("blocks", length, self.terms.blocks_sha256, optional=True)

    @property
    def mode(self) -> Mode:
        return self._chooser.mode

    @property
    def figures(self) -> Figures:
        return self._transfers.figures

    @property
    def met_anyone(self) -> bool:
        return self._links.met_anyone

    # --- fetching

    async def fetch(self, signature: str) -> None:
        """Fetches the file; returns once all of it is on disk and has this SHA-256."""
        try:
            for place in range(len(self._peers)):
                self._tasks.spawn(self._links.follow(place))
            self._tasks.spawn(self._find(self._pieces, self.terms.pieces_url))
            if self._blocks is not None:
                self._tasks.spawn(self._find(self._blocks, self.terms.blocks_url))
            await self._open_store()
            for _ in range(_MOST_RECHECKS + 1):
                await self._fetch_missing()
                if await self._tools.on_disk(self._whole_digest) == signature.lower():
                    return
                await self._recheck()
            raise ChecksumMismatch(f"all pieces are right, but the SHA-256 of the file is not {signature.lower()}")
        finally:
            self.figures.origin_bytes = self._origin.received
            why = why_fell_back(self._chooser.mode, peers=len(self._peers), bad_pieces=self.figures.bad_pieces)
            self.figures.fell_back = why.value
            await self._stop_fetching()

    async def _find(self, wanted: SharedList, url: str) -> None:
        async def fetch() -> bytes:
            return await self._tools.on_network(self._origin.list_at, url, wanted.length)

        await wanted.find(self._ranking.rank(0), fetch)

    async def _open_store(self) -> None:
        while not await self._pieces.wait(TICK):
            self._raise_if_stopped()
        if self._pieces.content is None:
            raise NoList("neither a peer nor S3 sent a valid list of pieces")
        store = PieceStore(self._descriptor, self.terms.layout, self._pieces.content)
        try:
            await self._tools.on_disk(store.load_existing, self._raise_if_cancelled)
        except BaseException:
            # Nobody else would close it, and an open descriptor keeps the disk space of the deleted part file in use.
            store.close()
            raise
        self._transfers.store = self.store = store
        self._transfers.last_byte = time.monotonic()
        if self._blocks is not None and store.have != self.terms.layout.everything:
            await self._reuse(store, self._blocks)
        self._transfers.last_byte = time.monotonic()
        self._chooser.begin(store.have, self._transfers.last_byte)
        self._changed()

    async def _reuse(self, store: PieceStore, listed: SharedList) -> None:
        """Copies unchanged blocks from the older version, so that only the other blocks are fetched."""
        self.figures.reused_bytes = 0
        until = time.monotonic() + _BLOCKS_SECONDS
        while not await listed.wait(TICK) and time.monotonic() < until:
            self._raise_if_stopped()
        if listed.content is None or self._old is None:
            return
        blocks, old = BlockList(self.terms.layout, listed.content), self._old
        self.figures.reused_bytes = await self._tools.on_disk(store.reuse, old, blocks, self._raise_if_cancelled)
        layout = self.terms.layout
        missing = ((piece, store.missing_bytes(piece)) for piece in pieces_in(layout.everything & ~store.have))
        self._chooser.lengths = {piece: length for piece, length in missing if length < layout.length(piece)}

    def _raise_if_cancelled(self) -> None:
        if self._cancelled():
            raise Cancelled

    async def _fetch_missing(self) -> None:
        while not self._chooser.complete:
            self._raise_if_stopped()
            for step in self._chooser.next(time.monotonic()):
                self._transfers.start(step)
            self._wake.clear()
            try:
                async with timeout(TICK):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _raise_if_stopped(self) -> None:
        self._raise_if_cancelled()
        if self._tasks.error is not None:
            raise self._tasks.error
        if time.monotonic() - self._transfers.last_byte > self._patience:
            raise NoBytes(f"no byte was received for {self._patience:.0f} s from any peer or from S3")

    def _whole_digest(self) -> str:
        assert self.store is not None
        try:
            return self.store.whole_digest()
        except StaleFile:
            return ""

    async def _recheck(self) -> None:
        assert self.store is not None
        lost = await self._tools.on_disk(self.store.recheck)
        log.warning("another process changed %d pieces of the part file; they are fetched again", count_bits(lost))
        self._chooser.lost(lost)
        self._changed()

    async def _stop_fetching(self) -> None:
        self._transfers.cancel_all()
        await self._tasks.stop()
        for peer in self._peers:
            peer.close()

    def _changed(self) -> None:
        self._news.changed()
        self._wake.set()

    # --- serving

    def list_of(self, name: str) -> bytes | None:
        """Returns the list `pieces` or `blocks`; None if this host does not have it."""
        if name == "blocks":
            return self._blocks.content if self._blocks else None
        return self.store.piece_list if self.store else None

    def has(self, piece: int) -> bool:
        return self.store is not None and bool(self.store.have >> piece & 1)

    def piece_length(self, piece: int) -> int:
        return self.terms.layout.length(piece)

    async def read(self, piece: int, offset: int, length: int) -> bytes:
        assert self.store is not None
        try:
            return await self._tools.on_disk(self.store.read, piece, offset, length)
        except StaleFile:
            # Announce to all followers that this host has no pieces any more.
            self.store.have = 0
            self._news.changed()
            raise

    def is_near(self, caller: str) -> bool:
        return caller in self._near

    def mark_reached(self) -> None:
        self.reached = True

    def subscribe(self, writer: asyncio.StreamWriter) -> None:
        self._news.subscribe(writer)

    def unsubscribe(self, writer: asyncio.StreamWriter) -> None:
        self._news.unsubscribe(writer)

    def _announced_pieces(self) -> tuple[int, int]:
        fetching = self._chooser.fetching if self.phase is Phase.FETCHING else 0
        return self.store.have if self.store else 0, fetching

    def use_complete(self, store: PieceStore) -> None:
        """Serves a file that the host had already. Nothing is fetched."""
        self.store = store
        self._chooser.have = store.have

    def seed(self) -> None:
        """Ends fetching. From now on, the session only serves. Call this when the file has its final name."""
        if self.store is not None:
            self.store.seal()
        self.phase = Phase.SEEDING

    def is_stale(self) -> bool:
        """Returns whether the file that is served was changed, replaced or removed."""
        return self.phase is Phase.SEEDING and self.store is not None and self.store.is_stale()

    def close(self) -> None:
        self.phase = Phase.OVER
        if self.timer is not None:
            self.timer.cancel()
        self._news.close()
        if self.store is not None:
            self.store.close()


# --- sessions
# The sessions of an agent by swarm id. One delivery reserves a swarm; others of the same host wait for its file.

_WAIT_SECONDS = 0.2


class Sessions:
    """The sessions of a host by swarm id. Used by the delivery threads and by the event loop.

    One delivery fetches a file. Other deliveries of the same file on this host wait and copy it."""

    def __init__(self) -> None:
        # None while a delivery has reserved the swarm and not opened its session yet.
        self._by_id: dict[str, Session | None] = {}
        self._changed = threading.Condition()

    def __getitem__(self, swarm_id: str) -> Session | None:
        return self._by_id[swarm_id]

    def get(self, swarm_id: str) -> Session | None:
        return self._by_id.get(swarm_id)

    def ids(self) -> list[str]:
        return list(self._by_id)

    def reserve(self, swarm_id: str) -> bool:
        """Reserves a swarm for one delivery; returns False if another delivery of this host has reserved it."""
        with self._changed:
            if swarm_id in self._by_id:
                return False
            self._by_id[swarm_id] = None
            return True

    def release(self, swarm_id: str) -> None:
        with self._changed:
            self._by_id.pop(swarm_id, None)
            self._changed.notify_all()

    def opened(self, swarm_id: str, session: Session) -> None:
        with self._changed:
            self._by_id[swarm_id] = session

    def changed(self) -> None:
        """Wakes the deliveries that wait for a session's file."""
        with self._changed:
            self._changed.notify_all()

    def remove(self, swarm_id: str, expected: Session | None = None) -> Session | None:
        """Removes the session of a swarm and returns it.

        Returns None if there is no session, or if it is not the `expected` one. Then nothing is removed."""
        with self._changed:
            session = self._by_id.get(swarm_id)
            if session is None or (expected is not None and session is not expected):
                return None
            del self._by_id[swarm_id]
            self._changed.notify_all()
            return session

    def wait_for_file(self, swarm_id: str, cancelled: Callable[[], bool]) -> Session | None:
        """Waits until the other delivery has the file and returns its session; None if that delivery failed."""
        while True:
            with self._changed:
                if swarm_id not in self._by_id:
                    return None
                session = self._by_id[swarm_id]
                if session is not None and session.phase is not Phase.FETCHING:
                    return session
                self._changed.wait(_WAIT_SECONDS)
            if cancelled():
                raise Cancelled
