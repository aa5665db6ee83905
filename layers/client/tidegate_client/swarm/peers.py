"""Calling a peer: a TLS connection to a certificate that is known beforehand, and GETs over it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncIterator

from tidegate_client.swarm.identity import client_context, pin_of
from tidegate_client.swarm.store import CHUNK
from tidegate_client.swarm.terms import PeerTerms, authorization

CONNECT_SECONDS, FIRST_BYTE_SECONDS, STALL_SECONDS = 2.0, 2.0, 3.0
NEXT_ADDRESS_SECONDS = 0.3
# News comes when there is some, and at least this often: without any the connection is dead.
NEWS_SECONDS = 25.0
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3})[ -~]*\r\n")
_LENGTH = re.compile(rb"\r\nContent-Length: (\d{1,10})\r\n", re.IGNORECASE)
_HEAD_BYTES = 4096
_LARGE = CHUNK // 2


class Unreachable(Exception):
    """No answer at all: a firewall, a dead host, or something else that listens there."""


class NotStarted(Exception):
    """Refused, or closed at once: the peer is not in this swarm, or not yet."""


class Stalled(Exception):
    """The peer is connected and sends nothing."""


class Broken(Exception):
    """The connection ended, or what came is not what was asked for."""


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def close(self) -> None:
        self._writer.transport.abort()

    async def ask(self, path: str, header: str) -> tuple[int, int | None]:
        """Status and length of the answer's body, which is then read by `body` or `frames`."""
        request = f"GET {path} HTTP/1.1\r\nHost: peer\r\nAuthorization: {header}\r\n\r\n"
        try:
            async with asyncio.timeout(FIRST_BYTE_SECONDS):
                self._writer.write(request.encode())
                head = await self._reader.readuntil(b"\r\n\r\n")
        except TimeoutError:
            raise Stalled from None
        except (OSError, EOFError, asyncio.LimitOverrunError) as error:
            raise Broken(str(error)) from error
        status = _STATUS.match(head)
        if status is None or len(head) > _HEAD_BYTES:
            raise Broken("that is no HTTP answer")
        length = _LENGTH.search(head)
        return int(status[1]), int(length[1]) if length else None

    async def body(self, length: int) -> AsyncIterator[bytes]:
        """In large chunks, as each goes to a thread and back; a slow peer's bytes count as they come."""
        gathered: list[bytes] = []
        held = 0
        while length:
            try:
                async with asyncio.timeout(STALL_SECONDS):
                    chunk = await self._reader.read(min(CHUNK, length))
            except TimeoutError:
                raise Stalled from None
            except OSError as error:
                raise Broken(str(error)) from error
            if not chunk:
                raise Broken("the answer was cut short")
            length -= len(chunk)
            gathered.append(chunk)
            held += len(chunk)
            if held >= _LARGE or not length:
                yield chunk if held == len(chunk) else b"".join(gathered)
                gathered.clear()
                held = 0

    async def frames(self, length: int) -> AsyncIterator[bytes]:
        while True:
            try:
                async with asyncio.timeout(NEWS_SECONDS):
                    frame = await self._reader.readexactly(length)
            except TimeoutError:
                raise Stalled from None
            except (OSError, EOFError) as error:
                raise Broken(str(error)) from error
            yield frame


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
        """An idle connection or a new one. Kept for the next request only if this one went through to its end."""
        connection = self._idle.pop() if self._idle else await self.connect()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)

    async def get(self, connection: Connection, path: str) -> tuple[int, int | None]:
        return await connection.ask(self._base + path, self._header)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    async def connect(self) -> Connection:
        """To the first of its addresses that answers with the right certificate, beginning with the last good one."""
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
            reader, writer = await asyncio.open_connection(
                *address,
                limit=CHUNK,
                ssl=self._context,
                server_hostname="",
                # The connection's own time-out comes first: who says nothing is not one who refuses.
                ssl_handshake_timeout=2 * CONNECT_SECONDS,
                ssl_shutdown_timeout=1.0,
            )
        except (ConnectionRefusedError, ConnectionResetError, ConnectionAbortedError) as error:
            raise NotStarted from error
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        if certificate is None or pin_of(certificate) != self.terms.pin:
            writer.transport.abort()
            raise Unreachable("another certificate than the one announced")
        return Connection(reader, writer)


def _close_unused(attempt: asyncio.Future[Connection]) -> None:
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()
