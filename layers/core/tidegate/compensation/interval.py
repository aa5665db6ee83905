"""When the next poll for overdue work is: often while there is some, ever more seldom while there is none."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Self

# One lane (a channel) is given one start in this many seconds.
LANE_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds. The interval starts at `base` and grows by it with each poll that found nothing, up to `longest`.

    Work is left alone for `overdue` seconds after it was due, so that its normal start is not overtaken.
    """

    base: int
    longest: int
    overdue: int

    def interval(self, multiplier: int) -> int:
        return min(self.base * max(1, multiplier), self.longest)

    @property
    def steps(self) -> int:
        return max(1, math.ceil(self.longest / self.base))


@dataclass(frozen=True, slots=True)
class PollState:
    """The poll's state, which a tick carries. One of another generation than the stored one is a duplicate and dies.

    `multiplier` counts the polls since work was last found: 1 after the first, 0 before it. `resume` tells from which
    due time on the next poll reads a shard that held more than one poll reads; the poll after the last part of it
    begins anew.
    """

    generation: int
    multiplier: int
    last_poll: datetime | None
    next_poll: datetime
    compensated_total: int = 0
    interval_s: int = 0
    resume: Mapping[str, int] = field(default_factory=dict)

    def as_data(self) -> dict[str, Any]:
        moments = {"last_poll": self.last_poll and self.last_poll.isoformat(), "next_poll": self.next_poll.isoformat()}
        counts = ("generation", "multiplier", "compensated_total", "interval_s")
        return moments | {name: getattr(self, name) for name in counts} | {"resume": dict(self.resume)}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        last = data.get("last_poll")
        return cls(
            generation=int(data["generation"]),
            multiplier=int(data["multiplier"]),
            last_poll=datetime.fromisoformat(last) if last else None,
            next_poll=datetime.fromisoformat(data["next_poll"]),
            compensated_total=int(data["compensated_total"]),
            interval_s=int(data.get("interval_s", 0)),
            resume={str(shard): int(at) for shard, at in data.get("resume", {}).items()},
        )


def first(now: datetime, pace: Pace) -> PollState:
    return PollState(generation=0, multiplier=0, last_poll=None, next_poll=now, interval_s=pace.base)


def after(
    poll: PollState,
    now: datetime,
    found: int,
    pace: Pace,
    *,
    held_back: bool = False,
    upcoming: float | None = None,
) -> PollState:
    """The state that follows a poll. Starts held back by their lane are looked at again as soon as it is free.

    `upcoming` is in how many seconds something known may be overdue, as a running request whose worker dies now: the
    poll does not sleep past that moment.
    """
    multiplier = 1 if found else min(poll.multiplier + 1, pace.steps)
    wait = min(LANE_SECONDS, pace.base) if held_back else pace.interval(multiplier)
    if upcoming is not None:
        wait = min(wait, max(pace.base, math.ceil(upcoming)))
    return replace(
        poll,
        generation=poll.generation + 1,
        multiplier=multiplier,
        last_poll=now,
        next_poll=now + timedelta(seconds=wait),
        interval_s=pace.interval(multiplier),
    )


def triggered(poll: PollState, now: datetime, pace: Pace) -> PollState:
    return replace(poll, generation=poll.generation + 1, multiplier=0, next_poll=now, interval_s=pace.base)


def is_lost(poll: PollState, now: datetime, pace: Pace) -> bool:
    """A tick that should have polled a while ago has died on the way."""
    return now > poll.next_poll + timedelta(seconds=pace.overdue)


def is_asleep(poll: PollState, now: datetime, pace: Pace) -> bool:
    """The next poll is so far away that overdue work should not wait for it."""
    return poll.next_poll - now > timedelta(seconds=pace.overdue)
