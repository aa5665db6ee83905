"""What is fetched, for which request, and what came of it."""

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
    # Other addresses of the same file, asked in this order where the first fails, and beside it where they agree.
    mirrors: tuple[str, ...] = ()
    politeness: Politeness = NO_LIMITS
    # Told of a host that asked for a pause: the URL, and how many seconds.
    on_pause: Callable[[str, float], None] = lambda _url, _seconds: None

    @property
    def urls(self) -> tuple[str, ...]:
        return (self.url, *self.mirrors)


@dataclass(frozen=True, slots=True)
class Wanted:
    """`signed`: the SHA-256 is announced and will be checked. `require_room` refuses a size that the project may not
    store."""

    request: Request
    key: str
    signed: bool = False
    require_room: Callable[[int], None] = lambda _size: None


@dataclass(frozen=True, slots=True)
class Fetched:
    """`small` holds content that fitted into one part; other content is in the upload. No digest: read it again."""

    size: int
    etag: str | None
    digest: str | None
    upload: tuple[str, str] | None = None
    small: bytearray | None = None
    # Whether the source could tell that all of it is of one version.
    validated: bool = True
