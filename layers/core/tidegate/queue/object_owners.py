"""Which objects of the bucket a record knows, for the daily sweep."""

from __future__ import annotations

from collections.abc import Callable, Collection

from tidegate.aws import keys
from tidegate.aws.serialization import Item
from tidegate.aws.table import Table
from tidegate.exports.model import is_spec
from tidegate.queue.items import request_from
from tidegate.queue.model import COMPLETED

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


def _still_staged(item: Item, key: str) -> bool:
    """What a late worker staged for a request that is over is nobody's; the order of one that failed is kept."""
    request = request_from(item)
    return not request.is_over or (request.status != COMPLETED and is_spec(key))


def _still_rendered(item: Item, key: str) -> bool:
    """Of an export that is over only the published file is kept, not what a late attempt rendered as well."""
    request = request_from(item)
    return not request.is_over or (request.result or {}).get("key") == key


def all_owners(table: Table) -> list[RecordOwners]:
    return [
        RecordOwners(table, "content/", keys.content),
        RecordOwners(table, "rows/", keys.content),
        RecordOwners(table, "exports/", keys.request, _still_rendered),
        RecordOwners(table, "staging/", keys.request, _still_staged),
    ]
