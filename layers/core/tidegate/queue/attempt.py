"""The handle of a worker on the attempt that it runs: may it go on, is it alive, how far is it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.queue.model import Request

if TYPE_CHECKING:
    from tidegate.queue.queue import RequestQueue

# Takes the request as it was just read, and the progress to show with it.
Tell = Callable[[Request, Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds between two reads of the request, so that a worker notices a cancel, and between two heartbeats."""

    look: float
    beat: float


class RunningAttempt:
    """Called as often as something moved; reads, beats and tells no more often than its timing says.

    LeaseLost or RequestTimedOut from here means: stop.
    """

    def __init__(
        self,
        queue: RequestQueue,
        request: Request,
        timing: Timing,
        tell: Tell | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
        just_beaten: bool = False,
    ) -> None:
        self._queue = queue
        self._request = request
        self._timing = timing
        self._tell = tell
        self._now = now
        last = now() if just_beaten else float("-inf")
        self._looked = self._beaten = last

    def __call__(self, progress: Mapping[str, Any] | None = None) -> None:
        now = self._now()
        if now - self._looked < self._timing.look:
            return
        self._looked = now
        here = (self._request.project_id, self._request.request_id, self._request.attempt)
        if now - self._beaten < self._timing.beat:
            seen = self._queue.running(*here)
        else:
            seen = self._queue.heartbeat(*here, progress)
            self._beaten = now
        if progress and self._tell:
            self._tell(seen, progress)
