"""Answers with which AWS refuses a write for now, or processes only part of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from botocore.exceptions import ClientError

Call = Callable[[Mapping[str, Any]], Any]


def conflict(
    client: Any, operation: str, arguments: Mapping[str, Any], at: int, *, throttled: bool = False
) -> ClientError:
    """The error of a write whose item is in a transaction or, if `throttled`, is written too often."""
    if operation != "TransactWriteItems":
        code = "ProvisionedThroughputExceededException" if throttled else "TransactionConflictException"
        response: Any = {"Error": {"Code": code, "Message": "Transaction is ongoing for the item"}}
        return _modelled(client, code, response, operation)
    reasons: list[Any] = [{"Code": "None"} for _ in arguments["TransactItems"]]
    reasons[at % len(reasons)] = {"Code": "ThrottlingError" if throttled else "TransactionConflict"}
    error = {"Code": "TransactionCanceledException", "Message": "Transaction cancelled"}
    response = {"Error": error, "CancellationReasons": reasons}
    return _modelled(client, "TransactionCanceledException", response, operation)


def _modelled(client: Any, code: str, response: Any, operation: str) -> ClientError:
    """The error as an instance of the client's own exception class."""
    error: ClientError = client.exceptions.from_code(code)(response, operation)
    return error


def partly(operation: str, arguments: Mapping[str, Any], call: Call) -> Any:
    """Performs the first half of a batch and reports the rest as not processed."""
    return _PARTLY[operation](arguments, call)


def _half(entries: list[Any]) -> int:
    return len(entries) // 2


def _batch_write(arguments: Mapping[str, Any], call: Call) -> Any:
    ((table, requests),) = arguments["RequestItems"].items()
    half = _half(requests)
    answer: dict[str, Any] = call({**arguments, "RequestItems": {table: requests[:half]}}) if half else {}
    return answer | {"UnprocessedItems": {table: requests[half:]}}


def _batch_get(arguments: Mapping[str, Any], call: Call) -> Any:
    ((table, asked),) = arguments["RequestItems"].items()
    half = _half(asked["Keys"])
    first, rest = ({**asked, "Keys": keys} for keys in (asked["Keys"][:half], asked["Keys"][half:]))
    answer: dict[str, Any] = call({**arguments, "RequestItems": {table: first}}) if half else {"Responses": {}}
    return answer | {"UnprocessedKeys": {table: rest}}


def _entries(name: str) -> Callable[[Mapping[str, Any], Call], Any]:
    def some(arguments: Mapping[str, Any], call: Call) -> Any:
        entries = arguments[name]
        half = _half(entries)
        answer: dict[str, Any] = call({**arguments, name: entries[:half]}) if half else {"Successful": []}
        failed = [{"Id": entry["Id"], "SenderFault": False, "Code": "InternalError"} for entry in entries[half:]]
        return answer | {"Failed": failed}

    return some


def _delete_objects(arguments: Mapping[str, Any], call: Call) -> Any:
    objects = arguments["Delete"]["Objects"]
    half = _half(objects)
    answer: dict[str, Any] = {}
    if half:
        answer = call({**arguments, "Delete": {**arguments["Delete"], "Objects": objects[:half]}})
    errors = [{"Key": one["Key"], "Code": "InternalError", "Message": "try again"} for one in objects[half:]]
    return answer | {"Errors": errors}


_PARTLY: dict[str, Callable[[Mapping[str, Any], Call], Any]] = {
    "BatchWriteItem": _batch_write,
    "BatchGetItem": _batch_get,
    "SendMessageBatch": _entries("Entries"),
    "PublishBatch": _entries("PublishBatchRequestEntries"),
    "DeleteObjects": _delete_objects,
}
