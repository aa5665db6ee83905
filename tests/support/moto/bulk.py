"""Puts very many records directly into moto's table. With AWS calls it would take minutes."""

from __future__ import annotations

import copy
from typing import Any

from moto.dynamodb.models import dynamodb_backends
from moto.dynamodb.models.dynamo_type import DynamoType

from tests.support.moto.cloud import MotoCloud


def multiply(cloud: MotoCloud, record_id: str, times: int, *, by_sort_key: bool = False) -> None:
    """Adds `times` copies of each item whose hash key contains this id, each with a new id. Equal values are shared.

    `by_sort_key`: also items that contain it in the sort key, such as a request's place in its lane.
    """
    (backend,) = (
        region
        for account in dynamodb_backends.values()
        for region in account.values()
        if cloud.names.refs["Table"] in region.tables
    )
    items = backend.get_table(cloud.names.refs["Table"]).items
    originals = [
        item
        for rows in items.values()
        for item in rows.values()
        if record_id in item.hash_key.value or (by_sort_key and record_id in item.range_key.value)
    ]
    assert originals, f"no item has {record_id} in its key"
    for number in range(times):
        for item in originals:
            renamed = {
                name: DynamoType({value.type: value.value.replace(record_id, f"{record_id}-{number}")})
                for name, value in item.attrs.items()
                if isinstance(value.value, str) and record_id in value.value
            }
            clone: Any = copy.copy(item)
            clone.attrs = type(item.attrs)()
            # moto's own assignment would add up all sizes each time.
            dict.update(clone.attrs, item.attrs, **renamed)
            clone.hash_key, clone.range_key = clone.attrs["pk"], clone.attrs["sk"]
            items[clone.hash_key][clone.range_key] = clone
