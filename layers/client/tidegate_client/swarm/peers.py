"""Connections to other hosts and to S3: whether they can be reached, what they have, and their lists of pieces."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import random
import re
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

import urllib3
from urllib3.exceptions import HTTPError

from tidegate_client.compat import TLS_GOODBYE, timeout
from tidegate_client.download import ONLY_REDIRECTS, TRANSIENT, Stalled, UrlSource
from tidegate_client.errors import TransferError, without_queries
from tidegate_client.rates import RateLimit
from tidegate_client.swarm.chooser import Chooser, Link
from tidegate_client.swarm.port import client_context, frame_bytes, pin_of, read_frame
from tidegate_client.swarm.store import CHUNK
from tidegate_client.swarm.wire import BUFFER_BYTES, Ended, Layout, PeerTerms, Wire, authorization

_TIMEOUT = urllib3.Timeout(connect=5, read=20)


class OriginFailed(Exception):
    """An attempt to fetch from S3 failed. A later attempt may succeed."""


class Origin:
    """Fetches pieces and lists from S3 with a presigned URL. All calls block, so they run in threads."""

    def __init__(self, pool: urllib3.PoolManager, get_url: UrlSource, download: RateLimit | None) -> None:
        """`get_url` returns a presigned URL. If it is called with a URL that S3 refused, it returns a new one."""
        self._pool = pool
        self._get_url = get_url
        self._download = download
        self._url: str | None = None
        # Held while a new URL is awaited, which may take 45 s. Running transfers must not need this lock.
        self._url_lock = threading.Lock()
        self._count_lock = threading.Lock()
        self.received = 0

    def fetch(self, start: int, length: int, keep: Callable[[bytes], None], cancelled: threading.Event) -> None:
        """Passes the bytes of this range to `keep`, in order. Returns early when `cancelled` is set."""
        url = self._current()
        headers = {"Accept-Encoding": "identity", "Range": f"bytes={start}-{start + length - 1}"}
        try:
            response = self._pool.request(
                "GET", url, headers=headers, preload_content=False, timeout=_TIMEOUT, retries=ONLY_REDIRECTS
            )
        except HTTPError as error:
            raise OriginFailed(without_queries(error)) from None
        left = length
        try:
            self._check(response.status, response.headers.get("Content-Range", ""), start, url)
            for chunk in response.stream(CHUNK, decode_content=False):
                left -= len(chunk)
                if left < 0:
                    raise OriginFailed("S3 sent more bytes than were asked for")
                self._count(len(chunk))
                if cancelled.wait(self._download.reserve(len(chunk)) if self._download else 0.0):
                    return
                keep(chunk)
            if left:
                raise OriginFailed(f"S3 closed the connection {left} bytes before the end of the range")
        except HTTPError as error:
            raise OriginFailed(without_queries(error)) from None
        finally:
            if left or cancelled.is_set():
                # Close the connection: the rest of the body would be read as the answer to the next request.
                response.close()
            else:
                response.release_conn()

    def list_at(self, url: str, length: int) -> bytes:
        """Returns the list at this URL. The list must have `length` bytes.

        Raises TransferError if S3 refuses the request. Raises OriginFailed for other failures; a later attempt may
        succeed."""
        try:
            response = self._pool.request("GET", url, timeout=_TIMEOUT, retries=ONLY_REDIRECTS, preload_content=False)
            try:
                content = response.read(length + 1, decode_content=False)
            finally:
                response.close()
        except HTTPError as error:
            raise OriginFailed(without_queries(error)) from None
        if response.status in TRANSIENT:
            raise OriginFailed(f"S3 answered HTTP {response.status}")
        if response.status != 200:
            raise TransferError(f"S3 answered HTTP {response.status}", status=response.status)
        self._count(len(content))
        if len(content) != length:
            raise OriginFailed(f"S3 sent {len(content)} bytes or more; {length} were expected")
        return content

    def _check(self, status: int, content_range: str, start: int, url: str) -> None:
        if status == 403:
            self._renew(url)
            raise OriginFailed("the URL was refused (HTTP 403)")
        if status in TRANSIENT:
            raise OriginFailed(f"S3 answered HTTP {status}")
        if status != 206 or not content_range.startswith(f"bytes {start}-"):
            raise TransferError(f"S3 answered HTTP {status} to a ranged request", status=status)

    def _current(self) -> str:
        with self._url_lock:
            if self._url is None:
                self._url = self._get_url(None)
            return self._url

    def _renew(self, refused: str) -> None:
        with self._url_lock:
            if self._url == refused:
                try:
                    self._url = self._get_url(refused)
                except Stalled as error:
                    # Peers may have the pieces, so the transfer continues without S3 as long as any bytes arrive.
                    raise OriginFailed(str(error)) from error

    def _count(self, length: int) -> None:
        with self._count_lock:
            self.received += length


log = logging.getLogger("tidegate.agent")

ALONE_SECONDS = 3600.0
_FEWEST_TO_BE_ALONE = 4
_UNREACHED_SWARMS = 2


class Reach:
    """Remembers whether this host can connect to other hosts, and whether they can connect to it."""

    def __init__(self) -> None:
        self._alone_until = 0.0
        self._unreached = 0
        self._unreached_since = 0.0

    @property
    def is_alone(self) -> bool:
        """Whether no other host answered in the last swarm. For an hour after that, no further attempt is made."""
        return time.monotonic() < self._alone_until

    @property
    def is_reached(self) -> bool:
        """False if no other host connected to this one in its last two swarms.

        This is forgotten after an hour, because firewalls change."""
        if self._unreached >= _UNREACHED_SWARMS and time.monotonic() > self._unreached_since + ALONE_SECONDS:
            self._unreached = 0
        return self._unreached < _UNREACHED_SWARMS

    def was_alone(self, peers: int) -> None:
        """Notes that none of the peers answered. `peers` is the number of peers; if it is small, nothing is noted."""
        if peers >= _FEWEST_TO_BE_ALONE:
            log.warning("none of %d peers could be reached: for an hour this host downloads from S3 only", peers)
            self._alone_until = time.monotonic() + ALONE_SECONDS

    def swarm_ended(self, *, reached: bool, met_anyone: bool) -> None:
        """Notes the end of a swarm.

        `reached`: a peer connected to this host. `met_anyone`: this host connected to a peer."""
        if reached:
            self._unreached = 0
        elif met_anyone:
            self._unreached += 1
            self._unreached_since = time.monotonic()


# --- peers
# Calls to a peer: GET requests over a TLS connection whose certificate is pinned.

CONNECT_SECONDS, FIRST_BYTE_SECONDS, STALL_SECONDS = 2.0, 2.0, 3.0
NEXT_ADDRESS_SECONDS = 0.3
# A peer sends a frame every ten seconds even if nothing changed: after this time without one the connection is dead.
NEWS_SECONDS = 25.0
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3})[ -~]*\r\n")
_LENGTH = re.compile(rb"\r\nContent-Length: (\d{1,10})\r\n", re.IGNORECASE)
_HEAD_BYTES = 4096
_LARGE = BUFFER_BYTES // 2


class Unreachable(Exception):
    """The peer does not answer. The cause may be a firewall, a dead host, or another service on that port."""


class NotStarted(Exception):
    """The peer refused the connection or closed it at once, because it does not (yet) take part in this swarm."""


class PeerStalled(Exception):
    """The peer is connected but sends nothing."""


class WholePieceOnly(Exception):
    """The peer runs an older agent, which can only send whole pieces."""


class Broken(Exception):
    """The connection broke, or the peer's answer does not fit the request."""


