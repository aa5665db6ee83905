"""HTTP calls of the client: connection pools, proxies, authentication, retries, errors."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from urllib import request
from urllib.parse import quote, unquote, urlencode, urlsplit
from urllib.request import getproxies_environment

import urllib3
from urllib3.exceptions import HTTPError, MaxRetryError
from urllib3.response import BaseHTTPResponse
from urllib3.util import make_headers
from urllib3.util.retry import Retry

from tidegate_client.errors import (
    BadAnswer,
    ConfigError,
    Conflict,
    Unreachable,
    UsageError,
    problem_of,
    request_id_of,
    without_queries,
)

# --- proxies
# Connection pools that use the proxies of HTTPS_PROXY, HTTP_PROXY and NO_PROXY, as curl and pip do.


class RoutingPool(urllib3.PoolManager):
    """A connection pool that uses the proxy for the URL's scheme.

    For NO_PROXY hosts and for this machine, the pool uses no proxy."""

    def __init__(self, proxies: Mapping[str, str], **options: Any) -> None:
        super().__init__(**options)
        self._no_proxy = {"no": proxies.get("no", "")}
        self._by_scheme = {
            scheme: _manager(proxies[scheme], options) for scheme in ("http", "https") if proxies.get(scheme)
        }

    def clear(self) -> None:
        super().clear()
        for manager in self._by_scheme.values():
            manager.clear()

    def urlopen(self, method: str, url: str, redirect: bool = True, **options: Any) -> BaseHTTPResponse:  # type: ignore[override]
        parts = urlsplit(url)
        proxy = self._by_scheme.get(parts.scheme)
        if proxy is None or is_loopback(parts.hostname or "") or _bypassed(parts.netloc, self._no_proxy):
            return super().urlopen(method, url, redirect=redirect, **options)
        return proxy.urlopen(method, url, redirect=redirect, **options)


def make_pool(proxy: str | None = None, **options: Any) -> urllib3.PoolManager:
    """Returns a connection pool. With `proxy`, the pool uses that proxy for every URL.

    Without `proxy`, the pool uses the proxies that the environment names, or no proxy if it names none."""
    proxies = getproxies_environment()
    if proxy:
        proxies |= {"http": proxy, "https": proxy}
    if not proxies.get("http") and not proxies.get("https"):
        return urllib3.PoolManager(**options)
    return RoutingPool(proxies, **options)


def _manager(proxy: str, options: Mapping[str, Any]) -> urllib3.ProxyManager:
    parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigError(
            f"{parts.scheme}://{parts.hostname or ''} is not a proxy that can be used: give http://host:port or "
            "https://host:port, in --proxy, HTTPS_PROXY or HTTP_PROXY"
        )
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    headers = make_headers(proxy_basic_auth=login) if login else None
    return urllib3.ProxyManager(f"{parts.scheme}://{host}:{port}", proxy_headers=headers, **options)


def _bypassed(host: str, no_proxy: Mapping[str, str]) -> bool:
    # The function with which urllib itself reads NO_PROXY; it is missing in the type stubs.
    return bool(request.proxy_bypass_environment(host, no_proxy))  # type: ignore[attr-defined]


def is_loopback(host: str) -> bool:
    """Whether the host is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


# --- http
# HTTP calls to the API: authentication, connection pool, retries, errors.

RETRIED_STATUSES = frozenset({429, 500, 502, 503, 504})
EVERY_METHOD = frozenset({"GET", "HEAD", "PUT", "PATCH", "POST", "DELETE"})
# For calls that must not be sent twice: only a failed connect is retried. An empty set would mean every method to
# urllib3, so this names a method that is not used.
CONNECT_ONLY = frozenset({"HEAD"})

# If this environment variable is set to any value, http:// addresses of other machines are allowed.
ALLOW_HTTP = "TIDEGATE_ALLOW_HTTP"
_UNREACHABLE = "check the address, the network and the proxy settings"


class BoundedRetry(Retry):
    """urllib3's Retry, but with a limit for Retry-After, and with a pause before the first retry."""

    longest_wait = 20.0

    def parse_retry_after(self, retry_after: str) -> float:
        return min(super().parse_retry_after(retry_after), self.longest_wait)

    def get_backoff_time(self) -> float:
        return super().get_backoff_time() or (self.backoff_factor if self.history else 0.0)


