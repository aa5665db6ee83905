"""SafeHttp: the one way out to URLs that callers name."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from urllib3 import BaseHTTPResponse
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NewConnectionError,
    ProtocolError,
    ReadTimeoutError,
)
from urllib3.util import Timeout, Url

from tidegate.errors import ConnectionFailed, ContentTooLarge, FetchTimeout, RedirectRefused
from tidegate.http.addresses import AddressGuard, Resolver, resolve
from tidegate.http.connections import deadline, pool_manager
from tidegate.http.kept_connection import KeptConnection
from tidegate.http.model import DEFAULT_LIMITS, REDIRECTS, Limits, Reply, error_for
from tidegate.http.urls import host_of, joined, origin_of, port_of, read_url

MAX_REDIRECTS = 5
_CHUNK = 256 * 1024
_DEFAULT_HEADERS = {"user-agent": "tidegate/1", "accept-encoding": "identity"}
# A signature is a credential too: with it, the next host could call the first in our name.
_CREDENTIALS = frozenset({"authorization", "cookie", "proxy-authorization", "x-api-key", "webhook-signature"})
_SAFE_TO_REPEAT = frozenset({"GET", "HEAD"})
_BODY_HEADERS = frozenset({"content-type", "content-length", "content-encoding"})


@dataclass(slots=True)
class Stream:
    """An answer whose body has not been read yet; header names are lower-case."""

    status: int
    headers: Mapping[str, str]
    url: str
    _response: BaseHTTPResponse
    _max_bytes: int

    def chunks(self, size: int = _CHUNK) -> Iterator[bytes]:
        """The raw bytes as they come; nothing is decoded, so a digest is that of what was sent."""
        return _body(self._response, self._max_bytes, size, decode=False)

    def raise_for_status(self) -> None:
        error = error_for(self.status, self.headers)
        if error:
            raise error


class SafeHttp:
    """Implements the port `Http`."""

    def __init__(
        self,
        *,
        resolver: Resolver = resolve,
        allowed_hosts: Iterable[str] = (),
        refused_endpoints: Iterable[str] = (),
        connections_per_host: int = 64,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._context = context
        self._guard = AddressGuard(resolver, allowed_hosts, refused_endpoints)
        self._pools = {
            private: pool_manager(
                self._guard, allow_private=private, connections_per_host=connections_per_host, context=context
            )
            for private in (False, True)
        }

    def check_url(self, url: str, *, allow_private: bool = False) -> None:
        """Refuse at submission what a fetch would refuse. A name that has no address (yet) passes."""
        named = read_url(url)
        try:
            self._guard.addresses(host_of(named), port_of(named), allow_private=allow_private, timeout=2.0)
        except (socket.gaierror, FetchTimeout):
            return

    def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        allow_private: bool = False,
        limits: Limits = DEFAULT_LIMITS,
        redirects: int = MAX_REDIRECTS,
    ) -> Reply:
        """One exchange, the body read whole and decoded. Any status is an answer: see `raise_for_status`."""
        with _translated():
            response, final = self._follow(method, url, headers, body, allow_private, limits, redirects)
            try:
                content = b"".join(_body(response, limits.max_bytes, _CHUNK, decode=True))
            except BaseException:
                response.close()
                raise
            response.release_conn()
            return Reply(response.status, _lower(response.headers), content, final)

    @contextmanager
    def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        allow_private: bool = False,
        limits: Limits = DEFAULT_LIMITS,
        redirects: int = MAX_REDIRECTS,
    ) -> Iterator[Stream]:
        with _translated():
            response, final = self._follow(method, url, headers, body, allow_private, limits, redirects)
        done = False
        try:
            yield Stream(response.status, _lower(response.headers), final, response, limits.max_bytes)
            done = getattr(response, "length_remaining", None) == 0
        finally:
            # A body left unread would be taken for the next answer.
            if done:
                response.release_conn()
            else:
                response.close()

    def line(self, url: str, *, allow_private: bool = False, limits: Limits = DEFAULT_LIMITS) -> KeptConnection:
        """A connection of one's own to one URL, for many posts."""
        return KeptConnection(
            self._guard, read_url(url), allow_private=allow_private, limits=limits, context=self._context
        )

    def _follow(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None,
        body: bytes | None,
        allow_private: bool,
        limits: Limits,
        redirects: int,
    ) -> tuple[BaseHTTPResponse, str]:
        until = time.monotonic() + limits.total
        sent = {**_DEFAULT_HEADERS, **{name.lower(): value for name, value in (headers or {}).items()}}
        here = read_url(url)
        for _ in range(redirects + 1):
            try:
                response = self._exchange(method, here, sent, body, allow_private, limits, until)
            except ProtocolError as error:
                if method not in _SAFE_TO_REPEAT or not _hung_up(error):
                    raise
                response = self._exchange(method, here, sent, body, allow_private, limits, until)
            location = response.headers.get("location")
            if response.status not in REDIRECTS or not location or redirects == 0:
                return response, here.url
            response.close()
            there = read_url(joined(here, location))
            if response.status == 303 or (response.status in {301, 302} and method == "POST"):
                method, body = "GET" if method != "HEAD" else method, None
                sent = {name: value for name, value in sent.items() if name not in _BODY_HEADERS}
            if origin_of(there) != origin_of(here):
                sent = {name: value for name, value in sent.items() if name not in _CREDENTIALS}
            here = there
        raise RedirectRefused(f"More than {redirects} redirects")

    def _exchange(
        self,
        method: str,
        url: Url,
        headers: Mapping[str, str],
        body: bytes | None,
        allow_private: bool,
        limits: Limits,
        until: float,
    ) -> BaseHTTPResponse:
        left = until - time.monotonic()
        if left <= 0:
            raise FetchTimeout("The deadline of the fetch has passed")
        pool = self._pools[allow_private].connection_from_host(host_of(url), port_of(url), url.scheme)
        token = deadline.set(until)
        try:
            return pool.urlopen(
                method,
                url.request_uri,
                body=body,
                headers=headers,
                retries=False,
                redirect=False,
                timeout=Timeout(total=left, connect=limits.connect, read=limits.read),
                preload_content=False,
                decode_content=False,
            )
        finally:
            deadline.reset(token)


def _hung_up(error: ProtocolError) -> bool:
    """Before any answer: most likely a kept connection that the other side was just closing."""
    return isinstance(error.args[-1], ConnectionError)


def _body(response: BaseHTTPResponse, max_bytes: int, size: int, *, decode: bool) -> Iterator[bytes]:
    announced = response.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and int(announced[:20]) > max_bytes:
        raise ContentTooLarge(f"{announced} bytes announced, {max_bytes} at most")
    taken = 0
    with _translated():
        while chunk := response.read1(size, decode_content=decode):
            taken += len(chunk)
            if taken > max_bytes:
                raise ContentTooLarge(f"More than {max_bytes} bytes")
            yield chunk


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except NewConnectionError as error:  # a subclass of ConnectTimeoutError, though a refusal is no time-out
        raise ConnectionFailed(str(error)) from error
    except (ConnectTimeoutError, ReadTimeoutError, TimeoutError) as error:
        raise FetchTimeout(str(error)) from error
    except (HTTPError, OSError) as error:
        raise ConnectionFailed(str(error)) from error


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
