"""Puts very many records straight into moto's table: by AWS calls it would take minutes."""

from __future__ import annotations

import copy
from typing import Any

from moto.dynamodb.models import dynamodb_backends
from moto.dynamodb.models.dynamo_type import DynamoType

from tests.support.moto.cloud import MotoCloud


def multiply(cloud: MotoCloud, record_id: str, times: int, *, by_sort_key: bool = False) -> None:
    """Adds `times` copies of each item whose key holds this id, under ids of their own. Equal values are shared.

    `by_sort_key`: also those that hold it in the sort key, as the place of a request in its lane."""
    (backend,) = (
        region
        for account in dynamodb_backends.values()
        for region in account.values()
        if cloud.names.refs["Table"] in region.tables
    )
    items = backend.get_table(cloud.names.refs["Table"]).items
    found = [
        item
        for rows in items.values()
        for item in rows.values()
        if record_id in item.hash_key.value or (by_sort_key and record_id in item.range_key.value)
    ]
    assert found, f"no item is of {record_id}"
    for number in range(times):
        for item in found:
            own = {
                name: DynamoType({value.type: value.value.replace(record_id, f"{record_id}-{number}")})
                for name, value in item.attrs.items()
                if isinstance(value.value, str) and record_id in value.value
            }
            made: Any = copy.copy(item)
            made.attrs = type(item.attrs)()
            # moto's own assignment would add up all sizes each time.
            dict.update(made.attrs, item.attrs, **own)
            made.hash_key, made.range_key = made.attrs["pk"], made.attrs["sk"]
            items[made.hash_key][made.range_key] = made
