"""Pools of connections to checked addresses.

Host, SNI and the certificate keep the name, because urllib3 still knows only the name.
"""

from __future__ import annotations

import socket
import ssl
import time
from contextvars import ContextVar
from typing import Any

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, NameResolutionError, NewConnectionError

from tidegate.http.addresses import AddressGuard
from tidegate.http.sockets import PlainSocket, deadlined, default_context, open_socket

# urllib3 has no argument that would carry it down to the socket.
deadline: ContextVar[float] = ContextVar("deadline")


class _Guarded:
    """Mixed into urllib3's connections."""

    guard: AddressGuard
    allow_private: bool

    def _new_conn(self: Any) -> PlainSocket:
        until = min(deadline.get(), time.monotonic() + self.timeout)
        host = self._dns_host.strip("[]")
        try:
            return open_socket(self.guard, host, self.port, allow_private=self.allow_private, until=until)
        except socket.gaierror as error:
            raise NameResolutionError(self.host, self, error) from error
        except TimeoutError as error:
            raise ConnectTimeoutError(self, f"Connection to {host} timed out") from error
        except OSError as error:
            raise NewConnectionError(self, f"No connection to {host}: {error}") from error

    def connect(self: Any) -> None:
        super().connect()  # type: ignore[misc]
        self.sock.deadline = deadline.get()

    def request(self: Any, *args: Any, **kwargs: Any) -> None:
        if self.sock is not None:
            self.sock.deadline = deadline.get()
        super().request(*args, **kwargs)  # type: ignore[misc]


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
            super().__init__(host, port, **{**options, "ssl_context": deadlined(context or default_context())})

    for kind in (Plain, Tls):
        kind.guard, kind.allow_private = guard, allow_private
    manager = PoolManager(num_pools=64, maxsize=connections_per_host, retries=False)
    manager.pool_classes_by_scheme = {"http": PlainPool, "https": TlsPool}
    return manager
