"""Whose turn it is: how projects share a channel's slots, and the order of one admission run."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain, islice
from typing import Any

from tidegate.aws import keys
from tidegate.aws.table import Item, Write, below, update
from tidegate.queue.model import BACKOFF, CAPACITY, CHANNEL_PAUSED, MUTEX, RUNNER_HOURS, SHARE, Channel, Place

# --- fairness
# Rules of fair admission: how projects share a channel's slots, and how the priority rises with waiting.

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
    """A project's turn to take `slots` slots. It may hold at most `ceiling` slots, these included.

    `number` is stored as the project's latest turn. `extra` allows one request beyond the channel's capacity.
    """

    number: int
    ceiling: int
    extra: bool = False
    slots: int = 1
    # Of the channel, as it was read.
    capacity: int = 0


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


# --- standings
# A project's standing in a channel: how many of its requests wait and run.
#
# The counts are written in the same transaction as the requests that they count, so a crash cannot make them differ.


def standing_from(item: Item) -> Standing:
    counts = {name: int(item.get(name, 0)) for name in ("waiting", "running", "turn", "changes")}
    return Standing(item["sk"], **counts)


def standing_write(
    channel: str, project_id: str, *, waiting: int = 0, running: int = 0, turn: Turn | None = None
) -> Write:
    """Adds to the counts. With a turn, the write is refused if the project already holds as many slots as it may."""
    # With its slots, the project must not hold more than it may.
    most = turn.ceiling - running + 1 if turn else 0
    bound: dict[str, Any] = {"ceiling": most} if turn else {}
    return update(
        keys.standing(channel, project_id),
        {"turn": turn.number if turn else None},
        adds={name: value for name, value in (("waiting", waiting), ("running", running)) if value} | {"changes": 1},
        condition=below("running", "ceiling", allows_none=most > 0) if turn else "",
        **bound,
    )


# --- turns
# The order of one admission run: which project of a channel is next, with which of its requests.

# If more projects wait, only those that have waited longest for their turn are considered; the others move up.
_LANES_PER_RUN = 25
_PLACES_PER_RUN = 200


@dataclass(slots=True)
class Turns:
    """One run's view of a channel, updated with each admission of the run."""

    channel: Channel
    standings: dict[str, Standing]
    # The shares of this channel that operators have set, by project.
    fixed_shares: Mapping[str, int]
    read_lane: Callable[[str], Iterator[Place]]
    now: float
    # Seconds after which a project without a slot gets one beyond the capacity, if another holds more than its share.
    extra_slot_wait: float
    # The most slots of the channel that a project may hold, by its quota `running`.
    most_running: Mapping[str, int] = field(default_factory=dict)
    # Projects that have used up their runner-hours of the day.
    held_back: Container[str] = frozenset()
    admitted: int = 0
    # Places that cannot be admitted now, and why.
    skipped: list[tuple[Place, str]] = field(default_factory=list)
    _held_mutexes: set[tuple[str, str]] = field(default_factory=set)
    _lanes: dict[str, Iterator[Place]] = field(default_factory=dict)
    # Places that were taken from their lanes to be compared, and not admitted yet.
    _heads: dict[str, Place] = field(default_factory=dict)
    _before: tuple[Channel, dict[str, Standing], int] = field(init=False)

    @property
    def reason(self) -> str | None:
        """Why the channel admits nobody now; None if it has room."""
        if self.channel.paused:
            return CHANNEL_PAUSED
        return CAPACITY if self.channel.free <= 0 else None

    @property
    def waiting(self) -> int:
        return sum(standing.waiting for standing in self.standings.values())

    def next(self) -> Place | None:
        """The next place: by priority, then of the project that has waited longest for a turn.

        Projects below their share come first. One that has its share is next only if no other can use the slot. While
        the next place needs more slots than are free, nobody else gets these: small requests would keep it waiting.
        """
        if self.channel.paused:
            return None
        if self.channel.free <= 0:
            return self._next_extra()
        split = self._fair_share()
        allowed = [
            each
            for each in self._waiting()
            if each.project_id not in self.held_back and each.running < self._ceiling(each.project_id)
        ]
        over = {each.project_id: each.running >= self.fixed_shares.get(each.project_id, split) for each in allowed}
        allowed.sort(key=lambda each: over[each.project_id])
        ready = (
            (each, place)
            for each in allowed
            if (place := self._first_ready(each.project_id)) is not None
            and each.running + self._slots(place) <= self._ceiling(each.project_id)
        )
        best = min(
            islice(ready, _LANES_PER_RUN),
            key=lambda pair: (over[pair[0].project_id], self._priority(pair[1]), pair[0].turn, pair[0].project_id),
            default=None,
        )
        if best and self._slots(best[1]) > self.channel.free:
            return self._next_extra()
        return self._heads.pop(best[0].project_id) if best else None

    def peek(self, most: int) -> list[Place]:
        """The places that `next_group` would return, without marking them as admitted."""
        places = [place for place, _ in self.next_group(most)]
        self.put_back(places)
        return places

    def next_group(self, most: int, fits: Callable[[int, int], bool] | None = None) -> list[tuple[Place, Turn]]:
        """The next places, each marked as admitted before the next is chosen; `put_back` undoes that.

        Ends when the channel has no room, or before a place that needs a mutex, because the mutex is often held.
        `fits(places, projects)` tells whether a group of that size is allowed.
        """
        self._before = (self.channel, dict(self.standings), self.admitted)
        found: list[tuple[Place, Turn]] = []
        projects: set[str] = set()
        while len(found) < most and self.channel.free > 0 and (place := self.next()) is not None:
            projects.add(place.project_id)
            turn = self.turn(place)
            if place.mutex is not None or turn.extra or (fits and not fits(len(found) + 1, len(projects))):
                self._heads[place.project_id] = place
                break
            found.append((place, turn))
            self.mark_admitted(place)
        return found

    @property
    def channel_before(self) -> Channel:
        """The channel as it was before the last `next_group`."""
        return self._before[0]

    def put_back(self, places: Sequence[Place]) -> None:
        """Undoes the last `next_group`: its places are the first of their lanes again."""
        self.channel, self.standings, self.admitted = self._before
        lanes: dict[str, list[Place]] = {}
        for place in places:
            lanes.setdefault(place.project_id, []).append(place)
        for project_id, first in lanes.items():
            self._lanes[project_id] = chain(first, self._remaining(project_id))

    def turn(self, place: Place) -> Turn:
        number, slots = self.channel.slot_changes + 1, self._slots(place)
        if self.channel.free < slots:
            return Turn(number, ceiling=slots, extra=True, slots=slots)
        return Turn(number, self._ceiling(place.project_id), slots=slots, capacity=self.channel.capacity)

    def _slots(self, place: Place) -> int:
        return place.takes(self._ceiling(place.project_id))

    def _next_extra(self) -> Place | None:
        """The place that may be the one request beyond the capacity now."""
        ready = [(each, place) for each, place in self._without_slot() if self._extra_slot_at(place) <= self.now]
        best = min(ready, key=lambda pair: (self._priority(pair[1]), pair[0].turn, pair[0].project_id), default=None)
        return self._heads.pop(best[0].project_id) if best else None

    def next_extra_slot(self) -> tuple[Place, float] | None:
        """(the place that may take the slot beyond the capacity next, from when on); None if there is no such place."""
        times = ((place, self._extra_slot_at(place)) for _, place in self._without_slot())
        return min(times, key=lambda pair: pair[1], default=None)

    def _without_slot(self) -> Iterator[tuple[Standing, Place]]:
        """Projects that wait without a slot while another holds more than its share, with their first places.

        None if no project holds more than its share, as in a channel with one slot: then they wait for their turn.
        """
        channel, split = self.channel, self._fair_share()
        holders = (each for each in self.standings.values() if each.running > 0)
        too_many = any(each.running > self.fixed_shares.get(each.project_id, split) for each in holders)
        if channel.paused or channel.running > channel.capacity or not too_many:
            return
        without = [each for each in self._waiting() if each.running <= 0 and each.project_id not in self.held_back]
        for each in without[:_LANES_PER_RUN]:
            place = self._first_ready(each.project_id) if self._ceiling(each.project_id) > 0 else None
            if place is not None and self._slots(place) > channel.free:
                yield each, place

    def _extra_slot_at(self, place: Place) -> float:
        since = datetime.fromisoformat(place.since).timestamp()
        return max(since, place.not_before or 0.0) + self.extra_slot_wait

    def _fair_share(self) -> int:
        return fair_share(self.channel.capacity, self.standings.values())

    def mark_admitted(self, place: Place) -> None:
        """Counts the place's request as running."""
        self.admitted += 1
        if place.mutex is not None:
            self.mark_mutex_held(place)
        channel, standing = self.channel, self.standings[place.project_id]
        slots = self._slots(place)
        self.channel = replace(channel, running=channel.running + slots, slot_changes=channel.slot_changes + 1)
        self.standings[place.project_id] = replace(
            standing, waiting=standing.waiting - 1, running=standing.running + slots, turn=self.channel.slot_changes
        )

    def mark_mutex_held(self, place: Place) -> None:
        """Other places that need the same mutex are skipped from now on."""
        self._held_mutexes.add((place.project_id, str(place.mutex)))

    def still_waiting(self) -> Iterator[tuple[Place, str]]:
        """Places that were not admitted, with the reason: the skipped ones, then the first of each lane."""
        yield from list(self.skipped)
        lanes = self._waiting()[:_LANES_PER_RUN]
        for standing in lanes:
            for place in islice(self._remaining(standing.project_id), max(1, _PLACES_PER_RUN // len(lanes))):
                yield place, self._obstacle(place) or self._wait(place)

    def _wait(self, place: Place) -> str:
        if place.project_id in self.held_back:
            return RUNNER_HOURS
        if self.reason:
            return self.reason
        most = self._ceiling(place.project_id)
        is_below = (
            most >= self.channel.capacity or self.standings[place.project_id].running + self._slots(place) <= most
        )
        return CAPACITY if is_below and self._slots(place) > self.channel.free else SHARE

    def _waiting(self) -> list[Standing]:
        waiting = [standing for standing in self.standings.values() if standing.waiting > 0]
        return sorted(waiting, key=lambda standing: (standing.turn, standing.project_id))

    def _ceiling(self, project_id: str) -> int:
        share = ceiling(self.channel.capacity, self.fixed_shares.get(project_id))
        return min(share, self.most_running.get(project_id, share))

    def _priority(self, place: Place) -> int:
        return aged_priority(place.priority, place.since, self.now)

    def _first_ready(self, project_id: str) -> Place | None:
        """The project's first place that could be admitted now."""
        for place in self._remaining(project_id):
            obstacle = self._obstacle(place)
            if obstacle is None:
                self._heads[project_id] = place
                return place
            self.skipped.append((place, obstacle))
        return None

    def _remaining(self, project_id: str) -> Iterator[Place]:
        """The places of a lane that were neither admitted nor skipped."""
        if project_id not in self._lanes:
            self._lanes[project_id] = self.read_lane(project_id)
        first = [self._heads.pop(project_id)] if project_id in self._heads else []
        return chain(first, self._lanes[project_id])

    def _obstacle(self, place: Place) -> str | None:
        if place.not_before is not None and place.not_before > self.now:
            return BACKOFF
        return MUTEX if (place.project_id, str(place.mutex)) in self._held_mutexes else None
