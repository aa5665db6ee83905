"""When the inbox is asked next: at the poller's own pace, or sooner if something rings."""

from __future__ import annotations

import random
import threading
import time

# If it brought nothing new: the inbox's list may lag behind what rang, and a transfer that it lacks must lack twice.
ASK_AGAIN_AFTER = (2.0, 10.0)


class PollAlarm:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[float] = []
        self._follow_ups: list[float] = []
        self._closed = False

    def ring(self, within: float = 0.0, *, again: bool = True) -> None:
        """Polls at a random moment within that many seconds; with `again`, twice more if it lists nothing new."""
        at = time.monotonic() + random.uniform(0.0, within)  # noqa: S311
        with self._changed:
            self._due = sorted({*self._due, at})[:16]
            if again:
                self._follow_ups = [at + later for later in ASK_AGAIN_AFTER]
            self._changed.notify_all()

    def satisfied(self, *, slow: bool = False) -> None:
        """A poll brought something new. If it was slow, what rang meanwhile is dropped: an API that answers slowly gets
        no second question for the same wake-up, and tells this host again of whatever it has not begun."""
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
        """True if something rang."""
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
