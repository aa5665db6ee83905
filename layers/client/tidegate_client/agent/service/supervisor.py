"""Threads that must live: one that ends by an error is started again, after a pause that grows."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from tidegate_client.agent.backoff import Backoff

log = logging.getLogger("tidegate.agent")


class Watched:
    """A loop in a thread of its own. It ends when the loop returns; an error only interrupts it."""

    def __init__(self, name: str, loop: Callable[[], None], stopping: threading.Event) -> None:
        self.name = name
        self.restarts = 0
        self.last_error = ""
        self._loop = loop
        self._stopping = stopping
        self._backoff = Backoff()
        self._beat = time.monotonic()
        # A daemon thread: a long poll or a stuck socket must not hold up the end.
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
                # Whatever it was, a process that lives on without this thread would deliver nothing.
                self.restarts += 1
                self.last_error = f"{type(error).__name__}: {error}"[:300]
                pause = self._backoff.next()
                log.exception("%s failed and starts again in %.1f s", self.name, pause)
                if self._stopping.wait(pause):
                    return
