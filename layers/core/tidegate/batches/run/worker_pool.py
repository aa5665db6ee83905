"""The worker threads of a slice: each takes the next call when the rate allows it, makes it and records the answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import Protocol

from tidegate.batches.progress import Progress
from tidegate.batches.run.state import RunState
from tidegate.batches.run.values import ItemCall, Outcome, Verdict
from tidegate.http.kept_connection import KeptConnection

# Upper bound for waiting on the rate, so that a stop is noticed soon.
_LONGEST_SLEEP = 0.2
# At high rates, wait for several tokens at once: waking up costs more than a call.
_SHORTEST_SLEEP = 0.004
_FULL_POLL = 0.005
_MEASURE_EVERY = 0.01
_ADD_EVERY = 0.1
# Above this share of a core the interpreter is the bottleneck, and another thread would only slow it down.
_CORE_IS_FULL = 0.9
# How many threads may wait for work; the others are parked until they are needed.
_MOST_IDLE = 2


class Work(Protocol):
    """Calls items. The pool applies the returned change to the state under its lock."""

    def connect(self) -> KeptConnection: ...

    def call(self, connection: KeptConnection, calls: Sequence[ItemCall]) -> Callable[[RunState, float], None]: ...


class WorkerPool:
    """Adds threads while none is free for the next call: a fast business needs few of them, a slow one many."""

    def __init__(
        self, state: RunState, work: Work, max_workers: int, holds_lease: Callable[[], bool], now: Callable[[], float]
    ) -> None:
        """`now` returns epoch seconds that never go back."""
        self._state = state
        self._work = work
        self._max_workers = max_workers
        self._holds_lease = holds_lease
        self._now = now
        self._lock = threading.Lock()
        # One worker at a time waits for the rate; the others block on this lock without waking up.
        self._gate = threading.Lock()
        self._unpark = threading.Condition(self._lock)
        self._parked = 0
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._working = 0
        self._calling = 0
        self._measured_at = (time.monotonic(), time.process_time())
        self._busy = 0.0
        self._added_at = 0.0
        # The fastest call of this second and of the last one: the time that the business itself needs.
        self._fastest = [inf, inf]
        self._failure: BaseException | None = None
        # Set when all threads have ended.
        self.done = threading.Event()

    def start(self) -> None:
        with self._lock:
            self._add_worker()

    @property
    def verdict(self) -> Verdict | None:
        with self._lock:
            return self._state.verdict

    def snapshot(self) -> tuple[Progress, list[Outcome]]:
        """Returns the progress and the outcomes since the last snapshot, which this progress counts."""
        with self._lock:
            state = self._state
            outcomes, state.outcomes = state.outcomes, []
            progress = Progress(
                state.window.state(), state.current_counts, verdict=state.verdict, carried=state.carry()
            )
            return progress, outcomes

    def idle_until(self) -> float | None:
        """Returns when there is something to do next; None while calls are under way or after the end."""
        with self._lock:
            if self._calling or self._state.over:
                return None
            return self._state.next_at(self._now())

    def resize(self, max_workers: int) -> None:
        """Called once a second."""
        with self._lock:
            self._max_workers = max_workers
            self._fastest = [inf, self._fastest[0]]
            if self._idle == 0 and not self._over() and self._needs_more():
                self._add_worker()

    def change(self, change: Callable[[RunState, float], None]) -> None:
        with self._lock:
            change(self._state, self._now())

    def join(self) -> None:
        """Call it after `done`. Raises the error of a worker: a bug or an AWS error, never one of the business."""
        for thread in self._threads:
            thread.join()
        if self._failure:
            raise self._failure

    def _needs_more(self) -> bool:
        if not self._parked and len(self._threads) >= self._max_workers:
            return False
        wall, cpu = time.monotonic(), time.process_time()
        elapsed = wall - self._measured_at[0]
        if elapsed >= _MEASURE_EVERY:
            self._busy = (cpu - self._measured_at[1]) / elapsed
            self._measured_at = (wall, cpu)
        if self._busy >= _CORE_IS_FULL:
            return False
        calls_a_second = self._state.rules.rate / self._state.rules.items_per_call
        if self._calling <= 2 + 2 * calls_a_second * min(self._fastest):
            return True
        # Add slowly: some calls may be slower than the fastest, or the machine lacks CPU and threads do not help.
        return self._state.behind and wall > self._added_at + _ADD_EVERY

    def _add_worker(self) -> None:
        self._added_at = time.monotonic()
        if self._parked:
            self._unpark.notify()
            return
        thread = threading.Thread(target=self._work_loop, name=f"batch-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        self._working += 1
        thread.start()

    def _work_loop(self) -> None:
        try:
            connection = self._work.connect()
            try:
                while (calls := self._take()) is not None:
                    began = time.monotonic()
                    change = self._work.call(connection, calls)
                    with self._lock:
                        self._calling -= 1
                        self._fastest[0] = min(self._fastest[0], time.monotonic() - began)
                        change(self._state, self._now())
            finally:
                connection.close()
        except BaseException as error:
            with self._lock:
                self._failure = self._failure or error
                self._state.paused = True
        finally:
            with self._lock:
                self._working -= 1
                self._unpark.notify_all()
                if self._working == 0:
                    self.done.set()

    def _take(self) -> tuple[ItemCall, ...] | None:
        with self._lock:
            while self._idle >= _MOST_IDLE and not self._over():
                self._parked += 1
                self._unpark.wait()
                self._parked -= 1
            self._idle += 1
        with self._gate:
            while isinstance(step := self._next(), float):
                time.sleep(min(max(step, _SHORTEST_SLEEP), _LONGEST_SLEEP))
        return step

    def _next(self) -> tuple[ItemCall, ...] | float | None:
        with self._lock:
            over = self._over()
            if not over and self._calling >= self._max_workers:
                return _FULL_POLL
            step = None if over else self._state.next(self._now())
            if isinstance(step, float):
                return step
            self._idle -= 1
            if step is None:
                self._unpark.notify_all()
                return None
            self._calling += 1
            if self._idle == 0 and self._needs_more():
                self._add_worker()
            return step

    def _over(self) -> bool:
        return self._state.over or not self._holds_lease()
