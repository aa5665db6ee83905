"""Freeze and thaw: an operator stops all work without losing any of it, and later lets it continue.

During a freeze, nothing new starts. Running steps end at their next safe point or are parked. New submissions are
accepted and wait. After a thaw, compensation starts all work that is due, like any overdue work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from tidegate.aws import keys
from tidegate.aws.table import Table, update
from tidegate.common.ids import Clock, iso
from tidegate.errors import Frozen, WrongState
from tidegate.projects.audit import NO_PROJECT, act, audit_write
from tidegate.records import F, record_from

_CACHED_SECONDS = 5.0
# Seconds until a callback that waits for a thaw is checked again.
CALLBACK_WAIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class FreezeState:
    """Whether the system is frozen, why, and since when. `timeline`: see `Freeze.new_timeline`."""

    frozen: Annotated[bool, F("whether nothing new starts")] = False
    reason: Annotated[str | None, F("the reason, for people")] = None
    since: Annotated[str | None, F("since when it is frozen, ISO 8601 UTC")] = None
    by: Annotated[str | None, F("id of the key that froze it")] = None
    timeline: str = ""


class Freeze:
    def __init__(self, table: Table, clock: Clock, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._table = table
        self._clock = clock
        self._monotonic = monotonic
        self._cached, self._read_at = FreezeState(), float("-inf")
        self._reading = threading.Lock()

    def now(self) -> FreezeState:
        """Returns the stored state, from a consistent read.

        For callers that would lose work if they missed a freeze.
        """
        self._cached = record_from(FreezeState, self._table.get(keys.freeze(), consistent=True) or {})
        self._read_at = self._monotonic()
        return self._cached

    @property
    def state(self) -> FreezeState:
        """Returns the stored state as it was at most five seconds ago.

        That is enough for the steps of work. If one step misses a freeze, the next step is parked.
        """
        with self._reading:
            if self._monotonic() - self._read_at > _CACHED_SECONDS:
                self.now()
            return self._cached

    @property
    def is_on(self) -> bool:
        return self.state.frozen

    @property
    def timeline(self) -> str:
        """The suffix for names of executions: `-` and the timeline. Empty if no timeline was ever set."""
        return f"-{self.state.timeline}" if self.state.timeline else ""

    def require_thawed(self) -> None:
        """Raises Frozen during a freeze. For work that cannot wait for the thaw."""
        if self.is_on:
            raise Frozen(f"the system is frozen: {self.state.reason}. Try again when it is thawed", retry_after=60)

    def freeze(self, reason: str, who: str) -> FreezeState:
        """Freezes the system. Idempotent: a second freeze only changes reason, time and caller."""
        now = self._clock()
        sets = {"frozen": True, "reason": reason, "since": iso(now), "by": who}
        line = act(NO_PROJECT, "system", now, who, "ops.freeze", reason)
        self._table.transact([update(keys.freeze(), sets, condition=""), audit_write(line)])
        return self.now()

    def thaw(self, who: str) -> bool:
        """Ends the freeze. False if the system was not frozen."""
        line = act(NO_PROJECT, "system", self._clock(), who, "ops.thaw")
        gone = ("reason", "since", "by")
        change = update(keys.freeze(), {"frozen": False}, removes=gone, condition="#frozen = :yes", yes=True)
        thawed = self._table.try_write(change, audit_write(line))
        self.now()
        return thawed

    def new_timeline(self, who: str) -> FreezeState:
        """Gives executions new names after the table was restored. Raises WrongState if the system is not frozen.

        The restored table does not know which executions were started after its snapshot. Step Functions refuses a name
        that was used in the last 90 days. With an old name, work would count as started although it is not.
        """
        now = self._clock()
        line = act(NO_PROJECT, "system", now, who, "ops.reconcile")
        named = {"timeline": f"{int(now.timestamp() * 1000):x}"}
        change = update(keys.freeze(), named, condition="#frozen = :yes", yes=True)
        if not self._table.try_write(change, audit_write(line)):
            raise WrongState("the system is not frozen: freeze it before you reconcile")
        return self.now()
