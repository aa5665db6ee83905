"""What the steps of an ingest request hand to each other: the step, its outcome, what is wanted and fetched."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegate.common.token_bucket import TokenBucket
from tidegate.files.reading import ReadingTurn, saved_for_request
from tidegate.http.guard import Credential
from tidegate.queue.model import Request

# --- ports
# The input and the result of one step of an ingest request.

# Called with the progress, as often as there is some. Raises LeaseLost when this run no longer owns the request.
Heartbeat = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Step:
    """The work of one invocation: the request, the time left, and the state from the previous invocation."""

    request: Request
    heartbeat: Heartbeat
    seconds_left: float
    state: Mapping[str, Any] | None = None
    began: float = field(default_factory=time.monotonic)

    def turn(self, progress: Callable[[int], Mapping[str, Any]]) -> ReadingTurn:
        """For reading a file in this invocation. `progress` makes the request's progress of the bytes read."""
        saved = saved_for_request(self.request.project_id, self.request.request_id)
        return ReadingTurn(saved, self.began + self.seconds_left, lambda done: self.heartbeat(progress(done)))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result, and what to write when the request ends; or `state`, to continue in another invocation.

    `after` is called once the end is written. A crash may skip it, so it must only clean up.
    """

    result: Mapping[str, Any] = field(default_factory=dict)
    extra_writes: Sequence[Any] = ()
    state: Mapping[str, Any] | None = None
    after: Callable[[], None] | None = None


# --- politeness
# Limits for reading from a source: connections, bandwidth and a delay between requests.


@dataclass(frozen=True, slots=True)
class Politeness:
    """None, or a delay of 0, is no limit. The operator's limits for hosts apply as well."""

    connections: int | None = None
    bytes_per_s: int | None = None
    delay_s: float = 0.0
    # Parallel downloads of the project from the host. The other limits are per download.
    host_downloads: int | None = None

    @classmethod
    def of(cls, payload: Mapping[str, Any]) -> Politeness:
        given = payload.get("politeness") or {}
        delay_s = float(given.get("delay_s") or 0)
        return cls(given.get("connections"), given.get("bytes_per_s"), delay_s, given.get("host_downloads"))


NO_LIMITS = Politeness()


class Pacer:
    """Keeps all threads of one download within its limits."""

    def __init__(
        self, politeness: Politeness, wait: Callable[[float], object], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """`wait` sleeps that many seconds, or raises if the download must stop."""
        self._politeness = politeness
        self._wait = wait
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._next_request = 0.0
        rate = politeness.bytes_per_s
        self._bucket = TokenBucket(rate, monotonic()) if rate else None

    def before_request(self) -> None:
        """Waits until the delay since the previous request is over."""
        if not self._politeness.delay_s:
            return
        with self._lock:
            now = self._monotonic()
            at = max(now, self._next_request)
            self._next_request = at + self._politeness.delay_s
        if at > now:
            self._wait(at - now)

    def after_bytes(self, count: int) -> None:
        """Waits until more bytes may be read. Meanwhile TCP's flow control slows the source down."""
        if self._bucket is None:
            return
        while True:
            with self._lock:
                seconds = self._bucket.take(self._monotonic(), count)
            if seconds <= 0:
                return
            self._wait(min(max(seconds, 0.001), 1.0))


# --- model
# What to fetch, for which request, and the result.


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
