"""Growing pauses between attempts."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Exponential back-off with jitter, so that hosts which lost the API together do not all return together.

    `least` is the smallest pause as a fraction of the current largest one."""

    first: float = 0.5
    longest: float = 30.0
    failures: int = 0
    least: float = 0.5

    def next(self) -> float:
        """Counts a failure and returns the seconds to wait."""
        ceiling = min(self.longest, self.first * 2**self.failures)
        self.failures = min(self.failures + 1, 32)
        return random.uniform(ceiling * self.least, ceiling)  # noqa: S311

    def reset(self) -> None:
        self.failures = 0
