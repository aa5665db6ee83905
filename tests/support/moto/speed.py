"""Patches that make moto and botocore faster; a query also ends its pages as AWS does.

They leave out repeated or unneeded work (parsing, copying, sorting, signing) that took most of the suites' time.
"""

from __future__ import annotations

import copy
import json
import threading
import uuid
from functools import cache
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch as replace

from botocore.loaders import JSONFileLoader, Loader
from botocore.signers import RequestSigner
from botocore.useragent import UserAgentString
from moto.core import responses, utils
from moto.core.botocore_stubber import BotocoreStubber
from moto.core.models import DEFAULT_ACCOUNT_ID, MockAWS, botocore_stubber, responses_mock
from moto.core.utils import camelcase_to_underscores, method_names_from_class
from moto.dynamodb.exceptions import ItemSizeTooLarge
from moto.dynamodb.models import table as tables
from moto.dynamodb.models.dynamo_type import DynamoType, Item, LimitedSizeDict
from moto.dynamodb.models.table import Table
from moto.dynamodb.models.utilities import bytesize
from moto.dynamodb.responses import DynamoHandler, DynamoResult
from moto.stepfunctions.parser.asl.component.eval_component import EvalComponent
from moto.stepfunctions.parser.asl.parse.asl_parser import AmazonStateLanguageParser

# The answers of these operations are plain JSON already: keys, items, and DynamoDB's own type names.
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
_TARGET = "DynamoDB_20120810."
_TABLE_URL = "https://dynamodb.us-east-1.amazonaws.com/"
# moto checks no signature of these. S3 is not among them: there an unsigned request is an anonymous one.
_UNSIGNED = {"dynamodb", "sqs", "sns", "states"}
# moto's own value: it lies between the documented limit and the measured one.
_ITEM_BYTES = 405_000
# Positions of these arguments of Table.query, counted after the hash key.
_LIMIT, _START, _FORWARD, _PROJECTION, _INDEX_NAME, _FILTER = 2, 3, 4, 5, 6, 8
# Of the last query of each thread.
READ = threading.local()

_load_file = JSONFileLoader.load_file
_list_services = Loader.list_available_services
_execute = DynamoResult.execute_result
_query = Table.query
_NO_COPY = SimpleNamespace(deepcopy=lambda value: value, copy=copy.copy)
_cast = DynamoType.cast_value.fget  # type: ignore[attr-defined]
_process = BotocoreStubber.process_request
_sign = RequestSigner.handler
_enable = MockAWS._enable_patching
_item = Item.__init__
_parse = AmazonStateLanguageParser.parse
_URL_RESPONSES: dict[str, list[Any]] = {}


@cache
def _model(path: str) -> Any:
    return _load_file(JSONFileLoader(), path)


@cache
def _services(type_name: str) -> list[str]:
    return list(_list_services(Loader(), type_name))


@cache
def _program(definition: str) -> tuple[EvalComponent, None]:
    """Returns the parsed state machine, cached: moto parses it at creation and again for each execution.

    A program keeps no state of an execution. The syntax tree is dropped: nothing reads it, and it would make every
    garbage collection slower.
    """
    return _parse(definition)[0], None


def _answered(self: DynamoResult, context: Any) -> Any:
    """Serializes the answer directly: moto looks up each member of each attribute of each item by about eight names."""
    if context.operation_model.name in _ITEM_CALLS and isinstance(self.result, dict):
        try:
            body = json.dumps(self.result)
        except TypeError:
            return _execute(self, context)
        # Only moto's own serializer encodes binary values.
        if '"B": ' not in body and '"BS": ' not in body:
            return 200, {"Content-Type": _JSON}, body
    return _execute(self, context)


def _is_binary(body: bytes) -> bool:
    """Whether the request has binary values, which only moto's own parser decodes."""
    return b'"B": ' in body or b'"BS": ' in body


def _processed(self: BotocoreStubber, request: Any) -> Any:
    """Sends a call on items straight to its handler, without moto's search through the URLs of all services."""
    target = request.headers.get("X-Amz-Target", "")
    target = target.decode() if isinstance(target, bytes) else target
    if request.url != _TABLE_URL or target.removeprefix(_TARGET) not in _ITEM_CALLS or _is_binary(request.body):
        return _process(self, request)
    handler = DynamoHandler()
    handler.raw_body = request.body
    handler.params = json.loads(request.body)
    handler.headers = {"Content-Type": _JSON, "X-Amz-Target": target}
    handler.querystring = {}
    handler.uri_match = {}
    handler.region, handler.partition, handler.current_account = "us-east-1", "aws", DEFAULT_ACCOUNT_ID
    handler.response_headers = {"server": "amazon.com"}
    return handler.call_action()


def _new_item(self: Item, hash_key: Any, range_key: Any, attrs: dict[str, Any]) -> None:
    """Adds up the size of an item once: moto adds up all attributes again at each attribute."""
    self.hash_key, self.range_key = hash_key, range_key
    attributes = {name: DynamoType(value) for name, value in attrs.items()}
    if sum(bytesize(name) + value.size() for name, value in attributes.items()) > _ITEM_BYTES:
        raise ItemSizeTooLarge
    self.attrs = LimitedSizeDict()
    dict.update(self.attrs, attributes)


def _enabled(self: MockAWS, reset: bool = True) -> None:
    """Reuses the 1,300 objects, one for each method of each URL, that moto creates anew for every cloud."""
    if not _URL_RESPONSES:
        _enable(self, reset)
        _URL_RESPONSES.update({method: list(matchers) for method, matchers in _registered().items()})
        return
    botocore_stubber.enabled = True
    if reset:
        self.reset()
    responses_mock.start()
    _registered().update({method: list(matchers) for method, matchers in _URL_RESPONSES.items()})


