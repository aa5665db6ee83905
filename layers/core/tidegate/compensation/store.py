"""The state of the poll, its lanes, and the sparse index of due records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from tidegate.aws import keys
from tidegate.aws.due_shards import SHARD_KEPT_SECONDS
from tidegate.aws.serialization import Item
from tidegate.aws.table import ConditionFailed, Table
from tidegate.aws.writes import delete, put_new, update
from tidegate.compensation.interval import LANE_SECONDS, PollState
from tidegate.projects.audit import AuditLine
from tidegate.projects.audit_store import audit_write

_LANE_KEPT_SECONDS = _COUNT_KEPT_SECONDS = 3600
# The attributes that a poll reads of each record. Thousands of whole records, with callers' payloads, would not fit
# into a function's memory.
_KEPT = ("pk", "sk", "due_at", "due_kind", "due_lane", "due_claim", "due_since", "shard", "opened_at")
# Pages of 1 MB that one poll reads: records may be large, and a poll that times out while reading starts nothing.
_PAGES = 150
_FROM_THE_START: Mapping[str, int] = {}


class Overdue(NamedTuple):
    """The overdue records. `upcoming` is when the next record is due, if soon.

    `empty_shards` are the list entries of shards without due records. `resume` has the shards with more overdue
    records than were read, and the due time to continue from.
    """

    found: list[Item]
    upcoming: int | None
    empty_shards: list[Item]
    resume: dict[str, int]


class _Shard(NamedTuple):
    """Records of one shard. `ends_at` is the due time of the first overdue record that was not read, if any."""

    found: list[Item]
    entries: list[Item]
    upcoming: int | None = None
    ends_at: int | None = None


def _key(item: Item) -> dict[str, str]:
    return {"pk": str(item["pk"]), "sk": str(item["sk"])}


class CompensationStore:
    def __init__(self, table: Table) -> None:
        self._table = table

    def read(self) -> PollState | None:
        item = self._table.get(keys.compensation(), consistent=True)
        return PollState.from_data(item) if item else None

    def replace(self, old: PollState | None, new: PollState, line: AuditLine | None = None) -> bool:
        state = new.as_data()
        # The total is only ever added to, because the value in a tick may be old.
        del state["compensated_total"]
        total = {"compensated_total": 0}
        if old is None:
            change = update(keys.compensation(), state, adds=total, condition="attribute_not_exists(#pk)")
        else:
            where = "#generation = :old"
            change = update(keys.compensation(), state, adds=total, condition=where, old=old.generation)
        return self._table.try_write(change, *([audit_write(line)] if line else []))

    def count(self, generation: int, compensated: int, now: datetime) -> None:
        """Adds the starts of one poll to the total, once, even if botocore repeats a write whose answer was lost."""
        expires_at = int(now.timestamp()) + _COUNT_KEPT_SECONDS
        self._table.try_write(
            put_new(keys.compensated(generation) | {"expires_at": expires_at}),
            update(keys.compensation(), adds={"compensated_total": compensated}),
        )

    def overdue(
        self, now: float, late: float, until: float, limit: int, resume: Mapping[str, int] = _FROM_THE_START
    ) -> Overdue:
        """The records that were due at `late` or before, oldest first. Shards in `resume` are read from there on.

        Shard 0 also lists the other shards that may have records. Records up to `until` are read for `upcoming`.
        """
        first = self._in_shard(0, resume.get("0", 0), late, until, limit, _PAGES)
        entries = first.entries if "0" not in resume else self._entries()
        # Divided among the shards, so that many records in one shard do not hide those in another.
        most, pages = max(1, limit // (1 + len(entries))), max(1, _PAGES // (1 + len(entries)))
        found, upcoming, empty, ends = first.found[:most], first.upcoming, [], {"0": first.ends_at}
        if len(first.found) > most:
            ends["0"] = int(first.found[most]["due_at"])
        for entry in entries:
            name = str(int(entry["shard"]))
            shard = self._in_shard(int(name), resume.get(name, 0), late, until, most, pages)
            found, ends[name] = [*found, *shard.found], shard.ends_at
            upcoming = min((moment for moment in (upcoming, shard.upcoming) if moment is not None), default=None)
            is_empty = not shard.found and shard.upcoming is None and name not in resume
            if is_empty and int(entry["opened_at"]) + SHARD_KEPT_SECONDS < now:
                empty.append(entry)
        # If more records are due in one second than a poll reads, continue with the next second: the rest is read when
        # the first records of this second have moved.
        onward = {name: at + (at == resume.get(name)) for name, at in ends.items() if at is not None}
        return Overdue(sorted(found, key=lambda item: int(item["due_at"])), upcoming, empty, onward)

    def _entries(self) -> list[Item]:
        """The list of shards, for a poll that does not read shard 0 from its beginning."""
        listed = self._table.query_all(keys.due_partition(0), index="due", sk_between=(0, 0))
        return [item for item in listed if item["due_kind"] == keys.SHARD_KIND]

    def _in_shard(self, shard: int, first: int, late: float, until: float, limit: int, pages: int) -> _Shard:
        found: list[Item] = []
        entries: list[Item] = []
        cursor: str | None = None
        at = first
        for _ in range(pages):
            page = self._table.query(
                keys.due_partition(shard), index="due", sk_between=(first, int(until)), project=_KEPT, cursor=cursor
            )
            for item in page.items:
                at = int(item["due_at"])
                if item.get("due_kind") == keys.SHARD_KIND:
                    entries.append(item)
                elif at > late:
                    return _Shard(found, entries, upcoming=at)
                elif len(found) >= limit:
                    return _Shard(found, entries, ends_at=at)
                else:
                    found.append(item)
            cursor = page.cursor
            if cursor is None:
                return _Shard(found, entries)
        return _Shard(found, entries, ends_at=at)

    def close_shards(self, empty_shards: Sequence[Item]) -> int:
        """Removes shards without records from the list, unless one was opened again. Returns how many were removed."""
        closed = 0
        for entry in empty_shards:
            if not self._table.query(keys.due_partition(int(entry["shard"])), index="due", limit=1).items:
                same = "#opened_at = :seen"
                closed += self._table.try_write(delete(_key(entry), same, seen=entry["opened_at"]))
        return closed

    def claim(self, item: Item, until: datetime, since: int) -> Item | None:
        """Moves the due time and stores when the work was first due. Returns the record; None if another was faster."""
        at = int(until.timestamp())
        sets = {"due_at": at, "due_claim": at, "due_since": since}
        try:
            return self._table.write(update(_key(item), sets, condition="#due_at = :seen", seen=item["due_at"]))
        except ConditionFailed:
            return None

    def remove_from_index(self, item: Item) -> bool:
        """False if the record moved meanwhile."""
        gone = update(_key(item), removes=keys.DUE_ATTRIBUTES, condition="#due_at = :seen", seen=item["due_at"])
        return self._table.try_write(gone)

    def claim_lane(self, lane: str, now: datetime) -> bool:
        """True for one caller in LANE_SECONDS."""
        second = int(now.timestamp())
        return self._table.try_write(
            update(
                keys.lane(lane),
                {"last_start": second, "expires_at": second + _LANE_KEPT_SECONDS},
                condition="attribute_not_exists(#last_start) OR #last_start <= :free",
                free=second - LANE_SECONDS,
            )
        )
