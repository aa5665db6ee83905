"""The port that peers call: HTTP/1.1 over TLS 1.3, GET only, four paths, and nothing without a token.

Whoever asks for anything else, or comes without a right token, gets a closed connection and not one byte. The port
listens only while there is a swarm; else a caller is refused, which says "not started yet".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping

from tidegate_client.agent.rate_limit import RateLimit
from tidegate_client.swarm.port.callers import CONNECTIONS, Caller, Callers, Refused
from tidegate_client.swarm.port.limits import NoSlot, Slots
from tidegate_client.swarm.port.requests import Request, Served, read_request
from tidegate_client.swarm.store import CHUNK, StaleFile

log = logging.getLogger("tidegate.agent")
# Gives so many bytes from an offset on.
Read = Callable[[int, int], Awaitable[bytes]]

HEAD_BYTES = 4096
HANDSHAKE_SECONDS, IDLE_SECONDS, HEAD_SECONDS = 10.0, 30.0, 5.0
# Slots are few: a receiver that takes less than this in that time loses its own.
SEND_SECONDS, SEND_BYTES = 10.0, 64 * 1024
_SMALLEST_CHUNK = 16 * 1024
# A neighbour asks for what it was told is here: one that asks for other things gets an answer at this pace.
PAUSE_SECONDS = 0.05


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
        self._connections: set[asyncio.Task[None]] = set()
        self.callers = Callers()

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
        # Bound again at once: no other process takes the port, and connections are refused.
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
            place = self.callers.enter(str(address[0]))
            if place is None:
                caller.close()
                continue
            task = loop.create_task(self._talk(caller, place, context))
            self._connections.add(task)
            task.add_done_callback(lambda ended, place=place: self._ended(ended, place))  # type: ignore[misc]

    def _ended(self, task: asyncio.Task[None], place: Caller) -> None:
        """Also of a connection that was cancelled before it began."""
        self._connections.discard(task)
        place.leaves()

    async def _talk(self, caller: socket.socket, place: Caller, context: ssl.SSLContext) -> None:
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
                request = read_request(await _head(reader, first), self._swarms)
                place.is_known_as(request.caller)
                request.swarm.called()
                await self._answer(request, reader, writer)
                first = IDLE_SECONDS
        except (OSError, EOFError, Refused, ValueError, asyncio.LimitOverrunError, StaleFile):
            # Whatever went wrong with this caller, the connection is closed and others go on.
            pass
        finally:
            if writer is not None:
                writer.transport.abort()
            else:
                caller.close()

    # --- answers

    async def _answer(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if request.path == "have":
            await self._stream_news(request.swarm, reader, writer)
        elif request.path in ("pieces", "blocks"):
            listed = request.swarm.list_of(request.path)
            if listed is None:
                await self._decline(writer, 404)
            else:
                await self._give(request, writer, _status(200, len(listed)), len(listed), _slices(listed))
        elif not request.swarm.has(request.piece):
            await self._decline(writer, 404)
        else:
            await self._send_piece(request, writer)

    async def _decline(self, writer: asyncio.StreamWriter, code: int) -> None:
        await _send(writer, _status(code))
        await asyncio.sleep(PAUSE_SECONDS)

    async def _stream_news(self, swarm: Served, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The session writes a frame whenever there is news, until either side closes."""
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
        await self._give(request, writer, _status(206 if request.span else 200, length), length, read)

    async def _give(self, request: Request, writer: asyncio.StreamWriter, head: bytes, length: int, read: Read) -> None:
        """Whatever has a body takes an upload slot, and counts for the upload rate."""
        try:
            async with self._slots.hold(request.caller, near=request.swarm.is_near(request.caller)):
                # Before the rate limit delays anything: the caller waits two seconds for the first byte.
                writer.write(head)
                for offset in range(0, length, self._chunk):
                    wanted = min(self._chunk, length - offset)
                    chunk = await read(offset, wanted)
                    if len(chunk) != wanted:
                        # The file became shorter: close instead of sending bytes that would count as a bad piece.
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
