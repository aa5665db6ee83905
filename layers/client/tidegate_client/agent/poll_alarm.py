"""When the inbox is asked next: at the poller's own pace, or sooner if something rings."""

from __future__ import annotations

import random
import threading
import time

# The inbox's list may lag behind what rang, and one that lacks a transfer must be seen twice.
ASK_AGAIN_AFTER = (0.0, 2.0, 10.0)


class PollAlarm:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[float] = []
        self._closed = False

    def ring(self, within: float = 0.0) -> None:
        """Ask within so many seconds, at a random moment, and again a little later."""
        at = time.monotonic() + random.uniform(0.0, within)  # noqa: S311
        with self._changed:
            self._due = sorted({*self._due, *(at + later for later in ASK_AGAIN_AFTER)})[:16]
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def sleep(self, seconds: float) -> bool:
        """True if something rang."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                if self._due and self._due[0] <= now:
                    self._due = [at for at in self._due if at > now]
                    return True
                if now >= deadline:
                    return False
                self._changed.wait(min(deadline, *self._due[:1], deadline) - now)
        return False
