"""Makes moto's DynamoDB carry out each call as a whole, and undo a cancelled transaction without copying the table."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch as replace

from moto.dynamodb import models
from moto.dynamodb.models import DynamoDBBackend
from moto.dynamodb.models.dynamo_type import DynamoType
from moto.dynamodb.models.table import Table

_CALLS = ("get_item", "put_item", "update_item", "delete_item", "query", "transact_write_items")


def _copy(value: Any) -> Any:
    return value if isinstance(value, Table) else copy.deepcopy(value)


def _slot(backend: DynamoDBBackend, operation: dict[str, Any]) -> tuple[dict[Any, Any], Any]:
    table = backend.get_table(operation["TableName"])
    key = operation.get("Key") or operation["Item"]
    return table.items[DynamoType(key["pk"])], DynamoType(key["sk"])


def patch() -> Callable[[], None]:
    lock = threading.RLock()
    transact = DynamoDBBackend.transact_write_items

    def undoing(self: DynamoDBBackend, transact_items: list[dict[str, Any]]) -> None:
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

    def whole(call: Any) -> Any:
        def run(self: DynamoDBBackend, *args: Any, **kwargs: Any) -> Any:
            with lock:
                return call(self, *args, **kwargs)

        return run

    calls = {name: getattr(DynamoDBBackend, name) for name in _CALLS} | {"transact_write_items": undoing}
    patches: list[Any] = [replace.object(DynamoDBBackend, name, whole(call)) for name, call in calls.items()]
    patches.append(replace.object(models, "copy", SimpleNamespace(deepcopy=_copy, copy=copy.copy)))
    for each in patches:
        each.start()

    def undo() -> None:
        for each in patches:
            each.stop()

    return undo
