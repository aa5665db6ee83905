"""JSON and numbers that somebody else wrote."""

from __future__ import annotations

import json
import math
from typing import Any


def read_json(text: str | bytes, *, exact: bool = False) -> Any:
    """ValueError for all that cannot be read, endless nesting too; `exact` refuses numbers that JSON cannot say."""
    rules: dict[str, Any] = {"parse_constant": _refuse, "parse_float": _finite} if exact else {}
    try:
        return json.loads(text, **rules)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(number: str) -> float:
    """What is too large for a float would become an Infinity, which cannot be told to anyone else."""
    value = float(number)
    if math.isinf(value):
        raise ValueError(f"{number} is too large")
    return value


# 999,999,999,999,999: more than any size, offset or count of rows here, and exact in every JSON reader.
MOST_DIGITS = 15


def whole_number(text: str) -> int | None:
    """The number that these digits say; None for anything else, and for more digits than any real figure has."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else None
