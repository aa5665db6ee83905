"""Transfers that wait for a worker: lowest sequence first; one that was postponed waits until its delay has passed."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable

from tidegate_client.models import Transfer


class WorkQueue:
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

    def take(self) -> Transfer | None:
        """Waits for the next transfer; None when the queue is closed."""
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
