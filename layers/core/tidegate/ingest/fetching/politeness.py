"""Limits for reading from a source: connections, bandwidth and a delay between requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tidegate.common.token_bucket import TokenBucket


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
