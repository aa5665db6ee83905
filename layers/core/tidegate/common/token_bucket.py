"""A token bucket. Tokens arrive at a steady rate, a few of them can be saved up, and each call spends one token."""

from __future__ import annotations

# How many seconds' worth of tokens can be saved up: enough to make up for a late thread.
_SAVED = 0.04
# A sleep may end a rounding error early; that must not cost another sleep.
_ROUNDING = 1e-9


class TokenBucket:
    def __init__(self, rate: float, now: float, *, burst_seconds: float | None = None) -> None:
        """With `burst_seconds`, the tokens of that many seconds can be saved up, and the bucket starts full."""
        self.rate = rate
        self._saved_seconds = _SAVED if burst_seconds is None else burst_seconds
        self._most = 1.0
        self._tokens = 1.0 if burst_seconds is None else self._capacity
        self._at = now

    @property
    def state(self) -> tuple[float, float]:
        """The number of tokens and the time when they were counted, for `restore`."""
        return self._tokens, self._at

    def restore(self, tokens: float, at: float, now: float) -> None:
        """Continues from the `state` of another bucket. So a new process does not spend a token a second time."""
        self._tokens, self._at = min(tokens, self._capacity), min(at, now)
        self._fill(now)

    def take(self, now: float, count: int = 1) -> float:
        """Spends `count` tokens and returns 0.

        If there are too few, spends none and returns the seconds until there are enough.
        """
        self._most = max(self._most, float(count))
        self._fill(now)
        if self._tokens >= count - _ROUNDING:
            self._tokens = max(0.0, self._tokens - count)
            return 0.0
        return (count - self._tokens) / self.rate

    def owe(self, count: int) -> None:
        """Spends tokens even if there are too few. Later callers then wait until the missing tokens have arrived."""
        self._tokens -= count

    def give_back(self, count: int) -> None:
        self._tokens = min(self._capacity, self._tokens + count)

    def wait(self, now: float, count: int = 1) -> float:
        """Returns the seconds until `count` tokens are available. Spends none."""
        self._fill(now)
        return max(0.0, (count - _ROUNDING - self._tokens) / self.rate)

    @property
    def saved(self) -> bool:
        """Whether at least one token is saved up, which means that the next caller is late."""
        return self._tokens >= 1

    def change_rate(self, rate: float, now: float, *, burst_seconds: float | None = None) -> None:
        self._fill(now)
        self.rate = rate
        self._saved_seconds = self._saved_seconds if burst_seconds is None else burst_seconds
        self._tokens = min(self._tokens, self._capacity)

    @property
    def _capacity(self) -> float:
        return max(self._most, self.rate * self._saved_seconds)

    def _fill(self, now: float) -> None:
        if now > self._at:
            self._tokens = min(self._capacity, self._tokens + (now - self._at) * self.rate)
            self._at = now
