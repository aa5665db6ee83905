"""Parses JSON, numbers and dates from outside."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any


def read_json(text: str | bytes, *, exact: bool = False) -> Any:
    """Returns the parsed JSON. Raises ValueError if the text is not JSON, or is nested too deep.

    With `exact`, also raises ValueError for NaN, Infinity, and numbers that a float cannot hold.
    """
    rules: dict[str, Any] = {"parse_constant": _refuse, "parse_float": _finite} if exact else {}
    try:
        return json.loads(text, **rules)
    except RecursionError as error:
        raise ValueError("it is nested too deep: use fewer levels") from error


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number: send null or a number")


def _finite(number: str) -> float:
    """Returns the number. Raises ValueError if a float cannot hold it.

    Such a number would become Infinity, which JSON does not have.
    """
    value = float(number)
    if math.isinf(value):
        raise ValueError(f"{number[:40]} is too large for a number: send it as text")
    return value


# Up to 999,999,999,999,999: larger than any size, offset or row count here, and exact in every JSON parser.
MOST_DIGITS = 15


def whole_number(text: str) -> int | None:
    """Returns the number if the text is 1 to 15 ASCII digits; else None."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else None


def read_date(text: str | None) -> datetime | None:
    """Returns an e-mail or HTTP date in UTC; None if the text is not a date.

    A date without a time zone counts as UTC.
    """
    try:
        found = parsedate_to_datetime(text) if text else None
        if found is None:
            return None
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    # OverflowError: a year, an hour or a time zone of twenty digits, or a date before year 1 or after year 9999.
    except (TypeError, ValueError, OverflowError):
        return None
