"""When the next poll for overdue work is: often while there is some, ever more seldom while there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import Any, Self

BASE_SECONDS = 10
STEP_SECONDS = 10
LONGEST_SECONDS = 300
# Work is left alone this long after it was due, so that its normal start is not overtaken.
OVERDUE_SECONDS = 30
# One lane (a channel, an agent) is given one start in this many seconds.
LANE_SECONDS = 5
_STEPS = (LONGEST_SECONDS - BASE_SECONDS) // STEP_SECONDS + 1


@dataclass(frozen=True, slots=True)
class PollState:
    """The poll's state, which a tick carries. One of another generation than the stored one is a duplicate and dies.

    `multiplier` counts the polls since work was last found: 1 after the first, 0 before it.
    """

    generation: int
    multiplier: int
    last_poll: datetime | None
    next_poll: datetime
    compensated_total: int = 0

    def as_data(self) -> dict[str, Any]:
        moments = {"last_poll": self.last_poll and self.last_poll.isoformat(), "next_poll": self.next_poll.isoformat()}
        counts = ("generation", "multiplier", "compensated_total")
        return moments | {name: getattr(self, name) for name in counts}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        last = data.get("last_poll")
        return cls(
            generation=int(data["generation"]),
            multiplier=int(data["multiplier"]),
            last_poll=datetime.fromisoformat(last) if last else None,
            next_poll=datetime.fromisoformat(data["next_poll"]),
            compensated_total=int(data["compensated_total"]),
        )

    @property
    def interval_s(self) -> int:
        return interval(max(1, self.multiplier))


def interval(multiplier: int) -> int:
    return min(BASE_SECONDS + (multiplier - 1) * STEP_SECONDS, LONGEST_SECONDS)


def first(now: datetime) -> PollState:
    return PollState(generation=0, multiplier=0, last_poll=None, next_poll=now)


def after(
    poll: PollState, now: datetime, found: int, *, held_back: bool = False, upcoming: float | None = None
) -> PollState:
    """The state that follows a poll. Starts held back by their lane are looked at again as soon as it is free.

    `upcoming` is in how many seconds something known may be overdue, as a running request whose worker dies now: the
    poll does not sleep past that moment.
    """
    multiplier = 1 if found else min(poll.multiplier + 1, _STEPS)
    wait = LANE_SECONDS if held_back else interval(multiplier)
    if upcoming is not None:
        wait = min(wait, max(BASE_SECONDS, ceil(upcoming)))
    return PollState(poll.generation + 1, multiplier, now, now + timedelta(seconds=wait), poll.compensated_total)


def triggered(poll: PollState, now: datetime) -> PollState:
    return PollState(poll.generation + 1, 0, poll.last_poll, now, poll.compensated_total)


def is_lost(poll: PollState, now: datetime) -> bool:
    """A tick that should have polled a while ago has died on the way."""
    return now > poll.next_poll + timedelta(seconds=OVERDUE_SECONDS)


def is_asleep(poll: PollState, now: datetime) -> bool:
    """The next poll is so far away that overdue work should not wait for it."""
    return poll.next_poll - now > timedelta(seconds=OVERDUE_SECONDS)
