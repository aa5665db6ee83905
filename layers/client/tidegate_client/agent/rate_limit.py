"""Limits on bytes a second: one for all downloads of an agent, and one for each Job that has a limit."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable

UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


def parse_rate(text: str) -> int:
    """Parses bytes a second: `500K`, `10M` or a plain number, as curl takes them."""
    number, unit = (text[:-1], text[-1].upper()) if text and text[-1].isalpha() else (text, "")
    if not number.isdecimal() or int(number) < 1 or unit not in UNITS:
        raise ValueError(f"{text!r} is not a rate: write bytes a second, as in 500K, 10M or 1G")
    return int(number) * UNITS[unit]


class RateLimit:
    """A rate limit shared by threads: `take` waits until the rate allows the bytes."""

    def __init__(
        self,
        bytes_a_second: float,
        *,
        saved_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.bytes_a_second = bytes_a_second
        # Seconds of unused rate that may be used later, since sleeps end late.
        self._saved = saved_seconds
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._free_at = 0.0

    def reserve(self, count: int) -> float:
        """Reserves bytes and returns the seconds to wait for them, for callers that cannot block."""
        with self._lock:
            now = self._clock()
            self._free_at = max(self._free_at, now - self._saved) + count / self.bytes_a_second
            return max(0.0, self._free_at - now)

    def take(self, count: int, cancelled: Callable[[], bool] = lambda: False) -> None:
        until = self._clock() + self.reserve(count)
        while (left := until - self._clock()) > 0 and not cancelled():
            self._sleep(min(left, 0.5))


class BothLimits(RateLimit):
    """Two limits at once; the stricter one decides."""

    def __init__(self, first: RateLimit, second: RateLimit) -> None:
        super().__init__(min(first.bytes_a_second, second.bytes_a_second))
        self._limits = (first, second)

    def reserve(self, count: int) -> float:
        return max(limit.reserve(count) for limit in self._limits)


class JobLimits:
    """The limit of each Job that has one, shared by its transfers on this host while any of them runs."""

    def __init__(self, own: RateLimit | None) -> None:
        self._own = own
        self._lock = threading.Lock()
        self._jobs: weakref.WeakValueDictionary[str, RateLimit] = weakref.WeakValueDictionary()

    def of(self, job: str, bytes_a_second: int | None) -> RateLimit | None:
        """The host's own limit, the Job's, or both."""
        if not bytes_a_second:
            return self._own
        with self._lock:
            limit = self._jobs.get(job)
            if limit is None:
                limit = RateLimit(bytes_a_second)
                self._jobs[job] = limit
        return BothLimits(self._own, limit) if self._own else limit
