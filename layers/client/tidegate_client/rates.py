"""Pauses between retries and between polls, and bandwidth limits, for the agent and the swarm."""

from __future__ import annotations

import math
import random
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Union


@dataclass
class Backoff:
    """Exponential back-off with jitter, so that hosts that lost the API together do not all return at the same moment.

    `least` is the smallest pause, as a fraction of the largest pause at this moment."""

    first: float = 0.5
    longest: float = 30.0
    failures: int = 0
    least: float = 0.5

    def next(self) -> float:
        """Counts a failure and returns the seconds to wait before the next attempt."""
        ceiling = min(self.longest, self.first * 2**self.failures)
        self.failures = min(self.failures + 1, 32)
        return random.uniform(ceiling * self.least, ceiling)  # noqa: S311

    def reset(self) -> None:
        self.failures = 0


# --- pace
# How often the agent polls its inbox. With a WebSocket it is notified, and polls only to renew URLs; without one it
# polls every few minutes, and more often while there is work.
#
# A long poll occupies a Lambda function while it waits: a fleet in long polls would keep one function running per host.

ACTIVE_SECONDS = 60.0
# While transfers run, a long poll returns at once with the same list: pause between polls.
SHORTEST_ROUND, LONGEST_ROUND = 1.0, 5.0
# Without a WebSocket. A Job waits ten minutes for its hosts, so this is often enough.
FIRST_IDLE_ROUND, LONGEST_IDLE_ROUND = 5.0, 120.0
# With a WebSocket. A URL is valid for fifteen minutes; each new connection, every two hours, causes a poll too.
PUSHED_ROUND, PUSHED_IDLE_ROUND = 60.0, 4 * 3600.0


@dataclass
class Pace:
    """Decides how often the agent polls its inbox. `now` is always a time of the monotonic clock."""

    longest_wait: int
    active_until: float
    _unchanged: Backoff = field(default_factory=lambda: Backoff(SHORTEST_ROUND, LONGEST_ROUND))
    _idle: Backoff = field(default_factory=lambda: Backoff(FIRST_IDLE_ROUND, LONGEST_IDLE_ROUND))

    def wait(self, now: float, *, pushed: bool = False) -> int:
        """Returns the seconds for which the next long poll may stay open."""
        return self.longest_wait if now < self.active_until and not pushed else 0

    def pause(self, now: float, *, listed: bool, new: bool, pushed: bool = False) -> float:
        """Returns the seconds from the last poll to the next. `listed`: the inbox had entries. `new`: some were new."""
        if pushed:
            self._idle.reset()
            self._unchanged.reset()
            longest = PUSHED_ROUND if listed else PUSHED_IDLE_ROUND
            return random.uniform(longest / 2, longest)  # noqa: S311
        if listed:
            self.active_until = now + ACTIVE_SECONDS
            self._idle.reset()
        if new or not listed:
            self._unchanged.reset()
        if new:
            return 0.0
        if not listed and now >= self.active_until:
            return self._idle.next()
        return self._unchanged.next()


# --- rate limit
# Limits on bytes a second: one for all downloads of an agent, and one for each Job that has a limit.

UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


def parse_rate(text: str) -> int:
    """Parses a rate in bytes a second, such as `500K`, `10M` or a plain number, as curl accepts them."""
    number, unit = (text[:-1], text[-1].upper()) if text and text[-1].isalpha() else (text, "")
    if not number.isdecimal() or int(number) < 1 or unit not in UNITS:
        raise ValueError(f"{text!r} is not a rate: write bytes a second, as in 500K, 10M or 1G")
    return int(number) * UNITS[unit]


