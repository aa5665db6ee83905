"""What the ingest services ask of the outside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegate.queue.model import Request

# Called with the progress as often as something moved. Raises when the request is not the caller's any more.
Pulse = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Step:
    """One invocation's work: the request, the time left, and the state from the invocation before."""

    request: Request
    pulse: Pulse
    seconds_left: float
    state: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result, with what to write as the request ends; or `state`, to continue in another invocation.

    `after` is called when the end is written: it may be skipped by a crash, so it only tidies up.
    """

    result: Mapping[str, Any] = field(default_factory=dict)
    extra_writes: Sequence[Any] = ()
    state: Mapping[str, Any] | None = None
    after: Callable[[], None] | None = None
