"""All swarms of one agent: an event loop in its own thread, one port, and a session for each swarm.

A delivery joins the swarm of its transfer, fetches the file and puts it in place. The session stays, and serves the
file to other hosts until the Job ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import urllib3

from tidegate_client.compat import FutureTimeout
from tidegate_client.download import Stalled as NoBytes
from tidegate_client.download import UrlSource
from tidegate_client.errors import ChecksumMismatch, TransferError
from tidegate_client.inputs import Presence, SwarmFigures, Transfer
from tidegate_client.rates import RateLimit
from tidegate_client.swarm.chooser import FellBack, Mode
from tidegate_client.swarm.peers import Origin, Reach
from tidegate_client.swarm.port import PeerServer, Slots, load_identity, no_port_reason
from tidegate_client.swarm.session import NoList, Phase, Session, Sessions
from tidegate_client.swarm.store import OldFile, PieceStore, complete_store, copy_file
from tidegate_client.swarm.transfers import DaemonThreads, Figures, Tools
from tidegate_client.swarm.wire import BadTerms, Terms, read_terms
from tidegate_client.uploads import Progress

log = logging.getLogger("tidegate.agent")
T = TypeVar("T")

_DISK_THREADS, NETWORK_THREADS = 4, 16
# How often sessions are checked for files that were changed or removed.
LOOK_SECONDS = 60.0


@dataclass(frozen=True)
class SwarmOptions:
    """How a host takes part in swarms. Without `listen`, the host fetches from other hosts but serves none.

    `upload_rate`: bytes a second; None: no limit."""

    listen: tuple[tuple[str, int], ...] = ()
    site: str = ""
    zone: str = ""
    upload_rate: float | None = None


class NoSwarm(Exception):
    """The file must be downloaded from S3 without the swarm. `why` is reported to the API."""

    def __init__(self, message: str = "", why: FellBack = FellBack.BROKEN, tried: SwarmFigures | None = None) -> None:
        """`tried`: the figures of the swarm until it failed; None if the swarm was not tried."""
        super().__init__(message)
        self._why = why
        self._tried = tried

    def figures(self, downloaded: int) -> SwarmFigures:
        """Returns the figures to report after the file was downloaded from S3."""
        tried = self._tried or cast(SwarmFigures, asdict(Figures()) | {"reused_bytes": 0})
        total = {"origin_bytes": tried["origin_bytes"] + downloaded, "peer_bytes": 0, "reused_bytes": 0}
        return cast(SwarmFigures, tried | total | {"fell_back": self._why.value})


class SwarmHost:
    """The swarms of one host.

    `join` fetches a file with a swarm; afterwards, the session of the swarm serves the file."""

    def __init__(
        self,
        agent_id: str,
        state_dir: Path,
        options: SwarmOptions,
        download: RateLimit | None = None,
        on_bytes: Callable[[int], None] = lambda _count: None,
    ) -> None:
        # Why there is no peer port although one was asked for.
        self.no_port = no_port_reason() if options.listen else None
        if self.no_port:
            log.warning("%s", self.no_port)
            options = replace(options, listen=())
        self._options = options
        self._identity = load_identity(state_dir) if options.listen else None
        self._tools = Tools(
            agent_id,
            disk=DaemonThreads(_DISK_THREADS, "swarm-disk"),
            network=DaemonThreads(NETWORK_THREADS, "swarm-s3"),
            download=download,
            on_bytes=on_bytes,
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="swarm", daemon=True)
        upload = RateLimit(options.upload_rate, saved_seconds=0.05) if options.upload_rate else None
        context = self._identity.server_context if self._identity else None
        self._server = PeerServer(list(options.listen), context, Slots(), upload)
        self._sessions = Sessions()
        self.reach = Reach()

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The addresses at which other hosts can connect; empty if the ports could not be bound."""
        return self._server.addresses

    def start(self) -> None:
        try:
            self._server.bind()
        except OSError as error:
            log.warning("the peer port cannot be bound, so this host only fetches from peers: %s", error)
        self._thread.start()
        self._loop.call_soon_threadsafe(self._look)

    def close(self) -> None:
        if self._thread.is_alive():
            with contextlib.suppress(FutureTimeout):
                self._call(self._shut_down(), timeout=5.0)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(5.0)
        if not self._loop.is_running():
            self._loop.close()
        self._tools.disk.shutdown(wait=False, cancel_futures=True)
        self._tools.network.shutdown(wait=False, cancel_futures=True)

    async def _shut_down(self) -> None:
        for swarm_id in self._sessions.ids():
            self._end(swarm_id)
        await self._server.close()

    def presence(self) -> Presence:
        """Returns site, zone and addresses of this host, for the API."""
        rate = self._options.upload_rate
        return {
            "listen": [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.addresses],
            "site": self._options.site,
            "zone": self._options.zone,
            "pin": self._identity.pin if self._identity else "",
            "upload_mbit": round(rate * 8 / 1e6, 3) if rate else None,
            "reached": self.reach.is_reached,
        }

    # --- called by a delivery, in its own thread

    @contextlib.contextmanager
    def join(
        self,
        transfer: Transfer,
        file: BinaryIO,
        get_url: UrlSource,
        *,
        pool: urllib3.PoolManager,
        cancelled: Callable[[], bool],
        on_progress: Progress,
        patience: float,
        limit: RateLimit | None = None,
        old: BinaryIO | None = None,
    ) -> Iterator[Participation]:
        """Opens the session of a transfer. The session is closed after the block, unless `seed` was called.

        `old`: an older version of the file; its unchanged blocks are copied instead of fetched. Raises NoSwarm, at the
        start or within the block, if the file must be downloaded without the swarm."""
        # Only a swarm can use scattered pieces of a part file, so it continues even if no peer can be reached.
        terms = self._terms(transfer, even_alone=os.fstat(file.fileno()).st_size > 0)
        while not self._sessions.reserve(terms.id):
            if self._copy_local(terms, transfer["signature"], file, cancelled):
                yield Participation(self, None, transfer["signature"])
                return
        tools = replace(self._tools, download=limit or self._tools.download)
        origin = Origin(pool, get_url, tools.download)
        try:
            found = OldFile(old.fileno()) if old is not None else None
            session = self._call(
                self._open(terms, file.fileno(), origin, cancelled, on_progress, patience, tools, found)
            )
        except BaseException:
            self._sessions.release(terms.id)
            raise
        participation = Participation(self, session, transfer["signature"])
        try:
            yield participation
        except NoSwarm:
            # A direct download resumes at the end of the part file, so scattered pieces are of no use to it.
            file.seek(0)
            file.truncate()
            raise
        finally:
            if not participation.seeds:
                self._loop.call_soon_threadsafe(self._end, terms.id)

    def _terms(self, transfer: Transfer, *, even_alone: bool = False) -> Terms:
        given, size = transfer.get("swarm"), transfer.get("size")
        if not given or not size:
            raise NoSwarm
        if self.reach.is_alone and not even_alone:
            raise NoSwarm("no peer could be reached within the last hour", FellBack.ALONE)
        try:
            return read_terms(given, size)
        except BadTerms as error:
            log.warning("%s", error)
            raise NoSwarm from error

    def seed_existing(self, transfer: Transfer, file: BinaryIO, pool: urllib3.PoolManager) -> None:
        """Serves a file that is already in place to other hosts. A failure does not affect the delivery."""
        try:
            terms = self._terms(transfer)
        except NoSwarm:
            return
        if not self._options.listen or not self._sessions.reserve(terms.id):
            return
        try:
            store = complete_store(file, terms)
        except BaseException:
            self._sessions.release(terms.id)
            raise
        if store is None:
            self._sessions.release(terms.id)
            return
        origin = Origin(pool, lambda _: transfer["url"], self._tools.download)
        try:
            self._call(self._seed_complete(terms, store, file.fileno(), origin))
        except OSError as error:
            log.info("the file is not offered to peers: %s", error)

    @contextlib.contextmanager
    def changing(self, transfer: Transfer) -> Iterator[None]:
        """Suspends serving a file while the agent renames it or changes its owner or mode."""
        session = self._sessions.get(str((transfer.get("swarm") or {}).get("id")))
        store = session.store if session is not None else None
        with store.changing() if store is not None else contextlib.nullcontext():
            yield

    def _copy_local(self, terms: Terms, signature: str, file: BinaryIO, cancelled: Callable[[], bool]) -> bool:
        """Waits until another delivery on this host has this file, then copies the file.

        Returns False if the other delivery failed."""
        session = self._sessions.wait_for_file(terms.id, cancelled)
        if session is None:
            return False
        if not copy_file(session.store, signature, file):
            raise NoSwarm("the file of another container was changed before it could be copied")
        return True

    # --- in the event loop

    async def _open(
        self,
        terms: Terms,
        descriptor: int,
        origin: Origin,
        cancelled: Callable[[], bool],
        on_progress: Progress,
        patience: float,
        tools: Tools | None = None,
        old: OldFile | None = None,
    ) -> Session:
        session = Session(
            terms,
            descriptor,
            origin,
            tools or self._tools,
            cancelled=cancelled,
            on_progress=on_progress,
            patience=patience,
            old=old,
        )
        self._sessions.opened(terms.id, session)
        if self._options.listen:
            self._server.add(terms.id, session)
        session.timer = self._loop.call_later(terms.lasts, self._lapse, terms.id, session)
        return session

    async def _seed(self, session: Session) -> bool:
        """Starts serving the session's file.

        If the Job has ended, returns False and serves nothing, because nothing would end the session later."""
        if session.lapsed:
            return False
        session.seed()
        self._sessions.changed()
        return True

    async def _seed_complete(self, terms: Terms, store: PieceStore, descriptor: int, origin: Origin) -> None:
        try:
            session = await self._open(terms, descriptor, origin, lambda: True, lambda *_: None, 1.0)
        except BaseException:
            self._sessions.release(terms.id)
            store.close()
            raise
        session.use_complete(store)
        try:
            await self._seed(session)
        except BaseException:
            self._end(terms.id, session)
            raise

    def _lapse(self, swarm_id: str, session: Session) -> None:
        """Stops serving at the Job's deadline. A delivery that is still running closes the session itself."""
        session.lapsed = True
        if session.phase is Phase.SEEDING:
            self._end(swarm_id, session)
        elif self._sessions.get(swarm_id) is session:
            self._server.remove(swarm_id)

    def _look(self) -> None:
        """Closes sessions whose file was changed, replaced or removed. This frees the disk space of the file."""
        self._loop.call_later(LOOK_SECONDS, self._look)
        for swarm_id in self._sessions.ids():
            session = self._sessions.get(swarm_id)
            if session is not None and session.is_stale():
                self._end(swarm_id, session)

    def _end(self, swarm_id: str, expected: Session | None = None) -> None:
        session = self._sessions.remove(swarm_id, expected)
        if session is None:
            return
        self._server.remove(swarm_id)
        self.reach.swarm_ended(reached=session.reached, met_anyone=session.met_anyone)
        session.close()

    def _call(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)


