"""Rows of a DynamoDB query. A table is never scanned: the key condition has to name a partition."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

from boto3.dynamodb.types import Binary, TypeDeserializer, TypeSerializer

from tidegate.aws.serialization import decode_cursor, encode_cursor
from tidegate.errors import SourceBroken
from tidegate.exports.direct.page_body import page_body
from tidegate.exports.source_json import Digits, write_exact
from tidegate.exports.source_page import Place

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

_read, _write = TypeDeserializer(), TypeSerializer()


class DynamoQueries:
    def __init__(self, client: DynamoDBClient) -> None:
        self._client = client

    def page(self, options: Mapping[str, Any], place: Place, step: int, _task_id: str) -> bytes:
        request: dict[str, Any] = {
            "TableName": options["table"],
            "KeyConditionExpression": options["key_condition"],
            "ExpressionAttributeValues": {
                name: _write.serialize(_storable(value)) for name, value in options["values"].items()
            },
            "Limit": step,
            "ScanIndexForward": not options.get("newest_first"),
        }
        names = dict(options.get("names") or {})
        if attributes := options.get("attributes"):
            aliases = {f"#tidegate{number}": name for number, name in enumerate(attributes)}
            request["ProjectionExpression"] = ", ".join(aliases)
            names |= aliases
        if names:
            request["ExpressionAttributeNames"] = names
        for name, key in (("index", "IndexName"), ("filter", "FilterExpression")):
            if options.get(name):
                request[key] = options[name]
        if place.cursor:
            request["ExclusiveStartKey"] = decode_cursor(place.cursor)
        found = self._client.query(**request)
        rows = [
            write_exact({name: _shown(_read.deserialize(value)) for name, value in item.items()})
            for item in found["Items"]
        ]
        last = found.get("LastEvaluatedKey")
        return page_body(rows, _cursor(last) if last else None)


def _cursor(last: Mapping[str, Any]) -> str:
    try:
        return encode_cursor(last)
    except TypeError as error:
        raise SourceBroken(
            "the table has a binary key: only tables whose keys are text or numbers can be exported"
        ) from error


def _storable(value: Any) -> Any:
    """boto3 refuses floats; the shortest text of a float is the number that the caller wrote."""
    if isinstance(value, float):
        return Decimal(repr(value))
    if isinstance(value, list):
        return [_storable(each) for each in value]
    return {name: _storable(each) for name, each in value.items()} if isinstance(value, dict) else value


def _shown(value: Any) -> Any:
    """Numbers with all their digits, bytes as base64, sets as lists in order."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else Digits(str(value))
    if isinstance(value, Binary | bytes):
        return base64.b64encode(bytes(cast(Any, value))).decode()
    if isinstance(value, set):
        # Binary values cannot be compared.
        order = None if not any(isinstance(each, Binary) for each in value) else str
        return [_shown(each) for each in sorted(value, key=order)]
    if isinstance(value, list):
        return [_shown(each) for each in value]
    return {name: _shown(each) for name, each in value.items()} if isinstance(value, dict) else value
