"""Lets other threads start a poll before the poller's own pause ends."""

from __future__ import annotations

import random
import threading
import time

# Seconds until further polls if the first one lists nothing new: the list may lag behind the notification, and a
# transfer counts as cancelled only when two polls do not list it.
FOLLOW_UP_SECONDS = (2.0, 10.0)


class PollTrigger:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[float] = []
        self._follow_ups: list[float] = []
        self._closed = False

    def trigger(self, within: float = 0.0, *, again: bool = True) -> None:
        """Causes a poll within that many seconds, at random. `again`: two more if it lists nothing new."""
        at = time.monotonic() + random.uniform(0.0, within)  # noqa: S311
        with self._changed:
            self._due = sorted({*self._due, at})[:16]
            if again:
                self._follow_ups = [at + later for later in FOLLOW_UP_SECONDS]
            self._changed.notify_all()

    def found_new(self, *, slow: bool = False) -> None:
        """A poll listed something new, so no further polls are needed.

        If it was `slow`, polls that were triggered meanwhile are dropped too, to spare an overloaded API: it notifies
        this host again of transfers that have not started."""
        with self._changed:
            self._follow_ups = []
            if slow:
                now = time.monotonic()
                self._due = [at for at in self._due if at > now]

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def sleep(self, seconds: float) -> bool:
        """Sleeps; True if it was woken by `trigger`."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                waiting = [*self._due, *self._follow_ups]
                if waiting and min(waiting) <= now:
                    self._due = [at for at in self._due if at > now]
                    self._follow_ups = [at for at in self._follow_ups if at > now]
                    return True
                if now >= deadline:
                    return False
                self._changed.wait(min(deadline, *waiting, deadline) - now)
        return False
