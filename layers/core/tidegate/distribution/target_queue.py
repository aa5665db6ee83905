"""Targets on their way to a Job: many in one message, so that a large submit is few calls."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tidegate.aws.sqs import Message, SqsQueue
from tidegate.distribution.ports import Arrival

_TARGETS_A_MESSAGE = 100
# Ten messages go together, and SQS takes 256 KB at once.
_MESSAGE_BYTES = 24_000


class NewTasks(NamedTuple):
    """For targets whose Tasks are not written yet: whoever collects them does it."""

    create_time: str
    callback: str | None


class TargetMessages:
    def __init__(self, queue: SqsQueue) -> None:
        self._queue = queue

    def send(self, project_id: str, job_id: str, arrivals: Sequence[Arrival], new: NewTasks | None = None) -> None:
        common: dict[str, Any] = {"project_id": project_id, "job_id": job_id} | ({"new": list(new)} if new else {})
        messages = [
            Message(common | {"targets": [list(arrival) for arrival in portion]}) for portion in _portions(arrivals)
        ]
        self._queue.send(*messages)


def _portions(arrivals: Sequence[Arrival]) -> Iterator[list[Arrival]]:
    portion: list[Arrival] = []
    size = 0
    for arrival in arrivals:
        length = len(json.dumps(arrival))
        if portion and (len(portion) == _TARGETS_A_MESSAGE or size + length > _MESSAGE_BYTES):
            yield portion
            portion, size = [], 0
        portion.append(arrival)
        size += length
    if portion:
        yield portion
