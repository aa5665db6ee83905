"""Converts Python values to and from DynamoDB's format; encodes and decodes list cursors."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from boto3.dynamodb.types import Binary, TypeDeserializer, TypeSerializer

from tidegate.common.json_input import read_json
from tidegate.errors import Invalid

Item = dict[str, Any]
Key = Mapping[str, str]

# DynamoDB's numbers lie between 1E-130 and 1E+126; floats go down to 5E-324 and up to 1.8E+308.
_SMALLEST, _LARGEST = 1e-100, 1e125
_DIGITS = 38
_TOO_LARGE = 10**_DIGITS
_LONGEST_HASH_KEY, _LONGEST_RANGE_KEY = 2048, 1024
_serialize = TypeSerializer().serialize
_deserialize = TypeDeserializer().deserialize


def _wire(value: Any) -> Any:
    if isinstance(value, str):
        # JSON can escape half a surrogate pair; DynamoDB's strings are UTF-8, which cannot hold one.
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, int):
        if abs(value) >= _TOO_LARGE:
            raise Invalid(f"{str(value)[:12]}… cannot be stored: whole numbers have at most {_DIGITS} digits")
        return value
    if isinstance(value, float):
        if not abs(value) < _LARGEST:
            raise Invalid(f"{value} cannot be stored: numbers must be between -{_LARGEST:g} and {_LARGEST:g}")
        return Decimal(str(value)) if abs(value) > _SMALLEST else Decimal(0)
    if isinstance(value, Mapping):
        return {_wire(name): _wire(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_wire(inner) for inner in value]
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, Binary):
        return bytes(getattr(value, "value"))  # noqa: B009 - the stubs do not know it
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value


def to_wire_value(value: Any) -> Any:
    return _serialize(_wire(value))


def to_wire(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: to_wire_value(value) for name, value in item.items() if value is not None}


def from_wire(item: Mapping[str, Any]) -> Item:
    return {name: _plain(_deserialize(value)) for name, value in item.items()}


def can_be_stored(hash_key: str, *range_keys: Any) -> bool:
    """Whether DynamoDB accepts such a key. It refuses one that is too long or not UTF-8, even in a read."""
    bounded = [(hash_key, _LONGEST_HASH_KEY), *((key, _LONGEST_RANGE_KEY) for key in range_keys)]
    return all(_fits(key, most) for key, most in bounded if isinstance(key, str))


def _fits(key: str, most: int) -> bool:
    try:
        return len(key.encode()) <= most
    except UnicodeEncodeError:
        return False


def unknown_cursor() -> Invalid:
    """The error for a cursor that this list did not return."""
    return Invalid(
        "the cursor does not belong to this list: send next_cursor of the previous page, or none for the first one",
        errors=[{"loc": ["query", "cursor"], "msg": "unknown cursor"}],
    )


def encode_cursor(key: Mapping[str, Any]) -> str:
    """The key of a page's last item as text, with which a caller asks for the next page."""
    return base64.urlsafe_b64encode(json.dumps(key, separators=(",", ":")).encode()).decode().rstrip("=")


def decode_cursor(cursor: str) -> dict[str, Any]:
    """The key that `encode_cursor` encoded. Invalid for any other text."""
    try:
        key = read_json(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except ValueError:
        key = None
    if not isinstance(key, dict) or not all(map(_is_key_value, key.values())):
        raise unknown_cursor()
    return key


def _is_key_value(value: Any) -> bool:
    """Keys are strings and numbers; DynamoDB writes both as strings."""
    held = list(value.items()) if isinstance(value, dict) else []
    return len(held) == 1 and held[0][0] in ("S", "N") and isinstance(held[0][1], str)
