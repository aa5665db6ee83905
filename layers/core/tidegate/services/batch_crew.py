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
_HIRE_EVERY = 0.01
# Above this much of a core the interpreter is the limit, and another thread would only be in the way.
_CORE_IS_FULL = 0.9
# How many may wait for work; the rest sit on the bench, where they cost nothing.
_MOST_IDLE = 2


class Work(Protocol):
    """Calls one item and records the answer: `record` runs under the crew's lock."""

    def open_line(self) -> Line: ...

    def call(self, line: Line, call: Call) -> Callable[[Course, float], None]: ...


class Crew:
    """Grows only while calls come late and nobody is free: a quick business needs few threads, a slow one many."""

    def __init__(self, course: Course, work: Work, most: int, holds_lease: Callable[[], bool]) -> None:
        self._course = course
        self._work = work
        self._most = most
        self._holds_lease = holds_lease
        self._lock = threading.Lock()
        # One worker at a time waits for the rate; the others queue behind it without waking.
        self._gate = threading.Lock()
        self._bench = threading.Condition(self._lock)
        self._benched = 0
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._working = 0
        self._looked_at = (time.monotonic(), time.process_time())
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

    def _needs_more(self) -> bool:
        if not self._course.behind or (not self._benched and len(self._threads) >= self._most):
            return False
        wall, cpu = time.monotonic(), time.process_time()
        elapsed = wall - self._looked_at[0]
        if elapsed < _HIRE_EVERY:
            return False
        busy = (cpu - self._looked_at[1]) / elapsed
        self._looked_at = (wall, cpu)
        return busy < _CORE_IS_FULL

    def _hire(self) -> None:
        if self._benched:
            self._bench.notify()
            return
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
                self._bench.notify_all()
                if self._working == 0:
                    self.gone.set()

    def _take(self) -> Call | None:
        with self._lock:
            while self._idle >= _MOST_IDLE and not self._over():
                self._benched += 1
                self._bench.wait()
                self._benched -= 1
            self._idle += 1
        with self._gate:
            while True:
                with self._lock:
                    step = None if self._over() else self._course.next(time.monotonic())
                    if not isinstance(step, float):
                        self._idle -= 1
                        if step is None:
                            self._bench.notify_all()
                        elif self._idle == 0 and self._needs_more():
                            self._hire()
                        return step
                time.sleep(min(step, _LONGEST_SLEEP))

    def _over(self) -> bool:
        return self._course.over or not self._holds_lease()
