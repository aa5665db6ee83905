"""Patches that make moto's DynamoDB behave more like AWS, and faster.

Each call is atomic. A cancelled transaction is rolled back without copying the table. Keys that are too long, also in
reads and queries, and text that is not valid UTF-8 are refused with AWS's errors. Reads, puts
and transactions say how many units they used.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch as replace

from moto.dynamodb import models
from moto.dynamodb.exceptions import HashKeyTooLong, MockValidationException, RangeKeyTooLong
from moto.dynamodb.limits import HASH_KEY_MAX_LENGTH, RANGE_KEY_MAX_LENGTH
from moto.dynamodb.models import DynamoDBBackend
from moto.dynamodb.models.dynamo_type import DynamoType
from moto.dynamodb.models.table import Table
from moto.dynamodb.responses import DynamoHandler

from tests.support.moto import speed
from tests.support.moto.aws_limits import ITEM_BYTES, item_size

# Held during each call on the tables.
LOCK = threading.RLock()
_CALLS = ("get_item", "put_item", "update_item", "delete_item", "query", "transact_write_items")


def _copy(value: Any) -> Any:
    return value if isinstance(value, Table) else copy.deepcopy(value)


def _slot(backend: DynamoDBBackend, operation: dict[str, Any]) -> tuple[dict[Any, Any], Any]:
    table = backend.get_table(operation["TableName"])
    key = operation.get("Key") or operation["Item"]
    return table.items[DynamoType(key["pk"])], DynamoType(key["sk"])


def _has_lone_surrogate(value: Any) -> bool:
    if isinstance(value, str):
        return any(0xD800 <= ord(char) <= 0xDFFF for char in value)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(_has_lone_surrogate, inner))


_call_action = DynamoHandler.call_action


def _called(self: DynamoHandler) -> Any:
    if b"\\ud" in bytes(self.raw_body) and _has_lone_surrogate(json.loads(self.raw_body)):
        return 400, {}, json.dumps({"__type": "com.amazon.coral.service#SerializationException"})
    # The writes of a batch are atomic one by one. Any other call is atomic with the making of its answer: moto changes
    # items in place, so it would fail to copy one that another thread writes to.
    with nullcontext() if self.headers["X-Amz-Target"].endswith("BatchWriteItem") else LOCK:
        return _call_action(self)


def _size(item: Any) -> int:
    return item_size(item.to_json()["Attributes"])


def _values(args: tuple[Any, ...], more: dict[str, Any]) -> dict[str, Any]:
    """The values of an update, of which moto passes some arguments by position."""
    given: dict[str, Any] | None = more.get("expression_attribute_values")
    return given or next((each for each in args if _are_values(each)), {})


def _are_values(given: Any) -> bool:
    return isinstance(given, dict) and bool(given) and all(name.startswith(":") for name in given)


def _units(size: int, consistent: bool) -> float:
    """The read units of one item, or of all items that a query read."""
    return max(1, -(-size // 4096)) * (1.0 if consistent else 0.5)


def _metered(call: Any, units: Callable[[dict[str, Any], dict[str, Any]], float]) -> Any:
    """moto says the same units for every read."""

    def run(self: DynamoHandler) -> Any:
        answer = call(self)
        if self.body.get("ReturnConsumedCapacity", "NONE") != "NONE":
            used = {"TableName": self.body.get("TableName", ""), "CapacityUnits": units(self.body, answer.result)}
            answer.result["ConsumedCapacity"] = used if "TableName" in self.body else [used]
        return answer

    return run


def _units_of_get(body: dict[str, Any], answer: dict[str, Any]) -> float:
    return _units(item_size(answer.get("Item") or {}), body.get("ConsistentRead", False))


def _units_of_batch(body: dict[str, Any], answer: dict[str, Any]) -> float:
    ((name, asked),) = body["RequestItems"].items()
    found, consistent = answer["Responses"][name], asked.get("ConsistentRead", False)
    missing = len(asked["Keys"]) - len(found)
    return sum(_units(item_size(item), consistent) for item in found) + missing * _units(0, consistent)


def _units_of_query(body: dict[str, Any], _: dict[str, Any]) -> float:
    return _units(speed.READ.bytes, body.get("ConsistentRead", False))


def _units_of_put(body: dict[str, Any], _: dict[str, Any]) -> float:
    return _units_written(body["Item"])


def _units_of_transaction(body: dict[str, Any], _: dict[str, Any]) -> float:
    return sum(2 * _units_written(each["Put"]["Item"]) if "Put" in each else 2 for each in body["TransactItems"])


def _units_written(item: dict[str, Any]) -> float:
    """Without indexes."""
    return float(max(1, -(-item_size(item) // 1024)))


_METERS = {
    "get_item": _units_of_get,
    "batch_get_item": _units_of_batch,
    "query": _units_of_query,
    "put_item": _units_of_put,
    "transact_write_items": _units_of_transaction,
}


def patch() -> Callable[[], None]:
    """Applies all patches, also those for speed. Returns the function that undoes them."""
    transact = DynamoDBBackend.transact_write_items

    def rolling_back(self: DynamoDBBackend, transact_items: list[dict[str, Any]]) -> None:
        slots = [_slot(self, operation) for item in transact_items for operation in item.values()]
        before = [(items, key, copy.deepcopy(items.get(key))) for items, key in slots]
        try:
            transact(self, transact_items)
        except Exception:
            for items, key, old in before:
                if old is None:
                    items.pop(key, None)
                else:
                    items[key] = old
            raise

    def atomic(call: Any) -> Any:
        def run(self: DynamoDBBackend, *args: Any, **kwargs: Any) -> Any:
            with LOCK:
                return call(self, *args, **kwargs)

        return run

    get_keys = DynamoDBBackend.get_keys_value

    def checked_keys(self: DynamoDBBackend, table: Table, keys: dict[str, Any]) -> Any:
        table._validate_key_sizes(keys)
        return get_keys(self, table, keys)

    query, update = DynamoDBBackend.query, DynamoDBBackend.update_item

    def checked_query(
        self: DynamoDBBackend, name: str, pk: Any, comparison: Any, sks: Any, *args: Any, **more: Any
    ) -> Any:
        if pk and DynamoType(pk).size() > HASH_KEY_MAX_LENGTH:
            raise HashKeyTooLong
        if any(DynamoType(sk).size() > RANGE_KEY_MAX_LENGTH for sk in sks):
            raise RangeKeyTooLong
        return query(self, name, pk, comparison, sks, *args, **more)

    def checked_update(self: DynamoDBBackend, table_name: str, key: dict[str, Any], *args: Any, **more: Any) -> Any:
        self.get_table(table_name)._validate_key_sizes(key)
        items, sort_key = _slot(self, {"TableName": table_name, "Key": key}) if "sk" in key else ({}, None)
        before = items.get(sort_key)
        grows = before is not None and _size(before) + item_size(_values(args, more)) > ITEM_BYTES
        kept = copy.deepcopy(before) if grows else None
        changed = update(self, table_name, key, *args, **more)
        if grows and _size(items[sort_key]) > ITEM_BYTES:
            items[sort_key] = kept
            raise MockValidationException("Item size to update has exceeded the maximum allowed size")
        return changed

    calls = {name: getattr(DynamoDBBackend, name) for name in _CALLS}
    calls |= {"transact_write_items": rolling_back, "query": checked_query, "update_item": checked_update}
    patches: list[Any] = [replace.object(DynamoDBBackend, name, atomic(call)) for name, call in calls.items()]
    patches.append(replace.object(DynamoDBBackend, "get_keys_value", checked_keys))
    patches.append(replace.object(DynamoHandler, "call_action", _called))
    metered = {name: _metered(getattr(DynamoHandler, name), units) for name, units in _METERS.items()}
    patches += [replace.object(DynamoHandler, name, call) for name, call in metered.items()]
    patches.append(replace.object(models, "copy", SimpleNamespace(deepcopy=_copy, copy=copy.copy)))
    patches += speed.patches()
    for each in patches:
        each.start()

    def undo() -> None:
        for each in patches:
            each.stop()

    return undo
