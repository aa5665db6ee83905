"""A kept connection to one URL, for a worker that posts to it thousands of times.

A connection of the standard library costs half the CPU time of a pooled urllib3 request. Its socket is opened by the
same guard, so the same rules hold for addresses, deadlines and certificates.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, RemoteDisconnected
from typing import Any

from urllib3.util import Url

from tidegate.errors import ConnectionFailed, ContentTooLarge, FetchTimeout
from tidegate.http.addresses import AddressGuard
from tidegate.http.host_limits import HostLimits
from tidegate.http.model import Limits, Reply
from tidegate.http.sockets import Idle, PlainSocket, TlsSocket, deadlined, default_context, open_socket

_PATIENCE = 2.0


class _OneWrite:
    """Collects headers and body, which the library would send as two packets."""

    unsent = b""

    def send(self, data: Any) -> None:
        self.unsent += data


class _Plain(_OneWrite, HTTPConnection):
    pass


class _Tls(_OneWrite, HTTPSConnection):
    pass


class KeptConnection:
    """Follows no redirects. For one thread at a time. After a failure, the next post opens a new connection."""

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
        self._limits = limits
        self._context = context
        self._connection = (_Tls if url.scheme == "https" else _Plain)(self._host, self._port)
        self._socket: PlainSocket | TlsSocket
        self._peer: str | None = None
        self._idle = Idle()

    def post(self, body: bytes, headers: Mapping[str, str]) -> Reply:
        if self._idle.too_long:
            self.close()
        kept = self._connection.sock is not None
        until = time.monotonic() + self._limits.total
        try:
            try:
                response = self._send(body, headers, until)
            except (ConnectionError, HTTPException):
                # A server may close an idle connection at the moment it is used again, without an answer.
                self.close()
                if not kept:
                    raise
                response = self._send(body, headers, until)
            content = self._content(response)
            return Reply(response.status, _lower(response), content, self._url.url)
        except Exception as error:
            # The rest of a broken exchange would be taken for the next answer.
            self.close()
            if isinstance(error, TimeoutError):
                raise FetchTimeout(f"the server did not answer within {self._limits.total:g} s") from error
            if isinstance(error, (OSError, HTTPException)):
                raise ConnectionFailed(self._reason(error)) from error
            raise

    def _reason(self, error: OSError | HTTPException) -> str:
        """Why a post failed, in plain words."""
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
        self._socket.deadline = until
        connection.unsent = b""
        connection.request("POST", self._url.request_uri, body, headers)
        self._socket.sendall(connection.unsent)
        return connection.getresponse()

    def _content(self, response: HTTPResponse) -> bytes:
        content = response.read(self._limits.max_bytes + 1)
        if len(content) > self._limits.max_bytes:
            raise ContentTooLarge(f"the server sent more than the {self._limits.max_bytes} bytes that are accepted")
        if response.length:
            raise ConnectionFailed(f"the connection broke: {response.length} bytes of the answer are missing")
        return content

    def _open(self, until: float) -> PlainSocket | TlsSocket:
        soon = min(until, time.monotonic() + self._limits.connect)
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
        assert isinstance(wrapped, TlsSocket)
        return wrapped


def _lower(response: HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}
