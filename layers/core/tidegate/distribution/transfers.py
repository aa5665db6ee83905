"""Transfers: portions of a Job that a provider accepts, and the intervals between polls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# intended: requested, no answer yet. sent: accepted. refused: to be requested again. rejected: refused for good.
# unknown: requested several times without an answer, and not requested again.
INTENDED, SENT, REFUSED, REJECTED, UNKNOWN = "intended", "sent", "refused", "rejected", "unknown"
# GSE works with up to this many targets in a call.
GSE_TARGETS = 500

FIRST_WAIT, LONGEST_WAIT = 2, 15
# Nine events each, of the 25,000 that an execution may have.
_MOST_POLLS = 2_400
# The longest interval while hosts wait for `activate_at`: seven days of polls stay far below the 25,000 events that an
# execution may have. It is at most this part of the time left.
LONGEST_WAIT_AHEAD, _AHEAD_PARTS = 300, 20


@dataclass(frozen=True, slots=True)
class Transfer:
    """One call to a provider, for the shards `first_shard` to `last_shard` (inclusive)."""

    number: int
    token: str
    first_shard: int
    last_shard: int
    state: str = INTENDED
    transfer_id: str | None = None
    asked_at: float = 0.0
    attempts: int = 1
    # Attempts without an answer.
    unanswered: int = 0
    # Why it was refused for good.
    reason: str | None = None

    @property
    def shards(self) -> range:
        return range(self.first_shard, self.last_shard + 1)


def most_targets(engine: str, wanted: int) -> int:
    """The most targets of one transfer: the operator's limit, or the engine's if that is lower."""
    return min(wanted, GSE_TARGETS) if engine == "gse" else wanted


def portions(shard_sizes: Sequence[int], most_targets: int) -> list[tuple[int, int]]:
    """The (first, last) shard of each transfer: as few transfers as the limit allows, made of whole shards."""
    found: list[tuple[int, int]] = []
    first, held = 0, 0
    for number, size in enumerate(shard_sizes):
        if held and held + size > most_targets:
            found.append((first, number - 1))
            first, held = number, 0
        held += size
    if shard_sizes:
        found.append((first, len(shard_sizes) - 1))
    return found


def next_wait(wait: int, longest: int = LONGEST_WAIT) -> int:
    """Seconds until the next poll, when the last interval was `wait`. Intervals grow by half, because hosts report most
    in the first minute: with an activation time too, progress is visible while they fetch the file in advance."""
    return min(max(FIRST_WAIT, wait + (wait + 1) // 2), longest)


def longest_wait(lasts: float, until_activation: float = 0.0) -> int:
    """The longest interval between two polls of a Job that lasts up to `lasts` seconds with all its waves, this long
    before its activation time."""
    longest = max(LONGEST_WAIT, math.ceil(lasts / _MOST_POLLS))
    if not until_activation:
        return longest
    ahead = min(LONGEST_WAIT_AHEAD, int(until_activation / _AHEAD_PARTS))
    return min(max(longest, ahead), math.ceil(until_activation) + 1)
