"""A rate kept by tokens: they come evenly, a few may be saved up, each call spends one."""

from __future__ import annotations

# What may be saved, as a part of a second's tokens: enough to make up for a late thread, and no more.
_SAVED = 0.04


class TokenBucket:
    def __init__(self, rate: float, now: float, *, burst_seconds: float | None = None) -> None:
        """With `burst_seconds` that much of the rate may be saved up, and the bucket starts full."""
        self.rate = rate
        self._saved_seconds = _SAVED if burst_seconds is None else burst_seconds
        self._tokens = 1.0 if burst_seconds is None else self._capacity
        self._at = now

    def take(self, now: float) -> float:
        """0 when a token was spent, else the seconds until there is one."""
        self._fill(now)
        # A sleep may end a rounding error early; that must not cost another sleep.
        if self._tokens >= 1 - 1e-9:
            self._tokens = max(0.0, self._tokens - 1)
            return 0.0
        return (1 - self._tokens) / self.rate

    @property
    def saved(self) -> bool:
        """Whether another token is there at once: its taker comes late."""
        return self._tokens >= 1

    def change_rate(self, rate: float, now: float) -> None:
        self._fill(now)
        self.rate = rate
        self._tokens = min(self._tokens, self._capacity)

    @property
    def _capacity(self) -> float:
        return max(1.0, self.rate * self._saved_seconds)

    def _fill(self, now: float) -> None:
        if now > self._at:
            self._tokens = min(self._capacity, self._tokens + (now - self._at) * self.rate)
            self._at = now