class Connection:
    """A TLS connection to another host."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    @property
    def is_open(self) -> bool:
        return self._wire.is_open

    def close(self) -> None:
        self._wire.close()

    async def ask(self, path: str, header: str, more: str = "") -> tuple[int, int | None]:
        """Sends a GET request. Returns the answer's status and length. Read the body with `body` or `frames`."""
        request = f"GET {path} HTTP/1.1\r\nHost: peer\r\nAuthorization: {header}\r\n{more}\r\n"
        with _translated_errors():
            async with timeout(FIRST_BYTE_SECONDS):
                self._wire.send(request.encode())
                head = await self._wire.until(b"\r\n\r\n", _HEAD_BYTES)
        status = _STATUS.match(head)
        if status is None:
            raise Broken("the answer is not HTTP")
        length = _LENGTH.search(head)
        return int(status[1]), int(length[1]) if length else None

    async def body(self, length: int, most: int = BUFFER_BYTES) -> AsyncIterator[memoryview]:
        """Yields the body in large chunks. A chunk is valid only until the next chunk is requested."""
        while length:
            wanted = min(length, most, _LARGE)
            with _translated_errors():
                while self._wire.waiting < wanted:
                    async with timeout(STALL_SECONDS):
                        await self._wire.more()
            chunk = self._wire.borrow(min(length, most))
            yield chunk
            length -= len(chunk)
            self._wire.give_back(len(chunk))

    async def frames(self, length: int) -> AsyncIterator[bytes]:
        """Yields frames of this length until the connection ends."""
        while True:
            with _translated_errors():
                async with timeout(NEWS_SECONDS):
                    frame = await self._wire.exactly(length)
            yield frame


