"""Whose turn it is: one run of admission over the lanes of a channel's projects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain, islice

from tidegate.queue.admission.fairness import Standing, Turn, aged_priority, ceiling, fair_share
from tidegate.queue.channels.model import Channel, Place
from tidegate.queue.model import BACKOFF, CAPACITY, CHANNEL_PAUSED, MUTEX, SHARE

# Where more projects wait, those that waited longest for their turn are looked at; the others move up.
_LANES_PER_RUN = 25
_LOOKS_PER_RUN = 200


@dataclass(slots=True)
class Turns:
    channel: Channel
    standings: dict[str, Standing]
    # An operator's share of this channel, for the projects that have one.
    fixed_shares: Mapping[str, int]
    read_lane: Callable[[str], Iterator[Place]]
    now: float
    # A project that runs nothing gets a slot beyond the capacity after waiting this long behind larger holders.
    extra_slot_wait: float
    admitted: int = 0
    # Places that cannot go now, and why.
    passed: list[tuple[Place, str]] = field(default_factory=list)
    _held: set[tuple[str, str]] = field(default_factory=set)
    _lanes: dict[str, Iterator[Place]] = field(default_factory=dict)
    _heads: dict[str, Place] = field(default_factory=dict)
    _before: tuple[Channel, dict[str, Standing], int] = field(init=False)

    @property
    def reason(self) -> str | None:
        """Why nobody may have a slot now."""
        if self.channel.paused:
            return CHANNEL_PAUSED
        return CAPACITY if self.channel.free <= 0 else None

    @property
    def waiting(self) -> int:
        return sum(standing.waiting for standing in self.standings.values())

    def next(self) -> Place | None:
        """The place whose turn it is: of a project below its share, by priority, then of who waited for a turn longest.

        A project at its share comes only where no other can use the slot.
        """
        if self.channel.paused:
            return None
        if self.channel.free <= 0:
            return self._next_extra()
        split = self._split()
        may = [each for each in self._waiting() if each.running < self._ceiling(each.project_id)]
        over = {each.project_id: each.running >= self.fixed_shares.get(each.project_id, split) for each in may}
        may.sort(key=lambda each: over[each.project_id])
        ready = ((each, place) for each in may if (place := self._head(each.project_id)) is not None)
        best = min(
            islice(ready, _LANES_PER_RUN),
            key=lambda pair: (over[pair[0].project_id], self._priority(pair[1]), pair[0].turn, pair[0].project_id),
            default=None,
        )
        return self._heads.pop(best[0].project_id) if best else None

    def peek(self, most: int) -> list[Place]:
        """The places whose turn comes next, as `next_together` would take them."""
        places = [place for place, _ in self.next_together(most)]
        self.give_back(places)
        return places

    def next_together(self, most: int, fit: Callable[[int, int], bool] | None = None) -> list[tuple[Place, Turn]]:
        """The places whose turn it is, one after another, as if each had its slot already; `give_back` undoes that.

        Only while the channel has room, and not what needs a mutex: that is often taken. `fit` is asked whether so
        many places of so many projects may be taken together.
        """
        self._before = (self.channel, dict(self.standings), self.admitted)
        found: list[tuple[Place, Turn]] = []
        projects: set[str] = set()
        while len(found) < most and self.channel.free > 0 and (place := self.next()) is not None:
            projects.add(place.project_id)
            if place.mutex is not None or (fit and not fit(len(found) + 1, len(projects))):
                self._heads[place.project_id] = place
                break
            found.append((place, self.turn(place.project_id)))
            self.took(place)
        return found

    @property
    def channel_before(self) -> Channel:
        """The channel as it was before the last `next_together`."""
        return self._before[0]

    def give_back(self, places: Sequence[Place]) -> None:
        """None of the places of the last `next_together` has its slot: they are first in their lanes again."""
        self.channel, self.standings, self.admitted = self._before
        lanes: dict[str, list[Place]] = {}
        for place in places:
            lanes.setdefault(place.project_id, []).append(place)
        for project_id, again in lanes.items():
            self._lanes[project_id] = chain(again, self._left_in(project_id))

    def turn(self, project_id: str) -> Turn:
        if self.channel.free <= 0:
            return Turn(self.channel.slot_changes + 1, ceiling=1, extra=True)
        return Turn(self.channel.slot_changes + 1, self._ceiling(project_id))

    def _next_extra(self) -> Place | None:
        """The place that may have the one slot beyond the capacity now."""
        ready = [(each, place) for each, place in self._kept_out() if self._extra_slot_at(place) <= self.now]
        best = min(ready, key=lambda pair: (self._priority(pair[1]), pair[0].turn, pair[0].project_id), default=None)
        return self._heads.pop(best[0].project_id) if best else None

    def next_extra_slot(self) -> tuple[Place, float] | None:
        """Which place may have the slot beyond the capacity next, and from when on; None while nobody may."""
        times = ((place, self._extra_slot_at(place)) for _, place in self._kept_out())
        return min(times, key=lambda pair: pair[1], default=None)

    def _kept_out(self) -> Iterator[tuple[Standing, Place]]:
        """Projects that wait and run nothing while another holds more than its share, with their first places.

        Where every holder keeps to its share, as in a channel of one slot, a project waits for its turn.
        """
        channel, split = self.channel, self._split()
        holders = (each for each in self.standings.values() if each.running > 0)
        too_many = any(each.running > self.fixed_shares.get(each.project_id, split) for each in holders)
        if channel.paused or channel.running != channel.capacity or not too_many:
            return
        for each in [each for each in self._waiting() if each.running <= 0][:_LANES_PER_RUN]:
            place = self._head(each.project_id) if self._ceiling(each.project_id) > 0 else None
            if place is not None:
                yield each, place

    def _extra_slot_at(self, place: Place) -> float:
        since = datetime.fromisoformat(place.since).timestamp()
        return max(since, place.not_before or 0.0) + self.extra_slot_wait

    def _split(self) -> int:
        return fair_share(self.channel.capacity, self.standings.values())

    def took(self, place: Place) -> None:
        """The place's request has a slot now."""
        self.admitted += 1
        if place.mutex is not None:
            self.hold(place)
        channel, standing = self.channel, self.standings[place.project_id]
        self.channel = replace(channel, running=channel.running + 1, slot_changes=channel.slot_changes + 1)
        self.standings[place.project_id] = replace(
            standing, waiting=standing.waiting - 1, running=standing.running + 1, turn=self.channel.slot_changes
        )

    def hold(self, place: Place) -> None:
        """Notes that the place's mutex is taken: other places that need it are skipped."""
        self._held.add((place.project_id, str(place.mutex)))

    def rest(self) -> Iterator[tuple[Place, str]]:
        """What waits on, with the reason: what was passed by, then the first places of each lane."""
        yield from list(self.passed)
        lanes = self._waiting()[:_LANES_PER_RUN]
        for standing in lanes:
            for place in islice(self._left_in(standing.project_id), max(1, _LOOKS_PER_RUN // len(lanes))):
                yield place, self._obstacle(place) or self.reason or SHARE

    def _waiting(self) -> list[Standing]:
        waiting = [standing for standing in self.standings.values() if standing.waiting > 0]
        return sorted(waiting, key=lambda standing: (standing.turn, standing.project_id))

    def _ceiling(self, project_id: str) -> int:
        return ceiling(self.channel.capacity, self.fixed_shares.get(project_id))

    def _priority(self, place: Place) -> int:
        return aged_priority(place.priority, place.since, self.now)

    def _head(self, project_id: str) -> Place | None:
        """The project's first place that could go now."""
        for place in self._left_in(project_id):
            obstacle = self._obstacle(place)
            if obstacle is None:
                self._heads[project_id] = place
                return place
            self.passed.append((place, obstacle))
        return None

    def _left_in(self, project_id: str) -> Iterator[Place]:
        if project_id not in self._lanes:
            self._lanes[project_id] = self.read_lane(project_id)
        seen = [self._heads.pop(project_id)] if project_id in self._heads else []
        return chain(seen, self._lanes[project_id])

    def _obstacle(self, place: Place) -> str | None:
        if place.not_before is not None and place.not_before > self.now:
            return BACKOFF
        return MUTEX if (place.project_id, str(place.mutex)) in self._held else None
