"""The same answers from moto and botocore, sooner: half of the suites' time went into what this leaves out."""

from __future__ import annotations

import copy
import json
from functools import cache
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch as replace

from botocore.loaders import JSONFileLoader, Loader
from moto.core import responses
from moto.core.utils import method_names_from_class
from moto.dynamodb.models import table as tables
from moto.dynamodb.models.dynamo_type import DynamoType, Item, LimitedSizeDict
from moto.dynamodb.models.table import Table
from moto.dynamodb.responses import DynamoResult

# Their answers are plain JSON already: keys, items, and DynamoDB's own type names.
_ITEM_CALLS = {
    "GetItem",
    "PutItem",
    "UpdateItem",
    "DeleteItem",
    "Query",
    "BatchGetItem",
    "BatchWriteItem",
    "TransactWriteItems",
    "TransactGetItems",
}
_JSON = "application/x-amz-json-1.0"
# Their places among the arguments that follow the hash key.
_START, _FORWARD, _PROJECTION, _INDEX_NAME = 3, 4, 5, 6

_load_file = JSONFileLoader.load_file
_list_services = Loader.list_available_services
_execute = DynamoResult.execute_result
_query = Table.query
_NO_COPY = SimpleNamespace(deepcopy=lambda value: value, copy=copy.copy)
_cast = DynamoType.cast_value.fget  # type: ignore[attr-defined]


@cache
def _model(path: str) -> Any:
    return _load_file(JSONFileLoader(), path)


@cache
def _services(type_name: str) -> list[str]:
    return list(_list_services(Loader(), type_name))


def _answered(self: DynamoResult, context: Any) -> Any:
    """moto looks each member of each attribute of each item up by some eight names."""
    if context.operation_model.name in _ITEM_CALLS and isinstance(self.result, dict):
        try:
            body = json.dumps(self.result)
        except TypeError:
            return _execute(self, context)
        # Binary values are for moto to encode.
        if '"B": ' not in body and '"BS": ' not in body:
            return 200, {"Content-Type": _JSON}, body
    return _execute(self, context)


def _cast_value(self: DynamoType) -> Any:
    return self.value if self.type == "S" else _cast(self)


def _query_of_a_partition(self: Table, hash_key: Any, *args: Any, **more: Any) -> Any:
    """moto walks over the whole table, sorted, and copies whole items of which the caller wants some attributes."""
    index_name = args[_INDEX_NAME] if len(args) > _INDEX_NAME else more.get("index_name")
    if hash_key is None or (not index_name and hash_key not in self.items):
        return _query(self, hash_key, *args, **more)
    start, forward = (args[_START], args[_FORWARD]) if len(args) > _FORWARD else (None, True)
    partition = (
        _of_index(self, index_name, hash_key, start if forward else None)
        if index_name
        else list(self.items[hash_key].values())
    )
    wanted = args[_PROJECTION] if len(args) > _PROJECTION else None
    with replace.object(self, "all_items", lambda: partition):
        if not wanted or not _are_names(wanted) or more.get("filter_expression") is not None:
            return _query(self, hash_key, *args, **more)
        args = (*args[:_PROJECTION], None, *args[_PROJECTION + 1 :])
        with replace.object(tables, "copy", _NO_COPY):
            found, scanned, last = _query(self, hash_key, *args, **more)
        return [copy.deepcopy(_projected(item, wanted)) for item in found], scanned, last


def _of_index(table: Table, index_name: str, hash_key: Any, start: Any) -> list[Item]:
    """The items of a partition of an index in their order, without those before `start`.

    moto sorts and skips again: of what is in order already it compares each item once.
    """
    index = table.get_index(index_name, error_if_not=True)
    names = {key["KeyType"]: key["AttributeName"] for key in index.schema}
    by, order = names["HASH"], (names["RANGE"], table.hash_key_attr, table.range_key_attr)
    items = (item for rows in table.items.values() for item in rows.values())
    found = [item for item in items if by in item.attrs and item.attrs[by].value == hash_key.value]
    placed = [(place, item) for item in found if (place := _place(item.attrs, order)) is not None]
    placed.sort(key=lambda pair: pair[0])
    first = _place({name: DynamoType(value) for name, value in start.items()}, order) if start else None
    return [item for place, item in placed if first is None or place >= first]


def _place(attributes: Any, order: Any) -> tuple[Any, ...] | None:
    """None for an item that the index does not hold."""
    if order[0] not in attributes:
        return None
    values = (attributes[name] for name in order)
    return tuple(float(value.value) if value.type == "N" else value.value for value in values)


def _are_names(expressions: list[list[str]]) -> bool:
    return all(len(parts) == 1 and "[" not in parts[0] for parts in expressions)


def _projected(item: Item, expressions: list[list[str]]) -> Item:
    """moto makes plain JSON of the whole item once for each expression, and an item of that."""
    made: Any = Item.__new__(Item)
    made.hash_key, made.range_key, made.attrs = item.hash_key, item.range_key, LimitedSizeDict()
    dict.update(made.attrs, {name: item.attrs[name] for (name,) in expressions if name in item.attrs})
    return cast(Item, made)


# For every process that imports it: moto makes a new session for each cloud, and each would read the models from disk.
JSONFileLoader.load_file = lambda _, path: _model(path)  # type: ignore[method-assign, assignment]
setattr(responses, "method_names_from_class", cache(method_names_from_class))  # noqa: B010
Loader.list_available_services = lambda _, type_name: _services(type_name)  # type: ignore[method-assign, assignment]


def patches() -> list[Any]:
    return [
        replace.object(DynamoResult, "execute_result", _answered),
        replace.object(DynamoType, "cast_value", property(_cast_value)),
        replace.object(Table, "query", _query_of_a_partition),
    ]
