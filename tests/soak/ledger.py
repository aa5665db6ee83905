"""What was asked of the product and what was seen of it, kept outside of it; the promises are held against it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.support.patience import idle_clock

JOB, TASK, EXPORT, BATCH, REQUEST = "job", "download", "export", "batch", "request"
ANSWERS = "the API answers a careful caller"
# What is wrong with the soak and not with the product.
HARNESS = "the soak itself goes on"
_LONGEST_CALLS = 5
FINAL = {
    JOB: {"Success", "Failed", "Timeout", "Cancelled", "Superseded"},
    TASK: {"Success", "Failed", "Timeout", "Cancelled", "Superseded"},
    EXPORT: {"completed", "failed", "cancelled", "expired"},
    BATCH: {"finished", "stopped"},
    REQUEST: {"completed", "failed", "cancelled"},
}


@dataclass
class Asked:
    """A record that the product accepted. `about` has what only the one who asked knows."""

    kind: str
    record_id: str
    path: str
    about: dict[str, Any] = field(default_factory=dict)
    # Every state that a caller read, without repetitions.
    states: list[str] = field(default_factory=list)
    last: dict[str, Any] = field(default_factory=dict)
    # A stopped batch is started again: what it reads until then is not final.
    goes_on: bool = False

    @property
    def over(self) -> bool:
        return bool(self.states) and self.states[-1] in FINAL[self.kind] and not self.goes_on


class Ledger:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.asked: dict[str, Asked] = {}
        # What contradicts a promise, by the promise.
        self.broken: dict[str, list[str]] = {}
        # What happened, for the summary.
        self.counts: Counter[str] = Counter()
        # Notices that receivers got and answered with 2xx, by record: (webhook id, type, status in the data).
        self.notices: dict[str, list[tuple[str, str, str]]] = {}
        # Calls that businesses answered: batch, index, moment, result.
        self.calls: list[tuple[str, int, float, str]] = []
        # Paths that the file server was asked for.
        self.fetched: Counter[str] = Counter()
        # The calls that were answered last: seconds, the call, and why it was repeated how often.
        self.longest: list[tuple[float, str, str]] = []
        self._progress = idle_clock()

    def accept(self, asked: Asked) -> Asked:
        with self._lock:
            self.asked[asked.record_id] = asked
            self._progress = idle_clock()
        self.count(f"{asked.kind}s asked for")
        return asked

    def of(self, kind: str) -> list[Asked]:
        with self._lock:
            return [asked for asked in self.asked.values() if asked.kind == kind]

    def open(self, kind: str | None = None) -> list[Asked]:
        with self._lock:
            return [asked for asked in self.asked.values() if not asked.over and kind in (None, asked.kind)]

    def breaks(self, promise: str, what: str) -> None:
        with self._lock:
            self.broken.setdefault(promise, []).append(what)

    def count(self, what: str, number: int = 1) -> None:
        with self._lock:
            self.counts[what] += number

    def waited(self, call: str, seconds: float, without: Counter[str]) -> None:
        """A call was answered after so long, and after so many tries without an answer."""
        with self._lock:
            said = ", ".join(f"{count} x {why}" for why, count in without.most_common())
            self.longest = sorted([*self.longest, (seconds, call, said)], reverse=True)[:_LONGEST_CALLS]

    def moves(self) -> None:
        """Something went on: who waits for the end goes on waiting."""
        self._progress = idle_clock()

    def quiet_for(self) -> float:
        """Seconds of an idle machine."""
        return idle_clock() - self._progress

    def write(self, change: Callable[[Ledger], None]) -> None:
        with self._lock:
            change(self)
            self._progress = idle_clock()
