"""Values of a run: calls, answers, outcomes, verdicts, and the state that one slice hands over to the next.

An item's `index` in here is its position among the items of its runner (`share.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from tidegate.batches.pause_windows import PauseWindow

FINISHED = "finished"
STOPPED = "stopped"
# States of items that did not succeed at their first attempt.
FAILED, ABANDONED, RECOVERED = "failed", "abandoned", "recovered"
WINDOW_SECONDS = 10
# Limit for items of one runner that were called and are not done.
MOST_OPEN = 20_000


class Extent(NamedTuple):
    """How many items are known so far. `complete`: there are no more."""

    items: int
    complete: bool = True


@dataclass(frozen=True, slots=True)
class ItemCall:
    index: int
    attempt: int


@dataclass(frozen=True, slots=True)
class ItemAnswer:
    """The business's answer for one item: `ok`, `error` or `abandon`, and whether to end the batch."""

    result: str
    detail: str = ""
    stop: str | None = None
    retry_after: float | None = None

    def shown(self) -> dict[str, Any]:
        fields = {"result": self.result, "msg": self.detail, "stop": self.stop}
        return {name: value for name, value in fields.items() if value}


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a batch ended."""

    status: str
    reason: str | None = None
    # Ended by a failure, not because somebody asked for it.
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """An item that failed, was abandoned, or succeeded only after retries."""

    index: int
    state: str
    attempts: int
    answer: ItemAnswer


@dataclass(frozen=True, slots=True)
class OpenItem:
    """An item that was called and is not done: it waits for its next attempt or for its asynchronous result."""

    index: int
    # The next attempt; with `awaiting`, the attempt that was made.
    attempt: int
    # Epoch seconds: the earliest time of the next attempt; with `awaiting`, the deadline for the result.
    at: float
    awaiting: bool = False


@dataclass(frozen=True, slots=True)
class Carried:
    """What a slice hands over besides the window: without it, the rate and the retries would start again."""

    tokens: float = 1.0
    tokens_at: float | None = None
    open_items: tuple[OpenItem, ...] = ()
    # Items whose failure stopped an earlier run: if they succeed later, their outcome becomes `recovered`.
    reopened: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Counts:
    failed: int = 0
    abandoned: int = 0
    # Failed calls, including those whose retry succeeded.
    failed_calls: int = 0


@dataclass(slots=True)
class Rules:
    rate: float
    retries: int = 5
    retry_delay: float = 3.0
    max_errors: int | None = None
    skip_failed: bool = False
    max_failed: int | None = None
    max_failed_percent: float | None = None
    items_per_call: int = 1
    item_seconds: float = WINDOW_SECONDS
    # How many items may be called and unanswered at once; None: as many as the window holds.
    most_open: int | None = None
    pause_windows: tuple[PauseWindow, ...] = ()

    @property
    def window_size(self) -> int:
        """Large enough for calls that take `item_seconds` at the full rate."""
        wanted = round(self.rate * max(self.item_seconds, WINDOW_SECONDS))
        return max(1, self.items_per_call, min(MOST_OPEN, wanted))

    def exceeded(self, errors: int, total: int | None) -> str | None:
        """Returns why this many unsuccessful items end the batch, or None. The percentage needs a known total."""
        if self.max_errors is not None and errors >= self.max_errors:
            return f"max_errors reached: {errors} items did not succeed"
        if self.max_failed is not None and errors > self.max_failed:
            return f"{errors} items did not succeed, and max_failed allows {self.max_failed}"
        percent = self.max_failed_percent
        if percent is not None and total is not None and errors * 100 > percent * total:
            allowed = f"max_failed_percent allows {percent:g} % of {total}"
            return f"{errors} items did not succeed, and {allowed}"
        return None
