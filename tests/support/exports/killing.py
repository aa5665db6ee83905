"""Simulates a process that is killed at one of its AWS calls."""

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
    """Kills the process after its AWS write of this number; reads do not count. Yields whether that write was reached.

    A process killed at a read leaves the same state as one killed after the write before it. So counting writes covers
    every state that a killed process can leave, with half the points.
    """
    client: Any = BaseClient
    call_aws = client._make_api_call
    lock, writes = threading.Lock(), [0]

    def call_or_die(self: Any, name: str, params: Any) -> Any:
        answer = call_aws(self, name, params)
        if not name.startswith(_READS):
            with lock:
                writes[0] += 1
                dies = writes[0] == write
            if dies:
                raise Killed
        return answer

    client._make_api_call = call_or_die
    try:
        yield lambda: writes[0] >= write
    finally:
        client._make_api_call = call_aws


@contextmanager
def killed_at(call: int) -> Iterator[Callable[[], bool]]:
    """Kills the process at the AWS call of this number, before odd calls and after even ones.

    Yields whether that call was reached.
    """
    client: Any = BaseClient
    call_aws = client._make_api_call
    calls = [0]

    def call_or_die(self: Any, name: str, params: Any) -> Any:
        calls[0] += 1
        if calls[0] == call and call % 2:
            raise Killed
        answer = call_aws(self, name, params)
        if calls[0] == call:
            raise Killed
        return answer

    client._make_api_call = call_or_die
    try:
        yield lambda: calls[0] >= call
    finally:
        client._make_api_call = call_aws
