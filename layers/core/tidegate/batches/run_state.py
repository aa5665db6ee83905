"""The course of a running batch: which item is called next, and what its answer changes."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from tidegate.batches.sliding_window import SlidingWindow, WindowState
from tidegate.common.token_bucket import TokenBucket

FINISHED = "finished"
STOPPED = "stopped"
WINDOW_SECONDS = 10
# How long a worker sleeps at most when there is nothing to hand out: an answer may change that.
_IDLE = 0.05


def window_size(rate: float) -> int:
    return max(1, round(rate * WINDOW_SECONDS))


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


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a batch ended."""

    status: str
    reason: str | None = None
    # By a fault, not because someone asked for it.
    failed: bool = False


@dataclass(slots=True)
class Rules:
    rate: float
    retries: int = 5
    retry_delay: float = 3.0
    max_errors: int | None = None


@dataclass(slots=True)
class RunState:
    """Pure; one caller at a time. A halted or paused course hands out nothing more, but still takes answers."""

    total: int
    rules: Rules
    ledger: WindowState
    now: float
    errors: int = 0
    verdict: Verdict | None = None
    paused: bool = False
    window: SlidingWindow = field(init=False)
    _bucket: TokenBucket = field(init=False)
    _again: list[tuple[float, int, int]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.window = SlidingWindow(self.total, window_size(self.rules.rate), self.ledger)
        self._bucket = TokenBucket(self.rules.rate, self.now)
        self._conclude_if_done()

    @property
    def over(self) -> bool:
        return self.paused or self.verdict is not None

    @property
    def behind(self) -> bool:
        """Whether calls come slower than the rate allows."""
        return self._bucket.saved

    def next(self, now: float) -> ItemCall | float | None:
        """A call, the seconds until it is worth asking again, or None when nothing more comes."""
        if self.over:
            return None
        due = bool(self._again) and self._again[0][0] <= now
        if not due and self.window.peek() is None:
            return min(_IDLE, self._again[0][0] - now) if self._again else _IDLE
        wait = self._bucket.take(now)
        if wait:
            return wait
        if due:
            _, index, attempt = heapq.heappop(self._again)
            return ItemCall(index, attempt)
        index_taken = self.window.take()
        return ItemCall(index_taken, 1) if index_taken is not None else _IDLE

    def record(self, call: ItemCall, answer: ItemAnswer, now: float) -> None:
        if answer.result == "error":
            self._failed(call, answer, now)
        else:
            self.window.acknowledge(call.index)
            if answer.result == "abandon":
                self._abandoned()
        if answer.stop == "finish":
            self.verdict = Verdict(FINISHED)
        elif answer.stop == "stop":
            self.halt(f"the business stopped the batch at item {call.index}")
        self._conclude_if_done()

    def put_back(self, call: ItemCall, at: float) -> None:
        """A call that was not made: it comes again at `at`, as the same attempt."""
        heapq.heappush(self._again, (at, call.index, call.attempt))

    def halt(self, reason: str, *, failed: bool = False) -> None:
        """The first verdict stands."""
        if self.verdict is None:
            self.verdict = Verdict(STOPPED, reason, failed)

    def change(self, rules: Rules, now: float) -> None:
        if rules.rate != self.rules.rate:
            self._bucket.change_rate(rules.rate, now)
            self.window.resize(window_size(rules.rate))
        self.rules = rules

    def _failed(self, call: ItemCall, answer: ItemAnswer, now: float) -> None:
        if call.attempt >= self.rules.retries:
            because = f": {answer.detail}" if answer.detail else ""
            self.halt(f"item {call.index} failed {call.attempt} times{because}", failed=True)
            return
        delay = max(self.rules.retry_delay, answer.retry_after or 0)
        heapq.heappush(self._again, (now + delay, call.index, call.attempt + 1))

    def _abandoned(self) -> None:
        self.errors += 1
        if self.rules.max_errors is not None and self.errors >= self.rules.max_errors:
            self.halt(f"max_errors reached: {self.errors} items were abandoned", failed=True)

    def _conclude_if_done(self) -> None:
        if self.window.done and self.verdict is None:
            self.verdict = Verdict(FINISHED)