class RateWindow(NamedTuple):
    """A bandwidth limit for a part of each day, such as 22:00-06:00 in the host's time zone.

    If `rate` is None, there is no limit in that part of the day."""

    begin: int
    end: int
    rate: int | None

    @classmethod
    def parse(cls, times: str, value: str) -> RateWindow:
        """Parses a window such as `22:00-06:00`, which may pass midnight, and its rate: `10M`, or `none`."""
        begin, end = (_minute(time) for time in times.split("-"))
        if begin == end:
            raise ValueError(f"{times} is no part of the day: it ends when it begins")
        return cls(begin, end, None if value == "none" else parse_rate(value))

    def has(self, minute: int) -> bool:
        return (minute - self.begin) % DAY < (self.end - self.begin) % DAY

    def __str__(self) -> str:
        begin, end = (f"{minute // 60:02}:{minute % 60:02}" for minute in (self.begin, self.end))
        return f"{begin}-{end}={self.rate or 'none'}"


DAY = 24 * 60


def _minute(text: str) -> int:
    hours, minutes = map(int, text.split(":"))
    if hours > 23 or minutes > 59:
        raise ValueError(f"{text} is no time of the day: write 00:00 to 23:59")
    return hours * 60 + minutes


class DailyRate(NamedTuple):
    """A bandwidth limit that depends on the time of day; `usual` is the limit outside all windows."""

    usual: int | None
    windows: tuple[RateWindow, ...]

    def now(self) -> float:
        """Returns the bytes a second allowed at this time of day; infinite if there is no limit."""
        local = time.localtime()
        minute = local.tm_hour * 60 + local.tm_min
        found = next((window.rate for window in self.windows if window.has(minute)), self.usual)
        return found or math.inf

    def words(self) -> list[str]:
        return [str(one) for one in (self.usual, *self.windows) if one is not None]


Rate = Union[int, DailyRate, None]


def limit_of(rate: Rate) -> RateLimit | None:
    if isinstance(rate, DailyRate):
        return DailyLimit(rate)
    return RateLimit(rate) if rate else None


class RateLimit:
    """A bandwidth limit shared by threads. `take` blocks until the given number of bytes may be transferred."""

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

    def current_rate(self) -> float:
        return self.bytes_a_second

    def reserve(self, count: int) -> float:
        """Reserves bytes and returns the seconds to wait for them, for callers that must not block."""
        with self._lock:
            now, rate = self._clock(), self.current_rate()
            self._free_at = max(self._free_at, now - self._saved) + count / rate
            return max(0.0, self._free_at - now)

    def take(self, count: int, cancelled: Callable[[], bool] = lambda: False) -> None:
        """Waits until `count` bytes may be transferred, or until `cancelled()` is true."""
        until = self._clock() + self.reserve(count)
        while (left := until - self._clock()) > 0 and not cancelled():
            self._sleep(min(left, 0.5))


class DailyLimit(RateLimit):
    """A bandwidth limit that changes with the time of day, also for downloads that are already running."""

    def __init__(self, rate: DailyRate, **more: Any) -> None:
        super().__init__(rate.now(), **more)
        self._daily = rate

    def current_rate(self) -> float:
        now = self._daily.now()
        if now != self.bytes_a_second:
            # Bytes that were reserved at the old rate must not delay transfers at the new one.
            self.bytes_a_second, self._free_at = now, 0.0
        return now


class BothLimits(RateLimit):
    """Two bandwidth limits at once; the stricter one decides."""

    def __init__(self, first: RateLimit, second: RateLimit) -> None:
        super().__init__(min(first.bytes_a_second, second.bytes_a_second))
        self._limits = (first, second)

    def reserve(self, count: int) -> float:
        return max(limit.reserve(count) for limit in self._limits)


class JobLimits:
    """The bandwidth limit of each Job, shared by the Job's transfers on this host."""

    def __init__(self, own: RateLimit | None) -> None:
        self._own = own
        self._lock = threading.Lock()
        self._jobs: weakref.WeakValueDictionary[str, RateLimit] = weakref.WeakValueDictionary()

    def limit_for(self, job: str, bytes_a_second: int | None) -> RateLimit | None:
        """Returns the limit for a transfer of this Job: the host's, the Job's, or both combined.

        Returns None if there is no limit."""
        if not bytes_a_second:
            return self._own
        with self._lock:
            limit = self._jobs.get(job)
            if limit is None:
                limit = RateLimit(bytes_a_second)
                self._jobs[job] = limit
        return BothLimits(self._own, limit) if self._own else limit
