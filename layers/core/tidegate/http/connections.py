"""Connections to checked addresses: pooled ones, kept ones for many calls, and limits for each address."""

from __future__ import annotations

import http.client
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from http.client import HTTPException, HTTPResponse, RemoteDisconnected
from ipaddress import ip_address
from typing import Any

from aws_lambda_powertools import Logger
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError
from urllib3.util import Url
from urllib3.util.ssl_ import create_urllib3_context
from urllib3.util.wait import wait_for_read

from tidegate.errors import ConnectionFailed, ContentTooLarge, FetchTimeout, NotSent
from tidegate.http.guard import AddressGuard
from tidegate.http.model import Limits, Reply

logger = Logger(service="tidegate", child=True)

# --- host limits
# Limits what all functions together send to one address: calls per second and parallel connections.
#
# Counted by address, because anyone can make new host names. A process that sends little uses its free allowance and
# reads no counter. A process that sends more leases a block from a counter that all processes share: one counter for
# each second (calls) or each ten seconds (connections). Counters are never reset, since the next window has a new one.
# So the leases of a dead process, and the unused rest of a block, are free again in the next window. Together,
# processes stay within the limit plus the free allowance of each.

# (address, "calls" or "connections", window, amount) → the counter's new value.
Count = Callable[[str, str, int, int], int]

CALLS, CONNECTIONS = "calls", "connections"
_FREE_CALLS = 5
_FREE_CONNECTIONS = 16
_CONNECTION_WINDOW = 10
_MOST_ADDRESSES = 1024


