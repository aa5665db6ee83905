"""The state of a running batch: which items are called next, and how their answers change it."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from tidegate.batches.pause_windows import paused_until
from tidegate.batches.run.sliding_window import SlidingWindow, WindowState
from tidegate.batches.run.values import (
    ABANDONED,
    FAILED,
    FINISHED,
    MOST_OPEN,
    RECOVERED,
    STOPPED,
    Carried,
    Counts,
    ItemAnswer,
    ItemCall,
    OpenItem,
    Outcome,
    Rules,
    Verdict,
)
from tidegate.common.token_bucket import TokenBucket

# How long a worker waits at most while there is nothing to call: an answer may change that.
_IDLE = 0.05
SKIP_ADVICE = (
    "to go on without it, set on_item_failure to skip (PATCH, or `tidegate batch update --on-item-failure skip`) "
    "and start the batch again"
)


@dataclass(slots=True)
class RunState:
    """The state of one runner. Does no I/O; not thread-safe; `now` is in epoch seconds.

    After a halt or a pause it hands out no more calls, but still accepts answers.
    """

    total: int
    rules: Rules
    start: WindowState
    now: float
    counts: Counts = field(default_factory=Counts)
    carried: Carried = field(default_factory=Carried)
    # The index that people know an item by, from its position in this runner.
    index_of: Callable[[int], int] = lambda index: index
    # False while rows are still being counted: `extend` adds further items.
    complete: bool = True
    # With several runners: the items of the whole batch, and how many items of the others did not succeed.
    batch_total: int | None = None
    other_errors: int = 0
    verdict: Verdict | None = None
    paused: bool = False
    window: SlidingWindow = field(init=False)
    outcomes: list[Outcome] = field(init=False, default_factory=list)
    _bucket: TokenBucket = field(init=False)
    _retries: list[tuple[float, int, int]] = field(init=False, default_factory=list)
    _deadlines: list[tuple[float, int, int]] = field(init=False, default_factory=list)
    _awaiting: dict[int, tuple[int, float]] = field(init=False, default_factory=dict)
    _in_flight: dict[int, int] = field(init=False, default_factory=dict)
    _failed: int = field(init=False)
    _abandoned: int = field(init=False)
    _failed_calls: int = field(init=False)
    _reopened: set[int] = field(init=False)

    def __post_init__(self) -> None:
        self.window = SlidingWindow(self.total, self.rules.window_size, self.start, complete=self.complete)
        self._failed, self._abandoned = self.counts.failed, self.counts.abandoned
        self._failed_calls, self._reopened = self.counts.failed_calls, set(self.carried.reopened)
        self._bucket = TokenBucket(self.rules.rate, self.now)
        if self.carried.tokens_at is not None:
            self._bucket.restore(self.carried.tokens, self.carried.tokens_at, self.now)
        for item in self.carried.open_items:
            if self.window.hold(item.index):
                self._open(item)
        self._conclude_if_done()

    @property
    def over(self) -> bool:
        return self.paused or self.verdict is not None

    @property
    def behind(self) -> bool:
        """Whether calls are made more slowly than the rate allows."""
        return self._bucket.saved

    @property
    def current_counts(self) -> Counts:
        return Counts(self._failed, self._abandoned, self._failed_calls)

    @property
    def awaits_results(self) -> bool:
        return bool(self._awaiting)

    def carry(self) -> Carried:
        """Returns what the next slice needs. Calls under way are left out: it repeats them, as after a crash."""
        tokens, at = self._bucket.state
        waiting = [OpenItem(index, attempt, due) for due, index, attempt in self._retries]
        awaiting = [OpenItem(index, made, due, awaiting=True) for index, (made, due) in self._awaiting.items()]
        return Carried(tokens, at, (*waiting, *awaiting), frozenset(self._reopened))

    def next(self, now: float) -> tuple[ItemCall, ...] | float | None:
        """Returns the items of one call; or the seconds to wait for the next one; or None if there are no more."""
        self._expire(now)
        if self.over:
            return None
        if self.rules.pause_windows and paused_until(self.rules.pause_windows, now) > now:
            return _IDLE
        wanted = min(self.rules.items_per_call, self._room())
        ready = min(wanted, self._due(now, wanted) + self.window.room(wanted))
        if ready < 1:
            return max(0.0, min(_IDLE, self._retries[0][0] - now)) if self._retries and wanted > 0 else _IDLE
        wait = self._bucket.take(now, ready)
        if wait:
            return wait
        calls = self._take(now, ready)
        self._bucket.give_back(ready - len(calls))
        return calls or _IDLE

    def next_at(self, now: float) -> float:
        """Returns when there is something to do, unless an answer arrives earlier: a runner may sleep until then."""
        if self.over:
            return now
        if self.window.exhausted:
            # More rows may be indexed at any time.
            return paused_until(self.rules.pause_windows, now)
        moments = [self._deadlines[0][0]] if self._deadlines else []
        token_at = now + self._bucket.wait(now)
        if self._room() > 0 and self.window.peek() is not None:
            moments.append(token_at)
        elif self._room() > 0 and self._retries:
            moments.append(max(token_at, self._retries[0][0]))
        return paused_until(self.rules.pause_windows, max(now, min(moments, default=now)))

    def record(self, call: ItemCall, answer: ItemAnswer, now: float) -> None:
        self._in_flight.pop(call.index, None)
        self._apply_answer(call, answer, now)

    def postpone(self, call: ItemCall, at: float) -> None:
        """Schedules a call that was not sent for `at`, as the same attempt."""
        self._in_flight.pop(call.index, None)
        heapq.heappush(self._retries, (at, call.index, call.attempt))

    def await_result(self, call: ItemCall, until: float) -> None:
        """The business accepted the item and will send its result in a separate call."""
        self._in_flight.pop(call.index, None)
        self._open(OpenItem(call.index, call.attempt, until, awaiting=True))

    def apply_result(self, index: int, answer: ItemAnswer, now: float) -> bool:
        """Applies a result from the business: early, late or repeated. False if it must be applied again later."""
        if index in self._awaiting:
            attempt, _ = self._awaiting.pop(index)
            self._apply_answer(ItemCall(index, attempt), answer, now)
            return True
        retry = next((entry for entry in self._retries if entry[1] == index), None)
        if retry is None:
            # Its call is under way, or will be repeated because a runner died: apply the result after that.
            return self.window.is_done(index) or index < 0 or (self.complete and index >= self.total)
        if answer.result != "error":
            # The result is late and the item waits for another attempt, which is no longer needed.
            self._retries.remove(retry)
            heapq.heapify(self._retries)
            self._apply_answer(ItemCall(index, retry[2]), answer, now)
        return True

    def halt(self, reason: str, *, failed: bool = False) -> None:
        """Stops the batch, unless it already has a verdict."""
        if self.verdict is None:
            self.verdict = Verdict(STOPPED, reason, failed)

    def merge_other_runners(self, errors: int, verdict: Verdict | None) -> None:
        """Takes over the number of unsuccessful items of the other runners, and a verdict that ends the batch."""
        if errors > self.other_errors:
            self.other_errors = errors
            self._check_limits()
        if verdict is not None and self.verdict is None:
            self.verdict = verdict

    def change_rules(self, rules: Rules, now: float) -> None:
        rate_changed = rules.rate != self.rules.rate
        self.rules = rules
        if rate_changed:
            self._bucket.change_rate(rules.rate, now)
            self.window.resize(self.rules.window_size)

    def extend(self, total: int, *, complete: bool, batch_total: int) -> None:
        """Adds items that were found, or ends the search for more."""
        self.total, self.complete, self.batch_total = total, complete, batch_total
        self.window.extend(total, complete=complete)
        self._check_limits()
        self._conclude_if_done()

    def _room(self) -> int:
        most = MOST_OPEN if self.rules.most_open is None else self.rules.most_open
        return most - len(self._in_flight) - len(self._awaiting)

    def _due(self, now: float, most: int) -> int:
        """Returns the number of retries that are due; for `most` = 1, only whether there is one."""
        if not self._retries or self._retries[0][0] > now:
            return 0
        return 1 if most == 1 else sum(1 for entry in self._retries if entry[0] <= now)

    def _take(self, now: float, ready: int) -> tuple[ItemCall, ...]:
        calls: list[ItemCall] = []
        while len(calls) < ready and self._retries and self._retries[0][0] <= now:
            _, index, attempt = heapq.heappop(self._retries)
            calls.append(ItemCall(index, attempt))
        while len(calls) < ready and len(self._retries) < MOST_OPEN:
            index_taken = self.window.take()
            if index_taken is None:
                break
            calls.append(ItemCall(index_taken, 1))
        self._in_flight |= {call.index: call.attempt for call in calls}
        return tuple(calls)

    def _open(self, item: OpenItem) -> None:
        if item.awaiting:
            self._awaiting[item.index] = (item.attempt, item.at)
            heapq.heappush(self._deadlines, (item.at, item.index, item.attempt))
        else:
            heapq.heappush(self._retries, (item.at, item.index, item.attempt))

    def _expire(self, now: float) -> None:
        """Counts results that are overdue as failed calls."""
        while self._deadlines and self._deadlines[0][0] <= now:
            at, index, attempt = heapq.heappop(self._deadlines)
            if self._awaiting.get(index) == (attempt, at):
                del self._awaiting[index]
                self._apply_answer(ItemCall(index, attempt), ItemAnswer("error", "no result came in time"), now)

    def _apply_answer(self, call: ItemCall, answer: ItemAnswer, now: float) -> None:
        if answer.result == "error":
            self._retry_or_fail(call, answer, now)
        else:
            self.window.acknowledge(call.index)
            if answer.result == "abandon":
                self._abandoned += 1
                self._unsuccessful(call, ABANDONED, answer)
            elif call.attempt > 1 or call.index in self._reopened:
                self._add_outcome(call, RECOVERED, answer)
        if answer.stop == "finish":
            self.verdict = Verdict(FINISHED)
        elif answer.stop == "stop":
            because = f": {answer.detail}" if answer.detail else ""
            self.halt(f"the business stopped the batch at item {self.index_of(call.index)}{because}")
        self._conclude_if_done()

    def _retry_or_fail(self, call: ItemCall, answer: ItemAnswer, now: float) -> None:
        self._failed_calls += 1
        if call.attempt < self.rules.retries:
            delay = max(self.rules.retry_delay, answer.retry_after or 0)
            heapq.heappush(self._retries, (now + delay, call.index, call.attempt + 1))
        elif self.rules.skip_failed:
            self.window.acknowledge(call.index)
            self._failed += 1
            self._unsuccessful(call, FAILED, answer)
        else:
            self._add_outcome(call, FAILED, answer)
            # If the batch is started again, the item is called again, from its first attempt.
            self._reopened.add(call.index)
            because = f": {answer.detail}" if answer.detail else ""
            name = self.index_of(call.index)
            self.halt(f"item {name} failed {call.attempt} times{because}; {SKIP_ADVICE}", failed=True)

    def _add_outcome(self, call: ItemCall, state: str, answer: ItemAnswer) -> None:
        self._reopened.discard(call.index)
        self.outcomes.append(Outcome(call.index, state, call.attempt, answer))

    def _unsuccessful(self, call: ItemCall, state: str, answer: ItemAnswer) -> None:
        self._add_outcome(call, state, answer)
        self._check_limits()

    def _check_limits(self) -> None:
        errors = self._failed + self._abandoned + self.other_errors
        total = self.total if self.batch_total is None else self.batch_total
        exceeded = self.rules.exceeded(errors, total if self.complete else None)
        if exceeded:
            self.halt(exceeded, failed=True)

    def _conclude_if_done(self) -> None:
        if self.window.done and self.verdict is None:
            self.verdict = Verdict(FINISHED)
