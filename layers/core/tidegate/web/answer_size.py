"""Keeps answers below the 6 MB that a Lambda function can return."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

_MOST_BYTES = 5_000_000


def count_that_fit(entries: Sequence[Any]) -> int:
    """How many of the first entries fit into one answer; at least one."""
    total = 0
    for number, entry in enumerate(entries):
        total += _bytes_returned(entry)
        if total > _MOST_BYTES:
            return max(1, number)
    return len(entries)


def fits(value: Any) -> bool:
    """Whether a JSON value fits into one answer."""
    return _bytes_returned(value) <= _MOST_BYTES


def _bytes_returned(value: Any) -> int:
    """The bytes of a JSON value in what the function returns: JSON with the body as a string, so escaped twice."""
    return len(json.dumps(json.dumps(value)))
