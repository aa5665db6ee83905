"""The poll's state, its lanes, and the sparse index of what is due."""

from __future__ import annotations

from datetime import datetime

from tidegate.aws import keys
from tidegate.aws.serialization import Item
from tidegate.aws.table import Table
from tidegate.aws.writes import update
from tidegate.compensation.interval import LANE_SECONDS, PollState
from tidegate.projects.audit import AuditLine
from tidegate.projects.audit_store import audit_write

_LANE_KEPT_SECONDS = 3600


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

    def count(self, compensated: int) -> None:
        self._table.write(update(keys.compensation(), adds={"compensated_total": compensated}))

    def overdue(self, late: float, until: float, limit: int) -> tuple[list[Item], int | None]:
        """What is due since `late` at the latest, oldest first; and when the next record is due, if before `until`."""
        found: list[Item] = []
        upcoming: int | None = None
        for shard in range(keys.DUE_SHARDS):
            for item in self._table.query_all(keys.due_partition(shard), index="due", sk_between=(0, int(until))):
                at = int(item["due_at"])
                if at > late:
                    upcoming = at if upcoming is None else min(at, upcoming)
                    break
                if len(found) >= limit:
                    break
                found.append(item)
        return sorted(found, key=lambda item: int(item["due_at"])), upcoming

    def claim(self, item: Item, until: datetime, since: int) -> bool:
        """Moves the due time on, and keeps since when the work is due."""
        at = int(until.timestamp())
        sets = {"due_at": at, "due_claim": at, "due_since": since}
        return self._table.try_write(update(_key(item), sets, condition="#due_at = :seen", seen=item["due_at"]))

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
