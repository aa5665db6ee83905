"""What is said of items and of a run: calls, answers, outcomes, verdicts, and what one runner leaves to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from tidegate.batches.pause_windows import PauseWindow

FINISHED = "finished"
STOPPED = "stopped"
# How an item ended that did not simply succeed.
FAILED, ABANDONED, RECOVERED = "failed", "abandoned", "recovered"
WINDOW_SECONDS = 10
# Called and not done, of one runner.
MOST_OPEN = 20_000


class Extent(NamedTuple):
    """How many items are known; `complete` says that there are no more."""

    items: int
    complete: bool = True


@dataclass(frozen=True, slots=True)
class ItemCall:
    index: int
    attempt: int


@dataclass(frozen=True, slots=True)
class ItemAnswer:
    """What the business said of one item: `ok`, `error` or `abandon`, and whether the batch is to end."""

    result: str
    detail: str = ""
    stop: str | None = None
    retry_after: float | None = None

    def shown(self) -> dict[str, Any]:
        said = {"result": self.result, "msg": self.detail, "stop": self.stop}
        return {name: value for name, value in said.items() if value}


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a batch ended."""

    status: str
    reason: str | None = None
    # By a fault, not because someone asked for it.
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """An item that did not simply succeed."""

    index: int
    state: str
    attempts: int
    answer: ItemAnswer


@dataclass(frozen=True, slots=True)
class OpenItem:
    """An item that was called and is not done: it waits for its next attempt, or for its asynchronous result."""

    index: int
    # The attempt that comes, or, with `awaiting`, the one that was made.
    attempt: int
    # Epoch seconds: not called before; or, with `awaiting`, failed if there is no result by then.
    at: float
    awaiting: bool = False


@dataclass(frozen=True, slots=True)
class Carried:
    """What a runner leaves to its successor besides the window, so that neither the rate nor a retry starts anew."""

    tokens: float = 1.0
    tokens_at: float | None = None
    open_items: tuple[OpenItem, ...] = ()
    # Items that ended a run by failing: if they succeed later, their outcome is corrected.
    reopened: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Counts:
    failed: int = 0
    abandoned: int = 0
    # Calls that failed, those that were repeated with success included.
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
    # How many items may be called and not answered at once; None for as many as the window holds.
    most_open: int | None = None
    pause_windows: tuple[PauseWindow, ...] = ()

    @property
    def window_size(self) -> int:
        """Items may be under way for `item_seconds` without holding up the rate."""
        wanted = round(self.rate * max(self.item_seconds, WINDOW_SECONDS))
        return max(1, self.items_per_call, min(MOST_OPEN, wanted))

    def exceeded(self, errors: int, total: int | None) -> str | None:
        """Why so many items that did not succeed end the batch. A share of a total that is not known yet ends none."""
        if self.max_errors is not None and errors >= self.max_errors:
            return f"max_errors reached: {errors} items did not succeed"
        if self.max_failed is not None and errors > self.max_failed:
            return f"{errors} items did not succeed, and max_failed allows {self.max_failed}"
        percent = self.max_failed_percent
        if percent is not None and total is not None and errors * 100 > percent * total:
            allowed = f"max_failed_percent allows {percent:g} % of {total}"
            return f"{errors} items did not succeed, and {allowed}"
        return None