@dataclass(slots=True)
class _Use:
    """This process's calls and connections to one address. The lock is held while the shared counter is read."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    second: int = 0
    calls: int = 0
    calls_before: int = 0
    calls_allowed: int = 0
    calls_over: bool = False
    window: int = 0
    connections: int = 0
    leased: int = 0
    asked_at: float = 0.0


class HostLimits:
    """Limits the `calls` per second and the `connections` to one address, over all processes that share `count`.

    A limit of 0 is no limit. An address is what `counted_address` returns, or a project and a host with a space between
    them. A method waits for `patience` seconds at most.
    """

    def __init__(
        self,
        count: Count | None = None,
        calls: int = 0,
        connections: int = 0,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._count = count
        self._calls = calls if count else 0
        self._connections = connections if count else 0
        self._free_calls = _free(self._calls, _FREE_CALLS)
        self._free_connections = _free(self._connections, _FREE_CONNECTIONS)
        self._clock = clock
        self._sleep = sleep
        self._uses: dict[str, _Use] = {}
        self._lock = threading.Lock()

    def call(self, address: str, patience: float) -> float:
        """Waits until one more call may be made. Returns the seconds waited.

        Raises NotSent if the wait takes too long.
        """
        if not self._calls:
            return 0.0
        use, began = self._use(address), time.monotonic()
        while (wait := self._take_call(address, use)) > 0:
            waited = time.monotonic() - began
            if waited + wait > patience:
                raise NotSent(
                    f"{_named(address)} already gets {self._calls} calls per second, its limit", retry_after=1
                )
            self._sleep(wait)
        return time.monotonic() - began

    def connect(self, address: str, patience: float) -> None:
        """Counts a connection before it is opened. The caller must call `disconnect` when the connection is closed.

        Raises NotSent if the address has too many connections.
        """
        if not self._connections:
            return
        use, began = self._use(address), time.monotonic()
        while not self._take_connection(address, use):
            if time.monotonic() - began + 0.1 > patience:
                raise NotSent(
                    f"{_named(address)} already has {self._connections} connections, its limit", retry_after=2
                )
            self._sleep(0.1)

    def disconnect(self, address: str) -> None:
        if self._connections:
            use = self._use(address)
            with use.lock:
                use.connections = max(0, use.connections - 1)

    # --- calls

    def _take_call(self, address: str, use: _Use) -> float:
        """Returns 0 if the call may be made now; otherwise the seconds to wait before the next try."""
        with use.lock:
            now = self._clock()
            if int(now) != use.second:
                follows = int(now) == use.second + 1
                use.calls_before, use.second, use.calls = (use.calls if follows else 0), int(now), 0
                use.calls_allowed, use.calls_over = self._free_calls, False
            if use.leased:
                self._renew(address, use, now)
            if use.calls >= use.calls_allowed and not use.calls_over:
                self._lease_calls(address, use)
            if use.calls >= use.calls_allowed:
                # A random part, so that not all callers come at once when the next second begins.
                return use.second + 1 - now + random.uniform(0.001, 0.05)  # noqa: S311
            use.calls += 1
            return 0.0

    def _lease_calls(self, address: str, use: _Use) -> None:
        # As many calls as in the last second, but at most a tenth of the limit, so that other processes get some too.
        block = min(max(use.calls_before - use.calls, self._free_calls * 2, 10), max(1, self._calls // 10))
        # Once a process leases calls, those of its free allowance count as well.
        free = use.calls if use.calls_allowed == self._free_calls else 0
        granted = self._lease(address, CALLS, use.second, block, free, self._calls)
        use.calls_allowed += granted
        use.calls_over = granted < block

    # --- connections

    def _take_connection(self, address: str, use: _Use) -> bool:
        with use.lock:
            now = self._clock()
            if use.leased:
                self._renew(address, use, now)
            if use.connections >= self._free_connections + use.leased and now - use.asked_at >= 1:
                self._lease_connections(address, use, now)
            if use.connections >= self._free_connections + use.leased:
                return False
            use.connections += 1
            return True

    def _lease_connections(self, address: str, use: _Use, now: float) -> None:
        use.window = int(now) // _CONNECTION_WINDOW
        block = min(max(8, use.connections // 2), max(1, self._connections // 10))
        free = 0 if use.leased else use.connections
        granted = self._lease(address, CONNECTIONS, use.window, block, free, self._connections)
        if granted:
            # Lease them in the next window too, because these connections will still be open then.
            self._lease(address, CONNECTIONS, use.window + 1, granted, free, self._connections)
        use.leased += granted
        if granted < block:
            use.asked_at = now

    def _renew(self, address: str, use: _Use, now: float) -> None:
        """Counts the open connections in the next window, too.

        If a whole window was missed, also counts them in the present one.
        """
        window = int(now) // _CONNECTION_WINDOW
        if window == use.window:
            return
        use.leased = max(0, use.connections - self._free_connections)
        missed = window > use.window + 1
        use.window = window
        if use.leased:
            for each in (window, window + 1) if missed else (window + 1,):
                self._lease(address, CONNECTIONS, each, use.connections, 0, self._connections)

    # --- both

    def _lease(self, address: str, kind: str, window: int, block: int, free: int, limit: int) -> int:
        assert self._count
        try:
            others = self._count(address, kind, window, block + free) - block
        except Exception:
            # Send too few rather than too many: until the next window this process has only its free allowance.
            logger.exception("the shared counter of an address could not be read", address=address, kind=kind)
            return 0
        return max(0, min(block, limit - others))

    def _use(self, address: str) -> _Use:
        with self._lock:
            if len(self._uses) >= _MOST_ADDRESSES and address not in self._uses:
                self._uses = {name: use for name, use in self._uses.items() if use.connections or use.lock.locked()}
            return self._uses.setdefault(address, _Use())


def _free(limit: int, most: int) -> int:
    return max(1, min(most, limit // 100))


def _named(address: str) -> str:
    """Returns the address without its project, for error texts: `host` for `p-1 host`."""
    return address.rpartition(" ")[2]


def counted_address(address: str) -> str:
    """Returns the address under which calls are counted.

    For an IPv6 address, that is its /64 network, because one host may have this whole network.
    """
    parsed = ip_address(address.split("%", 1)[0])
    return address if parsed.version == 4 else str(ip_address(int(parsed) >> 64 << 64))


# --- sockets
# Sockets that connect only to checked addresses and obey a deadline.
#
# The address that is checked is the one that is connected to: there is no second look-up with another answer.

# A function is frozen between invocations, and servers close its connections meanwhile.
_IDLE_SECONDS = 15.0
_KEEP_ALIVE_SECONDS = 60


class Idle:
    """Measures how long a connection was not used.

    It reads two clocks, because one may stop while a function is frozen.
    """

    def __init__(self) -> None:
        self.used()

    def used(self) -> None:
        self._monotonic, self._wall = time.monotonic(), time.time()

    @property
    def too_long(self) -> bool:
        return max(time.monotonic() - self._monotonic, time.time() - self._wall) > _IDLE_SECONDS


class _Deadline:
    """Limits each read and write to the time that is left for the request.

    A time-out for each read alone is not enough, because a slow server could go on sending for ever.
    """

    deadline: float
    # The most seconds of one read or write.
    pause: float

    def allow(self, pause: float, deadline: float) -> None:
        """Sets the limits of one request. They replace the limits for connecting, or those of the request before."""
        self.pause, self.deadline = pause, deadline

    def _keep_to_deadline(self: Any) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline of the request has passed")
        # Set it each time: the socket still has the time-out of connecting, or a shorter one of the request before.
        self.settimeout(min(self.pause, left))

    def recv_into(self: Any, *args: Any, **kwargs: Any) -> int:
        self._keep_to_deadline()
        return int(super().recv_into(*args, **kwargs))  # type: ignore[misc]

    def send(self: Any, *args: Any, **kwargs: Any) -> int:
        self._keep_to_deadline()
        return int(super().send(*args, **kwargs))  # type: ignore[misc]

    def sendall(self: Any, *args: Any, **kwargs: Any) -> None:
        self._keep_to_deadline()
        super().sendall(*args, **kwargs)  # type: ignore[misc]


class PlainSocket(_Deadline, socket.socket):
    # The address under which `HostLimits` counts the connection.
    peer: str


class TlsSocket(_Deadline, ssl.SSLSocket):
    pass


def _holds_bytes(sock: Any) -> bool:
    """Whether the TLS layer has bytes that were not read yet. The socket below it may have none."""
    return isinstance(sock, TlsSocket) and sock.pending() > 0


def open_socket(
    guard: AddressGuard,
    limits: HostLimits,
    host: str,
    port: int,
    *,
    allow_private: bool,
    until: float,
    project_id: str = "",
) -> PlainSocket:
    """Connects to the first address that answers. UrlNotAllowed if any address of the name may not be reached.

    When the socket is closed, the caller must call `limits.disconnect` with the socket's `peer`.
    """
    found = guard.addresses(host, port, allow_private=allow_private, timeout=_left(until), project_id=project_id)
    failure: OSError = OSError(f"{host} has no address")
    for left_over, address in zip(range(len(found), 0, -1), found, strict=True):
        # Each address gets a share of the time, so that a dead address leaves some for the next.
        share = time.monotonic() + _left(until) / left_over
        peer = counted_address(address)
        # Wait for the limit for at most half of that time, so that the rest is left for connecting.
        limits.connect(peer, _left(share) / 2)
        try:
            sock = _connect(address, port, share)
            sock.peer = peer
            return sock
        except BaseException as error:
            limits.disconnect(peer)
            if not isinstance(error, OSError):
                raise
            failure = error
    raise failure


def _left(until: float) -> float:
    return max(0.001, until - time.monotonic())


def _connect(address: str, port: int, until: float) -> PlainSocket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = PlainSocket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _keep_alive(sock)
        sock.settimeout(_left(until))
        sock.connect((address, port))
        sock.settimeout(_left(until))
    except BaseException:
        sock.close()
        raise
    sock.allow(_left(until), until)
    return sock


def _keep_alive(sock: socket.socket) -> None:
    """Makes the system send packets on an idle connection.

    A NAT gateway drops a connection after 350 s without a packet.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEP_ALIVE_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEP_ALIVE_SECONDS)


