"""Which objects of the bucket a record knows, for the daily sweep."""

from __future__ import annotations

from collections.abc import Callable, Collection

from tidegate.aws.serialization import Item
from tidegate.aws.table import Table

KeyOf = Callable[[str, str], dict[str, str]]
Needs = Callable[[Item, str], bool]


class RecordOwners:
    """Objects named `{prefix}{project}/{id}…` belong to the record of that id, as long as `needs` says so."""

    def __init__(self, table: Table, prefix: str, key_of: KeyOf, needs: Needs = lambda *_: True) -> None:
        self._table = table
        self.prefix = prefix
        self._key_of = key_of
        self._needs = needs

    def owned(self, keys: Collection[str]) -> set[str]:
        owners = {key: self._owner(key) for key in keys}
        wanted = {owner["pk"]: owner for owner in owners.values()}
        known = {item["pk"]: item for item in self._table.batch_get(wanted.values(), consistent=True)}
        return {key for key, owner in owners.items() if owner["pk"] in known and self._needs(known[owner["pk"]], key)}

    def _owner(self, key: str) -> dict[str, str]:
        project_id, name = key.removeprefix(self.prefix).split("/")[:2]
        return self._key_of(project_id, name.partition(".")[0])
