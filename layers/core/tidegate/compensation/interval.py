"""When to poll for overdue work next: soon while polls find some, less and less often while they find none."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Self

# Compensation starts one record of a lane (a channel) in this many seconds.
LANE_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Pace:
    """How often to poll, in seconds. The interval is `base`, and grows by it with each empty poll up to `longest`.

    Work counts as overdue only `overdue` seconds after it was due: until then its normal start may be under way.
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
    """The state of the poll. Each tick carries it; a tick whose generation is not the stored one is a duplicate.

    `multiplier` counts the polls since work was last found: 0 before the first poll, 1 after it. `resume` has, for
    each shard with more records than one poll reads, the due time from which the next poll continues. After the last
    part of a shard the next poll starts again at its oldest record.
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
    """The state after a poll. `held_back`: some starts must wait for their lane, so the next poll is soon.

    `upcoming` is the number of seconds until the next known record can be overdue, for example a running request
    whose worker dies now. The next poll is not later than that.
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
    """Whether the tick of the next poll must have been lost: it should have come a while ago."""
    return now > poll.next_poll + timedelta(seconds=pace.overdue)


def is_asleep(poll: PollState, now: datetime, pace: Pace) -> bool:
    """Whether the next poll is too far away for overdue work to wait for it."""
    return poll.next_poll - now > timedelta(seconds=pace.overdue)
