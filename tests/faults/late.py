"""A function that stalls in the middle and continues later, after others have taken over its work.

A sandbox may get no CPU for a while and then continue. It ends with its function's Timeout at the latest.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from tests.support.clock import Clock
from tests.support.template import timeout_of

_REAL_SECONDS = 60
_FOREVER = 10**6


class Stalled(BaseException):
    """The invoker gets no answer."""


@dataclass(frozen=True)
class Delay:
    """How long a function stalls, in calls of others (often until all have ended), and the error that its state gets.

    State machines retry the first error within the attempt; the second ends the attempt. So a stalled function meets a
    second run of its own attempt, or the next attempt.
    """

    calls: int = 1
    seen_as: str = "Lambda.Unknown"

    @classmethod
    def chosen_by(cls, source: random.Random, most: int) -> Delay:
        return cls(
            source.choice((source.randint(1, most), _FOREVER)), source.choice(("Lambda.Unknown", "Sandbox.Timedout"))
        )


SHORT = Delay()


class Invocation:
    """One run of a function in its own thread, which can be stopped at a call and resumed."""

    def __init__(self, name: str, run: Callable[[], Any], clock: Clock) -> None:
        self._clock = clock
        self._ends_at = clock().timestamp() + timeout_of(name)
        self._run = run
        self._ended_or_stalled = threading.Event()
        self._resumed = threading.Event()
        self._stalled = self._killed = False
        self._clients: frozenset[int] = frozenset()
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)

    def result(self) -> Any:
        """Returns the function's answer. Raises Stalled if it stalls."""
        self._thread.start()
        assert self._ended_or_stalled.wait(_REAL_SECONDS), "a function neither ended nor stalled"
        if self._stalled:
            raise Stalled
        if self._error:
            raise self._error
        return self._result

    def _work(self) -> None:
        try:
            self._result = self._run()
        except BaseException as error:
            self._error = error
        finally:
            self._ended_or_stalled.set()

    def stall(self, clients: Collection[int]) -> None:
        """From now on, calls of these clients wait, in all threads of the function."""
        self._clients, self._stalled = frozenset(clients), True
        self._ended_or_stalled.set()

    def holds(self, client: int) -> bool:
        return client in self._clients

    def hold(self) -> None:
        assert self._resumed.wait(_REAL_SECONDS), "it was never resumed"
        if self._killed:
            raise Stalled

    def resume(self) -> bool:
        """Lets it run to its end, or kills it if its time-out is over. Returns whether it was waiting."""
        if self._resumed.is_set():
            return False
        self._killed = self._clock().timestamp() >= self._ends_at
        self._resumed.set()
        self._thread.join(_REAL_SECONDS)
        assert not self._thread.is_alive(), "the stalled function does not end"
        return True