@contextlib.contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise PeerStalled from None
    except (Ended, OSError) as error:
        raise Broken("the connection ended") from error


class Peer:
    """A neighbour in the swarm, with the idle connections to it."""

    def __init__(self, terms: PeerTerms, swarm_id: str, agent_id: str, context: ssl.SSLContext | None = None) -> None:
        self.terms = terms
        self._base = f"/swarm/{swarm_id}/"
        self._header = authorization(agent_id, terms.token)
        self._context = context or client_context()
        self._idle: list[Connection] = []
        self._address = 0

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Lends an idle connection or a new one.

        After the block, the connection is kept for the next request, unless the block raised an error."""
        connection = self._open_idle() or await self.connect()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)

    def _open_idle(self) -> Connection | None:
        """Returns an idle connection that the peer has not closed; None if there is none.

        Peers close a connection after 30 s without a request."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
            connection.close()
        return None

    async def get(self, connection: Connection, path: str) -> tuple[int, int | None]:
        return await connection.ask(self._base + path, self._header)

    async def get_piece(self, connection: Connection, piece: int, length: int, offset: int | None) -> int:
        """Requests a piece, or `length` bytes of it from `offset` on.

        Returns 200 if the bytes follow, else the peer's refusal: 404 or 429."""
        ranged = "" if offset is None else f"Range: bytes={offset}-{offset + length - 1}\r\n"
        status, announced = await connection.ask(f"{self._base}piece/{piece}", self._header, ranged)
        if status in (404, 429) and not announced:
            return status
        if status == 200 and ranged:
            raise WholePieceOnly
        if status != (206 if ranged else 200) or announced != length:
            raise Broken(f"HTTP {status} with {announced} bytes")
        return 200

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    async def connect(self) -> Connection:
        """Connects to the first address that shows the pinned certificate.
        The address that worked last is tried first."""
        at = self.terms.at
        order = [(self._address + step) % len(at) for step in range(len(at))]
        attempts = {asyncio.ensure_future(self._try(at[place], rank)): place for rank, place in enumerate(order)}
        pending, refused = set(attempts), False
        deadline = asyncio.get_running_loop().time() + CONNECT_SECONDS
        try:
            while pending and (left := deadline - asyncio.get_running_loop().time()) > 0:
                done, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                for attempt in done:
                    if attempt.exception() is None:
                        self._address = attempts.pop(attempt)
                        return attempt.result()
                    refused |= isinstance(attempt.exception(), NotStarted)
        finally:
            for attempt in attempts:
                attempt.cancel()
                attempt.add_done_callback(_close_unused)
        raise NotStarted if refused else Unreachable

    async def _try(self, address: tuple[str, int], rank: int) -> Connection:
        await asyncio.sleep(rank * NEXT_ADDRESS_SECONDS)
        try:
            _, wire = await asyncio.get_running_loop().create_connection(
                Wire,
                *address,
                ssl=self._context,
                server_hostname="",
                # Longer than CONNECT_SECONDS, so that a silent peer is not taken for one that refuses.
                ssl_handshake_timeout=2 * CONNECT_SECONDS,
                **TLS_GOODBYE,
            )
        except (ConnectionRefusedError, ConnectionResetError, ConnectionAbortedError) as error:
            raise NotStarted from error
        if wire.certificate is None or pin_of(wire.certificate) != self.terms.pin:
            wire.close()
            raise Unreachable("the certificate is not the pinned one")
        return Connection(wire)


def _close_unused(attempt: asyncio.Future[Connection]) -> None:
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()


# --- lists
# The lists that describe a file: one of its pieces, one of its blocks.
#
# They are too large for every host to fetch them from S3: 180 KB for each of 10,000 hosts are 1.8 GB. So a host
# asks its neighbours first, and S3 only if none of them has the list. A list must have the SHA-256 in the transfer.

# The same, for an optional list.
_ATTEMPTS = 4
_LONGEST_PAUSE = 8.0


