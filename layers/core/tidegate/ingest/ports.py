"""The input and the result of one step of an ingest request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result, and what to write when the request ends; or `state`, to continue in another invocation.

    `after` is called once the end is written. A crash may skip it, so it must only clean up.
    """

    result: Mapping[str, Any] = field(default_factory=dict)
    extra_writes: Sequence[Any] = ()
    state: Mapping[str, Any] | None = None
    after: Callable[[], None] | None = None
