"""A worker's handle on its attempt: checks that it may continue, sends heartbeats and reports progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.queue.model import Request

if TYPE_CHECKING:
    from tidegate.queue.queue import RequestQueue

# Takes the request as it was just read, and its progress.
ReportProgress = Callable[[Request, Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds between two reads of the request, by which a worker notices a cancellation, and two heartbeats."""

    look: float
    beat: float


class RunningAttempt:
    """Call it after each step of the work, as often as you like: it does something only when its timing says so.

    The worker must stop if it raises LeaseLost or RequestTimedOut.
    """

    def __init__(
        self,
        queue: RequestQueue,
        request: Request,
        timing: Timing,
        report_progress: ReportProgress | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
        heartbeat_sent: bool = False,
    ) -> None:
        self._queue = queue
        self._request = request
        self._timing = timing
        self._report_progress = report_progress
        self._now = now
        last = now() if heartbeat_sent else float("-inf")
        self._last_read = self._last_heartbeat = last

    def __call__(self, progress: Mapping[str, Any] | None = None) -> None:
        now = self._now()
        if now - self._last_read < self._timing.look:
            return
        self._last_read = now
        attempt = (self._request.project_id, self._request.request_id, self._request.attempt)
        if now - self._last_heartbeat < self._timing.beat:
            request = self._queue.running(*attempt)
        else:
            request = self._queue.heartbeat(*attempt, progress)
            self._last_heartbeat = now
        if progress and self._report_progress:
            self._report_progress(request, progress)
