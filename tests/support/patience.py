"""A clock for deadlines of tests: it counts seconds of an idle machine, so that a busy one gets more time.

While twenty processes want two cores, everything takes about ten times as long, and this clock goes a tenth as fast.
A bound on it says something about the code; a bound on real seconds says something about the machine. Lower bounds
(a rate that holds, a pause that is kept) belong to real time.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable

# Bound here: tests replace `time.monotonic` and `time.sleep`, and this clock goes on beside them.
from time import monotonic, sleep
from typing import Any, TypeVar

from local.launcher import processes_per_core

T = TypeVar("T")
_LOOK_SECONDS = 0.1


class _IdleClock:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = 0
        self._counted = 0.0
        self._at = monotonic()
        self._crowd = 1.0

    def __call__(self) -> float:
        with self._lock:
            if self._process != os.getpid():
                self._begin()
            return self._counted + (monotonic() - self._at) / self._crowd

    def _begin(self) -> None:
        """A forked process has no thread of its parent."""
        self._process = os.getpid()
        self._at = monotonic()
        threading.Thread(target=self._look, daemon=True, name="idle-clock").start()

    def _look(self) -> None:
        while True:
            sleep(_LOOK_SECONDS)
            found = processes_per_core()
            with self._lock:
                now = monotonic()
                self._counted += (now - self._at) / max(self._crowd, found)
                self._at = now
                # Falls slowly: what has queued up while the machine was busy takes its time, too.
                self._crowd = max(found, self._crowd * 0.98)


idle_clock = _IdleClock()


def until(condition: Callable[[], T | None], what: str = "", seconds: float = 30) -> T:
    """Waits for what is expected, and returns it. Fails after so many seconds by the clock above."""
    deadline = idle_clock() + seconds
    while not (found := condition()):
        assert idle_clock() < deadline, what or "what was waited for did not come"
        sleep(0.02)
    return found


def ended(process: subprocess.Popen[Any], seconds: float = 30) -> int:
    """Waits for a process that is expected to end, and returns its exit code. Fails after so many of these seconds."""
    until(lambda: process.poll() is not None, f"{process.args!r} has not ended", seconds)
    return int(process.returncode)


class Background(threading.Thread):
    """Runs an action at once. `join` fails if it has not ended in time, by the clock above, or if it raised."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._action = action
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._action()
        except BaseException as error:
            self._error = error

    def join(self, timeout: float | None = 60) -> None:
        deadline = idle_clock() + (60 if timeout is None else timeout)
        while self.is_alive():
            assert idle_clock() < deadline, "what runs in the background has not ended in time"
            super().join(_LOOK_SECONDS)
        if self._error:
            raise self._error
