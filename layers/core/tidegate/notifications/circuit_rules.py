"""How many callbacks a slow or failing host gets at once, so that callbacks to other hosts do not wait for it.

And how many a project with slow hosts gets at once, so that other projects do not wait for it, however many hosts it
has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SLOW_SECONDS = 3.0
FAILURES_TO_OPEN = 3
FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 60.0
# A callback holds its place at the host this long, unless its result is known earlier.
PLACE_SECONDS = 15.0
# How many callbacks a slow or failing host gets at once at first, and at most.
FIRST_LIMIT, MOST_AT_ONCE = 8, 32
# Waiting callbacks are spaced as if the host could take this many times its present limit: the limit grows by one with
# each success, so it doubles in about the time of one callback.
EXPECTED_GROWTH = 4
# No callback waits longer than this before it asks again: the host may have recovered.
LONGEST_PUT_OFF_SECONDS = 1800.0

# How many callbacks of a project with slow hosts run at once: at first, and at least. At most as many as for one host.
PROJECT_FIRST_LIMIT, PROJECT_LEAST = 16, 4
# What a callback is expected to take until one was answered.
PROJECT_FIRST_TOOK = 5.0
# The limit grows by one in this time without a new host that does not answer.
PROJECT_GROWTH_SECONDS = 10.0
# The place of a callback that was not answered stays taken for this long, so that such callbacks are also rare.
PROJECT_REST_SECONDS = 30.0
# A project has no limit when none of its hosts was slow for this long.
PROJECT_SLOW_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class ProjectState:
    """`limit` was set at `limit_at`; `slow_at`: the last slow callback; `took`: the average seconds of an answer."""

    limit: int
    limit_at: float
    slow_at: float
    took: float
    places: Mapping[int, float]

    def is_slow(self, now: float) -> bool:
        return now - self.slow_at < PROJECT_SLOW_SECONDS

    def limit_now(self, now: float) -> int:
        grown = self.limit + max(0, int((now - self.limit_at) / PROJECT_GROWTH_SECONDS))
        return min(grown, MOST_AT_ONCE)

    def free_places(self, now: float, *, failing: bool) -> list[int]:
        """`failing`: for a host that is known to fail. Such hosts share half of the places; the others may use all."""
        limit = self.limit_now(now)
        return [place for place in range(limit // 2 if failing else limit) if self.places.get(place, 0.0) <= now]

    def average(self, took: float) -> float:
        return self.took + (took - self.took) / 4


def pause_after(failures: int) -> float:
    """Seconds without callbacks after that many failures in a row; 0 after the first few."""
    if failures < FAILURES_TO_OPEN:
        return 0.0
    return min(FIRST_PAUSE_SECONDS * 2.0 ** (failures - FAILURES_TO_OPEN), LONGEST_PAUSE_SECONDS)


def lowered(limit: int) -> int:
    return max(1, limit // 2)


def lowered_for_project(limit: int) -> int:
    return max(PROJECT_LEAST, limit // 2)


def raised(limit: int) -> int:
    return min(limit + 1, MOST_AT_ONCE)
