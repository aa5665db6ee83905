"""JSON from sources, read fast and without losing digits.

Integers may have any length. A decimal is kept as the text that its source sent, in a `Digits`: as a float, 100.00
would become 100.0 and 12345678901234567.89 another number.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

# Raw JSON, which msgspec writes back unchanged.
Digits = msgspec.Raw
_decoder = msgspec.json.Decoder(float_hook=Digits)
_encoder = msgspec.json.Encoder(enc_hook=str)


def read_exact(text: str | bytes) -> Any:
    """Parses JSON, with decimals as `Digits`. ValueError for anything that is not JSON or nested too deep.

    msgspec refuses some input that sources do send (NaN, a byte-order mark, UTF-16, lone surrogates): the slower
    `json` reads it.
    """
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    except RecursionError as error:
        raise ValueError("it is nested too deep: use fewer levels") from error
    try:
        return json.loads(text, parse_float=Digits)
    except RecursionError as error:
        raise ValueError("it is nested too deep: use fewer levels") from error


def write_exact(value: Any) -> bytes:
    """JSON that `read_exact` reads back unchanged, except that lone surrogates become `?`."""
    try:
        return _encoder.encode(value)
    except (UnicodeEncodeError, OverflowError):
        return _encoder.encode(_writable(value))


def _writable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if type(value) is int:
        # msgspec writes integers of at most 64 bits.
        return Digits(str(value))
    if isinstance(value, dict):
        return {_writable(str(key)): _writable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_writable(inner) for inner in value]
    return value


def digits_of(value: Digits) -> str:
    return bytes(value).decode()


def nested_text(value: object) -> str:
    """An object or a list as the text of one cell."""
    try:
        return json.dumps(value, ensure_ascii=False, default=_without_digits)
    except _HasDigits:
        return msgspec.json.format(write_exact(value), indent=0).decode()


def plain(value: Any) -> Any:
    """The value with floats for its decimals; for values that are not cells."""
    if isinstance(value, Digits):
        return float(digits_of(value))
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return value


class _HasDigits(Exception):
    pass


def _without_digits(value: object) -> str:
    if isinstance(value, Digits):
        raise _HasDigits
    return str(value)
