"""Ids that sort by their creation time and end in random characters; digests; times as text."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from datetime import UTC, datetime

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_TIME_DIGITS = 10
_RANDOM_BYTES = 10

Clock = Callable[[], datetime]


def _base32(number: int, digits: int) -> str:
    return "".join(_ALPHABET[number >> (5 * place) & 31] for place in range(digits - 1, -1, -1))


def new_id(prefix: str, now: datetime) -> str:
    """Returns a new id such as `req-01k…`: 48 bits of milliseconds and 80 random bits, like a ULID."""
    random = int.from_bytes(secrets.token_bytes(_RANDOM_BYTES))
    return f"{prefix}-{_base32(int(now.timestamp() * 1000), _TIME_DIGITS)}{_base32(random, 16)}"


def named_id(prefix: str, at: datetime, *parts: str) -> str:
    """Returns an id in the format of `new_id`. The same moment and parts always give the same id."""
    tail = int(digest(*parts, length=20), 16)
    return f"{prefix}-{_base32(int(at.timestamp() * 1000), _TIME_DIGITS)}{_base32(tail, 16)}"


def made_at(record_id: str) -> datetime | None:
    """Returns the time in an id of `new_id` or `named_id`; None if it is not such an id."""
    digits = record_id.partition("-")[2][:_TIME_DIGITS]
    if len(digits) < _TIME_DIGITS or any(digit not in _ALPHABET for digit in digits):
        return None
    millis = 0
    for digit in digits:
        millis = millis * 32 + _ALPHABET.index(digit)
    try:
        return datetime.fromtimestamp(millis / 1000, UTC)
    except (ValueError, OverflowError):
        return None


def digest(*parts: str, length: int = 64) -> str:
    """Returns the first `length` hex digits of a SHA-256 of the parts; ("a", "bc") and ("ab", "c") differ."""
    hashed = hashlib.sha256()
    for part in parts:
        # JSON can hold half a surrogate pair, which plain UTF-8 refuses.
        raw = part.encode("utf-8", "surrogatepass")
        hashed.update(len(raw).to_bytes(8) + raw)
    return hashed.hexdigest()[:length]


def iso(moment: datetime) -> str:
    """Returns a time as it is stored and shown: UTC with milliseconds, sortable as text. `moment` must be in UTC."""
    # Not strftime: its %Y has fewer than four digits before the year 1000, which would not sort.
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
