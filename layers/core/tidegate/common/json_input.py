"""Parses JSON and numbers from outside."""

from __future__ import annotations

import json
import math
from typing import Any


def read_json(text: str | bytes, *, exact: bool = False) -> Any:
    """The parsed value. ValueError if the text is not JSON or is nested too deep; `exact` refuses NaN and Infinity."""
    rules: dict[str, Any] = {"parse_constant": _refuse, "parse_float": _finite} if exact else {}
    try:
        return json.loads(text, **rules)
    except RecursionError as error:
        raise ValueError("it is nested too deep: use fewer levels") from error


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number: send null or a number")


def _finite(number: str) -> float:
    """Refuses numbers that are too large for a float: they would become Infinity, which JSON does not have."""
    value = float(number)
    if math.isinf(value):
        raise ValueError(f"{number[:40]} is too large for a number: send it as text")
    return value


# Up to 999,999,999,999,999: larger than any size, offset or row count here, and exact in every JSON parser.
MOST_DIGITS = 15


def whole_number(text: str) -> int | None:
    """The number, if the text is 1 to 15 ASCII digits; else None."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else None
