"""The state of a running batch: which items are called next, how answers change the state, and how it is stored.

Items are called in order, within a window of about ten seconds of items. The first item of a full window may not be
done, because it waits for a retry or for an answer. Then the item is set aside and the window moves on, so that one bad
item does not hold up the others. Items aside keep their attempt and the time of their next call. They are called at
that time, before new items. Each save stores the window's offset together with all items aside, also those whose call
is under way. So after a crash the next runner knows all of them: an item is done if it is below the offset and not
aside. At most `MOST_OPEN` items of a runner are open, so that the runner's record fits into one item of the table. At
that limit, the window does not move.

A call without an answer may be the fault of its item or of the whole business, so it does not count as an attempt at
once. It counts when a call that began later is answered. If the calls of several new items in a row stay unanswered,
the business is down. Then all such items keep their attempts, and one call at a time tests the business until it
answers. The test call has a new item if there is one. When no new items are left, nothing shows whose fault an
unanswered call is. Then calls without an answer count at once.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import NamedTuple

from tidegate.batches.model import (
    ABANDONED,
    FAILED,
    FINISHED,
    MOST_OPEN,
    MOST_UNANSWERED,
    NO_OUTAGE,
    RECOVERED,
    STOPPED,
    SUCCEEDED,
    Carried,
    Counts,
    Decision,
    ItemCall,
    ItemOutcome,
    ItemResult,
    OpenItem,
    Outage,
    Rules,
    Verdict,
    WindowState,
    paused_until,
)
from tidegate.common.token_bucket import TokenBucket


class SlidingWindow:
    """Tracks which items of a runner are done: all below the offset except those set aside, and some in the window.

    Hands out indexes while the window has room. The indexes may be acknowledged in any order.

    The offset moves past items that are done, and past items that were set aside. Memory depends on the size of the
    window and on the number of items aside, not on the total.
    """

    def __init__(self, total: int, size: int, start: WindowState, *, complete: bool = True) -> None:
        """With `complete` false, `extend` may add items later."""
        if size < 1:
            raise ValueError("a window holds at least one item")
        self._total = total
        self._complete = complete
        self._size = size
        # `hand_out` returns only indexes below it; None: no such limit.
        self.reach: int | None = None
        self.offset = start.offset
        self._next = start.offset
        self.aside = set(start.aside)
        self._held: set[int] = set()
        self._above = {start.offset + place for place in _set_bits(start.bitmap)}

    @property
    def done(self) -> bool:
        return self._complete and self.offset >= self._total and not self.aside

    @property
    def exhausted(self) -> bool:
        """Whether all items known so far were handed out, and more may be found."""
        return not self._complete and self.peek() is None and self._next < self.offset + self._size

    @property
    def position(self) -> int:
        """The number of items done, including those above the offset."""
        return self.offset + len(self._above) - len(self.aside)

    def resize(self, size: int) -> None:
        """Changes the size of the window. Indexes that were handed out stay valid if it becomes smaller."""
        self._size = max(1, size)

    def extend(self, total: int, *, complete: bool) -> None:
        self._total, self._complete = total, complete

    @property
    def called(self) -> int:
        """One more than the highest index that was handed out; held indexes do not count."""
        return max(self._next, self.offset)

    def peek(self) -> int | None:
        """Returns the next index to hand out. None if the window is full or no item is left. Ignores `reach`."""
        # After a resume, one acknowledgement may move the offset past many items that were done before.
        self._next = max(self._next, self.offset)
        while self._next in self._above or self._next in self._held:
            self._next += 1
        return self._next if self._next < min(self.offset + self._size, self._total) else None

    def room(self, most: int) -> int:
        """Returns how many indexes can be handed out, but not more than `most`.

        The number may be too high, because it also counts later indexes that are already done or reserved.
        """
        if self.peek() is None:
            return 0
        bound = min(self.offset + self._size, self._total)
        return max(0, min(most, (bound if self.reach is None else min(bound, self.reach)) - self._next))

    def hold(self, index: int) -> bool:
        """Reserves an index that an earlier slice left open, so that `hand_out` skips the index.

        Returns False if the item is done or does not exist.
        """
        if self.is_done(index) or (self._complete and index >= self._total):
            return False
        if index >= self.offset:
            self._held.add(index)
        return True

    def is_done(self, index: int) -> bool:
        return (index < self.offset and index not in self.aside) or index in self._above

    def lacks_room(self, wanted: int) -> bool:
        """Whether the window is too small for the next `wanted` items, because its first item is not done."""
        self.peek()
        return self.offset < self._next and self.offset + self._size < min(self._next + wanted, self._total)

    def set_first_aside(self) -> None:
        """Sets the first item of the window aside and moves the offset past it.

        The item was handed out and is not done.
        """
        self.aside.add(self.offset)
        self._held.discard(self.offset)
        self.offset += 1
        self._pass_done()

    def hand_out(self) -> int | None:
        index = self.peek()
        if index is None or (self.reach is not None and index >= self.reach):
            return None
        self._next = index + 1
        return index

    def acknowledge(self, index: int) -> None:
        if index < self.offset:
            self.aside.discard(index)
            return
        if index >= self._next and index not in self._held:
            raise ValueError(f"item {index} was never handed out")
        self._held.discard(index)
        if index == self.offset:
            self.offset += 1
        else:
            self._above.add(index)
        self._pass_done()

    def _pass_done(self) -> None:
        while self.offset in self._above:
            self._above.remove(self.offset)
            self.offset += 1

    def state(self) -> WindowState:
        aside = tuple(sorted(self.aside))
        if not self._above:
            return WindowState(self.offset, aside=aside)
        field = bytearray((max(self._above) - self.offset) // 8 + 1)
        for index in self._above:
            place = index - self.offset
            field[place >> 3] |= 1 << (place & 7)
        return WindowState(self.offset, bytes(field), aside)


def _set_bits(bitmap: bytes) -> list[int]:
    return [8 * at + bit for at, byte in enumerate(bitmap) if byte for bit in range(8) if byte >> bit & 1]


NO_RESULT = ItemResult("error", "no result came in time")
# How long a worker waits at most while there is nothing to call: an answer may change that.
_IDLE = 0.05
# Seconds between two calls of a business that is down: at first, and at most; the time doubles in between.
_FIRST_PROBE, _LONGEST_PROBE = 1.0, 60.0
# A business that is down and names a time (Retry-After) is not tested before it, up to this many seconds.
_LONGEST_PAUSE = 3600.0
# Without a new item to test the business with, its outage is taken for real for at most this many seconds.
_LONGEST_TAIL = 1800.0
SKIP_ADVICE = (
    "to go on without it, set on_item_failure to skip (PATCH, or `tidegate batch update --on-item-failure skip`) "
    "and start the batch again"
)


class _Flight(NamedTuple):
    """A call that is under way. `is_new`: the first call of its item.

    Only first calls show that the business is down: an item that is retried may be one that never gets an answer.
    """

    attempt: int
    began: float
    is_new: bool


@dataclass(slots=True)
class RunState:
    """The state of one runner. Does no I/O; not thread-safe; `now` is in epoch seconds.

    After a halt or a pause it hands out no more calls, but still accepts answers.

    If results come separately (`asynchronous`), answers and time-outs do not count at once. First `undecided` returns
    them and the caller stores them in the table. Then `apply` counts what the table holds. That may be a result that
    came earlier.
    """

    total: int
    rules: Rules
    start: WindowState
    now: float
    counts: Counts = field(default_factory=Counts)
    carried: Carried = field(default_factory=Carried)
    # Returns the index of an item in the batch, from its position in this runner.
    index_of: Callable[[int], int] = lambda index: index
    # Whether results are reported separately from the answers to calls.
    asynchronous: bool = False
    # False while rows are still being counted: `extend` adds further items.
    complete: bool = True
    # Whether items that succeed at once are outcomes, too.
    reports: bool = False
    # With several runners: the items of the whole batch, and how many items of the others did not succeed.
    batch_total: int | None = None
    other_errors: int = 0
    verdict: Verdict | None = None
    paused: bool = False
    window: SlidingWindow = field(init=False)
    outcomes: list[ItemOutcome] = field(init=False, default_factory=list)
    _bucket: TokenBucket = field(init=False)
    _retries: list[tuple[float, int, int]] = field(init=False, default_factory=list)
    _deadlines: list[tuple[float, int, int]] = field(init=False, default_factory=list)
    _awaiting: dict[int, tuple[int, float]] = field(init=False, default_factory=dict)
    _in_flight: dict[int, _Flight] = field(init=False, default_factory=dict)
    # Items in `_retries`, and the attempt that each waits for.
    _waiting: dict[int, int] = field(init=False, default_factory=dict)
    # (time, attempt) of retries that must be opened in the table before their call: until then it refuses results.
    _unopened: dict[int, tuple[float, int]] = field(init=False, default_factory=dict)
    # (attempt, answer) of calls that have ended and are not counted yet.
    _undecided: dict[int, tuple[int, ItemResult]] = field(init=False, default_factory=dict)
    # (call, answer, time) of calls without an answer. Whether they count as attempts is not decided yet.
    _unanswered: dict[int, tuple[ItemCall, ItemResult, float]] = field(init=False, default_factory=dict)
    outage: Outage = field(init=False)
    _probing: int | None = field(init=False, default=None)
    # Stored results of calls that are under way.
    _early: dict[int, Decision] = field(init=False, default_factory=dict)
    _failed: int = field(init=False)
    _abandoned: int = field(init=False)
    _failed_calls: int = field(init=False)
    _reopened: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.window = SlidingWindow(self.total, self.rules.window_size, self.start, complete=self.complete)
        self._failed, self._abandoned = self.counts.failed, self.counts.abandoned
        self._failed_calls, self._reopened = self.counts.failed_calls, dict(self.carried.reopened)
        self.outage = self.carried.outage
        self._bucket = TokenBucket(self.rules.rate, self.now)
        if self.carried.tokens_at is not None:
            self._bucket.restore(self.carried.tokens, self.carried.tokens_at, self.now)
        for item in self.carried.open_items:
            if self.window.hold(item.index):
                self._open(item)
        if self.asynchronous:
            self._hold_reopened()
        if self.carried.delays not in (None, self.rules.delays):
            self._shorten_waits(self.now)
        self._check_limits()
        self._conclude_if_done()

    def _hold_reopened(self) -> None:
        """Reserves the items whose failure stopped an earlier run.

        Like retries, these items must be opened in the table before their call.
        """
        listed = {item.index for item in self.carried.open_items}
        for index in self._reopened.keys() - listed:
            if self.window.hold(index):
                self._unopened[index] = (self.now, 1)

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

    def carry(self) -> Carried:
        """Returns the state for the next slice. That slice repeats all calls that are under way, as after a crash.

        Retries keep their attempt. First calls of items in the window are left out, because the next slice makes them
        anyway.
        """
        tokens, at = self._bucket.state
        waiting = [OpenItem(index, attempt, due) for due, index, attempt in self._retries]
        waiting += [OpenItem(index, attempt, due) for index, (due, attempt) in self._unopened.items()]
        waiting += [OpenItem(index, call.attempt, -at) for index, (call, _, at) in self._unanswered.items()]
        awaiting = [OpenItem(index, made, due, awaiting=True) for index, (made, due) in self._awaiting.items()]
        aside = self.window.aside - {item.index for item in (*waiting, *awaiting)} if self.window.aside else set()
        retried = {index for index, flight in self._in_flight.items() if flight.attempt > 1}
        repeated = [OpenItem(index, self._current_attempt(index), 0.0) for index in sorted(aside | retried)]
        return Carried(
            tokens, at, (*waiting, *awaiting, *repeated), dict(self._reopened), self.outage, self.rules.delays
        )

    def next(self, now: float) -> tuple[ItemCall, ...] | float | None:
        """Returns the items of the next call. If no call is due, returns the seconds to wait.

        None if there are no more calls.
        """
        if self.over:
            return None
        if self.rules.pause_windows and paused_until(self.rules.pause_windows, now) > now:
            return _IDLE
        if self.outage.since:
            return self._probe(now)
        if self._unanswered and not self._new_items_left:
            self._count_unanswered()
            return 0.0
        wanted = min(self.rules.items_per_call, self._room())
        due = self._callable_retries(now, wanted)
        if due < wanted:
            self._set_aside(wanted - due)
        ready = min(wanted, due + self.window.room(wanted))
        if ready < 1:
            return max(0.0, min(_IDLE, self._retries[0][0] - now)) if self._retries and wanted > 0 else _IDLE
        wait = self._bucket.take(now, ready)
        if wait:
            return wait
        calls = self._next_calls(now, ready, due)
        if len(calls) < ready:
            self._bucket.give_back(ready - len(calls))
        return calls or _IDLE

    def next_at(self, now: float) -> float:
        """Returns the time of the next call or deadline. If no answer arrives before, a runner may sleep until then."""
        if self.over:
            return now
        if self.window.exhausted:
            # More rows may be indexed at any time.
            return paused_until(self.rules.pause_windows, now)
        if self._undecided or self._early:
            return now
        moments = [self._deadlines[0][0]] if self._deadlines else []
        moments += [at for at, _ in self._unopened.values()]
        if self.outage.since:
            moments.append(self.outage.probe_at)
            return paused_until(self.rules.pause_windows, max(now, min(moments)))
        token_at = now + self._bucket.wait(now)
        self._set_aside(1)
        if self._room() > 0 and self.window.peek() is not None and self._open_items < MOST_OPEN:
            moments.append(token_at)
        elif self._room() > 0 and self._retries:
            moments.append(max(token_at, self._retries[0][0]))
        return paused_until(self.rules.pause_windows, max(now, min(moments, default=now)))

    def record(self, call: ItemCall, answer: ItemResult, now: float) -> None:
        """Counts the answer to a call. An answer with `down` counts later, once it is clear that the business is up."""
        flight = self._in_flight.pop(call.index, None)
        if not answer.down:
            self._business_answered(flight)
            self._count(call, answer, now)
            return
        probed, self._probing = self._probing == call.index, None if self._probing == call.index else self._probing
        self._unanswered[call.index] = (call, answer, now)
        outage = self.outage._replace(calls=self.outage.calls + (flight is not None and flight.is_new))
        asked = min(answer.retry_after or 0.0, _LONGEST_PAUSE)
        if outage.since and probed:
            every = min(_LONGEST_PROBE, 2 * outage.every)
            outage = outage._replace(probe_at=now + max(every, asked), every=every)
        elif not outage.since and outage.calls >= MOST_UNANSWERED * self.rules.items_per_call:
            outage = outage._replace(since=now, probe_at=now + max(_FIRST_PROBE, asked), every=_FIRST_PROBE)
        self.outage = outage
        if outage.since:
            self._call_unanswered_again(now)
        elif not self._new_items_left:
            self._count_unanswered()

    def _count(self, call: ItemCall, answer: ItemResult, now: float) -> None:
        if self.asynchronous:
            self._undecided[call.index] = (call.attempt, answer)
        else:
            self._apply_answer(call, answer, now)

    @property
    def _new_items_left(self) -> bool:
        self._set_aside(1)
        more = not self.complete or self.window.peek() is not None
        return (more and self._open_items < MOST_OPEN) or any(flight.is_new for flight in self._in_flight.values())

    def _business_answered(self, flight: _Flight | None) -> None:
        """Counts the calls that stayed unanswered before the call `flight` began.

        The answer to `flight` shows that the business is up.
        """
        if flight is None or (self.outage is NO_OUTAGE and not self._unanswered):
            return
        if flight.began >= self.outage.since:
            self._count_unanswered(flight.began)
            if not self._unanswered:
                self.outage, self._probing = NO_OUTAGE, None

    def _count_unanswered(self, until: float = math.inf) -> None:
        for call, answer, at in [entry for entry in self._unanswered.values() if entry[2] <= until]:
            del self._unanswered[call.index]
            self._count(call, answer, at)

    def _call_unanswered_again(self, now: float) -> None:
        for call, _, _ in self._unanswered.values():
            self._failed_calls += 1
            self._push_retry(now, call.index, call.attempt)
        self._unanswered.clear()

    def _probe(self, now: float) -> tuple[ItemCall, ...] | float:
        """Returns the next test call to a business that is down.

        If the call is not due yet, returns the seconds to wait.
        """
        if self._probing is not None or now < self.outage.probe_at or self._room() < 1:
            return max(0.0, min(_IDLE, self.outage.probe_at - now)) if self._probing is None else _IDLE
        self._set_aside(1)
        index = self.window.hand_out() if self._open_items < MOST_OPEN else None
        if index is None and (not self._retries or now > self.outage.since + _LONGEST_TAIL):
            # Only retries are left, so these items may be at fault: their attempts count again.
            self.outage = NO_OUTAGE
            return _IDLE
        call = ItemCall(index, 1) if index is not None else self._next_retry()
        self._in_flight[call.index] = _Flight(call.attempt, now, index is not None)
        self._probing = call.index
        self._bucket.owe(1)
        return (call,)

    def _next_retry(self) -> ItemCall:
        _, index, attempt = heapq.heappop(self._retries)
        del self._waiting[index]
        return ItemCall(index, attempt)

    def postpone(self, call: ItemCall, at: float) -> None:
        """Schedules a call that was not sent. The call is due at the time `at`, as the same attempt."""
        self._in_flight.pop(call.index, None)
        if self._probing == call.index:
            self._probing, self.outage = None, self.outage._replace(probe_at=at)
        self._push_retry(at, call.index, call.attempt)

    def await_result(self, call: ItemCall, until: float) -> None:
        """Notes that the business accepted the item and will send the result separately, by `until`."""
        self._business_answered(self._in_flight.pop(call.index, None))
        self._open(OpenItem(call.index, call.attempt, until, awaiting=True))

    def undecided(self, now: float) -> list[Decision]:
        """Returns the calls of an asynchronous batch that failed, timed out or were answered at once.

        The caller stores these decisions. If the table already has a result for a call, that result counts instead.
        """
        while self._deadlines and self._deadlines[0][0] <= now:
            at, index, attempt = heapq.heappop(self._deadlines)
            if self._awaiting.get(index) == (attempt, at):
                del self._awaiting[index]
                self._undecided[index] = (attempt, NO_RESULT)
        ended = self._undecided.items()
        return [Decision(index, self._number(index, attempt), attempt, answer) for index, (attempt, answer) in ended]

    def apply(self, decision: Decision, now: float) -> bool:
        """Counts the stored decision about a call, once. Returns whether the decision was new.

        The call may have been made by a runner that died before it saved its progress.
        """
        index, attempt = decision.index, decision.number - self._reopened.get(decision.index, 0)
        if index < 0 or self.window.is_done(index) or (self.complete and index >= self.total):
            return False
        if index in self._in_flight:
            return self._keep_early(decision, attempt)
        if attempt < self._current_attempt(index) or not self._holds(index):
            return False
        if decision.answer is not None:
            self._forget(index)
            self._apply_answer(ItemCall(index, attempt), decision.answer, now)
            return True
        if self._awaiting.get(index, (0, 0.0))[0] != attempt and index not in self._undecided:
            # It was opened for this attempt, and perhaps called, by a runner that died.
            at = self._unopened.get(index, (now, 0))[0]
            if self._waiting.get(index) != attempt:
                self._forget(index)
                self._push_retry(at, index, attempt)
        return False

    def apply_early(self, now: float) -> None:
        """Counts the results that came before the answer to their call, if the call has been answered since."""
        for index in [index for index in self._early if index not in self._in_flight]:
            self.apply(self._early.pop(index), now)

    def to_open(self, until: float) -> list[Decision]:
        """Returns the retries that are due by `until` and not open yet.

        They must be opened for results before their call.
        """
        due = [(index, attempt) for index, (at, attempt) in self._unopened.items() if at <= until]
        return [Decision(index, self._number(index, attempt), attempt) for index, attempt in due]

    def to_open_again(self, seen: Container[int]) -> list[Decision]:
        """Returns the retries that wait for a result and have no record in the table. An older version called them.

        `seen`: the positions of the items that have a record.
        """
        unseen = [(index, attempt) for index, (attempt, _) in self._awaiting.items() if index not in seen]
        numbered = [Decision(index, self._number(index, attempt), attempt) for index, attempt in unseen]
        return [decision for decision in numbered if decision.number > 1]

    def reach_within(self, seconds: float) -> int:
        """Returns the index that calls may reach in the next `seconds`, at the rate.

        Only items below it may be called.
        """
        return self.window.called + max(1, self.rules.items_per_call, math.ceil(self.rules.rate * seconds))

    def left_open(self) -> list[Decision]:
        """Returns the items that a finished batch leaves undone and that could still get a result.

        The caller stores these decisions, so that the table refuses such results.
        """
        if self.verdict is None or self.verdict.status != FINISHED:
            return []
        reached = max([self.window.reach or 0, self.window.called, *(index + 1 for index in self._awaiting)])
        reached = min(reached, self.total) if self.complete else reached
        ended = ItemResult("error", "the batch has finished without this item")
        undone = [index for index in range(self.window.offset, reached) if not self.window.is_done(index)]
        return [Decision(index, self._number(index, 1), 0, ended) for index in [*sorted(self.window.aside), *undone]]

    def aside_with_results(self, soon: float) -> list[int]:
        """Returns the items aside, in order, for which the table may have a result.

        Leaves out items whose last call is decided and whose next call is later than `soon`.
        """
        return sorted(index for index in self.window.aside if self._unopened.get(index, (soon, 0))[0] <= soon)

    def _keep_early(self, decision: Decision, attempt: int) -> bool:
        if (
            decision.answer is None
            or attempt < self._in_flight[decision.index].attempt
            or decision.index in self._early
        ):
            return False
        self._early[decision.index] = decision
        return True

    def _number(self, index: int, attempt: int) -> int:
        return self._reopened.get(index, 0) + attempt

    def _current_attempt(self, index: int) -> int:
        """Returns the attempt whose call, result or decision an item waits for; 1 if the item was never called."""
        if index in self._unopened:
            return self._unopened[index][1]
        if index in self._unanswered:
            return self._unanswered[index][0].attempt
        found = self._awaiting.get(index) or self._undecided.get(index)
        if found:
            return found[0]
        return self._in_flight[index].attempt if index in self._in_flight else self._waiting.get(index, 1)

    def _holds(self, index: int) -> bool:
        known = (self._unopened, self._awaiting, self._undecided, self._waiting, self._unanswered)
        return any(index in items for items in known) or self.window.hold(index)

    def _forget(self, index: int) -> None:
        self._unopened.pop(index, None)
        self._awaiting.pop(index, None)
        self._undecided.pop(index, None)
        self._unanswered.pop(index, None)
        if self._waiting.pop(index, None) is not None:
            self._retries = [entry for entry in self._retries if entry[1] != index]
            heapq.heapify(self._retries)

    def _retry(self, at: float, index: int, attempt: int) -> None:
        if self.asynchronous and self._number(index, attempt) > 1:
            self._unopened[index] = (at, attempt)
        else:
            self._push_retry(at, index, attempt)

    def _push_retry(self, at: float, index: int, attempt: int) -> None:
        self._waiting[index] = attempt
        heapq.heappush(self._retries, (at, index, attempt))

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
        rate_changed, delays_changed = rules.rate != self.rules.rate, rules.delays != self.rules.delays
        self.rules = rules
        if delays_changed:
            self._shorten_waits(now)
        if rate_changed:
            self._bucket.change_rate(rules.rate, now)
            self.window.resize(self.rules.window_size)
        self._check_limits()

    def _shorten_waits(self, now: float) -> None:
        """Shortens the waits of all items to the new delay, because a person has changed the delay.

        This also shortens waits for a Retry-After.
        """

        def due(at: float, index: int, attempt: int) -> float:
            return min(at, now + self.rules.delay(index, max(1, attempt - 1)))

        self._retries = [(due(*entry), *entry[1:]) for entry in self._retries]
        heapq.heapify(self._retries)
        self._unopened = {index: (due(at, index, attempt), attempt) for index, (at, attempt) in self._unopened.items()}

    def extend(self, total: int, *, complete: bool, batch_total: int) -> None:
        """Adds items that were found, or ends the search for more."""
        self.total, self.complete, self.batch_total = total, complete, batch_total
        self.window.extend(total, complete=complete)
        self._check_limits()
        self._conclude_if_done()

    def _room(self) -> int:
        most = MOST_OPEN if self.rules.most_open is None else self.rules.most_open
        return most - len(self._in_flight) - len(self._awaiting) - len(self._undecided)

    @property
    def _open_items(self) -> int:
        called = len(self._in_flight) + len(self._awaiting) + len(self._undecided) + len(self._unanswered)
        return called + len(self._retries) + len(self._unopened)

    def _set_aside(self, wanted: int) -> None:
        """Makes room for the next `wanted` items, by setting aside the first items of the window that are not done."""
        while self._open_items < MOST_OPEN and self.window.lacks_room(wanted):
            self.window.set_first_aside()

    def _due(self, now: float, most: int) -> int:
        """Returns the number of retries that are due. If `most` is 1, returns only 0 or 1."""
        if not self._retries or self._retries[0][0] > now:
            return 0
        return 1 if most == 1 else sum(1 for entry in self._retries if entry[0] <= now)

    def _callable_retries(self, now: float, most: int) -> int:
        """Returns how many retries may be called now, before any new items.

        While there are new items, retries may be at most half of the parallel calls, because items that hang would soon
        occupy all calls.
        """
        due = self._due(now, most)
        if not due or self.rules.most_calls is None:
            return due
        self._set_aside(1)
        if self._open_items >= MOST_OPEN or not self.window.room(1):
            return due
        under_way = sum(1 for flight in self._in_flight.values() if not flight.is_new)
        return max(0, min(due, max(1, self.rules.most_calls // 2) * self.rules.items_per_call - under_way))

    def _next_calls(self, now: float, ready: int, due: int) -> tuple[ItemCall, ...]:
        calls: list[ItemCall] = []
        # Retries are open already.
        most_new = MOST_OPEN - self._open_items
        while len(calls) < min(ready, due) and self._retries and self._retries[0][0] <= now:
            call = self._next_retry()
            self._in_flight[call.index] = _Flight(call.attempt, now, is_new=False)
            calls.append(call)
        new = _Flight(1, now, is_new=True)
        for _ in range(min(ready - len(calls), most_new)):
            index = self.window.hand_out()
            if index is None:
                break
            self._in_flight[index] = new
            calls.append(ItemCall(index, 1))
        return tuple(calls)

    def _open(self, item: OpenItem) -> None:
        if item.at < 0:
            call, answer = ItemCall(item.index, item.attempt), ItemResult("error", "it did not answer", down=True)
            self._unanswered[item.index] = (call, answer, -item.at)
        elif item.awaiting:
            self._awaiting[item.index] = (item.attempt, item.at)
            heapq.heappush(self._deadlines, (item.at, item.index, item.attempt))
        else:
            self._retry(item.at, item.index, item.attempt)

    def _apply_answer(self, call: ItemCall, answer: ItemResult, now: float) -> None:
        if answer.result == "error":
            self._retry_or_fail(call, answer, now)
        else:
            self.window.acknowledge(call.index)
            if answer.result == "abandon":
                self._abandoned += 1
                self._unsuccessful(call, ABANDONED, answer, now)
            elif call.attempt > 1 or call.index in self._reopened:
                self._add_outcome(call, RECOVERED, answer, now)
            elif self.reports:
                self._add_outcome(call, SUCCEEDED, answer, now)
        if answer.stop == "finish":
            self.verdict = Verdict(FINISHED)
        elif answer.stop == "stop":
            because = f": {answer.detail}" if answer.detail else ""
            self.halt(f"the business stopped the batch at item {self.index_of(call.index)}{because}")
        self._conclude_if_done()

    def _retry_or_fail(self, call: ItemCall, answer: ItemResult, now: float) -> None:
        self._failed_calls += 1
        if call.attempt < self.rules.retries:
            delay = max(self.rules.delay(self.index_of(call.index), call.attempt), answer.retry_after or 0)
            self._retry(now + delay, call.index, call.attempt + 1)
        elif self.rules.skip_failed:
            self.window.acknowledge(call.index)
            self._failed += 1
            self._unsuccessful(call, FAILED, answer, now)
        else:
            calls = self._number(call.index, call.attempt)
            self._add_outcome(call, FAILED, answer, now, done=False)
            # If the batch is started again, the item is called again, from its first attempt.
            self._reopened[call.index] = calls
            because = f": {answer.detail}" if answer.detail else ""
            name = self.index_of(call.index)
            self.halt(f"item {name} failed {call.attempt} times{because}; {SKIP_ADVICE}", failed=True)

    def _add_outcome(self, call: ItemCall, state: str, answer: ItemResult, now: float, *, done: bool = True) -> None:
        self._reopened.pop(call.index, None)
        self.outcomes.append(ItemOutcome(call.index, state, call.attempt, answer, now, done))

    def _unsuccessful(self, call: ItemCall, state: str, answer: ItemResult, now: float) -> None:
        self._add_outcome(call, state, answer, now)
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
