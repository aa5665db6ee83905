"""Channels in the table: their records, the places of waiting requests, the slots of running ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import NamedTuple

from tidegate.aws import keys
from tidegate.aws.table import Item, Table, Write, delete, put_new, update
from tidegate.projects.audit import AuditLine, audit_write
from tidegate.projects.limits import queued_write
from tidegate.queue.fairness import Standing, rank, standing_from, standing_write
from tidegate.queue.model import Channel, Place
from tidegate.queue.store import place_from

# --- store
# Channels in the table: their records, the places of waiting requests, the slots of running ones.

_FIELDS = tuple(field.name for field in fields(Channel))
# Admission rarely needs more places of a project than this. If it does, most of them are blocked, so it reads the rest
# in pages of 1 MB.
_LANE_PAGE = 100
# Projects whose places are counted in one recount, and pages of 1 MB that are read of each.
_RECOUNTED, _RECOUNTED_PAGES = 50, 2


def _channel(item: Item) -> Channel:
    return Channel(**{name: item[name] for name in _FIELDS if name in item})


class Held(NamedTuple):
    """The slots of a channel that an attempt of a request holds."""

    project_id: str
    request_id: str
    attempt: int
    slots: int = 1


class ChannelStore:
    """Reads consistently, because admission decides by what it reads."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def get(self, name: str) -> Channel | None:
        item = self._table.get(keys.channel(name), consistent=True)
        return _channel(item) if item else None

    def all(self) -> list[Channel]:
        return [_channel(item) for item in self._table.query_all(keys.channels(), consistent=True)]

    def ensure(self, name: str, capacity: int) -> Channel:
        """The channel, created with this capacity if it does not exist."""
        channel = self.get(name)
        if channel is None:
            new = {"name": name, "capacity": capacity, "running": 0, "paused": False, "slot_changes": 0}
            self._table.try_write(put_new(keys.channel(name) | new))
            channel = self.get(name)
        return channel or Channel(name, capacity)

    def begin_run(self, name: str) -> None:
        """Counts a run of admission before its first read: see `runs_begun`."""
        self._table.write(update(keys.admission_runs(name), adds={"runs": 1}, condition=""))

    def runs_begun(self, name: str) -> int:
        """How many runs of the channel's admission have begun. The next one sees all that was written before this."""
        item = self._table.get(keys.admission_runs(name), consistent=True)
        return int(item["runs"]) if item else 0

    def set_capacity(self, name: str, capacity: int, now: float, line: AuditLine) -> None:
        change = update(keys.channel(name), {"capacity": capacity} | keys.due(name, now, "channel"))
        self._table.transact([change, audit_write(line)])

    def set_paused(self, name: str, paused: bool, now: float, line: AuditLine) -> None:
        """Also makes the channel due now: if the message to admission is lost, compensation sends another."""
        change = update(keys.channel(name), {"paused": paused} | keys.due(name, now, "channel"))
        self._table.transact([change, audit_write(line)])

    def waiting(self, name: str, project_id: str) -> Iterator[list[Place]]:
        """Pages of a project's places, in the order of admission."""
        limit: int | None = _LANE_PAGE
        cursor: str | None = None
        while limit or cursor:
            page = self._table.query(keys.waiting(name, project_id), consistent=True, limit=limit, cursor=cursor)
            yield [place_from(item) for item in page.items]
            limit, cursor = None, page.cursor

    def held_mutexes(self, project_id: str, names: Iterable[str], now: float) -> set[str]:
        """The mutexes among `names` that a request of the project holds."""
        wanted = {keys.mutex(project_id, name)["pk"]: name for name in names}
        items = self._table.batch_get((keys.mutex(project_id, name) for name in wanted.values()), consistent=True)
        return {wanted[item["pk"]] for item in items if "owner" in item and float(item["lease_until"]) > now}

    def shared_places(self, name: str) -> Iterator[Place]:
        """Places that an older version wrote to the lane that all projects shared."""
        return (place_from(item) for item in self._table.query_all(keys.shared_waiting(name), consistent=True))

    def standings(self, name: str) -> list[Standing]:
        """The projects that have waiting or running requests in the channel, or had some recently."""
        return [standing_from(item) for item in self._table.query_all(keys.standings(name), consistent=True)]

    def standing(self, name: str, project_id: str) -> Standing:
        item = self._table.get(keys.standing(name, project_id), consistent=True)
        return standing_from(item) if item else Standing(project_id)

    def count_waiting(self, name: str) -> int:
        return sum(standing.waiting for standing in self.standings(name))

    def queue_of(self, name: str) -> tuple[int, str | None]:
        """(number of waiting requests, creation time of the oldest). Reads counts and one place, not the queue."""
        length = self.count_waiting(name)
        if not length:
            return 0, None
        oldest = self._table.query(keys.waiting_by_age(name), index="gsi1", limit=1).items
        return length, oldest[0]["since"] if oldest else None

    def drop_place(self, place: Place) -> None:
        """Removes a place whose request does not exist any more."""
        lane = (place.channel, place.project_id)
        key = keys.waiting_place(*lane, rank(place.priority, place.since), place.request_id)
        self._table.try_write(
            delete(key, "attribute_exists(#pk)"), standing_write(*lane, waiting=-1), queued_write(place.project_id, -1)
        )

    def drop_shared_place(self, place: Place) -> None:
        key = keys.shared_waiting_place(place.channel, place.priority, place.since, place.request_id)
        self._table.write(delete(key))

    def slots(self, name: str) -> list[Held]:
        items = self._table.query_all(keys.slots(name), consistent=True)
        return [
            Held(item["project_id"], item["request_id"], int(item["attempt"]), int(item.get("slots", 1)))
            for item in items
        ]

    def drop_slot(self, name: str, held: Held) -> bool:
        """Releases the slots of an attempt that does not run any more. False if they were released already."""
        return self._table.try_write(
            delete(keys.slot(name, held.request_id), "#attempt = :attempt", attempt=held.attempt),
            update(keys.channel(name), adds={"running": -held.slots, "slot_changes": 1}),
            standing_write(name, held.project_id, running=-held.slots),
        )

    def recount(self, channel: Channel, running: int) -> bool:
        """Corrects the channel's count. False if a slot was taken or released since `channel` was read."""
        return self._table.try_write(
            update(
                keys.channel(channel.name),
                {"running": running},
                adds={"slot_changes": 1},
                condition="#slot_changes = :seen",
                seen=channel.slot_changes,
            )
        )

    def recount_running(self, name: str) -> None:
        """Sets each project's count to the number of its slots, unless the count has changed since it was read."""
        standings = {standing.project_id: standing for standing in self.standings(name)}
        held: Counter[str] = Counter()
        for one in self.slots(name):
            held[one.project_id] += one.slots
        for project_id in standings.keys() | held.keys():
            standing = standings.get(project_id, Standing(project_id))
            if standing.running != held[project_id]:
                self._table.try_write(self._set_count(name, standing, "running", held[project_id]))

    def recount_waiting(self, name: str, turn: int) -> None:
        """Corrects the counts of waiting requests of some projects, and removes idle projects.

        Each `turn` checks other projects. Of a long lane only the first pages are read: its count is corrected if it is
        lower than that, or when the lane has become short.
        """
        standings = self.standings(name)
        start = turn * _RECOUNTED % max(1, len(standings))
        for standing in (standings[start:] + standings[:start])[:_RECOUNTED]:
            lane = keys.waiting(name, standing.project_id)
            waiting, are_all = self._table.count(lane, pages=_RECOUNTED_PAGES, consistent=True)
            if standing.waiting < waiting or (are_all and standing.waiting != waiting):
                counted = queued_write(standing.project_id, waiting - standing.waiting)
                self._table.try_write(self._set_count(name, standing, "waiting", waiting), counted)
            elif not standing.is_active:
                unchanged = "#changes = :seen"
                self._table.try_write(
                    delete(keys.standing(name, standing.project_id), unchanged, seen=standing.changes)
                )

    @staticmethod
    def _set_count(name: str, standing: Standing, count: str, value: int) -> Write:
        return update(
            keys.standing(name, standing.project_id),
            {count: value},
            adds={"changes": 1},
            condition="attribute_not_exists(#changes) OR #changes = :seen",
            seen=standing.changes,
        )

    def set_due(self, name: str, due_at: float | None) -> None:
        """Sets when compensation checks the channel; None: not at all."""
        sets = keys.due(name, due_at, "channel") if due_at is not None else None
        self._table.try_write(update(keys.channel(name), sets, removes=() if sets else keys.DUE_ATTRIBUTES))
