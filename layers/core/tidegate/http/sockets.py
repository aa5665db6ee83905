"""Sockets that connect only to checked addresses and obey a deadline.

The address that is checked is the one that is connected to: there is no second look-up with another answer.
"""

from __future__ import annotations

import socket
import ssl
import time
from functools import cache
from typing import Any

from urllib3.util.ssl_ import create_urllib3_context

from tidegate.http.addresses import AddressGuard
from tidegate.http.host_limits import HostLimits, counted_address

# A function is frozen between invocations, and servers close its connections meanwhile.
_IDLE_SECONDS = 15.0


class Idle:
    """How long a connection was not used. Two clocks, because one may stop while a function is frozen."""

    def __init__(self) -> None:
        self.used()

    def used(self) -> None:
        self._monotonic, self._wall = time.monotonic(), time.time()

    @property
    def too_long(self) -> bool:
        return max(time.monotonic() - self._monotonic, time.time() - self._wall) > _IDLE_SECONDS


class _Deadline:
    """Limits each read and write to the time that is left. A time-out per read would let a slow server take forever."""

    deadline: float

    def _cut(self: Any) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline of the request has passed")
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


class PlainSocket(_Deadline, socket.socket):
    # The address under which `HostLimits` counts the connection.
    peer: str


class TlsSocket(_Deadline, ssl.SSLSocket):
    pass


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
    """A connection to the first address that answers. UrlNotAllowed if any address of the name may not be reached.

    The owner must call `limits.disconnect` with its `peer` when it is closed.
    """
    found = guard.addresses(host, port, allow_private=allow_private, timeout=_left(until), project_id=project_id)
    failure: OSError = OSError(f"{host} has no address")
    for left_over, address in zip(range(len(found), 0, -1), found, strict=True):
        # Each address gets a share of the time, so that a dead one leaves some for the next.
        share = time.monotonic() + _left(until) / left_over
        peer = counted_address(address)
        # Waits for the limit at most half of that time, so that the rest is left to connect.
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
        sock.settimeout(_left(until))
        sock.connect((address, port))
        sock.settimeout(_left(until))
    except BaseException:
        sock.close()
        raise
    sock.deadline = until
    return sock


@cache
def default_context() -> ssl.SSLContext:
    """Made once, at the first https URL: reading the system's certificates takes tens of milliseconds."""
    context = create_urllib3_context()
    context.load_default_certs()
    return context


def deadlined(context: ssl.SSLContext) -> ssl.SSLContext:
    context.sslsocket_class = TlsSocket
    return context
