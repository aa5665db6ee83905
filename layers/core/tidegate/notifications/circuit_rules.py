"""How a host in trouble is treated, so that callbacks to others need not wait behind its own."""

from __future__ import annotations

SLOW_SECONDS = 3.0
FAILURES_TO_OPEN = 3
FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 60.0
# A probe holds the host this long, unless its outcome is known earlier.
PROBE_SECONDS = 15.0


def pause_after(failures: int) -> float:
    """A host that failed lately is tried one callback at a time; after a few failures in a row, with pauses."""
    if failures < FAILURES_TO_OPEN:
        return 0.0
    return min(FIRST_PAUSE_SECONDS * 2.0 ** (failures - FAILURES_TO_OPEN), LONGEST_PAUSE_SECONDS)
