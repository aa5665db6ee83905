"""The SQS messages that carry targets to a Job. A message holds many targets, so a large submit needs few calls."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from tidegate.aws.sqs import Message, SqsQueue
from tidegate.distribution.model import Job, TransferSpec
from tidegate.distribution.ports import Arrival

_TARGETS_A_MESSAGE = 100
# Ten messages are sent in one call, which SQS limits to 256 KB.
_MESSAGE_BYTES = 24_000


class NewTasks(NamedTuple):
    """For targets whose Tasks collect_targets is to write."""

    create_time: str
    callback: str | None


class TargetMessage(NamedTuple):
    """Targets for a Job. `spec`, `sequence`, `callback` and `at` (when they were submitted) are needed if the message
    outlives the Job, for example in the dead-letter queue. Messages of earlier versions do not have them."""

    message_id: str
    project_id: str
    job_id: str
    arrivals: Sequence[Arrival]
    spec: TransferSpec | None = None
    sequence: int | None = None
    callback: str | None = None
    new: NewTasks | None = None
    at: str | None = None


class TargetMessages:
    def __init__(self, queue: SqsQueue) -> None:
        self._queue = queue

    def send(
        self, job: Job, arrivals: Sequence[Arrival], callback: str | None, new: NewTasks | None = None, *, at: str
    ) -> None:
        common = {
            "project_id": job.project_id,
            "job_id": job.job_id,
            "spec": asdict(job.spec),
            "sequence": job.sequence,
            "at": at,
            **({"callback": callback} if callback else {}),
            **({"new": list(new)} if new else {}),
        }
        room = _MESSAGE_BYTES - len(json.dumps(common))
        self._queue.send(
            *(Message({**common, "targets": [list(arrival) for arrival in some]}) for some in _portions(arrivals, room))
        )

    def retry_soon(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Makes failed messages visible again within seconds, not after the visibility time-out."""
        self._queue.retry_soon(records)


def read_message(message_id: str, body: Mapping[str, Any]) -> TargetMessage:
    """Raises ValueError, KeyError or TypeError if the body is not such a message."""
    arrivals = [Arrival(*row) for row in body["targets"]]
    spec = TransferSpec.from_data(body["spec"]) if "spec" in body else None
    new = NewTasks(*body["new"]) if "new" in body else None
    rest = (body.get("sequence"), body.get("callback"), new, body.get("at"))
    return TargetMessage(message_id, body["project_id"], body["job_id"], arrivals, spec, *rest)


def _portions(arrivals: Sequence[Arrival], room: int) -> Iterator[list[Arrival]]:
    portion: list[Arrival] = []
    size = 0
    for arrival in arrivals:
        length = len(json.dumps(arrival))
        if portion and (len(portion) == _TARGETS_A_MESSAGE or size + length > room):
            yield portion
            portion, size = [], 0
        portion.append(arrival)
        size += length
    if portion:
        yield portion
