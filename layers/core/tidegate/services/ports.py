"""What the shared services ask of the outside. A port that one service alone needs stands beside that service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Protocol, TypeVar

from tidegate.domain.fetching import DEFAULT_LIMITS, Limits, Reply

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoredObject:
    size: int
    etag: str


class ObjectStore(Protocol):
    """The files bucket."""

    def head(self, key: str) -> StoredObject | None: ...

    def read(self, key: str) -> tuple[StoredObject, Iterator[bytes]]: ...

    def put(self, key: str, body: bytes) -> None: ...

    def copy(self, source: str, target: str, *, only_if: StoredObject) -> None: ...

    def delete(self, *keys: str) -> None: ...

    def presign_put(self, key: str, seconds: int) -> str: ...

    def presign_get(self, key: str, seconds: int, *, disposition: str | None = None) -> str: ...


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    items: list[T]
    next_cursor: str | None


class Stream(Protocol):
    """An answer whose body is still to come; header names are lower-case."""

    status: int
    headers: Mapping[str, str]
    url: str

    def chunks(self, size: int = ...) -> Iterator[bytes]: ...

    def raise_for_status(self) -> None: ...


class Line(Protocol):
    """A kept connection to one URL: cheap posts, one after another, no redirects."""

    def post(self, body: bytes, headers: Mapping[str, str]) -> Reply: ...

    def close(self) -> None: ...


class Http(Protocol):
    """Outbound HTTP to URLs that callers name. Raises UrlNotAllowed, FetchTimeout, ConnectionFailed, ..."""

    def check_url(self, url: str, *, allow_private: bool = False) -> None: ...

    def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        allow_private: bool = False,
        limits: Limits = DEFAULT_LIMITS,
        redirects: int = 5,
    ) -> Reply: ...

    def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        allow_private: bool = False,
        limits: Limits = DEFAULT_LIMITS,
        redirects: int = 5,
    ) -> AbstractContextManager[Stream]: ...

    def line(self, url: str, *, allow_private: bool = False, limits: Limits = DEFAULT_LIMITS) -> Line: ...


class Signer(Protocol):
    """Standard Webhooks headers of a message: one signature for each secret that is valid now."""

    def __call__(self, secrets: Sequence[str], message_id: str, now: datetime, body: bytes = b"") -> dict[str, str]: ...
