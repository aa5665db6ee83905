"""Rules of fair admission: how projects share a channel's slots, and how the priority rises with waiting."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

# The priority of a waiting request rises by one in this time, so that urgent requests cannot hold it back for ever.
AGE_STEP_SECONDS = 600
HIGHEST_PRIORITY = 1


@dataclass(frozen=True, slots=True)
class Standing:
    """A project's counts in a channel: how many of its requests wait and run, and when it last had its turn."""

    project_id: str
    waiting: int = 0
    running: int = 0
    # The channel's `slot_changes` at the project's latest admission. A new project has 0, so it goes first.
    turn: int = 0
    # Incremented with every change of the counts, so that a recount detects concurrent changes.
    changes: int = 0

    @property
    def is_active(self) -> bool:
        return self.waiting > 0 or self.running > 0


@dataclass(frozen=True, slots=True)
class Turn:
    """A project's turn to take a slot. It may hold at most `ceiling` slots, this one included.

    `number` is stored as the project's latest turn. `extra` allows one slot beyond the channel's capacity.
    """

    number: int
    ceiling: int
    extra: bool = False


def rank(priority: int, since: str) -> int:
    """The sort key of a waiting request: its arrival in milliseconds, plus one age step for each level of priority.

    So a request overtakes those of lower priority that arrived at most one step per level before it. The order of two
    requests never changes, so ageing needs no writes.
    """
    arrived = round(datetime.fromisoformat(since).timestamp() * 1000)
    return arrived + priority * AGE_STEP_SECONDS * 1000


def aged_priority(priority: int, since: str, now: float) -> int:
    """The priority at `now`: one level higher for each age step waited, up to the highest."""
    left = rank(priority, since) / 1000 - now
    return max(HIGHEST_PRIORITY, math.ceil(left / AGE_STEP_SECONDS))


def fair_share(capacity: int, standings: Iterable[Standing]) -> int:
    """The slots of each project that waits or runs: an even split, rounded up so that no slot is left unused."""
    active = sum(standing.is_active for standing in standings)
    return math.ceil(capacity / max(1, active))


def ceiling(capacity: int, fixed_share: int | None) -> int:
    """The most slots that a project may hold: all of them, unless an operator has set its share."""
    return capacity if fixed_share is None else min(fixed_share, capacity)
