"""Keeps the index partitions of MiniStack's DynamoDB sorted, so that a Query reads only its page.

For each page, MiniStack sorts a whole partition and evaluates the key condition on every item. For a list of 40,000
records, this takes seconds. On AWS, the cost of a page does not depend on the size of the partition."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable
from typing import Any

Item = dict[str, Any]
Order = tuple[Any, ...]


class IndexOrder:
    """Replaces `_query`, `_index_members` and `_index_item` of MiniStack's DynamoDB module."""

    def __init__(self, dynamodb: Any) -> None:
        self._dynamodb = dynamodb
        self._query: Callable[[Item], Any] = dynamodb._query
        self._members: Callable[[Item], Item] = dynamodb._index_members
        self._index_item: Callable[..., None] = dynamodb._index_item
        # By table, index and partition: MiniStack's own members, and their sorted keys. If MiniStack has replaced its
        # members, the keys are sorted again.
        self._ordered: dict[tuple[str, str, Any], tuple[Item, list[Order]]] = {}
        self._lock = threading.RLock()
        self._current_query = threading.local()

    def install(self) -> None:
        self._dynamodb._query = self.query
        self._dynamodb._index_members = self.members
        self._dynamodb._index_item = self.index_item

    def query(self, data: Item) -> Any:
        self._current_query.data = data
        try:
            return self._query(data)
        finally:
            self._current_query.data = None

    def members(self, table: Item) -> Item:
        """Returns the members of the table's indexes.

        If a page of a partition is queried, returns only the members on that page."""
        members = self._members(table)
        data = getattr(self._current_query, "data", None) or {}
        partition = _partition_of(data)
        name = str(data.get("IndexName"))
        if partition is None or not data.get("Limit") or partition not in members.get(name, ()):
            return members
        with self._lock:
            ordered = self._order(table, name, partition)
            page = self._page(table, name, ordered, data)
        return {name: {partition: [(order[-2], order[-1]) for order in page]}}

    def _page(self, table: Item, name: str, ordered: list[Order], data: Item) -> list[Order]:
        limit, start = int(data["Limit"]), data.get("ExclusiveStartKey")
        after = self._order_of(table, name, start) if start else None
        if data.get("ScanIndexForward", True):
            first = bisect_right(ordered, after) if after else 0
            return ordered[first : first + limit + 1]
        end = bisect_left(ordered, after) if after else len(ordered)
        return ordered[max(0, end - limit - 1) : end]

    def _order(self, table: Item, name: str, partition: Any) -> list[Order]:
        members = table[self._dynamodb._INDEX_MEMBERS]
        place = (str(table["TableName"]), name, partition)
        known = self._ordered.get(place)
        if known and known[0] is members:
            return known[1]
        items: Iterable[Item] = (table["items"][pk][sk] for pk, sk in members[name][partition])
        ordered = sorted(self._order_of(table, name, item) for item in items)
        self._ordered[place] = members, ordered
        return ordered

    def _order_of(self, table: Item, name: str, item: Item) -> Order:
        """Returns the sort key that MiniStack uses for an item: its index keys, then the table's own keys."""
        dynamodb = self._dynamodb
        _, ranges = dynamodb._index_key_lists(dynamodb._index_def(table, name))
        keys = dynamodb._index_order_keys(table, ranges)
        order = [dynamodb._index_order_value(item, key, kind) for key, kind in keys]
        own = [dynamodb._extract_key_val(item[key]) for key in (table["pk_name"], table["sk_name"])]
        return (*order, *own)

    def index_item(self, table: Item, base_pk: Any, base_sk: Any, item: Item, add: bool) -> None:
        with self._lock:
            self._index_item(table, base_pk, base_sk, item, add)
            members = table.get(self._dynamodb._INDEX_MEMBERS)
            if members is None:
                return
            for name, hashes, ranges in self._dynamodb._index_key_schemas(table):
                place = (str(table["TableName"]), name, self._dynamodb._index_partition(item, hashes, ranges))
                known = self._ordered.get(place)
                if known is None:
                    continue
                if known[0] is not members or not _changed(known[1], self._order_of(table, name, item), add):
                    del self._ordered[place]


def _changed(ordered: list[Order], order: Order, add: bool) -> bool:
    """Adds or removes an item's sort key.

    Returns False if the key to remove is missing. Then the list cannot be relied on."""
    at = bisect_left(ordered, order)
    is_there = at < len(ordered) and ordered[at] == order
    if add:
        if not is_there:
            insort(ordered, order)
        return True
    if is_there:
        del ordered[at]
    return is_there


def _partition_of(data: Item) -> Any:
    """Returns the partition of a Query of an index; None unless its key condition is only `#h = :h`."""
    parts = str(data.get("KeyConditionExpression") or "").split()
    if not data.get("IndexName") or len(parts) != 3 or parts[1] != "=" or not parts[2].startswith(":"):
        return None
    value = (data.get("ExpressionAttributeValues") or {}).get(parts[2])
    return value.get("S") if isinstance(value, dict) else None
