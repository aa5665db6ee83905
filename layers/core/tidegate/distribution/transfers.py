"""Transfers: what is asked of a provider, in portions that it takes, and polls at growing distances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Asked and not answered yet, accepted, to be asked again later, refused for good, and asked so often without an answer
# that it is not asked again.
INTENDED, SENT, REFUSED, REJECTED, UNKNOWN = "intended", "sent", "refused", "rejected", "unknown"
# What GSE takes in one call.
GSE_TARGETS = 500

FIRST_WAIT, LONGEST_WAIT = 2, 15
# Between two polls while hosts only wait for their `activate_at`: seven days of them stay well below the 25,000 events
# that an execution may have.
LONGEST_WAIT_AHEAD, _AHEAD_PARTS = 300, 20


@dataclass(frozen=True, slots=True)
class Transfer:
    """One call of a provider for the shards `first_shard` up to `last_shard`, the latter included."""

    number: int
    token: str
    first_shard: int
    last_shard: int
    state: str = INTENDED
    transfer_id: str | None = None
    asked_at: float = 0.0
    attempts: int = 1
    # How many of the attempts ended without an answer.
    unanswered: int = 0
    # Why it was refused for good.
    reason: str | None = None

    @property
    def shards(self) -> range:
        return range(self.first_shard, self.last_shard + 1)


def most_targets(engine: str, wanted: int) -> int:
    """Of one transfer: as many as the operator wants and the engine takes."""
    return min(wanted, GSE_TARGETS) if engine == "gse" else wanted


def portions(shard_sizes: Sequence[int], most_targets: int) -> list[tuple[int, int]]:
    """(first, last) shard of each transfer: as few as the limit allows, a shard never cut in two."""
    made: list[tuple[int, int]] = []
    first, held = 0, 0
    for number, size in enumerate(shard_sizes):
        if held and held + size > most_targets:
            made.append((first, number - 1))
            first, held = number, 0
        held += size
    if shard_sizes:
        made.append((first, len(shard_sizes) - 1))
    return made


def next_wait(wait: int, until_activation: float = 0.0) -> int:
    """Seconds to the next poll after one that came `wait` seconds after the one before it."""
    usual = min(LONGEST_WAIT, max(FIRST_WAIT, wait + (wait + 1) // 2))
    if not until_activation:
        return usual
    ahead = min(LONGEST_WAIT_AHEAD, int(until_activation / _AHEAD_PARTS))
    return min(max(usual, ahead), math.ceil(until_activation) + 1)
