"""A running export's sign of life: its progress, and whether it may go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tidegate.common.ids import Clock
from tidegate.queue.model import Request

if TYPE_CHECKING:
    from tidegate.notifications.progress import ProgressFeed
    from tidegate.queue.queue import RequestQueue

INTERVAL_SECONDS = 2.0


class Pulse:
    """LeaseLost or RequestTimedOut from here means: stop."""

    def __init__(
        self,
        queue: RequestQueue,
        live: ProgressFeed,
        clock: Clock,
        request: Request,
        shown: Callable[[Request], dict[str, Any]],
    ) -> None:
        self._queue = queue
        self._live = live
        self._clock = clock
        self._request = request
        self._shown = shown
        self._told_at = 0.0

    def __call__(self, progress: Mapping[str, Any]) -> None:
        now = self._clock().timestamp()
        if now - self._told_at < INTERVAL_SECONDS:
            return
        self._told_at = now
        one = self._request
        seen = self._queue.heartbeat(one.project_id, one.request_id, one.attempt, progress)
        self._live.progress(one.project_id, one.request_id, self._shown(replace(seen, progress=dict(progress))))
