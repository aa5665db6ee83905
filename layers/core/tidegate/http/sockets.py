"""Sockets that go only to checked addresses and never outlive a deadline.

The check happens where the socket is opened, so there is no second look-up that could answer otherwise.
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

# A function is frozen between two invocations, and its connections die without a word.
_IDLE_SECONDS = 15.0


class Idle:
    """How long ago a connection was used. One of the two clocks may stand still while a function is frozen."""

    def __init__(self) -> None:
        self.used()

    def used(self) -> None:
        self._monotonic, self._wall = time.monotonic(), time.time()

    @property
    def too_long(self) -> bool:
        return max(time.monotonic() - self._monotonic, time.time() - self._wall) > _IDLE_SECONDS


class _Deadline:
    """Each read and write waits for what is left. A time-out per read would let a server drip bytes for ever."""

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


class PlainSocket(_Deadline, socket.socket):
    # As whom the other side is counted.
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
    """A connection to the first address that answers, if the name's every address may be reached.

    Counted until its owner calls `limits.disconnect` with its `peer`.
    """
    found = guard.addresses(host, port, allow_private=allow_private, timeout=_left(until), project_id=project_id)
    failure: OSError = OSError(f"{host} has no address")
    for left_over, address in zip(range(len(found), 0, -1), found, strict=True):
        # Each gets its share of the time, so that a dead first address does not use up the second one's.
        share = time.monotonic() + _left(until) / left_over
        peer = counted_address(address)
        # Half of it: the address must not be blamed for what this side waited.
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
    """Reading the system's certificates takes tens of milliseconds: once, and only if something is https."""
    context = create_urllib3_context()
    context.load_default_certs()
    return context


def deadlined(context: ssl.SSLContext) -> ssl.SSLContext:
    context.sslsocket_class = TlsSocket
    return context
