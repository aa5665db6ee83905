"""Adds the size limits of AWS that moto lacks, with AWS's errors, in every test that runs on a MotoCloud."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from unittest.mock import patch as replace

from botocore.client import BaseClient
from botocore.exceptions import ClientError

from tests.support.moto import dynamodb_rules
from tidegate.notifications.websocket import WebSocketSender

KB, MB = 1024, 1024 * 1024
ITEM_BYTES = 400 * KB
TRANSACTION_ACTIONS, TRANSACTION_BYTES = 100, 4 * MB
MESSAGE_BYTES = STATE_BYTES = 256 * KB
# The largest message over a WebSocket, and the largest frame: clients send a message as one frame.
WEBSOCKET_BYTES, FRAME_BYTES = 128 * KB, 32 * KB
# API Gateway waits this long for a function; then the caller gets 503.
API_SECONDS = 29
ANSWER_BYTES, REQUEST_BYTES = 6 * MB, 10 * MB
# Each entry of a map or a list costs a byte, each map or list three.
_ENTRY, _NESTED = 1, 3


def item_size(item: Mapping[str, Any]) -> int:
    """Returns about the size that DynamoDB counts: names and values in UTF-8, two digits of a number a byte."""
    return sum(len(name.encode()) + _value_size(value) for name, value in item.items())


def _value_size(value: Mapping[str, Any]) -> int:
    ((kind, content),) = value.items()
    if kind == "S":
        return len(content.encode(errors="surrogatepass"))
    if kind == "N":
        return len(content) // 2 + 2
    if kind == "B":
        return len(content)
    if kind in ("BOOL", "NULL"):
        return 1
    if kind == "M":
        return _NESTED + sum(_ENTRY + len(name.encode()) + _value_size(inner) for name, inner in content.items())
    if kind == "L":
        return _NESTED + sum(_ENTRY + _value_size(inner) for inner in content)
    return _NESTED + sum(_ENTRY + len(entry if isinstance(entry, bytes) else str(entry).encode()) for entry in content)


def check(service: str, operation: str, arguments: Mapping[str, Any]) -> None:
    """Raises the error that AWS returns for a call that is too large."""
    rule = _RULES.get((service, operation))
    if rule:
        rule(operation, arguments)


def _refuse(operation: str, code: str, message: str) -> None:
    raise ClientError({"Error": {"Code": code, "Message": message}}, operation)


def _put(operation: str, arguments: Mapping[str, Any]) -> None:
    if item_size(arguments["Item"]) > ITEM_BYTES:
        _refuse(operation, "ValidationException", "Item size has exceeded the maximum allowed size")


def _update(operation: str, arguments: Mapping[str, Any]) -> None:
    """Checks the values sent. The item that they change is checked where it is stored, in dynamodb.py."""
    if item_size(arguments.get("ExpressionAttributeValues", {})) > ITEM_BYTES:
        _refuse(operation, "ValidationException", "Item size to update has exceeded the maximum allowed size")


def _batch(operation: str, arguments: Mapping[str, Any]) -> None:
    for requests in arguments["RequestItems"].values():
        for request in requests:
            if "PutRequest" in request:
                _put(operation, request["PutRequest"])


def _transact(operation: str, arguments: Mapping[str, Any]) -> None:
    actions = arguments["TransactItems"]
    if len(actions) > TRANSACTION_ACTIONS:
        _refuse(operation, "ValidationException", "Member must have length less than or equal to 100")
    total = 0
    for action in actions:
        (part,) = action.values()
        if "Item" in part:
            _put(operation, part)
        _update(operation, part)
        total += item_size(part.get("Item", {})) + item_size(part.get("ExpressionAttributeValues", {}))
    if total > TRANSACTION_BYTES:
        _refuse(operation, "ValidationException", "Transaction request cannot be larger than 4 MB")


def _messages(bodies: Iterable[str], operation: str, code: str) -> None:
    if sum(len(body.encode()) for body in bodies) > MESSAGE_BYTES:
        _refuse(operation, code, "Batch requests cannot be longer than 262144 bytes.")


def _attributes(entry: Mapping[str, Any]) -> str:
    values = entry.get("MessageAttributes", {})
    return "".join(name + value["DataType"] + str(value.get("StringValue", "")) for name, value in values.items())


def _sqs_batch(operation: str, arguments: Mapping[str, Any]) -> None:
    bodies = [entry["MessageBody"] + _attributes(entry) for entry in arguments["Entries"]]
    _messages(bodies, operation, "AWS.SimpleQueueService.BatchRequestTooLong")


def _sqs_one(operation: str, arguments: Mapping[str, Any]) -> None:
    _messages([arguments["MessageBody"] + _attributes(arguments)], operation, "InvalidParameterValue")


def _sns_batch(operation: str, arguments: Mapping[str, Any]) -> None:
    bodies = [entry["Message"] + _attributes(entry) for entry in arguments["PublishBatchRequestEntries"]]
    _messages(bodies, operation, "BatchRequestTooLong")


def _sns_one(operation: str, arguments: Mapping[str, Any]) -> None:
    _messages([arguments["Message"] + _attributes(arguments)], operation, "InvalidParameter")


def _execution(operation: str, arguments: Mapping[str, Any]) -> None:
    if len(arguments.get("input", "").encode()) > STATE_BYTES:
        _refuse(operation, "ValidationException", "Value at 'input' failed to satisfy constraint: at most 262144 bytes")


def _frame(operation: str, arguments: Mapping[str, Any]) -> None:
    data = arguments["Data"]
    if len(data.encode() if isinstance(data, str) else data) > WEBSOCKET_BYTES:
        _refuse(operation, "PayloadTooLargeException", "The data has exceeded the maximum size allowed.")


_RULES: dict[tuple[str, str], Callable[[str, Mapping[str, Any]], None]] = {
    ("dynamodb", "PutItem"): _put,
    ("dynamodb", "UpdateItem"): _update,
    ("dynamodb", "BatchWriteItem"): _batch,
    ("dynamodb", "TransactWriteItems"): _transact,
    ("sqs", "SendMessageBatch"): _sqs_batch,
    ("sqs", "SendMessage"): _sqs_one,
    ("sns", "PublishBatch"): _sns_batch,
    ("sns", "Publish"): _sns_one,
    ("stepfunctions", "StartExecution"): _execution,
    ("apigatewaymanagementapi", "PostToConnection"): _frame,
}


class SocketClosed(Exception):
    """The connection ended: RFC 6455's code and its reason."""


