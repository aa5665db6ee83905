"""A process that dies at one of its AWS calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from botocore.client import BaseClient


class Killed(BaseException):
    pass


@contextmanager
def killed_at(call: int) -> Iterator[Callable[[], bool]]:
    """The process dies at that AWS call, every second time before and every other time after it was made."""
    client: Any = BaseClient
    made = client._make_api_call
    seen = [0]

    def dying(self: Any, name: str, params: Any) -> Any:
        seen[0] += 1
        if seen[0] == call and call % 2:
            raise Killed
        answer = made(self, name, params)
        if seen[0] == call:
            raise Killed
        return answer

    client._make_api_call = dying
    try:
        yield lambda: seen[0] >= call
    finally:
        client._make_api_call = made