class Participation:
    """One delivery's part in a swarm. Without a session, the file was copied from another delivery of this host."""

    def __init__(self, host: SwarmHost, session: Session | None, signature: str) -> None:
        self._host = host
        self._session = session
        self._signature = signature
        self.seeds = False

    def fetch(self) -> None:
        """Fetches the file and verifies it. Raises NoSwarm if the file must be downloaded without the swarm."""
        if self._session is None:
            return
        try:
            self._host._call(self._session.fetch(self._signature))
        except NoBytes:
            raise
        except (NoList, ChecksumMismatch, TransferError) as error:
            log.warning("the swarm did not deliver the file: %s", error)
            raise NoSwarm(str(error), tried=self.figures()) from error
        finally:
            if self._session.mode is Mode.ALONE:
                self._host.reach.was_alone(len(self._session.terms.peers))

    def seed(self) -> None:
        """Serves the file to other hosts until the Job ends, if possible. Call it when the file is in place."""
        if self._session is None:
            return
        try:
            self.seeds = self._host._call(self._host._seed(self._session))
        except OSError as error:
            log.info("the file is not offered to peers: %s", error)

    def figures(self) -> SwarmFigures:
        figures = asdict(self._session.figures if self._session else Figures())
        return cast(SwarmFigures, {name: value for name, value in figures.items() if value is not None})
