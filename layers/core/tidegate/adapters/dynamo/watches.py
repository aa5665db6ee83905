"""Who watches which record, over which connection."""

from __future__ import annotations

from tidegate.adapters.dynamo import keys
from tidegate.adapters.dynamo.table import ConditionFailed, Table
from tidegate.adapters.dynamo.writes import update


class Watches:
    """A record that anyone watches has a marker item: its absence is what makes progress cheap."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def is_watched(self, project_id: str, record_id: str) -> bool:
        return self._table.get(keys.watched(project_id, record_id)) is not None

    def take_turn(self, project_id: str, record_id: str, now: float, interval: float) -> bool:
        """True for one caller an interval, across all functions."""
        turn = update(
            keys.watched(project_id, record_id),
            {"told_at": now},
            condition="attribute_exists(#pk) AND (attribute_not_exists(#told_at) OR #told_at <= :before)",
            before=now - interval,
        )
        try:
            self._table.write(turn)
        except ConditionFailed:
            return False
        return True
