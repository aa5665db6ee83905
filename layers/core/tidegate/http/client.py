"""SafeHttp: the HTTP client for every URL that a caller gave."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import RemoteDisconnected
from typing import TypedDict, Unpack

from urllib3 import BaseHTTPResponse
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    IncompleteRead,
    NewConnectionError,
    ProtocolError,
    ReadTimeoutError,
    SSLError,
)
from urllib3.util import Timeout, Url

from tidegate.errors import ConnectionFailed, ContentTooLarge, FetchTimeout, RedirectRefused, UrlNotAllowed
from tidegate.http.connections import Exchange, HostLimits, KeptConnection, exchange, pool_manager
from tidegate.http.guard import (
    CHECK_SECONDS,
    AddressGuard,
    Credential,
    Resolver,
    UrlCheck,
    host_of,
    origin_of,
    port_of,
    read_url,
    redirect_url,
    resolve,
    sent_url,
)
from tidegate.http.model import DEFAULT_LIMITS, REDIRECTS, Limits, Reply, error_for

MAX_REDIRECTS = 5
_CHUNK = 256 * 1024
_DEFAULT_HEADERS = {"user-agent": "tidegate/1", "accept-encoding": "identity"}
# The only headers that are sent to another origin after a redirect. Any other may be a secret: a token, or a signature
# with which that host could call the first one in our name.
_FOR_ANY_ORIGIN = frozenset(
    {
        *_DEFAULT_HEADERS,
        "accept",
        "content-type",
        "content-encoding",
        "range",
        "if-range",
        "if-match",
        "if-none-match",
        "if-modified-since",
        "if-unmodified-since",
    }
)
# Texts that urllib3 puts before a message, and after "Read timed out.".
_PREFIX = re.compile(r"\w+\(host=.*?, port=\d+\): ")
_READ_TIMEOUT = re.compile(r"Read timed out\. \(read timeout=([\d.]+)\)")
_SAFE_TO_REPEAT = frozenset({"GET", "HEAD"})
_BODY_HEADERS = frozenset({"content-type", "content-length", "content-encoding"})


@dataclass(slots=True)
class Stream:
    """An answer whose body has not been read yet. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    url: str
    # The seconds for which Tidegate itself delayed the request. They do not count as slowness of the server.
    waited: float
    _response: BaseHTTPResponse
    _max_bytes: int

    def chunks(self, size: int = _CHUNK) -> Iterator[bytes]:
        """Yields the bytes as they come, without decoding.

        So their digest is that of the bytes that the server sent.
        """
        return _body(self._response, self._max_bytes, size, decode=False)

    def raise_for_status(self) -> None:
        error = error_for(self.status, self.headers)
        if error:
            raise error


class Sending(TypedDict, total=False):
    """Options of a request. `_Asked` has their defaults."""

    headers: Mapping[str, str] | None
    credential: Credential | None
    body: bytes | None
    allow_private: bool
    limits: Limits
    redirects: int
    project_id: str
    sign: Callable[[str], Mapping[str, str]] | None


