"""The port that peers call: HTTP/1.1 over TLS 1.3, GET only, three paths, and nothing without a token.

Whoever asks for anything else, or comes without a right token, gets a closed connection and not one byte. The port
listens only while there is a swarm; else a caller is refused, which says "not started yet".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import ssl
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tidegate_client.agent.rate_limit import RateLimit
from tidegate_client.swarm.limits import NoSlot, Slots
from tidegate_client.swarm.store import CHUNK, StaleFile
from tidegate_client.swarm.terms import caller_of

log = logging.getLogger("tidegate.agent")

HEAD_BYTES = 4096
CONNECTIONS, CONNECTIONS_A_PEER = 64, 3
# Callers that have not shown a token yet: they cannot take all the places of those that have.
STRANGERS, STRANGERS_AN_ADDRESS = 32, 16
# Every neighbour may come at once, with all its connections.
NEW_A_SECOND = 48
HANDSHAKE_SECONDS, IDLE_SECONDS, HEAD_SECONDS = 10.0, 30.0, 5.0
# Slots are few: a receiver that takes less than this in that time loses its own.
SEND_SECONDS, SEND_BYTES = 10.0, 64 * 1024
_SMALLEST_CHUNK = 16 * 1024
_REQUEST = re.compile(rb"GET /swarm/([0-9a-f]{32})/(have|pieces|piece/(\d{1,7})) HTTP/1\.1\r\n")
_AUTHORIZATION = re.compile(rb"\r\nAuthorization: ([ -~]{1,600})\r\n", re.IGNORECASE)


class Served(Protocol):
    """One swarm as the port sees it; the session implements it, tests of the port have a smaller one."""

    accept: bytes

    def piece_list(self) -> bytes | None: ...

    def has(self, piece: int) -> bool: ...

    def piece_length(self, piece: int) -> int: ...

    async def read(self, piece: int, offset: int, length: int) -> bytes: ...

    def is_near(self, caller: str) -> bool: ...

    def called(self) -> None: ...

    def subscribe(self, writer: asyncio.StreamWriter) -> None: ...

    def unsubscribe(self, writer: asyncio.StreamWriter) -> None: ...


@dataclass(slots=True)
class _Request:
    swarm: Served
    caller: str
    path: bytes
    piece: int


class Refused(Exception):
    """Nothing to answer: the connection is closed."""


class PeerServer:
    """One for each agent, whatever the number of swarms. All of it runs in one event loop."""

    def __init__(
        self,
        addresses: list[tuple[str, int]],
        context: Callable[[], ssl.SSLContext],
        slots: Slots,
        upload: RateLimit | None,
    ) -> None:
        self._addresses = addresses
        self._context = context
        self._slots = slots
        self._upload = upload
        # On a slow line small chunks: all slots take turns, and a caller gives up after three seconds without a byte.
        self._chunk = min(CHUNK, max(_SMALLEST_CHUNK, int(upload.bytes_a_second / 10))) if upload else CHUNK
        self._swarms: dict[str, Served] = {}
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._connections: dict[asyncio.Task[None], str] = {}
        self._strangers: Counter[str] = Counter()
        self._callers: Counter[str] = Counter()
        self._recent: deque[float] = deque(maxlen=NEW_A_SECOND)

    # --- listening

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return self._addresses if self._sockets else []

    def bind(self) -> list[tuple[str, int]]:
        """Take the ports without listening on them. Answers the addresses, with the ports that were given for 0."""
        self._sockets = [_bound(address) for address in self._addresses]
        self._addresses = [bound.getsockname()[:2] for bound in self._sockets]
        return self._addresses

    def add(self, swarm_id: str, swarm: Served) -> None:
        self._swarms[swarm_id] = swarm
        if not self._accepting and self._addresses:
            self._listen()

    def remove(self, swarm_id: str) -> None:
        self._swarms.pop(swarm_id, None)
        if not self._swarms:
            self._stop_listening()

    @property
    def listening(self) -> bool:
        return bool(self._accepting)

    def _listen(self) -> None:
        if not self._sockets:
            try:
                self.bind()
            except OSError as error:
                log.warning("peers cannot call this host: %s", error)
                return
        context = self._context()
        for bound in self._sockets:
            bound.listen(CONNECTIONS)
            self._accepting.append(asyncio.get_running_loop().create_task(self._accept(bound, context)))

    def _stop_listening(self) -> None:
        for task in [*self._accepting, *self._connections]:
            task.cancel()
        self._accepting.clear()
        for listening in self._sockets:
            listening.close()
        self._sockets = []
        # Bound again at once, so that nobody else takes the port, and it refuses.
        with contextlib.suppress(OSError):
            self.bind()

    async def close(self) -> None:
        tasks = [*self._accepting, *self._connections]
        self._swarms.clear()
        self._stop_listening()
        for bound in self._sockets:
            bound.close()
        self._sockets, self._addresses = [], []
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- connections

    async def _accept(self, listening: socket.socket, context: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                caller, address = await loop.sock_accept(listening)
            except OSError as error:
                log.warning("a caller could not be accepted: %s", error)
                await asyncio.sleep(0.1)
                continue
            host = str(address[0])
            if not self._may_enter(host):
                caller.close()
                continue
            self._strangers[host] += 1
            task = loop.create_task(self._talk(caller, host, context))
            self._connections[task] = host
            task.add_done_callback(self._connections.pop)

    def _may_enter(self, host: str) -> bool:
        now = time.monotonic()
        crowded = (
            len(self._connections) >= CONNECTIONS
            or self._strangers.total() >= STRANGERS
            or self._strangers[host] >= STRANGERS_AN_ADDRESS
            or (len(self._recent) == NEW_A_SECOND and now - self._recent[0] < 1.0)
        )
        if not crowded:
            self._recent.append(now)
        return not crowded

    async def _talk(self, caller: socket.socket, host: str, context: ssl.SSLContext) -> None:
        guest = _Guest(self, host)
        writer = None
        try:
            caller.setblocking(False)
            reader = asyncio.StreamReader(limit=HEAD_BYTES)
            protocol = asyncio.StreamReaderProtocol(reader)
            loop = asyncio.get_running_loop()
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                caller,
                ssl=context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=1.0,
            )
            writer = asyncio.StreamWriter(transport, protocol, reader, loop)
            first = HEAD_SECONDS
            while True:
                request = self._read(await _head(reader, first))
                guest.is_known_as(request.caller)
                request.swarm.called()
                await self._answer(request, reader, writer)
                first = IDLE_SECONDS
        except (OSError, EOFError, Refused, ValueError, asyncio.LimitOverrunError, StaleFile):
            # Who calls and how it ends is the caller's affair; there is nothing to do but to close.
            pass
        finally:
            guest.leaves()
            if writer is not None:
                writer.transport.abort()
            else:
                caller.close()

    def _read(self, head: bytes) -> _Request:
        matched, authorization = _REQUEST.match(head), _AUTHORIZATION.search(head)
        if matched is None or authorization is None:
            raise Refused
        swarm = self._swarms.get(matched[1].decode())
        if swarm is None:
            raise Refused
        caller = caller_of(authorization[1].decode(), matched[1].decode(), swarm.accept)
        if caller is None:
            raise Refused
        return _Request(swarm, caller, matched[2], int(matched[3] or 0))

    # --- answers

    async def _answer(self, request: _Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if request.path == b"have":
            await self._stream_news(request.swarm, reader, writer)
        elif request.path == b"pieces":
            listed = request.swarm.piece_list()
            await _send(writer, _status(200, len(listed)) + listed if listed else _status(404))
        elif not request.swarm.has(request.piece):
            await _send(writer, _status(404))
        else:
            await self._send_piece(request, writer)

    async def _stream_news(self, swarm: Served, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The session writes a frame whenever there is news, until either side closes."""
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        swarm.subscribe(writer)
        try:
            await reader.read(1)
        finally:
            swarm.unsubscribe(writer)
        raise Refused

    async def _send_piece(self, request: _Request, writer: asyncio.StreamWriter) -> None:
        swarm, piece = request.swarm, request.piece
        try:
            async with self._slots.hold(request.caller, near=swarm.is_near(request.caller)):
                length = swarm.piece_length(piece)
                # Before the rate limit has its say: the caller waits two seconds for the first byte.
                writer.write(_status(200, length))
                for offset in range(0, length, self._chunk):
                    chunk = await swarm.read(piece, offset, min(self._chunk, length - offset))
                    if not chunk:
                        raise Refused
                    if self._upload is not None:
                        await asyncio.sleep(self._upload.reserve(len(chunk)))
                    await _send(writer, chunk)
        except NoSlot:
            await _send(writer, _status(429))


