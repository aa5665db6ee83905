"""A clock that tests move."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta


class Clock:
    """Starts at the real time, so that signatures and expiries made by libraries agree with it."""

    def __init__(self, start: datetime | None = None) -> None:
        self._now = start or datetime.now(UTC)
        self._lock = threading.Lock()

    def __call__(self) -> datetime:
        with self._lock:
            return self._now

    def advance(self, seconds: float) -> datetime:
        with self._lock:
            self._now += timedelta(seconds=seconds)
            return self._now

    def move_to(self, moment: datetime) -> None:
        with self._lock:
            self._now = max(self._now, moment)
