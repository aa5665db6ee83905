"""Which objects of the bucket a record knows, for the daily sweep."""

from __future__ import annotations

from collections.abc import Callable, Collection

from tidegate.adapters.dynamo import keys
from tidegate.adapters.dynamo.table import Table

KeyOf = Callable[[str, str], dict[str, str]]


class RecordOwners:
    """Objects named `{prefix}{project}/{id}…` belong to the record of that id, without any ending."""

    def __init__(self, table: Table, prefix: str, key_of: KeyOf) -> None:
        self._table = table
        self.prefix = prefix
        self._key_of = key_of

    def owned(self, keys: Collection[str]) -> set[str]:
        owners = {key: self._owner(key) for key in keys}
        wanted = {owner["pk"]: owner for owner in owners.values()}
        known = {item["pk"] for item in self._table.batch_get(wanted.values(), consistent=True)}
        return {key for key, owner in owners.items() if owner["pk"] in known}

    def _owner(self, key: str) -> dict[str, str]:
        project_id, name = key.removeprefix(self.prefix).split("/")[:2]
        return self._key_of(project_id, name.partition(".")[0])


def all_owners(table: Table) -> list[RecordOwners]:
    return [
        RecordOwners(table, "content/", keys.content),
        RecordOwners(table, "rows/", keys.content),
        RecordOwners(table, "exports/", keys.request),
        RecordOwners(table, "staging/", keys.request),
    ]
