"""The threads of a slice: each takes the next call when the rate allows, makes it, and records the answer."""

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

# A stop must not wait for the token of a slow rate.
_LONGEST_SLEEP = 0.2
# At high rates a few tokens are waited for at once: each waking costs more than a call.
_SHORTEST_SLEEP = 0.004
_FULL_POLL = 0.005
_LOOK_EVERY = 0.01
_ADD_EVERY = 0.1
# Above this much of a core the interpreter is the limit, and another thread would only be in the way.
_CORE_IS_FULL = 0.9
# How many may wait for work; the rest sleep until they are needed, where they cost nothing.
_MOST_IDLE = 2


class Work(Protocol):
    """Calls items; the change that it answers is applied to the state under the pool's lock."""

    def open_line(self) -> KeptConnection: ...

    def call(self, line: KeptConnection, calls: Sequence[ItemCall]) -> Callable[[RunState, float], None]: ...


class WorkerPool:
    """Grows while nobody is free to take the next call: a quick business needs few threads, a slow one many."""

    def __init__(
        self, state: RunState, work: Work, most: int, holds_lease: Callable[[], bool], now: Callable[[], float]
    ) -> None:
        """`now`: epoch seconds that never go back."""
        self._state = state
        self._work = work
        self._most = most
        self._holds_lease = holds_lease
        self._now = now
        self._lock = threading.Lock()
        # One worker at a time waits for the rate; the others queue behind it without waking.
        self._gate = threading.Lock()
        self._rest = threading.Condition(self._lock)
        self._resting = 0
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._working = 0
        self._calling = 0
        self._looked_at = (time.monotonic(), time.process_time())
        self._busy = 0.0
        self._added_at = 0.0
        # The quickest call of this second and of the last: how long the business takes when nothing is in the way.
        self._quickest = [inf, inf]
        self._failure: BaseException | None = None
        self.gone = threading.Event()

    def start(self) -> None:
        with self._lock:
            self._add_worker()

    @property
    def verdict(self) -> Verdict | None:
        with self._lock:
            return self._state.verdict

    def snapshot(self) -> tuple[Progress, list[Outcome]]:
        """The progress, and the outcomes since the last snapshot: they belong together."""
        with self._lock:
            state = self._state
            outcomes, state.outcomes = state.outcomes, []
            progress = Progress(state.window.state(), state.counted, verdict=state.verdict, carried=state.carry())
            return progress, outcomes

    def idle_until(self) -> float | None:
        """When the next call is to be made, if none is under way and no result is awaited; else None."""
        with self._lock:
            if self._calling or self._state.over:
                return None
            return self._state.next_at(self._now())

    def resize(self, most: int) -> None:
        with self._lock:
            self._most = most
            self._quickest = [inf, self._quickest[0]]
            if self._idle == 0 and not self._over() and self._needs_more():
                self._add_worker()

    def change(self, change: Callable[[RunState, float], None]) -> None:
        with self._lock:
            change(self._state, self._now())

    def join(self) -> None:
        """After `gone`. A fault of ours, not of the business, comes out here."""
        for thread in self._threads:
            thread.join()
        if self._failure:
            raise self._failure

    def _needs_more(self) -> bool:
        if not self._resting and len(self._threads) >= self._most:
            return False
        wall, cpu = time.monotonic(), time.process_time()
        elapsed = wall - self._looked_at[0]
        if elapsed >= _LOOK_EVERY:
            self._busy = (cpu - self._looked_at[1]) / elapsed
            self._looked_at = (wall, cpu)
        if self._busy >= _CORE_IS_FULL:
            return False
        calls_a_second = self._state.rules.rate / self._state.rules.items_per_call
        if self._calling <= 2 + 2 * calls_a_second * min(self._quickest):
            return True
        # Some calls take longer than the quickest; or the machine is short of time, and more threads do not help.
        return self._state.behind and wall > self._added_at + _ADD_EVERY

    def _add_worker(self) -> None:
        self._added_at = time.monotonic()
        if self._resting:
            self._rest.notify()
            return
        thread = threading.Thread(target=self._serve, name=f"batch-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        self._working += 1
        thread.start()

    def _serve(self) -> None:
        try:
            line = self._work.open_line()
            try:
                while (calls := self._take()) is not None:
                    began = time.monotonic()
                    change = self._work.call(line, calls)
                    with self._lock:
                        self._calling -= 1
                        self._quickest[0] = min(self._quickest[0], time.monotonic() - began)
                        change(self._state, self._now())
            finally:
                line.close()
        except BaseException as error:
            with self._lock:
                self._failure = self._failure or error
                self._state.paused = True
        finally:
            with self._lock:
                self._working -= 1
                self._rest.notify_all()
                if self._working == 0:
                    self.gone.set()

    def _take(self) -> tuple[ItemCall, ...] | None:
        with self._lock:
            while self._idle >= _MOST_IDLE and not self._over():
                self._resting += 1
                self._rest.wait()
                self._resting -= 1
            self._idle += 1
        with self._gate:
            while isinstance(step := self._next(), float):
                time.sleep(min(max(step, _SHORTEST_SLEEP), _LONGEST_SLEEP))
        return step

    def _next(self) -> tuple[ItemCall, ...] | float | None:
        with self._lock:
            over = self._over()
            if not over and self._calling >= self._most:
                return _FULL_POLL
            step = None if over else self._state.next(self._now())
            if isinstance(step, float):
                return step
            self._idle -= 1
            if step is None:
                self._rest.notify_all()
                return None
            self._calling += 1
            if self._idle == 0 and self._needs_more():
                self._add_worker()
            return step

    def _over(self) -> bool:
        return self._state.over or not self._holds_lease()
