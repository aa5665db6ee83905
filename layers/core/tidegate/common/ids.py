"""Identifiers: sortable by the time they were made, unguessable in their tail."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from datetime import datetime

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_TIME_DIGITS = 10
_RANDOM_BYTES = 10

Clock = Callable[[], datetime]


def _base32(number: int, digits: int) -> str:
    return "".join(_ALPHABET[number >> (5 * place) & 31] for place in range(digits - 1, -1, -1))


def new_id(prefix: str, now: datetime) -> str:
    """`req-01k…`: 48 bits of milliseconds, then 80 random bits, as a ULID has them."""
    random = int.from_bytes(secrets.token_bytes(_RANDOM_BYTES))
    return f"{prefix}-{_base32(int(now.timestamp() * 1000), _TIME_DIGITS)}{_base32(random, 16)}"


def named_id(prefix: str, at: datetime, *parts: str) -> str:
    """Like `new_id`, but the same parts at the same moment give the same id."""
    tail = int(digest(*parts, length=20), 16)
    return f"{prefix}-{_base32(int(at.timestamp() * 1000), _TIME_DIGITS)}{_base32(tail, 16)}"


def digest(*parts: str, length: int = 64) -> str:
    """A stable name made of several values; lengths are hashed too, so ("a", "bc") is not ("ab", "c")."""
    hashed = hashlib.sha256()
    for part in parts:
        # Whatever text comes in has a digest: half a surrogate pair is found nowhere, and is no crash.
        raw = part.encode("utf-8", "surrogatepass")
        hashed.update(len(raw).to_bytes(8) + raw)
    return hashed.hexdigest()[:length]


def iso(moment: datetime) -> str:
    """The one form in which moments are stored and shown: UTC to the millisecond, sortable as text."""
    # Not strftime: before the year 1000 its %Y has fewer than four digits, and would not sort.
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
