"""Pooled connections that go only to checked addresses and never outlive a deadline.

The check happens where the socket is opened, so there is no second look-up that could answer
otherwise; Host, SNI and the certificate keep the name, because urllib3 still knows only the name.
"""

from __future__ import annotations

import socket
import ssl
import time
from contextvars import ContextVar
from functools import cache
from typing import Any

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, NameResolutionError, NewConnectionError
from urllib3.util.ssl_ import create_urllib3_context

from tidegate.adapters.http.addresses import AddressGuard

# urllib3's time-outs are per read, so a server that drips bytes could hold a fetch for ever.
deadline: ContextVar[float] = ContextVar("deadline")


class _Deadline:
    """Mixed into sockets: each read and write waits for what is left, not for its own time-out."""

    deadline: float

    def _cut(self: Any) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("The deadline of the fetch has passed")
        present = self.gettimeout()
        if present is None or left < present:
            self.settimeout(left)

    def recv_into(self: Any, *args: Any, **kwargs: Any) -> int:
        self._cut()
        return int(super().recv_into(*args, **kwargs))  # type: ignore[misc]

    def send(self: Any, *args: Any, **kwargs: Any) -> int:
        self._cut()
        return int(super().send(*args, **kwargs))  # type: ignore[misc]

    def sendall(self: Any, *args: Any, **kwargs: Any) -> None:
        self._cut()
        super().sendall(*args, **kwargs)  # type: ignore[misc]


class _PlainSocket(_Deadline, socket.socket):
    pass


class _TlsSocket(_Deadline, ssl.SSLSocket):
    pass


class _Guarded:
    """Mixed into urllib3's connections."""

    guard: AddressGuard
    allow_private: bool

    def _new_conn(self: Any) -> socket.socket:
        host, port = self._dns_host.strip("[]"), self.port
        until = min(deadline.get(), time.monotonic() + self.timeout)
        try:
            addresses = self.guard.addresses(host, port, allow_private=self.allow_private, timeout=_left(until))
        except socket.gaierror as error:
            raise NameResolutionError(self.host, self, error) from error
        failure: OSError = OSError(f"{host} has no address")
        for address in addresses:
            try:
                return _connect(address, port, until)
            except OSError as error:
                failure = error
        if isinstance(failure, TimeoutError):
            raise ConnectTimeoutError(self, f"Connection to {host} timed out") from failure
        raise NewConnectionError(self, f"No connection to {host}: {failure}") from failure

    def connect(self: Any) -> None:
        super().connect()  # type: ignore[misc]
        self.sock.deadline = deadline.get()

    def request(self: Any, *args: Any, **kwargs: Any) -> None:
        if self.sock is not None:
            self.sock.deadline = deadline.get()
        super().request(*args, **kwargs)  # type: ignore[misc]


def _left(until: float) -> float:
    return max(0.001, until - time.monotonic())


def _connect(address: str, port: int, until: float) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = _PlainSocket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(_left(until))
        sock.connect((address, port))
        sock.settimeout(_left(until))
    except BaseException:
        sock.close()
        raise
    sock.deadline = until
    return sock


def pool_manager(
    guard: AddressGuard, *, allow_private: bool, connections_per_host: int, context: ssl.SSLContext | None
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
            super().__init__(host, port, **{**options, "ssl_context": _deadlined(context or _default_context())})

    for kind in (Plain, Tls):
        kind.guard, kind.allow_private = guard, allow_private
    manager = PoolManager(num_pools=64, maxsize=connections_per_host, retries=False)
    manager.pool_classes_by_scheme = {"http": PlainPool, "https": TlsPool}
    return manager


@cache
def _default_context() -> ssl.SSLContext:
    """Reading the system's certificates takes tens of milliseconds: once, and only if something is https."""
    context = create_urllib3_context()
    context.load_default_certs()
    return context


def _deadlined(context: ssl.SSLContext) -> ssl.SSLContext:
    context.sslsocket_class = _TlsSocket
    return context
