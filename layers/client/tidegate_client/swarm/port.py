"""The peer port, at which a host serves pieces to other hosts: certificate, limits, requests and answers."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import logging
import os
import re
import socket
import ssl
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

from tidegate_client.compat import TLS_GOODBYE, lost_connections, timeout
from tidegate_client.rates import Backoff, RateLimit
from tidegate_client.swarm.store import CHUNK, StaleFile
from tidegate_client.swarm.wire import Layout, caller_of

# --- identity
# The host's certificate for its peers: self-signed, created once by the library `cryptography`
# (`pip install 'tidegate-client[swarm]'`), and pinned by its SHA-256. Peers check only that digest, not its signature,
# dates or names. A host that only fetches needs no certificate, and so not the library.

FILE = "peer.pem"


@dataclass(frozen=True)
class Identity:
    """The host's certificate for its peers: the path of its PEM file, and its SHA-256 (`pin`)."""

    path: Path
    pin: str

    def server_context(self) -> ssl.SSLContext:
        """Returns the TLS context with which the port answers."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self.path)
        # No session tickets: every connection makes a full handshake.
        context.num_tickets = 0
        return context


def client_context() -> ssl.SSLContext:
    """Returns a TLS context that verifies no certificate.

    Callers compare the certificate with the pin before they send anything."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def pin_of(certificate: bytes) -> str:
    """Returns the SHA-256 of a certificate. Other hosts recognise the certificate by this hash."""
    return base64.urlsafe_b64encode(hashlib.sha256(certificate).digest()).decode().rstrip("=")


def load_identity(directory: Path) -> Identity:
    """Loads the host's certificate from the directory. Creates a certificate if there is none that can be used."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = directory / FILE
    try:
        return _read(path)
    except (OSError, ValueError, ssl.SSLError):
        _write(path, make_certificate())
        return _read(path)


def _read(path: Path) -> Identity:
    text = path.read_text("ascii")
    start = text.index("-----BEGIN CERTIFICATE-----")
    identity = Identity(path, pin_of(ssl.PEM_cert_to_DER_cert(text[start:])))
    identity.server_context()
    return identity


def _write(path: Path, text: str) -> None:
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        os.fsync(file.fileno())
    new.replace(path)


def make_certificate() -> str:
    """Creates a private key (P-256) and a certificate for it, both as PEM. Needs an extra: see `no_port_reason`."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tidegate peer")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        # Never expires, whatever the host's clock says: peers trust its pin, which the API sends with each Job.
        .not_valid_before(datetime(2020, 1, 1, tzinfo=timezone.utc))
        .not_valid_after(datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone.utc))
        .sign(private, hashes.SHA256())
    )
    key = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return (key + certificate.public_bytes(serialization.Encoding.PEM)).decode("ascii")


def no_port_reason() -> str | None:
    """Returns why this host cannot have a peer port, and what to do about it; None if it can have one."""
    try:
        import cryptography.x509  # noqa: F401
    except ImportError as error:
        return (
            "no peer port, so this host only fetches from peers: its certificate needs the library cryptography "
            f"({error}): pip install 'tidegate-client[swarm]'"
        )
    return None


UPLOADS, WAITING = 4, 8
UPLOADS_A_PEER = 2
SLOT_SECONDS = 0.5


class NoSlot(Exception):
    """No upload slot is free: the queue is full, or the wait was too long."""