def _registered() -> dict[str, list[Any]]:
    registry: Any = responses_mock._registry
    registered: dict[str, list[Any]] = registry._registered
    return registered


def _signed(self: RequestSigner, operation_name: Any = None, request: Any = None, **more: Any) -> Any:
    if self.signing_name not in _UNSIGNED:
        return _sign(self, operation_name, request, **more)
    return None


def _request_id(headers: Any = None) -> str:
    """Makes a request id from a UUID: moto draws 52 random characters one by one."""
    request_id = uuid.uuid4().hex.upper()
    if isinstance(headers, dict):
        headers["x-amzn-requestid"] = request_id
    return request_id


def _cast_value(self: DynamoType) -> Any:
    return self.value if self.type == "S" else _cast(self)


def _query_of_a_partition(self: Table, hash_key: Any, *args: Any, **more: Any) -> Any:
    """Queries one partition, and copies only what is returned.

    moto sorts and reads the whole table, and copies whole items, also those that a filter leaves out. A page that is
    full has a LastEvaluatedKey, as on AWS, also if nothing follows it. `READ.bytes` is the size of what was read.
    """
    index_name = args[_INDEX_NAME] if len(args) > _INDEX_NAME else more.get("index_name")
    READ.bytes = 0
    if hash_key is None or (not index_name and hash_key not in self.items):
        return _query(self, hash_key, *args, **more)
    start, forward = (args[_START], args[_FORWARD]) if len(args) > _FORWARD else (None, True)
    partition = (
        _of_index(self, index_name, hash_key, start if forward else None)
        if index_name
        else list(self.items[hash_key].values())
    )
    limit, projection, matches = args[_LIMIT], args[_PROJECTION], args[_FILTER]
    args = tuple(None if place in (_PROJECTION, _FILTER) else given for place, given in enumerate(args))
    with replace.object(self, "all_items", lambda: partition), replace.object(tables, "copy", _NO_COPY):
        found, scanned, last = _query(self, hash_key, *args, **more)
    READ.bytes = sum(item.size() for item in found)
    if last is None and limit and len(found) == limit:
        last = self._get_last_evaluated_key(found[-1], index_name)
    if matches is not None:
        found = [item for item in found if matches.expr(item)]
    if not projection or not _are_names(projection):
        copies = [copy.deepcopy(item) for item in found]
        return [item.project(projection) for item in copies] if projection else copies, scanned, last
    return [copy.deepcopy(_projected(item, projection)) for item in found], scanned, last


def _of_index(table: Table, index_name: str, hash_key: Any, start: Any) -> list[Item]:
    """Returns the items of a partition of an index in order, without those before `start`.

    moto sorts and skips them again, which is cheap for items that are in order: one comparison each.
    """
    index = table.get_index(index_name, error_if_not=True)
    names = {key["KeyType"]: key["AttributeName"] for key in index.schema}
    hash_name, order = names["HASH"], (names["RANGE"], table.hash_key_attr, table.range_key_attr)
    items = (item for rows in table.items.values() for item in rows.values())
    partition = [item for item in items if hash_name in item.attrs and item.attrs[hash_name].value == hash_key.value]
    keyed = [(key, item) for item in partition if (key := _sort_key(item.attrs, order)) is not None]
    keyed.sort(key=lambda pair: pair[0])
    first = _sort_key({name: DynamoType(value) for name, value in start.items()}, order) if start else None
    return [item for key, item in keyed if first is None or key >= first]


def _sort_key(attributes: Any, order: Any) -> tuple[Any, ...] | None:
    """Returns the item's place in the index, or None if the index does not hold it."""
    if order[0] not in attributes:
        return None
    values = (attributes[name] for name in order)
    return tuple(float(value.value) if value.type == "N" else value.value for value in values)


def _are_names(expressions: list[list[str]]) -> bool:
    return all(len(parts) == 1 and "[" not in parts[0] for parts in expressions)


def _projected(item: Item, expressions: list[list[str]]) -> Item:
    """Takes the projected attributes: moto converts the whole item to JSON and back for each expression."""
    projected: Any = Item.__new__(Item)
    projected.hash_key, projected.range_key, projected.attrs = item.hash_key, item.range_key, LimitedSizeDict()
    dict.update(projected.attrs, {name: item.attrs[name] for (name,) in expressions if name in item.attrs})
    return cast(Item, projected)


# Patched for good in every process that imports this: moto makes a session for each cloud, which would read the
# service models again.
JSONFileLoader.load_file = lambda _, path: _model(path)  # type: ignore[method-assign, assignment]
setattr(responses, "method_names_from_class", cache(method_names_from_class))  # noqa: B010
setattr(responses, "camelcase_to_underscores", cache(camelcase_to_underscores))  # noqa: B010
setattr(utils, "camelcase_to_underscores", cache(camelcase_to_underscores))  # noqa: B010
MockAWS._enable_patching = _enabled  # type: ignore[method-assign]
AmazonStateLanguageParser.parse = staticmethod(_program)  # type: ignore[method-assign]
Loader.list_available_services = lambda _, type_name: _services(type_name)  # type: ignore[method-assign, assignment]


def patches() -> list[Any]:
    return [
        replace.object(DynamoResult, "execute_result", _answered),
        replace.object(DynamoType, "cast_value", property(_cast_value)),
        replace.object(Table, "query", _query_of_a_partition),
        replace.object(Item, "__init__", _new_item),
        replace.object(BotocoreStubber, "process_request", _processed),
        replace.object(RequestSigner, "handler", _signed),
        replace.object(UserAgentString, "to_string", lambda _: "tests"),
        replace.object(responses, "gen_amzn_requestid_long", _request_id),
    ]
