"""Finds out for the daily sweep which objects of the bucket belong to a record."""

from __future__ import annotations

from collections.abc import Callable, Collection

from tidegate.aws.serialization import Item
from tidegate.aws.table import Table

KeyOf = Callable[[str, str], dict[str, str]]
Needs = Callable[[Item, str], bool]


class RecordOwners:
    """Objects named `{prefix}{project}/{id}…` belong to the record with that id while `needs(record, key)` is true."""

    def __init__(self, table: Table, prefix: str, key_of: KeyOf, needs: Needs = lambda *_: True) -> None:
        self._table = table
        self.prefix = prefix
        self._key_of = key_of
        self._needs = needs

    def orphans(self, keys: Collection[str]) -> set[str]:
        """The keys whose record does not exist or does not need them. Keys that are named otherwise are not ours."""
        owners = {key: owner for key in keys if (owner := self._owner(key)) is not None}
        wanted = {owner["pk"]: owner for owner in owners.values()}
        records = {item["pk"]: item for item in self._table.batch_get(wanted.values(), consistent=True)}
        return {
            key
            for key, owner in owners.items()
            if owner["pk"] not in records or not self._needs(records[owner["pk"]], key)
        }

    def _owner(self, key: str) -> dict[str, str] | None:
        project_id, _, rest = key.removeprefix(self.prefix).partition("/")
        record_id = rest.partition("/")[0].partition(".")[0]
        return self._key_of(project_id, record_id) if project_id and record_id else None