class _Guest:
    """A connection's place among the strangers until it has shown a token, then among its caller's connections."""

    def __init__(self, server: PeerServer, host: str) -> None:
        self._server = server
        self._host: str | None = host
        self._caller: str | None = None

    def is_known_as(self, caller: str) -> None:
        if self._caller == caller:
            return
        if self._caller is not None:
            raise Refused
        counts = self._server._callers
        if counts[caller] >= CONNECTIONS_A_PEER:
            raise Refused
        self._forget_host()
        counts[caller] += 1
        self._caller = caller

    def leaves(self) -> None:
        self._forget_host()
        _less(self._server._callers, self._caller)

    def _forget_host(self) -> None:
        _less(self._server._strangers, self._host)
        self._host = None


def _less(counter: Counter[str], name: str | None) -> None:
    if name is not None:
        counter[name] -= 1
        if counter[name] <= 0:
            del counter[name]


def _bound(address: tuple[str, int]) -> socket.socket:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setblocking(False)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


async def _head(reader: asyncio.StreamReader, seconds: float) -> bytes:
    async with asyncio.timeout(seconds):
        return await reader.readuntil(b"\r\n\r\n")


_REASONS: Mapping[int, str] = {200: "OK", 404: "Not Found", 429: "Too Many Requests"}


def _status(code: int, length: int = 0) -> bytes:
    return f"HTTP/1.1 {code} {_REASONS[code]}\r\nContent-Length: {length}\r\n\r\n".encode()


async def _send(writer: asyncio.StreamWriter, content: bytes) -> None:
    writer.write(content)
    while True:
        left = writer.transport.get_write_buffer_size()
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await writer.drain()
                return
        except TimeoutError:
            if left - writer.transport.get_write_buffer_size() < SEND_BYTES:
                raise
