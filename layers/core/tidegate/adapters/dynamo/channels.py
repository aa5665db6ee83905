"""Channels in the table: their records, the places of what waits, the slots of what runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from tidegate.adapters.dynamo import keys
from tidegate.adapters.dynamo.audit import audit_write
from tidegate.adapters.dynamo.request_items import place_from
from tidegate.adapters.dynamo.table import ConditionFailed, Table
from tidegate.adapters.dynamo.values import Item
from tidegate.adapters.dynamo.writes import Write, delete, put_new, update
from tidegate.domain.audit import AuditLine
from tidegate.domain.channels import Channel, Place

_FIELDS = tuple(field.name for field in fields(Channel))


def _channel(item: Item) -> Channel:
    return Channel(**{name: item[name] for name in _FIELDS if name in item})


class ChannelRepository:
    """Implements `services.queue_ports.ChannelStore`. Reads are consistent: admission decides by them."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def get(self, name: str) -> Channel | None:
        item = self._table.get(keys.channel(name), consistent=True)
        return _channel(item) if item else None

    def all(self) -> list[Channel]:
        return [_channel(item) for item in self._table.query_all(keys.channels(), consistent=True)]

    def ensure(self, name: str, capacity: int) -> Channel:
        """The channel, made with this capacity if it is new."""
        known = self.get(name)
        if known is None:
            new = {"name": name, "capacity": capacity, "running": 0, "paused": False, "slot_changes": 0}
            self._done(put_new(keys.channel(name) | new))
            known = self.get(name)
        return known or Channel(name, capacity)

    def set_capacity(self, name: str, capacity: int, now: float, line: AuditLine) -> None:
        change = update(keys.channel(name), {"capacity": capacity} | keys.due(name, now, "channel"))
        self._table.transact([change, audit_write(line)])

    def set_paused(self, name: str, paused: bool, now: float, line: AuditLine) -> None:
        """Due from now: should the word to admission be lost, what waits still moves."""
        change = update(keys.channel(name), {"paused": paused} | keys.due(name, now, "channel"))
        self._table.transact([change, audit_write(line)])

    def waiting(self, name: str) -> Iterator[Place]:
        """In the order of admission."""
        return (place_from(item) for item in self._table.query_all(keys.waiting(name), consistent=True))

    def count_waiting(self, name: str) -> int:
        """Up to some thousands: cheap enough for every minute."""
        return self._table.count(keys.waiting(name), pages=1)

    def queue_of(self, name: str) -> tuple[int, str | None]:
        """How many wait, and since when the first of them; the queue itself is not fetched."""
        waiting = keys.waiting(name)
        length = self._table.count(waiting, consistent=True)
        firsts: list[Place] = []
        # Sorted by priority, then by age: only the first of each priority can be the oldest.
        while length and (found := self._first_below(waiting, firsts)):
            firsts.append(found)
        return length, min((place.since for place in firsts), default=None)

    def _first_below(self, waiting: str, firsts: list[Place]) -> Place | None:
        bounds = keys.below_priority(firsts[-1].priority if firsts else None)
        items = self._table.query(waiting, sk_between=bounds, limit=1, consistent=True).items
        return place_from(items[0]) if items else None

    def drop_place(self, place: Place) -> None:
        """For a place whose request is not waiting any more."""
        self._table.write(delete(keys.waiting_place(place.channel, place.priority, place.since, place.request_id)))

    def slots(self, name: str) -> list[tuple[str, str, int]]:
        items = self._table.query_all(keys.slots(name), consistent=True)
        return [(item["project_id"], item["request_id"], int(item["attempt"])) for item in items]

    def drop_slot(self, name: str, request_id: str, attempt: int) -> bool:
        """Gives back a slot whose request does not run any more."""
        try:
            self._table.transact(
                [
                    delete(keys.slot(name, request_id), "#attempt = :attempt", attempt=attempt),
                    update(keys.channel(name), adds={"running": -1, "slot_changes": 1}),
                ]
            )
        except ConditionFailed:
            return False
        return True

    def recount(self, channel: Channel, running: int) -> bool:
        """Puts the count right, unless a slot changed hands since `channel` was read."""
        return self._done(
            update(
                keys.channel(channel.name),
                {"running": running},
                adds={"slot_changes": 1},
                condition="#slot_changes = :seen",
                seen=channel.slot_changes,
            )
        )

    def look_again(self, name: str, due_at: float | None) -> None:
        sets = keys.due(name, due_at, "channel") if due_at is not None else None
        self._done(update(keys.channel(name), sets, removes=() if sets else keys.DUE_ATTRIBUTES))

    def _done(self, write: Write) -> bool:
        try:
            self._table.write(write)
        except ConditionFailed:
            return False
        return True
