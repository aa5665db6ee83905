"""The local cloud's pages of an index: the same as MiniStack's own, read without the rest of the partition."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from ministack.services import dynamodb

from local.index_order import IndexOrder

TABLE = {
    "TableName": "records",
    "KeySchema": [{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
    "AttributeDefinitions": [{"AttributeName": name, "AttributeType": "S"} for name in ("pk", "sk", "hash", "range")],
    "GlobalSecondaryIndexes": [
        {
            "IndexName": "lists",
            "KeySchema": [{"AttributeName": "hash", "KeyType": "HASH"}, {"AttributeName": "range", "KeyType": "RANGE"}],
            "Projection": {"ProjectionType": "ALL"},
        }
    ],
    "BillingMode": "PAY_PER_REQUEST",
}


@pytest.fixture
def table() -> Iterator[ModuleType]:
    assert dynamodb._create_table(TABLE)[0] == 200
    yield dynamodb
    dynamodb._delete_table({"TableName": "records"})


def put(number: int, partition: str, order: str) -> None:
    item = {"pk": f"r-{number}", "sk": "-", "hash": partition, "range": order}
    wire = {name: {"S": value} for name, value in item.items()}
    assert dynamodb._put_item({"TableName": "records", "Item": wire})[0] == 200


def remove(number: int) -> None:
    key = {"pk": {"S": f"r-{number}"}, "sk": {"S": "-"}}
    assert dynamodb._delete_item({"TableName": "records", "Key": key})[0] == 200


def asked(partition: str, **more: Any) -> dict[str, Any]:
    return {
        "TableName": "records",
        "IndexName": "lists",
        "KeyConditionExpression": "#h = :h",
        "ExpressionAttributeNames": {"#h": "hash"},
        "ExpressionAttributeValues": {":h": {"S": partition}},
        **more,
    }


def pages(query: Any, partition: str, limit: int, forward: bool) -> list[Any]:
    """Each page with its cursor, to the end of the partition."""
    found: list[Any] = []
    more: dict[str, Any] = {}
    while True:
        status, _, body = query(asked(partition, Limit=limit, ScanIndexForward=forward, **more))
        assert status == 200, body
        page = json.loads(body)
        found.append((page["Items"], page.get("LastEvaluatedKey"), page["ScannedCount"]))
        if "LastEvaluatedKey" not in page:
            return found
        more = {"ExclusiveStartKey": page["LastEvaluatedKey"]}


@pytest.mark.parametrize("seed", range(5))
def test_pages_are_those_of_the_emulator_through_any_changes(
    table: ModuleType, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    own = table._query
    ordered = IndexOrder(table)
    monkeypatch.setattr(table, "_index_members", ordered.members)
    monkeypatch.setattr(table, "_index_item", ordered.index_item)
    for _ in range(60):
        for _ in range(chance.randint(0, 6)):
            # Orders are often alike, records are often moved, and some leave the list.
            put(chance.randrange(40), chance.choice("ab"), str(chance.randrange(6)))
            if chance.random() < 0.3:
                remove(chance.randrange(40))
        partition, limit, forward = chance.choice("ab"), chance.randint(1, 5), chance.random() < 0.5
        assert pages(ordered.query, partition, limit, forward) == pages(own, partition, limit, forward)


def test_a_page_does_not_look_at_the_rest_of_its_partition(table: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    ordered = IndexOrder(table)
    monkeypatch.setattr(table, "_index_members", ordered.members)
    monkeypatch.setattr(table, "_index_item", ordered.index_item)
    for number in range(500):
        put(number, "a", f"{number:03}")
    looked_at: list[str] = []
    evaluate = table._evaluate_condition

    def counted(condition: str, item: dict[str, Any], *more: Any, **options: Any) -> Any:
        looked_at.append(item["pk"]["S"])
        return evaluate(condition, item, *more, **options)

    monkeypatch.setattr(table, "_evaluate_condition", counted)

    status, _, body = ordered.query(asked("a", Limit=20, ScanIndexForward=False))

    assert status == 200
    assert [item["range"]["S"] for item in json.loads(body)["Items"]][:2] == ["499", "498"]
    assert len(set(looked_at)) <= 21


def test_other_conditions_are_left_to_the_emulator(table: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    ordered = IndexOrder(table)
    own = table._query
    monkeypatch.setattr(table, "_index_members", ordered.members)
    for number in range(30):
        put(number, "a", f"{number % 3}-{number:03}")
    wanted = asked("a", Limit=4)
    wanted["KeyConditionExpression"] += " AND begins_with(#r, :r)"
    wanted["ExpressionAttributeNames"]["#r"] = "range"
    wanted["ExpressionAttributeValues"][":r"] = {"S": "1-"}

    assert ordered.query(wanted)[2] == own(wanted)[2]
    assert len(json.loads(own(wanted)[2])["Items"]) == 4