class Slots:
    """The upload slots of a host, shared by all its swarms.

    Near peers are served first. Among peers that are equally near, the one that has waited longest is served first."""

    def __init__(self, uploads: int = UPLOADS, waiting: int = WAITING, seconds: float = SLOT_SECONDS) -> None:
        self._free = uploads
        self._most_waiting = waiting
        self._seconds = seconds
        self._held: Counter[str] = Counter()
        self._near: deque[asyncio.Future[None]] = deque()
        self._far: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def hold(self, caller: str, *, near: bool) -> AsyncIterator[None]:
        """Holds an upload slot while the block runs.

        Raises NoSlot if no slot becomes free soon, or if the caller already uses its share of the slots."""
        if self._held[caller] >= UPLOADS_A_PEER:
            raise NoSlot
        self._held[caller] += 1
        try:
            await self._acquire(near=near)
            try:
                yield
            finally:
                self._release()
        finally:
            self._held[caller] -= 1
            if not self._held[caller]:
                del self._held[caller]

    async def _acquire(self, *, near: bool) -> None:
        if self._free:
            self._free -= 1
            return
        if len(self._near) + len(self._far) >= self._most_waiting:
            raise NoSlot
        queue = self._near if near else self._far
        turn = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            async with timeout(self._seconds):
                await turn
        except TimeoutError:
            # The slot may have been assigned at the moment of the time-out: then it is held.
            if turn.cancelled() or not turn.done():
                raise NoSlot from None
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release()
            raise
        finally:
            if turn in queue:
                queue.remove(turn)

    def _release(self) -> None:
        for queue in (self._near, self._far):
            while queue:
                turn = queue.popleft()
                if not turn.done():
                    turn.set_result(None)
                    return
        self._free += 1


# --- callers
# Limits on the connections to the port, separately for callers with and without a valid token.

CONNECTIONS, CONNECTIONS_A_PEER = 64, 3
# The most connections without a token: they must not take all the places of callers with one.
UNKNOWN, UNKNOWN_AN_ADDRESS = 32, 16
# Every neighbour may connect at the same moment, with all its connections.
NEW_A_SECOND = 48


class Refused(Exception):
    """The connection is closed without an answer."""


class Callers:
    """Limits the connections to the port.

    Connections are counted by address until the caller has shown a valid token, then by agent id."""

    def __init__(self) -> None:
        self._open = 0
        # Connections by address until they have presented a token, then by agent id.
        self.unknown: Counter[str] = Counter()
        self.known: Counter[str] = Counter()
        self._recent: deque[float] = deque(maxlen=NEW_A_SECOND)

    def enter(self, host: str) -> Caller | None:
        """Admits a connection from this address; returns None if a limit is reached."""
        now = time.monotonic()
        crowded = (
            self._open >= CONNECTIONS
            or self.unknown.total() >= UNKNOWN
            or self.unknown[host] >= UNKNOWN_AN_ADDRESS
            or (len(self._recent) == NEW_A_SECOND and now - self._recent[0] < 1.0)
        )
        if crowded:
            return None
        self._recent.append(now)
        self._open += 1
        self.unknown[host] += 1
        return Caller(self, host)

    def _left(self) -> None:
        self._open -= 1


class Caller:
    """One admitted connection. It is counted by its address until the caller is identified, then by the agent id."""

    def __init__(self, callers: Callers, host: str) -> None:
        self._callers = callers
        self._host: str | None = host
        self._agent_id: str | None = None

    def identify(self, agent_id: str) -> None:
        """Notes which agent is calling.

        Raises Refused if this agent has too many connections, or if another agent was named on this connection
        before."""
        if self._agent_id == agent_id:
            return
        if self._agent_id is not None:
            raise Refused
        if self._callers.known[agent_id] >= CONNECTIONS_A_PEER:
            raise Refused
        self._forget_host()
        self._callers.known[agent_id] += 1
        self._agent_id = agent_id

    def leave(self) -> None:
        self._forget_host()
        _decrement(self._callers.known, self._agent_id)
        self._callers._left()

    def _forget_host(self) -> None:
        _decrement(self._callers.unknown, self._host)
        self._host = None


def _decrement(counter: Counter[str], name: str | None) -> None:
    if name is not None:
        counter[name] -= 1
        if counter[name] <= 0:
            del counter[name]


# --- news
# Announces this host's pieces to the peers that follow it: a frame after each change, and one every few seconds.

# Changes within GATHERED seconds share a frame. Without changes a frame is sent after AT_LEAST seconds.
GATHERED, AT_LEAST = 0.1, 10.0
_VERSION_BYTES = 8
_BACKLOG = 64 * 1024