@cache
def default_context() -> ssl.SSLContext:
    """Returns the TLS context, which is made only once, at the first https URL.

    It is not made earlier, because reading certificates takes tens of milliseconds.
    """
    context = create_urllib3_context()
    context.load_default_certs()
    return context


def deadlined(context: ssl.SSLContext) -> ssl.SSLContext:
    context.sslsocket_class = TlsSocket
    return context


# --- kept connection
# A kept connection to one URL, for a worker that posts to it thousands of times.
#
# A connection of the standard library costs half the CPU time of a pooled urllib3 request. Its socket is opened by the
# same guard, so the same rules hold for addresses, deadlines and certificates.

_PATIENCE = 2.0


class _OneWrite:
    """Collects the headers and the body of a request, to send them together. The library would send two packets."""

    unsent = b""

    def send(self, data: Any) -> None:
        self.unsent += data


class _Plain(_OneWrite, http.client.HTTPConnection):
    pass


class _Tls(_OneWrite, http.client.HTTPSConnection):
    pass


class KeptConnection:
    """A connection for many POSTs to one URL, for one thread at a time. Follows no redirects.

    After a failure, the next post opens a new connection.
    """

    def __init__(
        self,
        guard: AddressGuard,
        host_limits: HostLimits,
        url: Url,
        *,
        allow_private: bool,
        limits: Limits,
        context: ssl.SSLContext | None = None,
        project_id: str = "",
    ) -> None:
        self._guard = guard
        self._host_limits = host_limits
        self._project_id = project_id
        self._url = url
        self._host = (url.host or "").strip("[]")
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._allow_private = allow_private
        self.limits = limits
        self._context = context
        self._connection = (_Tls if url.scheme == "https" else _Plain)(self._host, self._port)
        self._socket: PlainSocket | TlsSocket
        self._peer: str | None = None
        self._idle = Idle()

    def post(self, body: bytes, headers: Mapping[str, str]) -> Reply:
        if self._idle.too_long or self._is_readable:
            self.close()
        kept = self._connection.sock is not None
        until = time.monotonic() + self.limits.total
        try:
            try:
                response = self._send(body, headers, until)
            except ConnectionError:
                # A server may close an idle connection at the moment it is used again, without an answer.
                self.close()
                if not kept:
                    raise
                response = self._send(body, headers, until)
            content = self._content(response)
            if self._connection.sock is None:
                # The library has closed it, because the server said that it would: it must not count any more.
                self.close()
            return Reply(response.status, _lower(response), content, self._url.url)
        except Exception as error:
            # The rest of a broken exchange would be taken for the next answer.
            self.close()
            if isinstance(error, TimeoutError):
                silent = self.limits.read < self.limits.total and time.monotonic() < until
                text = (
                    f"send any data for {self.limits.read:g} s" if silent else f"answer within {self.limits.total:g} s"
                )
                raise FetchTimeout(f"the server did not {text}") from error
            if isinstance(error, (OSError, HTTPException)):
                raise ConnectionFailed(self._reason(error)) from error
            raise

    @property
    def _is_readable(self) -> bool:
        """Whether the server has closed the connection, or has sent bytes too early.

        Such bytes would pass for the next answer.
        """
        sock = self._connection.sock
        return sock is not None and (_holds_bytes(sock) or wait_for_read(sock, timeout=0))

    def _reason(self, error: OSError | HTTPException) -> str:
        """Returns why a post failed, in plain words."""
        if isinstance(error, RemoteDisconnected):
            return "the server closed the connection without an answer"
        text = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if isinstance(error, socket.gaierror):
            return f"the host name {self._host} cannot be resolved: {text}"
        return f"the connection to {self._host} failed: {text}"

    def close(self) -> None:
        if self._peer is not None:
            self._host_limits.disconnect(self._peer)
            self._peer = None
        self._connection.close()

    def _send(self, body: bytes, headers: Mapping[str, str], until: float) -> HTTPResponse:
        connection = self._connection
        if connection.sock is None:
            self._socket = connection.sock = self._open(until)
        assert self._peer
        # This wait is not the server's fault, so it does not shorten the time for its answer.
        until += self._host_limits.call(self._peer, _PATIENCE)
        self._idle.used()
        self._socket.allow(self.limits.read, until)
        connection.unsent = b""
        connection.request("POST", self._url.request_uri, body, headers)
        self._socket.sendall(connection.unsent)
        return connection.getresponse()

    def _content(self, response: HTTPResponse) -> bytes:
        content = response.read(self.limits.max_bytes + 1)
        if len(content) > self.limits.max_bytes:
            raise ContentTooLarge(f"the server sent more than the {self.limits.max_bytes} bytes that are accepted")
        if response.length:
            raise ConnectionFailed(f"the connection broke: {response.length} bytes of the answer are missing")
        return content

    def _open(self, until: float) -> PlainSocket | TlsSocket:
        soon = min(until, time.monotonic() + self.limits.connect)
        try:
            sock = open_socket(
                self._guard,
                self._host_limits,
                self._host,
                self._port,
                allow_private=self._allow_private,
                until=soon,
                project_id=self._project_id,
            )
            self._peer = sock.peer
            if self._url.scheme != "https":
                return sock
            context = deadlined(self._context or default_context())
            wrapped = context.wrap_socket(sock, server_hostname=self._host)
        except TimeoutError as error:
            raise FetchTimeout(f"the connection to {self._host} timed out") from error
        assert isinstance(wrapped, TlsSocket)
        return wrapped


