"""A process that dies at one of its AWS calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from botocore.client import BaseClient

_READS = ("Get", "List", "Head", "Query", "BatchGet")


class Killed(BaseException):
    pass


@contextmanager
def killed_after_write(write: int) -> Iterator[Callable[[], bool]]:
    """The process dies when that write of AWS was made; reads do not count.

    Dying at a read leaves the same behind as dying after the write before it, so this goes through every state that
    a dead process can leave, in half the points.
    """
    client: Any = BaseClient
    made = client._make_api_call
    counted, seen = threading.Lock(), [0]

    def dying(self: Any, name: str, params: Any) -> Any:
        answer = made(self, name, params)
        if not name.startswith(_READS):
            with counted:
                seen[0] += 1
                dies = seen[0] == write
            if dies:
                raise Killed
        return answer

    client._make_api_call = dying
    try:
        yield lambda: seen[0] >= write
    finally:
        client._make_api_call = made


@contextmanager
def killed_at(call: int) -> Iterator[Callable[[], bool]]:
    """Kills the process at an AWS call: before odd calls, after even ones."""
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
