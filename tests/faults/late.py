"""A function that stalls in the middle and goes on later: others have taken its work over, and it does not know.

A sandbox may be starved or frozen for a while and run on. It ends with its function's Timeout at the latest.
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
class Nap:
    """For how many calls of others a function sleeps, often until everything has ended; and the error of its state.

    A machine retries the first error within the attempt; the second ends the attempt. So the late function meets a
    second run of its own attempt, or the next attempt.
    """

    calls: int = 1
    seen_as: str = "Lambda.Unknown"

    @classmethod
    def drawn(cls, lots: random.Random, most: int) -> Nap:
        return cls(lots.choice((lots.randint(1, most), _FOREVER)), lots.choice(("Lambda.Unknown", "Sandbox.Timedout")))


SHORT = Nap()


class Invocation:
    """One run of a function on a thread of its own, which can be held at a call and let go on."""

    def __init__(self, name: str, run: Callable[[], Any], clock: Clock) -> None:
        self._clock = clock
        self._ends_at = clock().timestamp() + timeout_of(name)
        self._run = run
        self._seen = threading.Event()
        self._go_on = threading.Event()
        self._stalled = self._killed = False
        self._clients: frozenset[int] = frozenset()
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)

    def result(self) -> Any:
        """Returns its answer. Raises Stalled if it hangs."""
        self._thread.start()
        assert self._seen.wait(_REAL_SECONDS), "a function neither ended nor stalled"
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
            self._seen.set()

    def stall(self, clients: Collection[int]) -> None:
        """From now on its calls to these clients wait, in all its threads."""
        self._clients, self._stalled = frozenset(clients), True
        self._seen.set()

    def holds(self, client: int) -> bool:
        return client in self._clients

    def hold(self) -> None:
        assert self._go_on.wait(_REAL_SECONDS), "nobody let it go on"
        if self._killed:
            raise Stalled

    def resume(self) -> bool:
        """Lets it run to its end, or kills it if its time is up. Returns whether it was held."""
        if self._go_on.is_set():
            return False
        self._killed = self._clock().timestamp() >= self._ends_at
        self._go_on.set()
        self._thread.join(_REAL_SECONDS)
        assert not self._thread.is_alive(), "it does not end"
        return True
