"""Calls to a peer: GET requests over a TLS connection whose certificate is pinned."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncIterator, Iterator

from tidegate_client.swarm.port.identity import client_context, pin_of
from tidegate_client.swarm.terms import PeerTerms, authorization
from tidegate_client.swarm.wire import BUFFER_BYTES, Ended, Wire

CONNECT_SECONDS, FIRST_BYTE_SECONDS, STALL_SECONDS = 2.0, 2.0, 3.0
NEXT_ADDRESS_SECONDS = 0.3
# A peer sends a frame every ten seconds even if nothing changed: after this time without one the connection is dead.
NEWS_SECONDS = 25.0
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3})[ -~]*\r\n")
_LENGTH = re.compile(rb"\r\nContent-Length: (\d{1,10})\r\n", re.IGNORECASE)
_HEAD_BYTES = 4096
_LARGE = BUFFER_BYTES // 2


class Unreachable(Exception):
    """No answer: a firewall, a dead host, or another service on that port."""


class NotStarted(Exception):
    """The connection was refused or closed at once: the peer does not take part in this swarm, or not yet."""


class Stalled(Exception):
    """The peer is connected but sends nothing."""


class WholePieceOnly(Exception):
    """The peer runs an older agent, which sends whole pieces only."""


class Broken(Exception):
    """The connection broke, or the answer does not fit the request."""


class Connection:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    @property
    def is_open(self) -> bool:
        return self._wire.is_open

    def close(self) -> None:
        self._wire.close()

    async def ask(self, path: str, header: str, more: str = "") -> tuple[int, int | None]:
        """Sends a GET. Returns the status and length of the answer, whose body is read with `body` or `frames`."""
        request = f"GET {path} HTTP/1.1\r\nHost: peer\r\nAuthorization: {header}\r\n{more}\r\n"
        with _translated_errors():
            async with asyncio.timeout(FIRST_BYTE_SECONDS):
                self._wire.send(request.encode())
                head = await self._wire.until(b"\r\n\r\n", _HEAD_BYTES)
        status = _STATUS.match(head)
        if status is None:
            raise Broken("the answer is not HTTP")
        length = _LENGTH.search(head)
        return int(status[1]), int(length[1]) if length else None

    async def body(self, length: int, most: int = BUFFER_BYTES) -> AsyncIterator[memoryview]:
        """Yields the body in large chunks, as each is handed to a thread. A chunk is valid until the next one."""
        while length:
            wanted = min(length, most, _LARGE)
            with _translated_errors():
                while self._wire.waiting < wanted:
                    async with asyncio.timeout(STALL_SECONDS):
                        await self._wire.more()
            chunk = self._wire.take(min(length, most))
            yield chunk
            length -= len(chunk)
            self._wire.give_back(len(chunk))

    async def frames(self, length: int) -> AsyncIterator[bytes]:
        """Yields frames of this length until the connection ends."""
        while True:
            with _translated_errors():
                async with asyncio.timeout(NEWS_SECONDS):
                    frame = await self._wire.exactly(length)
            yield frame


@contextlib.contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise Stalled from None
    except (Ended, OSError) as error:
        raise Broken("the connection ended") from error


class Peer:
    """One neighbour, and the idle connections to it."""

    def __init__(self, terms: PeerTerms, swarm_id: str, agent_id: str, context: ssl.SSLContext | None = None) -> None:
        self.terms = terms
        self._base = f"/swarm/{swarm_id}/"
        self._header = authorization(agent_id, terms.token)
        self._context = context or client_context()
        self._idle: list[Connection] = []
        self._address = 0

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """An idle connection or a new one. It is kept for the next request unless this one fails."""
        connection = self._open_idle() or await self.connect()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)

    def _open_idle(self) -> Connection | None:
        """An idle connection that the peer has not closed: it closes them after 30 s without a request."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
            connection.close()
        return None

    async def get(self, connection: Connection, path: str) -> tuple[int, int | None]:
        return await connection.ask(self._base + path, self._header)

    async def get_piece(self, connection: Connection, piece: int, length: int, offset: int | None) -> int:
        """Requests a piece, or `length` bytes of it from `offset`. Returns 200 if they follow, else 404 or 429."""
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
        """Connects to the first address that answers with the right certificate; the last good one is tried first."""
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
                ssl_shutdown_timeout=1.0,
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
