from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Exponential, with jitter: a fleet that lost the API together does not come back together.

    `least` is the smallest pause, as a part of the largest one at that moment."""

    first: float = 0.5
    longest: float = 30.0
    failures: int = 0
    least: float = 0.5

    def next(self) -> float:
        ceiling = min(self.longest, self.first * 2**self.failures)
        self.failures = min(self.failures + 1, 32)
        return random.uniform(ceiling * self.least, ceiling)  # noqa: S311

    def reset(self) -> None:
        self.failures = 0
