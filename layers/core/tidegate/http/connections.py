"""urllib3 pools whose connections go to checked addresses only.

urllib3 still knows only the host's name, so the Host header, SNI and the certificate check use the name.
"""

from __future__ import annotations

import socket
import ssl
import time
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from tidegate.http.addresses import AddressGuard
from tidegate.http.host_limits import HostLimits
from tidegate.http.sockets import Idle, PlainSocket, deadlined, default_context, open_socket


@dataclass(slots=True)
class Exchange:
    """State of one request that urllib3 cannot pass on to the connection as arguments."""

    until: float
    project_id: str = ""
    # Whether the connection had served a request before, and whether writing this one to it failed.
    kept: bool = False
    unwritten: bool = False
    # Seconds that the host's limits held it back.
    waited: float = 0.0

    @property
    def never_left(self) -> bool:
        """Whether the server closed a kept connection before it had the whole request: it cannot have acted on it."""
        return self.kept and self.unwritten


exchange: ContextVar[Exchange] = ContextVar("exchange")


class _Guarded:
    """Mixed into urllib3's connections."""

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
        """urllib3 asks this before it uses a pooled connection again."""
        return bool(super().is_connected) and not self.idle.too_long  # type: ignore[misc]

    def connect(self: Any) -> None:
        super().connect()  # type: ignore[misc]
        self.sock.deadline = exchange.get().until

    def request(self: Any, *args: Any, **kwargs: Any) -> None:
        now = exchange.get()
        now.kept = self.sock is not None and self.served
        if self.sock is None:
            self.connect()
        self.sock.deadline = now.until
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
