"""How many callbacks a slow or failing host gets at once, so that callbacks to others need not wait behind its own."""

from __future__ import annotations

SLOW_SECONDS = 3.0
FAILURES_TO_OPEN = 3
FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 60.0
# A callback holds its place at the host this long, unless its outcome is known earlier.
PLACE_SECONDS = 15.0
# Where a host's parallelism starts once it is slow or failing, and how far it may grow.
FIRST_LIMIT, MOST_AT_ONCE = 8, 32
# Whoever waits comes back at a time for which the host is expected to bear this many times as much: its limit grows by
# one with each success, so it doubles about as often as a callback takes.
EXPECTED_GROWTH = 4
# Nothing is put off for longer than this: the host may be back, or bear more, before.
LONGEST_PUT_OFF_SECONDS = 1800.0


def pause_after(failures: int) -> float:
    """A host that failed lately gets fewer callbacks at once; after a few failures in a row, pauses too."""
    if failures < FAILURES_TO_OPEN:
        return 0.0
    return min(FIRST_PAUSE_SECONDS * 2.0 ** (failures - FAILURES_TO_OPEN), LONGEST_PAUSE_SECONDS)


def lowered(limit: int) -> int:
    return max(1, limit // 2)


def raised(limit: int) -> int:
    return min(limit + 1, MOST_AT_ONCE)