def frame_bytes(layout: Layout) -> int:
    return _VERSION_BYTES + 2 * layout.bitmap_bytes


def read_frame(frame: bytes, layout: Layout) -> tuple[int, int]:
    """Returns (the pieces that the sender has, the pieces that the sender is fetching from S3)."""
    middle = _VERSION_BYTES + layout.bitmap_bytes
    return int.from_bytes(frame[_VERSION_BYTES:middle], "little"), int.from_bytes(frame[middle:], "little")


class News:
    """Announces this host's pieces to the peers that follow it.

    `state` returns two sets of pieces, as in `read_frame`: those that the host has, and those that it fetches from
    S3."""

    def __init__(self, layout: Layout, state: Callable[[], tuple[int, int]]) -> None:
        self._layout = layout
        self._state = state
        self._version = 0
        self._followers: set[asyncio.StreamWriter] = set()
        self._timer: asyncio.TimerHandle | None = None

    def subscribe(self, writer: asyncio.StreamWriter) -> None:
        self._followers.add(writer)
        writer.write(self._frame())
        self._schedule(AT_LEAST)

    def unsubscribe(self, writer: asyncio.StreamWriter) -> None:
        self._followers.discard(writer)

    def changed(self) -> None:
        self._version += 1
        self._schedule(GATHERED)

    def close(self) -> None:
        """Disconnects all followers. A connection without writes would stay open even if its peer is dead."""
        if self._timer is not None:
            self._timer.cancel()
        for writer in self._followers:
            writer.transport.abort()

    def _frame(self) -> bytes:
        bitmaps = b"".join(pieces.to_bytes(self._layout.bitmap_bytes, "little") for pieces in self._state())
        return self._version.to_bytes(_VERSION_BYTES, "big") + bitmaps

    def _schedule(self, after: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if self._timer.when() <= loop.time() + after:
                return
            self._timer.cancel()
        self._timer = loop.call_later(after, self._send)

    def _send(self) -> None:
        """Sends a frame to each follower. A follower whose buffer is full is left out.

        That does no harm, because every frame has the complete state."""
        self._timer = None
        frame = self._frame()
        for writer in self._followers:
            with contextlib.suppress(ConnectionResetError):
                if _unsent(writer) < _BACKLOG:
                    writer.write(frame)
        if self._followers:
            self._schedule(AT_LEAST)


# --- requests
# Parses requests to the port strictly. Only a request with a valid token of a swarm is answered.

_LINE = re.compile(rb"GET /swarm/([0-9a-f]{32})/(have|pieces|blocks|piece/(\d{1,7})) HTTP/1\.1\r\n")
_AUTHORIZATION = re.compile(rb"\r\nAuthorization: ([ -~]{1,600})\r\n", re.IGNORECASE)
_RANGE = re.compile(rb"\r\nRange: bytes=(\d{1,10})-(\d{1,10})\r\n", re.IGNORECASE)


class Served(Protocol):
    """One swarm as the port sees it. Sessions implement this protocol; so do the fakes of tests."""

    accept: bytes

    def list_of(self, name: str) -> bytes | None: ...

    def has(self, piece: int) -> bool: ...

    def piece_length(self, piece: int) -> int: ...

    async def read(self, piece: int, offset: int, length: int) -> bytes: ...

    def is_near(self, caller: str) -> bool: ...

    def mark_reached(self) -> None: ...

    def subscribe(self, writer: asyncio.StreamWriter) -> None: ...

    def unsubscribe(self, writer: asyncio.StreamWriter) -> None: ...


@dataclass
class Request:
    """A parsed request for a piece, a list or announcements."""

    swarm: Served
    caller: str
    path: str
    piece: int
    # First and last byte of the requested part; None: the whole piece.
    span: tuple[int, int] | None


def read_request(head: bytes, swarms: Mapping[str, Served]) -> Request:
    """Parses the head of a request. Raises Refused unless the head is valid and has a token of a neighbour."""
    matched, authorization = _LINE.match(head), _AUTHORIZATION.search(head)
    if matched is None or authorization is None:
        raise Refused
    swarm = swarms.get(matched[1].decode())
    if swarm is None:
        raise Refused
    caller = caller_of(authorization[1].decode(), matched[1].decode(), swarm.accept)
    if caller is None:
        raise Refused
    ranged = _RANGE.search(head)
    span = (int(ranged[1]), int(ranged[2])) if ranged else None
    return Request(swarm, caller, matched[2].decode(), int(matched[3] or 0), span)


# --- server
# The port on which a host serves its peers: HTTP/1.1 over TLS 1.3, GET only, four paths, a token for every request.
#
# Any other request, or one without a valid token, is closed without an answer. The port listens only while there is a
# swarm; otherwise connections are refused, which shows a peer that this host has not started yet.

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
    """The server of the peer port, for all swarms of an agent. Used in one event loop only."""

    def __init__(
        self,
        addresses: list[tuple[str, int]],
        context: Callable[[], ssl.SSLContext] | None,
        slots: Slots,
        upload: RateLimit | None,
    ) -> None:
        """`context` creates the TLS context with the host's certificate. If it is None, the host serves nothing."""
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
        """Binds the ports without listening. Returns the addresses, with the assigned port instead of port 0."""
        self._sockets = [_bound(address) for address in self._addresses]
        self._addresses = [bound.getsockname()[:2] for bound in self._sockets]
        return self._addresses

    def add(self, swarm_id: str, swarm: Served) -> None:
        self._swarms[swarm_id] = swarm
        if not self._accepting and self._addresses and self._context is not None:
            self._listen(self._context)

    def remove(self, swarm_id: str) -> None:
        self._swarms.pop(swarm_id, None)
        if not self._swarms:
            self._stop_listening()

    @property
    def listening(self) -> bool:
        return bool(self._accepting)

    def _listen(self, make_context: Callable[[], ssl.SSLContext]) -> None:
        if not self._sockets:
            try:
                self.bind()
            except OSError as error:
                log.warning("the peer port cannot be bound, so peers cannot call this host: %s", error)
                return
        try:
            context = make_context()
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
        """Counts the connection as closed.

        This is a callback of the task, because a task that is cancelled before its start runs no `finally`."""
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
                lambda: protocol, connection, ssl=context, ssl_handshake_timeout=HANDSHAKE_SECONDS, **TLS_GOODBYE
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
        """Sends the session's announcements to the caller until either side closes."""
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
        """Sends an answer with a body. The answer uses an upload slot and counts towards the upload rate."""
        try:
            async with self._slots.hold(request.caller, near=request.swarm.is_near(request.caller)):
                # Sent before the rate limit delays the body: the caller waits only two seconds.
                writer.write(head)
                for offset in range(0, length, self._chunk):
                    wanted = min(self._chunk, length - offset)
                    chunk = await read(offset, wanted)
                    if len(chunk) != wanted:
                        # The file became shorter. Close the connection: other bytes would count as a wrong piece.
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
    async with timeout(seconds):
        return await reader.readuntil(b"\r\n\r\n")


_REASONS: Mapping[int, str] = {200: "OK", 206: "Partial Content", 404: "Not Found", 429: "Too Many Requests"}


def _status(code: int, length: int = 0) -> bytes:
    return f"HTTP/1.1 {code} {_REASONS[code]}\r\nContent-Length: {length}\r\n\r\n".encode()


def _unsent(writer: asyncio.StreamWriter) -> int:
    """Returns the number of bytes that are written but not sent yet.

    Raises ConnectionResetError if the connection is lost."""
    with lost_connections():
        return writer.transport.get_write_buffer_size()


async def _send(writer: asyncio.StreamWriter, content: bytes) -> None:
    """Writes and waits until the buffer has room. Raises TimeoutError if the receiver is too slow."""
    writer.write(content)
    while True:
        left = _unsent(writer)
        try:
            async with timeout(SEND_SECONDS):
                await writer.drain()
                return
        except TimeoutError:
            if left - _unsent(writer) < SEND_BYTES:
                raise
