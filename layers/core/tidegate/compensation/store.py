"""The poll's state, its lanes, and the sparse index of what is due."""

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
# What a poll keeps of each record until it is started. Many that wait, with all that callers gave them, are more than
# a function's memory holds.
_KEPT = ("pk", "sk", "due_at", "due_kind", "due_lane", "due_claim", "due_since", "shard", "opened_at")
# Pages of 1 MB in one poll: records may be large, and a poll that reaches its time-out has started nothing.
_PAGES = 150
_FROM_THE_START: Mapping[str, int] = {}


class Overdue(NamedTuple):
    """`upcoming` is when the next record is due, if soon; `quiet` lists shards in which nothing is due.

    `resume` has the shards that hold more overdue records than were read, with the due time to go on from.
    """

    found: list[Item]
    upcoming: int | None
    quiet: list[Item]
    resume: dict[str, int]


class _Shard(NamedTuple):
    """`ends_at` is the due time of the first overdue record that was not read, if there are more."""

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
        # The total is only ever added to: what a tick carries of it may be old.
        del state["compensated_total"]
        total = {"compensated_total": 0}
        if old is None:
            change = update(keys.compensation(), state, adds=total, condition="attribute_not_exists(#pk)")
        else:
            where = "#generation = :old"
            change = update(keys.compensation(), state, adds=total, condition=where, old=old.generation)
        return self._table.try_write(change, *([audit_write(line)] if line else []))

    def count(self, generation: int, compensated: int, now: datetime) -> None:
        """Adds what one poll started to the total, once: a write whose answer was lost is sent again."""
        expires_at = int(now.timestamp()) + _COUNT_KEPT_SECONDS
        self._table.try_write(
            put_new(keys.compensated(generation) | {"expires_at": expires_at}),
            update(keys.compensation(), adds={"compensated_total": compensated}),
        )

    def overdue(
        self, now: float, late: float, until: float, limit: int, resume: Mapping[str, int] = _FROM_THE_START
    ) -> Overdue:
        """What is due since `late` at the latest, oldest first. Shard 0 also lists the others that may hold records.

        A shard that is in `resume` is read from that due time on.
        """
        first = self._in_shard(0, resume.get("0", 0), late, until, limit, _PAGES)
        entries = first.entries if "0" not in resume else self._entries()
        # What waits in one shard hides nothing in another.
        most, pages = max(1, limit // (1 + len(entries))), max(1, _PAGES // (1 + len(entries)))
        found, upcoming, quiet, ends = first.found[:most], first.upcoming, [], {"0": first.ends_at}
        if len(first.found) > most:
            ends["0"] = int(first.found[most]["due_at"])
        for entry in entries:
            name = str(int(entry["shard"]))
            there = self._in_shard(int(name), resume.get(name, 0), late, until, most, pages)
            found, ends[name] = [*found, *there.found], there.ends_at
            upcoming = min((moment for moment in (upcoming, there.upcoming) if moment is not None), default=None)
            nothing = not there.found and there.upcoming is None and name not in resume
            if nothing and int(entry["opened_at"]) + SHARD_KEPT_SECONDS < now:
                quiet.append(entry)
        # Of very many that are due in one second, those that were not read come when the others have moved.
        onward = {name: at + (at == resume.get(name)) for name, at in ends.items() if at is not None}
        return Overdue(sorted(found, key=lambda item: int(item["due_at"])), upcoming, quiet, onward)

    def _entries(self) -> list[Item]:
        """The list of shards, for a poll that reads shard 0 from a later moment on."""
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
                if item["due_kind"] == keys.SHARD_KIND:
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

    def close(self, quiet: Sequence[Item]) -> int:
        """Takes shards without any record off the list. The condition fails if one was opened again meanwhile."""
        closed = 0
        for entry in quiet:
            if not self._table.query(keys.due_partition(int(entry["shard"])), index="due", limit=1).items:
                same = "#opened_at = :seen"
                closed += self._table.try_write(delete(_key(entry), same, seen=entry["opened_at"]))
        return closed

    def claim(self, item: Item, until: datetime, since: int) -> Item | None:
        """Moves the due time on, and keeps since when the work is due. The whole record, if nobody was faster."""
        at = int(until.timestamp())
        sets = {"due_at": at, "due_claim": at, "due_since": since}
        try:
            return self._table.write(update(_key(item), sets, condition="#due_at = :seen", seen=item["due_at"]))
        except ConditionFailed:
            return None

    def forget(self, item: Item) -> bool:
        """Takes a record off the index, unless it moved meanwhile."""
        gone = update(_key(item), removes=keys.DUE_ATTRIBUTES, condition="#due_at = :seen", seen=item["due_at"])
        return self._table.try_write(gone)

    def claim_lane(self, lane: str, now: datetime) -> bool:
        second = int(now.timestamp())
        return self._table.try_write(
            update(
                keys.lane(lane),
                {"last_start": second, "expires_at": second + _LANE_KEPT_SECONDS},
                condition="attribute_not_exists(#last_start) OR #last_start <= :free",
                free=second - LANE_SECONDS,
            )
        )
