"""How many callbacks a slow or failing host gets at once, so that callbacks to other hosts do not wait for it."""

from __future__ import annotations

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


def pause_after(failures: int) -> float:
    """Seconds without callbacks after that many failures in a row; 0 after the first few."""
    if failures < FAILURES_TO_OPEN:
        return 0.0
    return min(FIRST_PAUSE_SECONDS * 2.0 ** (failures - FAILURES_TO_OPEN), LONGEST_PAUSE_SECONDS)


def lowered(limit: int) -> int:
    return max(1, limit // 2)


def raised(limit: int) -> int:
    return min(limit + 1, MOST_AT_ONCE)
