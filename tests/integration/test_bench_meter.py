"""What the bench counts as written: by the real size of items, and in their indexes too."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bench.meter import _write_units
from tests.support.moto.cloud import MotoCloud

TABLE = {"TableName": "Table"}
KEY = {"pk": {"S": "p"}, "sk": {"S": "s"}}
INDEXED = {"gsi1pk": {"S": "g"}, "gsi1sk": {"S": "1"}, "due_pk": {"S": "d"}, "due_at": {"N": "5"}}


def changed(name: str, value: Any) -> dict[str, Any]:
    return {
        **TABLE,
        "Key": KEY,
        "UpdateExpression": "SET #a = :a",
        "ExpressionAttributeNames": {"#a": name},
        "ExpressionAttributeValues": {":a": value},
    }


@pytest.mark.parametrize(
    ("stored", "operation", "body", "units"),
    [
        ({}, "PutItem", {**TABLE, "Item": KEY}, 1),
        ({}, "PutItem", {**TABLE, "Item": KEY | INDEXED}, 3),
        (KEY, "UpdateItem", changed("note", {"S": "x"}), 1),
        (KEY | INDEXED, "UpdateItem", changed("note", {"S": "x"}), 3),
        (KEY | INDEXED | {"text": {"S": "x" * 4000}}, "UpdateItem", changed("note", {"S": "x"}), 9),
        (KEY | INDEXED, "UpdateItem", changed("due_at", {"N": "6"}), 4),
        (KEY | INDEXED, "DeleteItem", {**TABLE, "Key": KEY}, 3),
        (KEY | INDEXED, "TransactWriteItems", {"TransactItems": [{"Delete": {**TABLE, "Key": KEY}}]}, 6),
        (KEY | INDEXED, "BatchWriteItem", {"RequestItems": {"Table": [{"DeleteRequest": {"Key": KEY}}]}}, 3),
    ],
)
def test_write_is_counted_by_its_real_size_and_indexes(
    cloud: MotoCloud, stored: dict[str, Any], operation: str, body: dict[str, Any], units: float
) -> None:
    if stored:
        cloud.client("dynamodb").put_item(**TABLE, Item=stored)
    assert _write_units(operation, body) == units
