"""Threads that are restarted after an error, with growing pauses."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from tidegate_client.agent.backoff import Backoff

log = logging.getLogger("tidegate.agent")


class SupervisedThread:
    """Runs `loop` in a thread of its own until it returns; after an error it is called again."""

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
        """Called by the loop to show that it makes progress; resets the back-off."""
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
                # Any error at all: without this thread the process would deliver nothing.
                self.restarts += 1
                self.last_error = f"{type(error).__name__}: {error}"[:300]
                pause = self._backoff.next()
                log.exception("the thread %s failed and is restarted in %.1f s", self.name, pause)
                if self._stopping.wait(pause):
                    return
