"""One authenticated, pooled, retrying way to call the API."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import urllib3
from urllib3.exceptions import HTTPError, MaxRetryError
from urllib3.util.retry import Retry

from tidegate_client.errors import BadAnswer, Conflict, Unreachable, problem_of, request_id_of

RETRIED_STATUSES = frozenset({429, 500, 502, 503, 504})
EVERY_METHOD = frozenset({"GET", "HEAD", "PUT", "PATCH", "POST", "DELETE"})
# urllib3 reads an empty set as "every method", so a call that must not be sent twice names methods it is not.
CONNECT_ONLY = frozenset({"HEAD"})


class BoundedRetry(Retry):
    """urllib3's Retry which neither sleeps for as long as a server may ask, nor asks again at once."""

    longest_wait = 20.0

    def parse_retry_after(self, retry_after: str) -> float:
        return min(super().parse_retry_after(retry_after), self.longest_wait)

    def get_backoff_time(self) -> float:
        return super().get_backoff_time() or (self.backoff_factor if self.history else 0.0)


def retry_policy(attempts: int, *, idempotent: bool, backoff: float) -> Retry:
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


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.body) if self.body else None
        except ValueError as error:
            kind = self.headers.get("Content-Type", "no content type")
            raise BadAnswer(
                f"HTTP {self.status} with {kind} where JSON was expected: is a proxy in between?"
            ) from error


def path_part(value: str) -> str:
    """An id as one path segment: Job and Task ids hold slashes and colons."""
    return quote(value, safe="")


class Http:
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
        self.api_url = api_url.rstrip("/")
        self._key = key
        self._project_id = project_id
        self._timeout = timeout
        self._attempts = attempts
        self._backoff = backoff
        # Told of each exchange: method, path, status, seconds, the server's name for it.
        self.on_call: Callable[[str, str, int, float, str], None] | None = None
        self.pool = pool or urllib3.PoolManager(maxsize=16, block=False)

    def get(self, path: str, query: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> Any:
        return self.call("GET", path, query=query, timeout=timeout).json()

    def create(self, path: str, body: Mapping[str, Any], *, idempotency_key: str | None = None) -> Any:
        """A creating POST: its idempotency key makes sending it again safe."""
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        for attempt in range(self._attempts):
            try:
                return self.call("POST", path, body=body, headers=headers, idempotent=True).json()
            except Conflict as error:
                # Our first try lost its answer and is still at work: its answer will be given to us.
                if error.code != "idempotency_in_progress":
                    raise
                time.sleep(self._backoff * 2**attempt)
        return self.call("POST", path, body=body, headers=headers, idempotent=True).json()

    def act(self, path: str, body: Mapping[str, Any] | None = None, *, idempotent: bool = False) -> Any:
        """A POST which changes a record; retried only where nothing can have happened, unless it says otherwise."""
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
        url = self.api_url + path
        given = {name: value for name, value in (query or {}).items() if value is not None}
        if given:
            url += "?" + urlencode(given)
        again = method in {"GET", "HEAD", "PUT", "DELETE"} if idempotent is None else idempotent
        began = time.monotonic()
        try:
            response = self.pool.request(
                method,
                url,
                body=None if body is None else json.dumps(body, ensure_ascii=False).encode(),
                headers=self._headers(body is not None, headers),
                timeout=urllib3.Timeout(connect=5, read=timeout or self._timeout),
                retries=retry_policy(self._attempts, idempotent=again, backoff=self._backoff),
                redirect=False,
            )
        except MaxRetryError as error:
            raise Unreachable(f"{self.api_url} does not answer: {error.reason}") from error
        except HTTPError as error:
            raise Unreachable(f"{self.api_url} does not answer: {error}") from error
        if self.on_call:
            named, seconds = request_id_of(response.headers) or "-", time.monotonic() - began
            self.on_call(method, url.removeprefix(self.api_url), response.status, seconds, named)
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
