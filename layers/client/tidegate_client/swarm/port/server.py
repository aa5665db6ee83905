"""The port on which a host serves its peers: HTTP/1.1 over TLS 1.3, GET only, four paths, a token for every request.

Any other request, or one without a valid token, is closed without an answer. The port listens only while there is a
swarm; otherwise connections are refused, which shows a peer that this host has not started yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping

from tidegate_client.agent.backoff import Backoff
from tidegate_client.agent.rate_limit import RateLimit
from tidegate_client.swarm.port.callers import CONNECTIONS, Caller, Callers, Refused
from tidegate_client.swarm.port.limits import NoSlot, Slots
from tidegate_client.swarm.port.requests import Request, Served, read_request
from tidegate_client.swarm.store import CHUNK, StaleFile

log = logging.getLogger("tidegate.agent")
# Called with an offset and a length; returns the bytes.
Read = Callable[[int, int], Awaitable[bytes]]

HEAD_BYTES = 4096
HANDSHAKE_SECONDS, IDLE_SECONDS, HEAD_SECONDS = 10.0, 30.0, 5.0
# Upload slots are few: a receiver that takes fewer than SEND_BYTES in SEND_SECONDS loses its slot.
SEND_SECONDS, SEND_BYTES = 10.0, 64 * 1024
_SMALLEST_CHUNK = 16 * 1024
# Pause after a 404 or 429: a well-behaved neighbour rarely gets one, as it requests only announced pieces.
PAUSE_SECONDS = 0.05


class PeerServer:
    """Serves all swarms of an agent. Used in one event loop only."""

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
        # Small chunks on a slow line: the slots share it, and a caller gives up after three seconds without a byte.
        self._chunk = min(CHUNK, max(_SMALLEST_CHUNK, int(upload.bytes_a_second / 10))) if upload else CHUNK
        self._swarms: dict[str, Served] = {}
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._connections: set[asyncio.Task[None]] = set()
        self.callers = Callers()

    # --- listening

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return self._addresses if self._sockets else []

    def bind(self) -> list[tuple[str, int]]:
        """Binds the ports without listening. Returns the addresses, in which port 0 is replaced by the assigned one."""
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
                log.warning("the peer port cannot be bound, so peers cannot call this host: %s", error)
                return
        try:
            context = self._context()
            for bound in self._sockets:
                bound.listen(CONNECTIONS)
                self._accepting.append(asyncio.get_running_loop().create_task(self._accept(bound, context)))
        except OSError as error:
            # As when another process listens on the port by now, or the certificate was removed.
            log.warning("the peer port cannot be used, so peers cannot call this host: %s", error)
            self._stop_listening()

    def _stop_listening(self) -> None:
        for task in [*self._accepting, *self._connections]:
            task.cancel()
        self._accepting.clear()
        for listening in self._sockets:
            listening.close()
        self._sockets = []
        # Bind again at once: no other process can take the port, and connections are refused.
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
        backoff = Backoff(0.2, 10.0)
        while True:
            try:
                connection, address = await loop.sock_accept(listening)
            except OSError as error:
                # Logged once: a process without free descriptors would fill the log.
                if not backoff.failures:
                    log.warning("a connection of a peer could not be accepted: %s", error)
                await asyncio.sleep(backoff.next())
                continue
            backoff.reset()
            caller = self.callers.enter(str(address[0]))
            if caller is None:
                connection.close()
                continue
            task = loop.create_task(self._serve(connection, caller, context))
            self._connections.add(task)
            task.add_done_callback(lambda ended, caller=caller: self._ended(ended, caller))  # type: ignore[misc]

    def _ended(self, task: asyncio.Task[None], caller: Caller) -> None:
        """A callback of the task, because a task that is cancelled before it starts runs no `finally`."""
        self._connections.discard(task)
        caller.leave()

    async def _serve(self, connection: socket.socket, caller: Caller, context: ssl.SSLContext) -> None:
        """Answers the requests of one connection until it is closed."""
        writer = None
        try:
            connection.setblocking(False)
            reader = asyncio.StreamReader(limit=HEAD_BYTES)
            protocol = asyncio.StreamReaderProtocol(reader)
            loop = asyncio.get_running_loop()
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=1.0,
            )
            writer = asyncio.StreamWriter(transport, protocol, reader, loop)
            first = HEAD_SECONDS
            while True:
                request = read_request(await _head(reader, first), self._swarms)
                caller.identify(request.caller)
                request.swarm.mark_reached()
                await self._answer(request, reader, writer)
                first = IDLE_SECONDS
        except (OSError, EOFError, Refused, ValueError, asyncio.LimitOverrunError, StaleFile):
            # Any problem with this caller closes its connection; others continue.
            pass
        finally:
            if writer is not None:
                writer.transport.abort()
            else:
                connection.close()

    # --- answers

    async def _answer(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if request.path == "have":
            await self._stream_news(request.swarm, reader, writer)
        elif request.path in ("pieces", "blocks"):
            content = request.swarm.list_of(request.path)
            if content is None:
                await self._decline(writer, 404)
            else:
                await self._upload_body(request, writer, _status(200, len(content)), len(content), _slices(content))
        elif not request.swarm.has(request.piece):
            await self._decline(writer, 404)
        else:
            await self._send_piece(request, writer)

    async def _decline(self, writer: asyncio.StreamWriter, code: int) -> None:
        await _send(writer, _status(code))
        await asyncio.sleep(PAUSE_SECONDS)

    async def _stream_news(self, swarm: Served, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Subscribes the caller to the session's announcements until either side closes."""
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        swarm.subscribe(writer)
        try:
            await reader.read(1)
        finally:
            swarm.unsubscribe(writer)
        raise Refused

    async def _send_piece(self, request: Request, writer: asyncio.StreamWriter) -> None:
        swarm, piece, whole = request.swarm, request.piece, request.swarm.piece_length(request.piece)
        first, last = request.span or (0, whole - 1)
        if not first <= last < whole:
            raise Refused

        async def read(offset: int, length: int) -> bytes:
            return await swarm.read(piece, first + offset, length)

        length = last - first + 1
        await self._upload_body(request, writer, _status(206 if request.span else 200, length), length, read)

    async def _upload_body(
        self, request: Request, writer: asyncio.StreamWriter, head: bytes, length: int, read: Read
    ) -> None:
        """Sends an answer with a body. It takes an upload slot and counts for the upload rate."""
        try:
            async with self._slots.hold(request.caller, near=request.swarm.is_near(request.caller)):
                # Sent before the rate limit delays the body: the caller waits two seconds for the first byte.
                writer.write(head)
                for offset in range(0, length, self._chunk):
                    wanted = min(self._chunk, length - offset)
                    chunk = await read(offset, wanted)
                    if len(chunk) != wanted:
                        # The file became shorter: close, because other bytes would count as a bad piece.
                        raise Refused
                    if self._upload is not None:
                        await asyncio.sleep(self._upload.reserve(len(chunk)))
                    await _send(writer, chunk)
        except NoSlot:
            await self._decline(writer, 429)


def _slices(content: bytes) -> Read:
    async def read(offset: int, length: int) -> bytes:
        return content[offset : offset + length]

    return read


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


_REASONS: Mapping[int, str] = {200: "OK", 206: "Partial Content", 404: "Not Found", 429: "Too Many Requests"}


def _status(code: int, length: int = 0) -> bytes:
    return f"HTTP/1.1 {code} {_REASONS[code]}\r\nContent-Length: {length}\r\n\r\n".encode()


async def _send(writer: asyncio.StreamWriter, content: bytes) -> None:
    """Writes and waits until the buffer has room. Raises TimeoutError if the receiver is too slow."""
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