def check_frame(text: str) -> None:
    """Raises SocketClosed for a frame from a client that is too large: API Gateway then ends the connection."""
    if len(text.encode(errors="surrogatepass")) > FRAME_BYTES:
        raise SocketClosed(1009, "Message too big: a frame has 32 KB at most")


def is_too_large(message: str) -> bool:
    """Whether PostToConnection refuses the message to a client with 413 PayloadTooLargeException."""
    return len(message.encode(errors="surrogatepass")) > WEBSOCKET_BYTES


def _limited_sender() -> Any:
    call = WebSocketSender._call

    def limited(self: WebSocketSender, method: str, auth: Any, connection_id: str, text: str) -> int | None:
        return 413 if is_too_large(text) else call(self, method, auth, connection_id, text)

    return replace.object(WebSocketSender, "_call", limited)


def check_event(name: str, event: Any) -> None:
    if name == "websocket" and isinstance(event.get("body"), str):
        check_frame(event["body"])
    assert len(json.dumps(event)) <= REQUEST_BYTES, "an event of more than 10 MB reaches no function"


def check_answer(name: str, answer: Any) -> None:
    size = len(json.dumps(answer))
    assert size <= ANSWER_BYTES, f"{name} answered {size} bytes: Lambda.ResponseSizeTooLarge"


def check_state(name: str, answer: Any) -> None:
    """Fails if the answer does not fit into the state of a state machine, of which it becomes a part."""
    size = len(json.dumps(answer))
    assert size <= STATE_BYTES, f"{name} answered {size} bytes to a state machine: States.DataLimitExceeded"


def patch() -> Callable[[], None]:
    """Applies the limits to all boto3 clients and the WebSocket sender. Returns the function that undoes it."""
    make = BaseClient._make_api_call  # type: ignore[attr-defined]

    def limited(client: Any, operation: str, arguments: Any) -> Any:
        service = client.meta.service_model.service_name
        check(service, operation, arguments)
        if service == "dynamodb":
            dynamodb_rules.check(operation, arguments)
            arguments = dynamodb_rules.with_normalised_numbers(arguments)
        return make(client, operation, arguments)

    patches = [replace.object(BaseClient, "_make_api_call", limited), _limited_sender()]
    for each in patches:
        each.start()

    def undo() -> None:
        for each in patches:
            each.stop()

    return undo
