"""Fair admission: how a channel's slots are divided among projects, and how waiting raises a request."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

# A request that waits rises by one priority in this time, so that urgent work cannot hold it back for ever.
AGE_STEP_SECONDS = 600
HIGHEST_PRIORITY = 1


@dataclass(frozen=True, slots=True)
class Standing:
    """A project in a channel: how many of its requests wait and run, and when it last had its turn."""

    project_id: str
    waiting: int = 0
    running: int = 0
    # The channel's count of slot changes at the project's latest admission; 0 for a newcomer, who goes first.
    turn: int = 0
    # Raised with every change of the counts, so that a recount notices what happened meanwhile.
    changes: int = 0

    @property
    def is_active(self) -> bool:
        return self.waiting > 0 or self.running > 0


@dataclass(frozen=True, slots=True)
class Turn:
    """The terms on which a request takes a slot: its project may hold `ceiling` slots at most.

    `extra` allows one slot beyond the channel's capacity.
    """

    number: int
    ceiling: int
    extra: bool = False


def rank(priority: int, since: str) -> int:
    """Sorts a project's waiting requests: milliseconds, later by one step for each priority further down.

    A request thus overtakes those of a lower priority that came up to one step a level before it. Its order among
    the others never changes, so ageing rewrites nothing.
    """
    arrived = round(datetime.fromisoformat(since).timestamp() * 1000)
    return arrived + priority * AGE_STEP_SECONDS * 1000


def aged_priority(priority: int, since: str, now: float) -> int:
    """The priority after waiting: one higher for each step, and never above the highest."""
    left = rank(priority, since) / 1000 - now
    return max(HIGHEST_PRIORITY, math.ceil(left / AGE_STEP_SECONDS))


def fair_share(capacity: int, standings: Iterable[Standing]) -> int:
    """An even split among the projects that wait or run, rounded up: shares never leave a slot unused."""
    active = sum(standing.is_active for standing in standings)
    return math.ceil(capacity / max(1, active))


def ceiling(capacity: int, fixed_share: int | None) -> int:
    """The slots that one project may hold, whoever waits: all of them, unless an operator gave it a share."""
    return capacity if fixed_share is None else min(fixed_share, capacity)
