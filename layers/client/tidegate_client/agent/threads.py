"""The agent's threads: supervision, the queue of transfers for workers, and the trigger for polls."""

from __future__ import annotations

import heapq
import logging
import random
import threading
import time
from collections.abc import Callable

from tidegate_client.inputs import Transfer
from tidegate_client.rates import Backoff

log = logging.getLogger("tidegate.agent")


class SupervisedThread:
    """Runs `loop` in a thread until `loop` returns. If `loop` raises an error, it is called again after a pause."""

    def __init__(self, name: str, loop: Callable[[], None], stopping: threading.Event) -> None:
        self.name = name
        self.restarts = 0
        self.last_error = ""
        self._loop = loop
        self._stopping = stopping
        self._backoff = Backoff()
        self._beat = time.monotonic()
        # A daemon thread: a long poll or a stuck socket must not delay the end of the process.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def beat(self) -> None:
        """Shows that the loop makes progress, and resets the back-off. Called by the loop."""
        self._beat = time.monotonic()
        self._backoff.reset()

    def silent_seconds(self) -> float:
        return time.monotonic() - self._beat

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            try:
                self._loop()
                return
            except BaseException as error:
                # Catches every error: without this thread the process would deliver nothing.
                self.restarts += 1
                self.last_error = f"{type(error).__name__}: {error}"[:300]
                pause = self._backoff.next()
                log.exception("the thread %s failed and is restarted in %.1f s", self.name, pause)
                if self._stopping.wait(pause):
                    return


class WorkQueue:
    """Transfers that wait for a worker, lowest sequence first.

    A postponed transfer waits until its delay has passed."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._ready: list[tuple[int, int, Transfer]] = []
        self._later: list[tuple[float, int, Transfer]] = []
        self._count = 0
        self._closed = False

    def put(self, transfer: Transfer, delay: float = 0.0) -> None:
        with self._changed:
            self._count += 1
            if delay:
                heapq.heappush(self._later, (self._clock() + delay, self._count, transfer))
            else:
                heapq.heappush(self._ready, (transfer.get("sequence") or 0, self._count, transfer))
            self._changed.notify()

    def get(self) -> Transfer | None:
        """Waits for the next transfer and returns it; None once the queue is closed."""
        with self._changed:
            while not self._closed:
                now = self._clock()
                while self._later and self._later[0][0] <= now:
                    _, count, transfer = heapq.heappop(self._later)
                    heapq.heappush(self._ready, (transfer.get("sequence") or 0, count, transfer))
                if self._ready:
                    return heapq.heappop(self._ready)[2]
                self._changed.wait(max(0.01, self._later[0][0] - now) if self._later else None)
            return None

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


# Seconds until two more polls if the first one lists nothing new: the API's list may be a moment behind its
# notification, and a transfer counts as cancelled only if two polls do not list it.
FOLLOW_UP_SECONDS = (2.0, 10.0)


class PollTrigger:
    """Wakes the poller before its pause ends, for example after a notification."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[float] = []
        self._follow_ups: list[float] = []
        self._closed = False

    def trigger(self, within: float = 0.0, *, again: bool = True) -> None:
        """Starts a poll at a random moment within this number of seconds.

        `again`: two more polls follow if that poll lists nothing new. Without it, a poll that is planned is enough."""
        now = time.monotonic()
        at = now + random.uniform(0.0, within)  # noqa: S311
        with self._changed:
            if again or all(due <= now for due in self._due):
                self._due = sorted({*self._due, at})[:16]
            if again:
                self._follow_ups = [at + later for later in FOLLOW_UP_SECONDS]
            self._changed.notify_all()

    def found_new(self, *, slow: bool = False) -> None:
        """Cancels the follow-up polls, because a poll has listed something new.

        If that poll was `slow`, also cancels the polls that were triggered meanwhile, to spare an overloaded API. The
        API notifies this host again of transfers that have not started."""
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
        """Sleeps for at most `seconds`; returns True if `trigger` ended the sleep."""
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
