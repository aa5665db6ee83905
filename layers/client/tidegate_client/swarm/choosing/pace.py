"""The rate at which a host receives bytes, and whether it is too low."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

# A host is late after LATE_SECONDS plus LATE_TIMES the time that its line needs. An unknown line counts as 1 Gbit/s.
LATE_SECONDS, LATE_TIMES, LINE = 15.0, 4, 125_000_000.0
_RATE_SECONDS = 5.0


@dataclass(slots=True)
class Pace:
    """`limit`: the host's own limit in bytes a second; None: no limit, and the line's rate is learned from S3."""

    limit: float | None
    started: float
    _arrivals: deque[tuple[float, int]] = field(default_factory=deque)
    _recent_bytes: int = 0
    _line: float = 0.0

    def received(self, length: int, now: float) -> None:
        self._arrivals.append((now, length))
        self._recent_bytes += length

    def origin_gave(self, bytes_a_second: float) -> None:
        """The rate at which S3 sent a piece."""
        self._line = max(0.7 * self._line, bytes_a_second)

    @property
    def line(self) -> float | None:
        """Bytes a second that the host can receive; None while unknown."""
        return self.limit or self._line or None

    def rate(self, now: float) -> float:
        """Bytes a second received in the last seconds, from all sources."""
        while self._arrivals and self._arrivals[0][0] < now - _RATE_SECONDS:
            self._recent_bytes -= self._arrivals.popleft()[1]
        return self._recent_bytes / max(0.5, min(_RATE_SECONDS, now - self.started))

    def is_late(self, now: float, *, whole: int, left: int, lasts: float) -> bool:
        """True if S3 alone would have sent the `whole` file long ago, or the bytes `left` miss the Job's deadline."""
        elapsed = now - self.started
        line = self.line or LINE
        if elapsed > LATE_SECONDS + LATE_TIMES * whole / line:
            return True
        if elapsed < min(LATE_SECONDS, lasts / 8):
            return False
        return left > self.rate(now) * (lasts - elapsed) / 2