class SafeHttp:
    """An HTTP client that connects only to allowed addresses.

    Raises UrlNotAllowed for other addresses, and FetchError if a server fails.
    """

    def __init__(
        self,
        *,
        resolver: Resolver = resolve,
        allowed_hosts: Iterable[str] = (),
        refused_endpoints: Iterable[str] = (),
        loopback: bool = True,
        host_limits: HostLimits | None = None,
        connections_per_host: int = 64,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._context = context
        self._guard = AddressGuard(resolver, allowed_hosts, refused_endpoints, loopback=loopback)
        self._url_check = UrlCheck(self._guard)
        self._host_limits = host_limits or HostLimits()
        self._pools = {
            private: pool_manager(
                self._guard,
                self._host_limits,
                allow_private=private,
                connections_per_host=connections_per_host,
                context=context,
            )
            for private in (False, True)
        }

    def check_url(
        self, url: str, *, allow_private: bool = False, project_id: str = "", seconds: float = CHECK_SECONDS
    ) -> None:
        """Raises UrlNotAllowed if a fetch of the URL would be refused.

        A name that cannot be resolved in time is accepted.
        """
        refused = self.refused_urls([url], allow_private=allow_private, project_id=project_id, seconds=seconds)
        if refused:
            raise refused[url]

    def refused_urls(
        self, urls: Iterable[str], *, allow_private: bool, project_id: str, seconds: float = CHECK_SECONDS
    ) -> dict[str, UrlNotAllowed]:
        """Returns the error for each URL whose fetch would be refused. `seconds`: the limit for all URLs together."""
        return self._url_check.refusals(urls, allow_private=allow_private, project_id=project_id, seconds=seconds)

    def send(self, method: str, url: str, **how: Unpack[Sending]) -> Reply:
        """Returns the answer with its body, decoded. An error status raises nothing: call `raise_for_status`."""
        with _translated():
            asked = _Asked(**how)
            response, final = self._follow(method, url, asked)
            try:
                content = b"".join(_body(response, asked.limits.max_bytes, _CHUNK, decode=True))
            except BaseException:
                response.close()
                raise
            response.release_conn()
            return Reply(response.status, _lower(response.headers), content, final)

    @contextmanager
    def stream(self, method: str, url: str, **how: Unpack[Sending]) -> Iterator[Stream]:
        with _translated():
            asked = _Asked(**how)
            response, final = self._follow(method, url, asked)
        done = False
        try:
            yield Stream(
                response.status, _lower(response.headers), final, asked.waited, response, asked.limits.max_bytes
            )
            done = getattr(response, "length_remaining", None) == 0
        finally:
            # A connection with an unread body cannot be used again: the rest would be taken for the next answer.
            if done:
                response.release_conn()
            else:
                response.close()

    def line(
        self, url: str, *, allow_private: bool = False, limits: Limits = DEFAULT_LIMITS, project_id: str = ""
    ) -> KeptConnection:
        """Returns a connection for many POSTs to one URL. No other caller uses this connection."""
        return KeptConnection(
            self._guard,
            self._host_limits,
            read_url(url),
            allow_private=allow_private,
            limits=limits,
            context=self._context,
            project_id=project_id,
        )

    def _follow(self, method: str, url: str, asked: _Asked) -> tuple[BaseHTTPResponse, str]:
        until = time.monotonic() + asked.limits.total
        sent = {**_DEFAULT_HEADERS, **{name.lower(): value for name, value in (asked.headers or {}).items()}}
        here, body, redirects, sign = read_url(url), asked.body, asked.redirects, asked.sign
        for _ in range(redirects + 1):
            signed = sign(sent_url(here)) if sign else {}
            response = self._exchange(method, here, {**sent, **signed, **asked.secrets_for(here)}, body, asked, until)
            location = response.headers.get("location")
            if response.status not in REDIRECTS or not location or redirects == 0:
                return response, here.url
            response.close()
            there = read_url(redirect_url(here, location))
            if response.status == 303 or (response.status in {301, 302} and method == "POST"):
                method, body = "GET" if method != "HEAD" else method, None
                sent = {name: value for name, value in sent.items() if name not in _BODY_HEADERS}
            if origin_of(there) != origin_of(here):
                sent = {name: value for name, value in sent.items() if name in _FOR_ANY_ORIGIN}
                # Sign no further request, even if a redirect leads back: another host would choose what we sign.
                sign = None
            here = there
        raise RedirectRefused(f"the server redirected more than {redirects} times: use the URL that it leads to")

    def _exchange(
        self, method: str, url: Url, headers: Mapping[str, str], body: bytes | None, asked: _Asked, until: float
    ) -> BaseHTTPResponse:
        """Sends a request and returns its answer.

        If the connection breaks and it is safe to send twice, sends it again.
        """
        under_way = Exchange(until, asked.limits.read, asked.project_id)
        try:
            return self._send_once(method, url, headers, body, asked, under_way)
        except (ProtocolError, SSLError) as error:
            repeatable = method in _SAFE_TO_REPEAT and _hung_up(error)
            if not repeatable and not under_way.never_left:
                raise
        return self._send_once(method, url, headers, body, asked, Exchange(until, asked.limits.read, asked.project_id))

    def _send_once(
        self, method: str, url: Url, headers: Mapping[str, str], body: bytes | None, asked: _Asked, under_way: Exchange
    ) -> BaseHTTPResponse:
        left = under_way.until - time.monotonic()
        if left <= 0:
            raise FetchTimeout(f"the server did not answer within {asked.limits.total:g} s")
        pools = self._pools[asked.allow_private]
        pool = pools.connection_from_host(host_of(url), port_of(url), url.scheme)
        token = exchange.set(under_way)
        try:
            return pool.urlopen(
                method,
                url.request_uri,
                body=body,
                headers=headers,
                retries=False,
                redirect=False,
                timeout=Timeout(total=left, connect=asked.limits.connect, read=asked.limits.read),
                preload_content=False,
                decode_content=False,
            )
        finally:
            exchange.reset(token)
            asked.waited += under_way.waited


@dataclass(slots=True)
class _Asked:
    """The options of one call, for its first request and for those that follow redirects."""

    headers: Mapping[str, str] | None = None
    credential: Credential | None = None
    body: bytes | None = None
    allow_private: bool = False
    limits: Limits = DEFAULT_LIMITS
    redirects: int = MAX_REDIRECTS
    project_id: str = ""
    # Returns the headers that sign a URL; used for the first URL and for redirects within its origin.
    sign: Callable[[str], Mapping[str, str]] | None = None
    waited: float = 0.0

    def secrets_for(self, url: Url) -> dict[str, str]:
        if self.credential is None:
            return {}
        headers = self.credential.headers_for(origin_of(url), plain_text=self.allow_private)
        return {name.lower(): value for name, value in headers.items()}


def _hung_up(error: HTTPError) -> bool:
    """Whether the server closed the connection without an answer. Servers do this with idle connections."""
    return isinstance(error, ProtocolError) and isinstance(error.args[-1], ConnectionError)


def _body(response: BaseHTTPResponse, max_bytes: int, size: int, *, decode: bool) -> Iterator[bytes]:
    announced = response.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and int(announced[:20]) > max_bytes:
        raise ContentTooLarge(f"the server announced {announced[:20]} bytes, but at most {max_bytes} are accepted")
    taken = 0
    with _translated():
        while chunk := response.read1(size, decode_content=decode):
            taken += len(chunk)
            if taken > max_bytes:
                raise ContentTooLarge(f"the server sent more than the {max_bytes} bytes that are accepted")
            yield chunk


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except NewConnectionError as error:  # a subclass of ConnectTimeoutError, but it means a refused connection
        raise ConnectionFailed(_reason(error)) from error
    except (ConnectTimeoutError, ReadTimeoutError, TimeoutError) as error:
        raise FetchTimeout(_reason(error)) from error
    except (HTTPError, OSError) as error:
        raise ConnectionFailed(_reason(error)) from error


def _reason(error: Exception) -> str:
    """Returns why a request failed, in plain words. The texts of urllib3 contain names of its classes."""
    cause = error.args[-1] if isinstance(error, ProtocolError) else error
    if isinstance(cause, RemoteDisconnected):
        return "the server closed the connection without an answer"
    if isinstance(cause, IncompleteRead):
        return f"the connection broke: {cause.partial} bytes of the answer arrived, {cause.expected} are missing"
    if isinstance(error, ProtocolError):
        return f"the connection broke: {getattr(cause, 'strerror', None) or error.args[0]}"
    text = _PREFIX.sub("", str(error))
    silent = _READ_TIMEOUT.fullmatch(text)
    return f"the server did not send any data for {silent[1]} s" if silent else text


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
