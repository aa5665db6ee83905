"""The state of a running batch: which items are called next, and what their answers change."""

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

# How long a worker sleeps at most when there is nothing to hand out: an answer may change that.
_IDLE = 0.05
SKIP_ADVICE = (
    "to go on without it, set on_item_failure to skip (PATCH, or `tidegate batch update --on-item-failure skip`) "
    "and start the batch again"
)


@dataclass(slots=True)
class RunState:
    """One runner's. Pure; one caller at a time; `now` is in epoch seconds. Halted or paused it hands out nothing more,
    but still takes answers."""

    total: int
    rules: Rules
    start: WindowState
    now: float
    counts: Counts = field(default_factory=Counts)
    carried: Carried = field(default_factory=Carried)
    # How an item is named to people, where not by its position.
    name_of: Callable[[int], int] = lambda index: index
    # Not complete: more items may be found behind the total, and `extend` tells of them.
    complete: bool = True
    # Items of the whole batch, where other runners have some of them; and how many of theirs did not succeed.
    batch_total: int | None = None
    errors_elsewhere: int = 0
    verdict: Verdict | None = None
    paused: bool = False
    window: SlidingWindow = field(init=False)
    outcomes: list[Outcome] = field(init=False, default_factory=list)
    _bucket: TokenBucket = field(init=False)
    _again: list[tuple[float, int, int]] = field(init=False, default_factory=list)
    _deadlines: list[tuple[float, int, int]] = field(init=False, default_factory=list)
    _awaiting: dict[int, tuple[int, float]] = field(init=False, default_factory=dict)
    _flying: dict[int, int] = field(init=False, default_factory=dict)
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
        """Whether calls come slower than the rate allows."""
        return self._bucket.saved

    @property
    def counted(self) -> Counts:
        return Counts(self._failed, self._abandoned, self._failed_calls)

    @property
    def awaits_results(self) -> bool:
        return bool(self._awaiting)

    def carry(self) -> Carried:
        """Calls under way are left out: a successor makes them again, as after a crash."""
        tokens, at = self._bucket.state
        waiting = [OpenItem(index, attempt, due) for due, index, attempt in self._again]
        awaiting = [OpenItem(index, made, due, awaiting=True) for index, (made, due) in self._awaiting.items()]
        return Carried(tokens, at, (*waiting, *awaiting), frozenset(self._reopened))

    def next(self, now: float) -> tuple[ItemCall, ...] | float | None:
        """Items for one call, the seconds until it is worth asking again, or None when nothing more comes."""
        self._expire(now)
        if self.over:
            return None
        if self.rules.pause_windows and paused_until(self.rules.pause_windows, now) > now:
            return _IDLE
        wanted = min(self.rules.items_per_call, self._room())
        ready = min(wanted, self._due(now, wanted) + self.window.room(wanted))
        if ready < 1:
            return max(0.0, min(_IDLE, self._again[0][0] - now)) if self._again and wanted > 0 else _IDLE
        wait = self._bucket.take(now, ready)
        if wait:
            return wait
        calls = self._take(now, ready)
        self._bucket.give_back(ready - len(calls))
        return calls or _IDLE

    def next_at(self, now: float) -> float:
        """When there is something to do again, if no answer comes before: a runner may sleep until then."""
        if self.over:
            return now
        moments = [self._deadlines[0][0]] if self._deadlines else []
        token_at = now + self._bucket.wait(now)
        if self._room() > 0 and self.window.peek() is not None:
            moments.append(token_at)
        elif self._room() > 0 and self._again:
            moments.append(max(token_at, self._again[0][0]))
        return paused_until(self.rules.pause_windows, max(now, min(moments, default=now)))

    def record(self, call: ItemCall, answer: ItemAnswer, now: float) -> None:
        self._flying.pop(call.index, None)
        self._settle(call, answer, now)

    def put_back(self, call: ItemCall, at: float) -> None:
        """A call that was not made: it comes again at `at`, as the same attempt."""
        self._flying.pop(call.index, None)
        heapq.heappush(self._again, (at, call.index, call.attempt))

    def await_result(self, call: ItemCall, until: float) -> None:
        """The business has taken the item; its result comes by a call of its own."""
        self._flying.pop(call.index, None)
        self._open(OpenItem(call.index, call.attempt, until, awaiting=True))

    def result(self, index: int, answer: ItemAnswer, now: float) -> bool:
        """A result that the business sent, early, late or twice. False: it cannot be applied yet, keep it."""
        if index in self._awaiting:
            attempt, _ = self._awaiting.pop(index)
            self._settle(ItemCall(index, attempt), answer, now)
            return True
        retry = next((entry for entry in self._again if entry[1] == index), None)
        if retry is None:
            # Its call is under way, or is made once more because a runner died: it is applied after that.
            return self.window.is_done(index) or index < 0 or (self.complete and index >= self.total)
        if answer.result != "error":
            # It came too late and the item waits for another attempt, which is not needed now.
            self._again.remove(retry)
            heapq.heapify(self._again)
            self._settle(ItemCall(index, retry[2]), answer, now)
        return True

    def halt(self, reason: str, *, failed: bool = False) -> None:
        """The first verdict stands."""
        if self.verdict is None:
            self.verdict = Verdict(STOPPED, reason, failed)

    def hear_others(self, errors: int, verdict: Verdict | None) -> None:
        """How many items of the other runners did not succeed, and a verdict of theirs that ends the batch."""
        if errors > self.errors_elsewhere:
            self.errors_elsewhere = errors
            self._check_limits()
        if verdict is not None and self.verdict is None:
            self.verdict = verdict

    def change(self, rules: Rules, now: float) -> None:
        rate_changed = rules.rate != self.rules.rate
        self.rules = rules
        if rate_changed:
            self._bucket.change_rate(rules.rate, now)
            self.window.resize(self.rules.window_size)

    def extend(self, total: int, *, complete: bool, batch_total: int) -> None:
        """More items were found, or it became known that there are no more."""
        self.total, self.complete, self.batch_total = total, complete, batch_total
        self.window.extend(total, complete=complete)
        self._check_limits()
        self._conclude_if_done()

    def _room(self) -> int:
        most = MOST_OPEN if self.rules.most_open is None else self.rules.most_open
        return most - len(self._flying) - len(self._awaiting)

    def _due(self, now: float, most: int) -> int:
        """How many retries are due, at most `most`; the heap's first entries are its smallest but for their order."""
        if not self._again or self._again[0][0] > now:
            return 0
        return 1 if most == 1 else sum(1 for entry in self._again if entry[0] <= now)

    def _take(self, now: float, ready: int) -> tuple[ItemCall, ...]:
        calls: list[ItemCall] = []
        while len(calls) < ready and self._again and self._again[0][0] <= now:
            _, index, attempt = heapq.heappop(self._again)
            calls.append(ItemCall(index, attempt))
        while len(calls) < ready and len(self._again) < MOST_OPEN:
            index_taken = self.window.take()
            if index_taken is None:
                break
            calls.append(ItemCall(index_taken, 1))
        self._flying |= {call.index: call.attempt for call in calls}
        return tuple(calls)

    def _open(self, item: OpenItem) -> None:
        if item.awaiting:
            self._awaiting[item.index] = (item.attempt, item.at)
            heapq.heappush(self._deadlines, (item.at, item.index, item.attempt))
        else:
            heapq.heappush(self._again, (item.at, item.index, item.attempt))

    def _expire(self, now: float) -> None:
        """A result that did not come in time is a failed call."""
        while self._deadlines and self._deadlines[0][0] <= now:
            at, index, attempt = heapq.heappop(self._deadlines)
            if self._awaiting.get(index) == (attempt, at):
                del self._awaiting[index]
                self._settle(ItemCall(index, attempt), ItemAnswer("error", "no result came in time"), now)

    def _settle(self, call: ItemCall, answer: ItemAnswer, now: float) -> None:
        if answer.result == "error":
            self._try_again(call, answer, now)
        else:
            self.window.acknowledge(call.index)
            if answer.result == "abandon":
                self._abandoned += 1
                self._unsuccessful(call, ABANDONED, answer)
            elif call.attempt > 1 or call.index in self._reopened:
                self._note(call, RECOVERED, answer)
        if answer.stop == "finish":
            self.verdict = Verdict(FINISHED)
        elif answer.stop == "stop":
            because = f": {answer.detail}" if answer.detail else ""
            self.halt(f"the business stopped the batch at item {self.name_of(call.index)}{because}")
        self._conclude_if_done()

    def _try_again(self, call: ItemCall, answer: ItemAnswer, now: float) -> None:
        self._failed_calls += 1
        if call.attempt < self.rules.retries:
            delay = max(self.rules.retry_delay, answer.retry_after or 0)
            heapq.heappush(self._again, (now + delay, call.index, call.attempt + 1))
        elif self.rules.skip_failed:
            self.window.acknowledge(call.index)
            self._failed += 1
            self._unsuccessful(call, FAILED, answer)
        else:
            self._note(call, FAILED, answer)
            # Called anew, from its first attempt, if the batch is started again.
            self._reopened.add(call.index)
            because = f": {answer.detail}" if answer.detail else ""
            name = self.name_of(call.index)
            self.halt(f"item {name} failed {call.attempt} times{because}; {SKIP_ADVICE}", failed=True)

    def _note(self, call: ItemCall, state: str, answer: ItemAnswer) -> None:
        self._reopened.discard(call.index)
        self.outcomes.append(Outcome(call.index, state, call.attempt, answer))

    def _unsuccessful(self, call: ItemCall, state: str, answer: ItemAnswer) -> None:
        self._note(call, state, answer)
        self._check_limits()

    def _check_limits(self) -> None:
        errors = self._failed + self._abandoned + self.errors_elsewhere
        total = self.total if self.batch_total is None else self.batch_total
        exceeded = self.rules.exceeded(errors, total if self.complete else None)
        if exceeded:
            self.halt(exceeded, failed=True)

    def _conclude_if_done(self) -> None:
        if self.window.done and self.verdict is None:
            self.verdict = Verdict(FINISHED)