def retry_policy(attempts: int, *, idempotent: bool, backoff: float) -> Retry:
    """Returns the retries of one call.

    A call that is not idempotent is repeated only if the connection could not be opened."""
    return BoundedRetry(
        total=attempts,
        redirect=0,
        allowed_methods=EVERY_METHOD if idempotent else CONNECT_ONLY,
        status_forcelist=RETRIED_STATUSES,
        backoff_factor=backoff,
        backoff_jitter=backoff,
        backoff_max=10,
        raise_on_status=False,
    )


@dataclass(frozen=True)
class Reply:
    """The answer to an HTTP request, whatever its status."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Returns the JSON object of the body; None for an empty body.

        Raises BadAnswer if the body is something else. Also raises BadAnswer for a redirect. In both cases, probably
        something else answered instead of the API."""
        if 300 <= self.status < 400:
            where = self.headers.get("Location", "an unknown address (there is no Location header)")
            raise BadAnswer(f"HTTP {self.status}: the API's address redirects to {where}; use that as the address")
        if not self.body:
            return None
        try:
            document = json.loads(self.body)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            content_type = self.headers.get("Content-Type", "no content type")
            raise BadAnswer(
                f"HTTP {self.status} with {content_type} where a JSON object was expected: "
                "check that the address is that of the API, and that no proxy answers instead of it"
            )
        return document


def path_part(value: str) -> str:
    """Encodes an id as one segment of a URL path, because ids of Jobs and Tasks have slashes and colons."""
    try:
        return quote(value, safe="")
    except UnicodeEncodeError as error:
        raise UsageError(f"{value!r} is not valid UTF-8") from error


def checked_address(api_url: str) -> str:
    """Returns the address without a slash at its end. Raises ConfigError if the address is not valid.

    An http address of another machine is valid only if TIDEGATE_ALLOW_HTTP is set."""
    address = api_url.strip().rstrip("/")
    if not re.match(r"https?://[^/]", address, re.IGNORECASE):
        raise ConfigError(f"the API address {api_url!r} is not valid: give a URL that starts with https://")
    require_encrypted(address)
    return address


def require_encrypted(address: str) -> None:
    """Raises ConfigError for an http:// or ws:// address of another machine, unless TIDEGATE_ALLOW_HTTP is set."""
    parts = urlsplit(address)
    if parts.scheme.lower() not in {"http", "ws"} or is_loopback(parts.hostname or "") or os.environ.get(ALLOW_HTTP):
        return
    raise ConfigError(
        f"{parts.scheme}://{parts.hostname or ''} is not encrypted: the key and all data could be read and changed on "
        f"the way. Use https://, or set {ALLOW_HTTP}=1 if the network is protected otherwise"
    )


def checked_key(key: str | None) -> str | None:
    """Returns the key without surrounding white space; None if nothing is left.

    Raises ConfigError if the key has a character that no key contains."""
    stripped = (key or "").strip()
    wrong = next((place for place, char in enumerate(stripped, start=1) if not "!" <= char <= "~"), None)
    if wrong:
        # The key is a secret: name the place of the character, not the key.
        raise ConfigError(
            f"character {wrong} of the key is a space, a line break or not ASCII, which no key contains: "
            "copy it again, without quotes or line breaks"
        )
    return stripped or None


@dataclass(frozen=True)
class Written:
    """A decimal number of a JSON text, with the digits as they were written. A float would turn 100.00 into 100.0."""

    text: str


def read_written(text: str) -> Any:
    """Parses JSON for a request body and keeps decimals as they were written.

    Raises ValueError if the text is not JSON."""
    return json.loads(text, parse_float=Written)


# Marks a JSON string whose quotes are removed after encoding, so that it becomes a number.
_NUMBER = f"{uuid.uuid4().hex}:"


def _sendable(value: object) -> str | dict[Any, Any] | list[Any]:
    if isinstance(value, Written):
        return _NUMBER + value.text
    if isinstance(value, Decimal) and value.is_finite():
        return f"{_NUMBER}{value}"
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Iterable) and not isinstance(value, (bytes, bytearray)):
        return list(value)
    raise TypeError(f"{value!r:.100} cannot be sent as JSON: send text, a number, a list or a dict")


