"""The input and the result of one step of an ingest request."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegate.files.reading import Turn, saved_for_request
from tidegate.queue.model import Request

# Called with the progress, as often as there is some. Raises LeaseLost when this run no longer owns the request.
Heartbeat = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Step:
    """The work of one invocation: the request, the time left, and the state from the previous invocation."""

    request: Request
    heartbeat: Heartbeat
    seconds_left: float
    state: Mapping[str, Any] | None = None
    began: float = field(default_factory=time.monotonic)

    def turn(self, progress: Callable[[int], Mapping[str, Any]]) -> Turn:
        """For reading a file in this invocation. `progress` makes the request's progress of the bytes read."""
        saved = saved_for_request(self.request.project_id, self.request.request_id)
        return Turn(saved, self.began + self.seconds_left, lambda done: self.heartbeat(progress(done)))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result, and what to write when the request ends; or `state`, to continue in another invocation.

    `after` is called once the end is written. A crash may skip it, so it must only clean up.
    """

    result: Mapping[str, Any] = field(default_factory=dict)
    extra_writes: Sequence[Any] = ()
    state: Mapping[str, Any] | None = None
    after: Callable[[], None] | None = None
