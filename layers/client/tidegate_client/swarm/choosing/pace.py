"""How fast bytes come to a host, and whether that is too slow."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

# A host is late after this time plus a multiple of what its line needs; an unknown line counts as 1 Gbit/s.
LATE_SECONDS, LATE_TIMES, LINE = 15.0, 4, 125_000_000.0
_RATE_SECONDS = 5.0


@dataclass(slots=True)
class Pace:
    """`limit`: bytes a second that the host takes at most; None: not limited, its line is known by what S3 gives."""

    limit: float | None
    started: float
    _arrivals: deque[tuple[float, int]] = field(default_factory=deque)
    _recent_bytes: int = 0
    _line: float = 0.0

    def received(self, length: int, now: float) -> None:
        self._arrivals.append((now, length))
        self._recent_bytes += length

    def origin_gave(self, bytes_a_second: float) -> None:
        self._line = max(0.7 * self._line, bytes_a_second)

    @property
    def line(self) -> float | None:
        """Bytes a second that the host can take; None while that is not known."""
        return self.limit or self._line or None

    def rate(self, now: float) -> float:
        """Bytes a second that came of late, from wherever."""
        while self._arrivals and self._arrivals[0][0] < now - _RATE_SECONDS:
            self._recent_bytes -= self._arrivals.popleft()[1]
        return self._recent_bytes / max(0.5, min(_RATE_SECONDS, now - self.started))

    def is_late(self, now: float, *, whole: int, left: int, lasts: float) -> bool:
        """Far slower than S3 alone for the `whole`, or too slow for what is `left` until the Job's deadline."""
        here = now - self.started
        line = self.line or LINE
        if here > LATE_SECONDS + LATE_TIMES * whole / line:
            return True
        if here < min(LATE_SECONDS, lasts / 8):
            return False
        return left > self.rate(now) * (lasts - here) / 2