def _encoded(body: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(body, ensure_ascii=False, default=_sendable)
        return re.sub(f'"{_NUMBER}([^"]*)"', r"\1", text).encode() if _NUMBER in text else text.encode()
    except UnicodeEncodeError as error:
        # Python reads a file name that is not UTF-8 as lone surrogates, which cannot be encoded.
        raise UsageError(f"{error.object[max(0, error.start - 40) : error.end + 40]!r} is not valid UTF-8") from error


class Http:
    """Sends requests to the API with the key, retries them, and raises an ApiError for answers of 4xx and 5xx."""

    def __init__(
        self,
        api_url: str,
        key: str | None,
        *,
        project_id: str | None = None,
        timeout: float = 30.0,
        attempts: int = 4,
        backoff: float = 0.25,
        pool: urllib3.PoolManager | None = None,
    ) -> None:
        self.api_url = checked_address(api_url)
        self._key = checked_key(key)
        self._project_id = project_id
        self._timeout = timeout
        self._attempts = attempts
        self._backoff = backoff
        # Called after each call with method, path, status, seconds and request id; for --debug.
        self.on_call: Callable[[str, str, int, float, str], None] | None = None
        self.pool = pool or make_pool(maxsize=16, block=False)

    def get(self, path: str, query: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> Any:
        return self.call("GET", path, query=query, timeout=timeout).json()

    def create(self, path: str, body: Mapping[str, Any], *, idempotency_key: str | None = None) -> Any:
        """Sends a POST that creates a record.

        It may be sent again, because its idempotency key prevents a second record."""
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        # An attempt that was killed before it created something holds the key for five seconds.
        for attempt in range(self._attempts + 2):
            try:
                return self.call("POST", path, body=body, headers=headers, idempotent=True).json()
            except Conflict as error:
                # An attempt whose answer was lost is still running; its answer is returned once it is done.
                if error.code != "idempotency_in_progress":
                    raise
                time.sleep(self._backoff * 2**attempt)
        return self.call("POST", path, body=body, headers=headers, idempotent=True).json()

    def act(self, path: str, body: Mapping[str, Any] | None = None, *, idempotent: bool = False) -> Any:
        """Sends a POST that changes a record.

        If the call is not `idempotent`, it is retried only if the connection could not be opened."""
        return self.call("POST", path, body=body or {}, idempotent=idempotent).json()

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        idempotent: bool | None = None,
        timeout: float | None = None,
    ) -> Reply:
        """Sends a request and returns the answer; raises an ApiError if its status is 4xx or 5xx."""
        reply = self.send(method, path, query=query, body=body, headers=headers, idempotent=idempotent, timeout=timeout)
        if reply.status >= 400:
            raise problem_of(reply.status, reply.body, reply.headers)
        return reply

    def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        idempotent: bool | None = None,
        timeout: float | None = None,
    ) -> Reply:
        """Sends a request and returns the answer, whatever its status. Raises Unreachable if no answer comes.

        `idempotent`: the request may be sent again after an error. By default, GET, HEAD, PUT and DELETE requests
        may."""
        url = self.api_url + path
        parameters = {name: value for name, value in (query or {}).items() if value is not None}
        if parameters:
            url += "?" + urlencode(parameters)
        repeatable = method in {"GET", "HEAD", "PUT", "DELETE"} if idempotent is None else idempotent
        began = time.monotonic()
        try:
            response = self.pool.request(
                method,
                url,
                body=None if body is None else _encoded(body),
                headers=self._headers(body is not None, headers),
                timeout=urllib3.Timeout(connect=5, read=timeout or self._timeout),
                retries=retry_policy(self._attempts, idempotent=repeatable, backoff=self._backoff),
                redirect=False,
            )
        except MaxRetryError as error:
            # urllib3 begins with the host and port, which the address has already.
            reason = re.sub(r"^\w+\(host=[^)]*\): (Failed to establish a new connection: )?", "", str(error.reason))
            raise Unreachable(f"the API at {self.api_url} does not answer: {reason}; {_UNREACHABLE}") from error
        except HTTPError as error:
            reason = without_queries(error)
            raise Unreachable(f"the API at {self.api_url} does not answer: {reason}; {_UNREACHABLE}") from error
        if self.on_call:
            request_id, seconds = request_id_of(response.headers) or "-", time.monotonic() - began
            self.on_call(method, url.removeprefix(self.api_url), response.status, seconds, request_id)
        return Reply(response.status, response.headers, response.data)

    def _headers(self, has_body: bool, extra: Mapping[str, str] | None) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": "tidegate-client"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        if self._project_id:
            headers["X-Project-Id"] = self._project_id
        if has_body:
            headers["Content-Type"] = "application/json"
        return headers | dict(extra or {})
