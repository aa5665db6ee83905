"""A clock for deadlines of tests: it counts seconds of an idle machine, so that a busy one gets more time.

While twenty processes want two cores, everything takes about ten times as long, and this clock goes a tenth as fast.
A bound on it says something about the code; a bound on real seconds says something about the machine. Lower bounds
(a rate that holds, a pause that is kept) belong to real time.
"""

from __future__ import annotations

import os
import threading
import time

from local.launcher import crowd

_LOOK_SECONDS = 0.1


class _IdleClock:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = 0
        self._counted = 0.0
        self._at = time.monotonic()
        self._crowd = 1.0

    def __call__(self) -> float:
        with self._lock:
            if self._process != os.getpid():
                self._begin()
            return self._counted + (time.monotonic() - self._at) / self._crowd

    def _begin(self) -> None:
        """A forked process has no thread of its parent."""
        self._process = os.getpid()
        self._at = time.monotonic()
        threading.Thread(target=self._look, daemon=True, name="idle-clock").start()

    def _look(self) -> None:
        while True:
            time.sleep(_LOOK_SECONDS)
            found = crowd()
            with self._lock:
                now = time.monotonic()
                self._counted += (now - self._at) / max(self._crowd, found)
                self._at = now
                # Falls slowly: what has queued up while the machine was busy takes its time, too.
                self._crowd = max(found, self._crowd * 0.98)


idle_clock = _IdleClock()
