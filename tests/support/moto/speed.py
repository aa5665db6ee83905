"""The same answers from moto and botocore, sooner: half of the suites' time went into what this leaves out."""

from __future__ import annotations

import json
from functools import cache
from typing import Any
from unittest.mock import patch as replace

from botocore.loaders import JSONFileLoader, Loader
from moto.core import responses
from moto.core.utils import method_names_from_class
from moto.dynamodb.models.dynamo_type import DynamoType
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
# Its place among the arguments that follow the hash key.
_INDEX_NAME = 6

_load_file = JSONFileLoader.load_file
_list_services = Loader.list_available_services
_execute = DynamoResult.execute_result
_query = Table.query
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
    """moto walks over the whole table."""
    index_name = args[_INDEX_NAME] if len(args) > _INDEX_NAME else more.get("index_name")
    if index_name or hash_key is None or hash_key not in self.items:
        return _query(self, hash_key, *args, **more)
    partition = list(self.items[hash_key].values())
    with replace.object(self, "all_items", lambda: partition):
        return _query(self, hash_key, *args, **more)


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