def _lower(response: HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}


# --- connections
# urllib3 pools whose connections go to checked addresses only.
#
# urllib3 still knows only the host's name, so the Host header, SNI and the certificate check use the name.


@dataclass(slots=True)
class Exchange:
    """The state of one request. urllib3 cannot pass this state to the connection as arguments."""

    until: float
    # The most seconds between two reads.
    pause: float
    project_id: str = ""
    # Whether the connection had served a request before, and whether writing this one to it failed.
    kept: bool = False
    unwritten: bool = False
    # The seconds for which the host's limits delayed it.
    waited: float = 0.0

    @property
    def never_left(self) -> bool:
        """Whether the server closed a kept connection before it had the whole request.

        Then the server cannot have acted on the request.
        """
        return self.kept and self.unwritten


exchange: ContextVar[Exchange] = ContextVar("exchange")


class _Guarded:
    """A mixin for urllib3's connections.

    It adds checked addresses, limits for each host, and the deadline of a request.
    """

    guard: AddressGuard
    limits: HostLimits
    allow_private: bool
    idle: Idle
    peer: str | None = None
    served = False

    def _new_conn(self: Any) -> PlainSocket:
        now = exchange.get()
        until = min(now.until, time.monotonic() + self.timeout)
        host = self._dns_host.strip("[]")
        try:
            sock = open_socket(
                self.guard,
                self.limits,
                host,
                self.port,
                allow_private=self.allow_private,
                until=until,
                project_id=now.project_id,
            )
        except socket.gaierror as error:
            raise NewConnectionError(self, f"the host name {host} cannot be resolved: {_text_of(error)}") from error
        except TimeoutError as error:
            raise ConnectTimeoutError(self, f"the connection to {host} timed out") from error
        except OSError as error:
            raise NewConnectionError(self, f"the connection to {host} failed: {_text_of(error)}") from error
        self.peer, self.idle = sock.peer, Idle()
        return sock

    @property
    def is_connected(self: Any) -> bool:
        """Whether the pooled connection can be used again. urllib3 asks this before each reuse."""
        return bool(super().is_connected) and not self.idle.too_long and not _holds_bytes(self.sock)  # type: ignore[misc]

    def connect(self: Any) -> None:
        super().connect()  # type: ignore[misc]
        now = exchange.get()
        self.sock.allow(now.pause, now.until)

    def request(self: Any, *args: Any, **kwargs: Any) -> None:
        now = exchange.get()
        now.kept = self.sock is not None and self.served
        if self.sock is None:
            self.connect()
        self.sock.allow(now.pause, now.until)
        now.waited += self.limits.call(self.peer, (now.until - time.monotonic()) / 4)
        self.served = True
        self.idle.used()
        try:
            super().request(*args, **kwargs)  # type: ignore[misc]
        except OSError:
            now.unwritten = True
            raise

    def close(self: Any) -> None:
        if self.peer is not None:
            self.limits.disconnect(self.peer)
        self.peer, self.served = None, False
        super().close()  # type: ignore[misc]


def _text_of(error: OSError) -> str:
    return error.strerror or str(error)


def pool_manager(
    guard: AddressGuard,
    limits: HostLimits,
    *,
    allow_private: bool,
    connections_per_host: int,
    context: ssl.SSLContext | None,
) -> PoolManager:
    class Plain(_Guarded, HTTPConnection):
        pass

    class Tls(_Guarded, HTTPSConnection):
        pass

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class TlsPool(HTTPSConnectionPool):
        ConnectionCls = Tls

        def __init__(self, host: str, port: int | None = None, **options: Any) -> None:
            super().__init__(host, port, **{**options, "ssl_context": deadlined(context or default_context())})

    for kind in (Plain, Tls):
        kind.guard, kind.limits, kind.allow_private = guard, limits, allow_private
    manager = PoolManager(num_pools=64, maxsize=connections_per_host, retries=False)
    manager.pool_classes_by_scheme = {"http": PlainPool, "https": TlsPool}
    return manager
