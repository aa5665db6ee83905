"""The threads of a slice: each takes the next call when the rate allows, makes it, and records the answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from tidegate.domain.batch_course import Call, Course
from tidegate.domain.batches import Progress
from tidegate.services.ports import Line

# A stop must not wait for the token of a slow rate.
_LONGEST_SLEEP = 0.2


class Work(Protocol):
    """Calls one item and records the answer: `record` runs under the crew's lock."""

    def open_line(self) -> Line: ...

    def call(self, line: Line, call: Call) -> Callable[[Course, float], None]: ...


class Crew:
    """Grows only while everyone is busy: one quick business needs few threads, a slow one as many as it was given."""

    def __init__(self, course: Course, work: Work, most: int, holds_lease: Callable[[], bool]) -> None:
        self._course = course
        self._work = work
        self._most = most
        self._holds_lease = holds_lease
        self._lock = threading.Lock()
        # One worker at a time waits for the rate; the others queue behind it without waking.
        self._gate = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._working = 0
        self._failure: BaseException | None = None
        self.gone = threading.Event()

    def start(self) -> None:
        with self._lock:
            self._hire()

    def snapshot(self, rate_now: float = 0.0) -> Progress:
        with self._lock:
            return Progress(self._course.window.ledger(), self._course.errors, rate_now, self._course.verdict)

    def resize(self, most: int) -> None:
        self._most = most

    def change(self, change: Callable[[Course, float], None]) -> None:
        with self._lock:
            change(self._course, time.monotonic())

    def join(self) -> None:
        """After `gone`. A fault of ours, not of the business, comes out here."""
        for thread in self._threads:
            thread.join()
        if self._failure:
            raise self._failure

    def _hire(self) -> None:
        thread = threading.Thread(target=self._serve, name=f"batch-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        self._working += 1
        thread.start()

    def _serve(self) -> None:
        try:
            line = self._work.open_line()
            try:
                while (call := self._take()) is not None:
                    record = self._work.call(line, call)
                    with self._lock:
                        record(self._course, time.monotonic())
            finally:
                line.close()
        except BaseException as error:
            with self._lock:
                self._failure = self._failure or error
                self._course.paused = True
        finally:
            with self._lock:
                self._working -= 1
                if self._working == 0:
                    self.gone.set()

    def _take(self) -> Call | None:
        with self._lock:
            self._idle += 1
        with self._gate:
            while True:
                with self._lock:
                    step = self._course.next(time.monotonic()) if self._holds_lease() else None
                    if not isinstance(step, float):
                        self._idle -= 1
                        if step is not None and self._idle == 0 and len(self._threads) < self._most:
                            self._hire()
                        return step
                time.sleep(min(step, _LONGEST_SLEEP))