class SharedList:
    """The list of a file's pieces, or the list of its blocks. Hosts get such a list from each other or from S3.

    `name`: the path of the list on a peer's port. `optional`: the delivery can continue without the list."""

    def __init__(self, name: str, length: int, sha256: str, *, optional: bool = False) -> None:
        self.name = name
        self.length = length
        self.optional = optional
        self._sha256 = sha256
        self._over = asyncio.Event()
        self.content: bytes | None = None

    @property
    def is_wanted(self) -> bool:
        return not self._over.is_set()

    async def wait(self, seconds: float) -> bool:
        """Waits until the search has ended, for at most `seconds`. Returns False if it has not ended by then.

        Returns True if the search has ended, whether the list was found or not."""
        try:
            async with timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            return False
        return True

    def accept(self, content: bytes) -> None:
        """Stores the content if it has the right SHA-256."""
        if self.is_wanted and hashlib.sha256(content).hexdigest() == self._sha256:
            self.content = content
            self._over.set()

    async def ask(self, peer: Peer) -> None:
        async with peer.connection() as connection:
            status, length = await peer.get(connection, self.name)
            if status != 200 or length != self.length:
                if length:
                    raise Broken(f"the peer's list of {self.name} has {length} bytes instead of {self.length}")
                return
            content = b"".join([bytes(chunk) async for chunk in connection.body(self.length)])
        self.accept(content)

    async def find(self, rank: int, fetch: Callable[[], Awaitable[bytes]]) -> None:
        """Fetches the list from S3, unless a neighbour sends it first. Hosts of low rank start first.

        While S3 is down, a list that is not optional is requested again and again, until the session gives up. Without
        such a list, the swarm would end, and the pieces in the part file would be lost."""
        await asyncio.sleep(0.3 if rank < 2 else 0.3 + min(3.0, 0.5 + 0.02 * rank))
        attempts = 0
        while self.is_wanted:
            try:
                self.accept(await fetch())
                break
            except OriginFailed as error:
                log.info("fetching the list of %s from S3 failed: %s", self.name, error)
            except TransferError as error:
                log.warning("the list of %s cannot be fetched from S3: %s", self.name, error)
                break
            attempts += 1
            if self.optional and attempts >= _ATTEMPTS:
                break
            await asyncio.sleep(min(_LONGEST_PAUSE, attempts - 0.5))
        self._over.set()


_RETRY_REFUSED, _RETRY_SILENT, _LONGEST_RETRY = 1.0, 10.0, 120.0
_NEWS_PAUSE = 0.02
# A neighbour without an optional list is asked for it again after this time.
_ASK_AGAIN = 0.5


class Links:
    """Connections to all neighbours. Over them, neighbours announce their pieces and are asked for missing lists."""

    def __init__(
        self, peers: Sequence[Peer], layout: Layout, chooser: Chooser, lists: Sequence[SharedList], wake: asyncio.Event
    ) -> None:
        self._peers = peers
        self._layout = layout
        self._chooser = chooser
        self._lists = lists
        self._wake = wake
        self._asked: dict[tuple[int, str], float] = {}
        self.met_anyone = False

    async def follow(self, place: int) -> None:
        """Reads a neighbour's announcements until cancelled.

        If the neighbour refuses the connection, tries again every second. If the neighbour does not answer, tries less
        and less often."""
        silence = _RETRY_SILENT
        while True:
            pause = _RETRY_REFUSED * random.uniform(0.7, 1.3)  # noqa: S311
            try:
                await self._read_news(place, self._peers[place])
            except (NotStarted, Broken):
                self._chooser.linked(place, Link.REFUSED)
                silence = _RETRY_SILENT
            except (Unreachable, PeerStalled):
                self._chooser.linked(place, Link.SILENT)
                pause, silence = silence, min(_LONGEST_RETRY, 2 * silence)
            self._wake.set()
            await asyncio.sleep(pause)

    async def _read_news(self, place: int, peer: Peer) -> None:
        connection = await peer.connect()
        try:
            status, _ = await peer.get(connection, "have")
            if status != 200:
                raise Broken(f"HTTP {status}")
            async for frame in connection.frames(frame_bytes(self._layout)):
                self.met_anyone = True
                self._chooser.linked(place, Link.UP)
                self._chooser.announced(place, *read_frame(frame, self._layout))
                for wanted in self._lists:
                    if wanted.is_wanted:
                        await self._ask(place, peer, wanted)
                self._wake.set()
                # Limits the work that a peer can cause by sending frames without end.
                await asyncio.sleep(_NEWS_PAUSE)
        finally:
            connection.close()

    async def _ask(self, place: int, peer: Peer, wanted: SharedList) -> None:
        if not wanted.optional:
            await wanted.ask(peer)
            return
        now, key = time.monotonic(), (place, wanted.name)
        if now < self._asked.get(key, 0.0):
            return
        self._asked[key] = now + _ASK_AGAIN
        try:
            await wanted.ask(peer)
        except (Broken, PeerStalled, NotStarted, Unreachable):
            # An older agent does not know this list and closes the connection: do not ask it again.
            self._asked[key] = float("inf")
