"""What to fetch, for which request, and the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidegate.http.credentials import Credential
from tidegate.ingest.fetching.politeness import NO_LIMITS, Politeness
from tidegate.queue.model import Request


@dataclass(frozen=True, slots=True)
class Remote:
    url: str
    credential: Credential | None = None
    allow_private: bool = False
    project_id: str = ""
    # Other URLs of the same file: used in this order if the first fails, and beside it if they have the same version.
    mirrors: tuple[str, ...] = ()
    politeness: Politeness = NO_LIMITS
    # Called with the URL and the seconds if a host asks for a pause.
    on_pause: Callable[[str, float], None] = lambda _url, _seconds: None

    @property
    def urls(self) -> tuple[str, ...]:
        return (self.url, *self.mirrors)


@dataclass(frozen=True, slots=True)
class Wanted:
    """`signed`: the SHA-256 was announced and will be verified. `require_room` raises if the size exceeds the quota."""

    request: Request
    key: str
    signed: bool = False
    require_room: Callable[[int], None] = lambda _size: None


@dataclass(frozen=True, slots=True)
class Fetched:
    """`small` is content that fits into one part; other content is in `upload`. Without a digest, read it from S3."""

    size: int
    etag: str | None
    digest: str | None
    upload: tuple[str, str] | None = None
    small: bytearray | None = None
    # Whether the source's validators showed that all parts are of one version.
    validated: bool = True
