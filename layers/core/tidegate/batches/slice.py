"""One slice of a batch: the lease, the calls at the rate, the save every second, the hand-over."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from aws_lambda_powertools import Logger

from tidegate.aws.table import Table
from tidegate.batches.batches import ItemResults, shown
from tidegate.batches.items import Items, Outcomes
from tidegate.batches.model import (
    ASYNC,
    FINISHED,
    STOPPING,
    Batch,
    Decision,
    Extent,
    LogLine,
    Outcome,
    Progress,
    Rules,
    RunnerRecord,
    Verdict,
    combined,
    common_verdict,
    ends_others,
)
from tidegate.batches.run_state import NO_RESULT, BatchRunStore, RateShares, RunState
from tidegate.batches.store import BatchStore
from tidegate.batches.workers import ItemCaller, LogWriter, ParsedAnswer, WorkerPool
from tidegate.common.ids import Clock
from tidegate.errors import DomainError, LeaseLost
from tidegate.notifications.notices import Notice, Notifier, notice_id_for, notice_write
from tidegate.projects.limits import CALLS, RUNNER_SECONDS, DayBudget, until_next_day

# --- milestones
# Sends a webhook each time a batch has completed another n items, or another n percent.


class Milestones:
    def __init__(self, table: Table, notifier: Notifier, clock: Clock) -> None:
        self._table = table
        self._notifier = notifier
        self._clock = clock

    def notify(self, batch: Batch, progress: Progress, last: int) -> int:
        """Sends a notice if a milestone after `last` was passed. Returns the last milestone, to be saved afterwards.

        A crash before that save sends the notice twice, with the same id. If several milestones were passed at once,
        only the last one is sent. The end of the batch has a notice of its own.
        """
        reached = batch.milestone(progress.position)
        over = batch.total is not None and progress.position >= batch.total
        if reached <= last or batch.progress_url is None or over:
            return max(last, reached)
        now = self._clock()
        notice = Notice(
            notice_id=notice_id_for("batch.progress", batch.batch_id, str(reached)),
            project_id=batch.project_id,
            kind="batch.progress",
            record_id=batch.batch_id,
            status=batch.status,
            data=shown(batch, progress),
            callback=batch.progress_url,
            created_at=now,
        )
        self._table.write(notice_write(notice))
        self._notifier.publish([notice])
        return reached


# --- tick
# What a runner does once a second: save its progress, renew its lease and apply changes made by others.

FLUSH_SECONDS = 1.0
_DOWN = ("warning", "the business does not answer: one call at a time tests it, and no item loses an attempt")
_UP = ("info", "the business answers again")
# The holder treats its lease as expired this much earlier than others do, because clocks differ.
_CLOCK_MARGIN = 1.0
_SMOOTHING = 0.2
# Asynchronous results are read again for this long, because they are stamped by the clocks of other machines.
_OVERLAP_SECONDS = 2.0
# How far ahead items are announced and retries are opened: until after the next tick.
_AHEAD_SECONDS = 3.0
# Items aside whose results are read at one tick.
_MOST_ASIDES_READ = 500


class Preparation(Protocol):
    """Looks up what a run needs besides the batch itself."""

    def work(self, batch: Batch) -> ItemCaller: ...

    def items(self, batch: Batch, runner: int) -> Items: ...

    def extent(self, batch: Batch, at: int, *, wait: bool = False) -> Extent:
        """Returns how many items are known to a runner that has reached index `at`; with `wait`, only once that index
        is known itself."""


class RequestHandle(Protocol):
    """The queued request of this run: it allows the run and ends together with the batch."""

    def confirm(self, batch: Batch, progress: Progress, *, publish: bool) -> None:
        """Checks, once a second, that the request still runs. LeaseLost if it was cancelled, paused or retried.

        With `publish`, the progress is also sent to clients that watch the batch.
        """

    def end(self, batch: Batch, fences: Sequence[int], verdict: Verdict) -> None:
        """Ends the batch and its request in one transaction, if the fencing tokens of all runners are still valid."""


@dataclass(slots=True)
class Run:
    """What the main thread of a slice keeps between two ticks."""

    batch: Batch
    runner: int
    request: RequestHandle
    fence: int
    pool: WorkerPool
    work: ItemCaller
    now: Callable[[], float]
    flushed_at: float
    position: int
    lease_end: float
    # Parts of outcomes that this runner has written.
    parts: int
    # Items per second that this runner may call, and its average over about the last ten seconds.
    rate: float
    pace: float
    # The last milestone for which the progress webhook was sent.
    last_milestone: int
    # All runners of the batch as they were last read; empty if there is only one.
    records: list[RunnerRecord]
    # Whether all items are known.
    complete: bool
    # Outcomes that are not in a part yet.
    outcomes: list[Outcome] = field(default_factory=list)
    # The request was cancelled, paused or retried: this run must not end the batch.
    request_lost: bool = False
    wake_at: float | None = None
    # Epoch seconds: when results were last read. None: read all of them.
    results_read_at: float | None = None
    # Of the items aside, some are read at each tick: the next ones are after this one.
    aside_read: int = -1
    # The items that a finished batch leaves open take no results any more.
    closed: bool = False
    # Whether the log says that the business is down.
    business_is_down: bool = False

    def batch_progress(self, own: Progress) -> Progress:
        """Returns the progress of the whole batch, with `own` for this runner."""
        stored = [record.progress for record in self.records] or [own]
        return combined(self.batch, [own if runner == self.runner else one for runner, one in enumerate(stored)])

    @property
    def is_reporter(self) -> bool:
        """Whether this is the first runner that still works. It publishes progress for all of them."""
        return all(record.progress.verdict for record in self.records[: self.runner])


class Ticker:
    def __init__(
        self,
        batches: BatchStore,
        runs: BatchRunStore,
        prepare: Preparation,
        outcomes: Outcomes,
        results: ItemResults,
        shares: RateShares,
        milestones: Milestones,
        clock: Clock,
        lease_seconds: float,
    ) -> None:
        self._batches = batches
        self._runs = runs
        self._prepare = prepare
        self._outcomes = outcomes
        self._results = results
        self._shares = shares
        self._milestones = milestones
        self._clock = clock
        self._lease_seconds = lease_seconds

    def tick(self, run: Run) -> None:
        batch = run.batch
        self.settle(run)
        moment = time.monotonic()
        renew = moment > run.lease_end - self._lease_seconds * 2 / 3
        progress = self.save(run, self._clock().timestamp() + self._lease_seconds if renew else None)
        if renew:
            run.lease_end = self.lease_end(moment)
        run.records = self.runner_records(batch)
        try:
            run.request.confirm(batch, run.batch_progress(progress), publish=run.is_reporter)
        except LeaseLost:
            # No other runner works yet: calls under way may end, and the progress is saved.
            run.request_lost = True
            run.pool.change(pause)
            return
        present = self._batches.get(batch.project_id, batch.batch_id) or batch
        if (present.data_version, present.serial) != (batch.data_version, batch.serial):
            run.work.items = self._prepare.items(present, run.runner)
        run.batch = run.work.batch = present
        self._extend(run)
        run.pool.resize(present.workers(working(run.records, run.runner)))
        rules = self.rules(present, run.runner, run.records, run.work)
        run.rate = rules.rate
        run.pool.change(lambda state, now: apply_controls(state, run.batch, run.runner, run.records, rules, now))

    def _extend(self, run: Run) -> None:
        """Adds the rows of a file that were indexed since the last tick."""
        if run.complete:
            return
        share = run.batch.share(run.runner)
        try:
            extent = self._prepare.extent(run.batch, share.index(run.position))
        except DomainError as error:
            why = error.detail
            run.pool.change(lambda state, _: state.halt(f"its rows cannot be read: {why}", failed=True))
            return
        run.batch, run.complete = self.store_total(run.batch, extent), extent.complete
        own = share.below(extent.items)
        run.pool.change(lambda state, _: state.extend(own, complete=extent.complete, batch_total=extent.items))

    def store_total(self, batch: Batch, extent: Extent) -> Batch:
        """Stores the total once it is known, before any runner can end because of it: the other runners read it
        before they adopt a verdict."""
        if extent.complete and batch.total != extent.items:
            self._runs.set_total(batch, extent.items)
            return replace(batch, total=extent.items)
        return batch

    def runner_records(self, batch: Batch) -> list[RunnerRecord]:
        """Returns the records of all runners, this one included; empty, without a read, if there is only one."""
        return self._runs.runners(batch) if batch.runners > 1 else []

    def lease_end(self, acquired_at: float) -> float:
        return acquired_at + self._lease_seconds - _CLOCK_MARGIN

    def rules(self, batch: Batch, runner: int, records: Sequence[RunnerRecord], work: ItemCaller) -> Rules:
        """Returns the batch's rules with this runner's part of the rate; runners that have ended leave theirs."""
        rules, parts = batch.rules, working(records, runner)
        most_open = None if rules.most_open is None else max(1, rules.most_open // parts)
        rules = replace(rules, rate=rules.rate / parts, most_open=most_open)
        if not work.shared_rate:
            return rules
        now = self._clock().timestamp()
        return replace(rules, rate=self._shares.share(batch, runner, rules.rate, work.shared_rate, now))

    def release_rate(self, run: Run) -> None:
        if run.work.shared_rate:
            self._shares.release(run.batch, run.runner)

    def settle(self, run: Run, *, last: bool = False) -> None:
        """Counts the asynchronous results that are stored, decides the calls without one, and prepares the next calls,
        unless this is the `last` time. Must precede each save: a verdict is saved when no result can contradict it."""
        if run.batch.ack != ASYNC:
            return
        everything = run.results_read_at is None
        seen = self._count_stored(run)
        pending = run.pool.change(lambda state, now: state.undecided(now))
        self._decide(run, pending)
        left = run.pool.change(lambda state, _: state.left_open())
        if left and not run.closed:
            self._decide(run, left)
            run.closed = True
        if last or left:
            return
        soon = run.now() + _AHEAD_SECONDS
        calls = run.pool.change(lambda state, _: state.to_open(soon))
        if everything:
            calls += run.pool.change(lambda state, _: state.to_open_again(seen))
        now = self._clock().timestamp()
        opened = self._results.open(run.batch, run.runner, run.fence, calls, run.work.items, now) if calls else []
        run.pool.change(lambda state, now: [state.apply(one, now) for one in opened])
        self._extend_reach(run)

    def _count_stored(self, run: Run) -> set[int]:
        """Returns the positions of the items about which something is stored, of those that it read."""
        first = run.pool.change(lambda state, _: min(state.window.offset, state.total - 1))
        if first < 0:
            return set()
        began, items = self._clock().timestamp(), run.work.items
        since = None if run.results_read_at is None else run.results_read_at - _OVERLAP_SECONDS
        found = list(self._results.read(run.batch, items, items.index(first), since))
        found += self._results.read_some(run.batch, items, self._asides_to_read(run))
        self._count(run, found)
        run.results_read_at = began
        return {decision.index for decision, _ in found}

    def _asides_to_read(self, run: Run) -> list[int]:
        """Returns all items aside at first, then some at a time, in turn: they may be far behind the window."""
        asides = run.pool.change(lambda state, now: state.aside_with_results(now + _AHEAD_SECONDS))
        if run.results_read_at is None or len(asides) <= _MOST_ASIDES_READ:
            return asides
        at = bisect_right(asides, run.aside_read)
        chosen = (asides[at:] + asides[:at])[:_MOST_ASIDES_READ]
        run.aside_read = chosen[-1]
        return chosen

    def _decide(self, run: Run, pending: Sequence[Decision]) -> None:
        if not pending:
            return
        # From memory, if this runner decided it before: the table does not hold Retry-After.
        now, own = self._clock().timestamp(), {(one.index, one.number): one for one in pending if one.attempt}
        counted = self._results.decide(run.batch, run.runner, run.fence, pending, run.work.items, now)
        self._count(run, [(own.get((one.index, one.number), one) if by is None else one, by) for one, by in counted])
        for one, by in counted:
            if by is None and one.answer == NO_RESULT:
                run.work.log_answer(run.work.items.index(one.index), one.attempt, ParsedAnswer(NO_RESULT))

    def _count(self, run: Run, found: Sequence[tuple[Decision, ParsedAnswer | None]]) -> None:
        def apply(state: RunState, now: float) -> list[bool]:
            new = [state.apply(decision, now) for decision, _ in found]
            state.apply_early(now)
            return new

        for (decision, parsed), new in zip(found, run.pool.change(apply), strict=True):
            if new and parsed:
                run.work.log_answer(run.work.items.index(decision.index), None, parsed)

    def _extend_reach(self, run: Run) -> None:
        reach, known = run.pool.change(lambda state, _: (state.extend_reach(_AHEAD_SECONDS), state.window.reach or 0))
        if reach > known:
            self._results.reach(run.batch, run.runner, reach)
            run.pool.change(lambda state, _: setattr(state.window, "reach", reach))

    def save(self, run: Run, lease_until: float | None, *, forget_verdict: bool = False) -> Progress:
        """Saves the progress; the outcomes first, to S3, because an item that counts as done is not called again."""
        moment = time.monotonic()
        progress, fresh = run.pool.snapshot()
        run.outcomes += fresh
        if run.outcomes:
            self._outcomes.write_part(run.batch, run.runner, run.parts + 1, run.fence, run.outcomes, run.work.items)
            # Also if the save below fails: it may have been carried out, and then this part counts and must not change.
            run.parts, run.outcomes = run.parts + 1, []
        elapsed = max(moment - run.flushed_at, 0.001)
        run.pace += _SMOOTHING * ((progress.position - run.position) / elapsed - run.pace)
        progress = replace(
            progress,
            eta=_eta(run, progress),
            rate_now=round((progress.position - run.position) / elapsed, 1),
            verdict=None if forget_verdict and not _finished(progress.verdict) else progress.verdict,
            outcome_parts=run.parts,
            wake_at=run.wake_at,
        )
        if run.is_reporter:
            whole = run.batch_progress(progress)
            last = max(run.last_milestone, whole.last_milestone)
            run.last_milestone = self._milestones.notify(run.batch, whole, last)
        progress = replace(progress, last_milestone=run.last_milestone)
        self._runs.save(run.batch, run.fence, progress, lease_until, run.runner)
        run.flushed_at, run.position = moment, progress.position
        if progress.business_is_down != run.business_is_down:
            run.business_is_down = progress.business_is_down
            run.work.log.add(None, [_DOWN if run.business_is_down else _UP])
        return progress


def working(records: Sequence[RunnerRecord], runner: int) -> int:
    """Returns how many runners share the rate. `runner` itself counts, even if it has just stored its verdict: it must
    not announce the share of the others as its own."""
    others = (record.progress for number, record in enumerate(records) if number != runner)
    return 1 + sum(1 for progress in others if progress.verdict is None)


def apply_controls(
    state: RunState, present: Batch, runner: int, records: Sequence[RunnerRecord], rules: Rules, now: float
) -> None:
    """Applies changed rules, the errors and verdicts of the other runners, and a requested stop."""
    state.change_rules(rules, now)
    others = [(number, record.progress) for number, record in enumerate(records) if number != runner]
    verdicts = (ends_others(present, number, progress) for number, progress in others)
    state.merge_other_runners(
        sum(progress.errors for _, progress in others), next((verdict for verdict in verdicts if verdict), None)
    )
    if present.status == STOPPING:
        state.halt(present.stop_reason or "stopped on request")


def pause(state: RunState, _: float) -> None:
    state.paused = True


def _eta(run: Run, progress: Progress) -> float | None:
    """Returns when the last item will be called: the last new one at the measured pace, or at the rate if that is too
    low to measure a pace within a tick; but not before the retries that are due later."""
    left = run.batch.share(run.runner).below(run.batch.total or 0) - progress.position
    pace = min(run.rate, run.pace) if run.rate * FLUSH_SECONDS > 1 else run.rate
    if left <= 0 or pace <= 0 or progress.business_is_down:
        return None
    open_items = progress.carried.open_items
    new = max(0, left - len(open_items))
    return max([run.now() + new / pace, *(item.at for item in open_items)])


def _finished(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.status == FINISHED


# --- slice
# One slice of a batch: acquire the lease, call items at the rate, save the progress every second, hand over.

logger = Logger(service="tidegate", child=True)

CONTINUE, BUSY, SLEEP, ENDED = "continue", "busy", "sleep", "ended"
# A function may run 900 s; this leaves time to receive the last answers and to save them.
_LONGEST_SLICE = 840.0
# A shorter wait is spent inside the function: starting another one takes a second or two.
_WORTH_SLEEPING = 10.0
# A sleeping batch notices a changed rate or limit, or an asynchronous result, after this long at most.
_LONGEST_SLEEP = 60
_LONGEST_SLEEP_FOR_RESULTS = 15
# A batch that waits for the next day's quotas looks again this often: an operator may have raised them.
_LONGEST_QUOTA_SLEEP = 900
# Calls are reserved for this many seconds, and at most so many at once.
_CALLS_AHEAD_SECONDS, _MOST_CALLS_AHEAD = 30.0, 20_000
# Why a batch waits that has used up its project's runner-hours or calls of the day.
QUOTA = "quota"
_LOG_SECONDS = 20.0
_LOG_SECONDS_BEFORE_THE_END = 1.0
# Outcomes are merged in memory, about a kilobyte each.
_MOST_MERGED = 500_000


@dataclass(frozen=True, slots=True)
class SliceTiming:
    slice_seconds: float = 600.0
    lease_seconds: float = 15.0


class SliceEnd(NamedTuple):
    outcome: str
    # With `sleep`: how long there is nothing to do.
    seconds: int = 0
    # Why it sleeps, if it could work otherwise.
    reason: str | None = None


class SliceRunner:
    def __init__(
        self,
        batches: BatchStore,
        runs: BatchRunStore,
        prepare: Preparation,
        outcomes: Outcomes,
        results: ItemResults,
        shares: RateShares,
        milestones: Milestones,
        clock: Clock,
        timing: SliceTiming | None = None,
        budget: Callable[[str], DayBudget] | None = None,
    ) -> None:
        """`budget`: what a project may use on this day; without it there is no limit."""
        self._batches = batches
        self._runs = runs
        self._prepare = prepare
        self._outcomes = outcomes
        self._clock = clock
        self._timing = timing or SliceTiming()
        self._budget = budget
        self._ticker = Ticker(
            batches, runs, prepare, outcomes, results, shares, milestones, clock, self._timing.lease_seconds
        )

    def run(self, batch: Batch, request: RequestHandle, runner: int = 0) -> SliceEnd:
        """Returns `continue` when the slice's time is up, `sleep` when the next call is not due soon, `busy` while
        another function holds this runner's lease, `ended` when the runner is done."""
        began = time.monotonic()
        acquired = self._runs.acquire(batch, self._clock().timestamp(), self._timing.lease_seconds, runner)
        if acquired is None:
            return SliceEnd(BUSY)
        fence, progress = acquired
        try:
            if progress.verdict:
                self._end(batch, request, runner, fence, progress)
                return SliceEnd(ENDED)
            if batch.runners > 1 and not self._may_begin(batch, request, runner, fence, progress):
                return SliceEnd(ENDED)
            budget = self._budget(batch.project_id) if self._budget else None
            if budget is None:
                return self._run_items(batch, request, runner, fence, progress, began)
            return self._run_within(budget, batch, request, runner, fence, progress, began)
        except LeaseLost:
            return SliceEnd(BUSY)

    def _run_within(
        self,
        budget: DayBudget,
        batch: Batch,
        request: RequestHandle,
        runner: int,
        fence: int,
        progress: Progress,
        began: float,
    ) -> SliceEnd:
        """Runs the slice with a part of the project's runner-hours and calls of the day; sleeps if they are used up."""
        seconds = math.ceil(self._slice_seconds(batch))
        # With one call left the slice still runs: until its first tick it makes calls of one second at most.
        if not any(budget.reserve(**{RUNNER_SECONDS: seconds, CALLS: calls}) for calls in (_calls_ahead(batch), 1)):
            return self._wait_for_quota(batch, runner, fence, progress)
        made = [0]
        try:
            return self._run_items(batch, request, runner, fence, progress, began, budget, made)
        finally:
            budget.settle(**{RUNNER_SECONDS: math.ceil(time.monotonic() - began), CALLS: made[0]})

    def _wait_for_quota(self, batch: Batch, runner: int, fence: int, progress: Progress) -> SliceEnd:
        now = self._clock()
        seconds = min(_LONGEST_QUOTA_SLEEP, math.ceil(until_next_day(now)) + 1)
        self._runs.save(batch, fence, replace(progress, wake_at=now.timestamp() + seconds), 0, runner)
        return SliceEnd(SLEEP, seconds, QUOTA)

    def _may_begin(self, batch: Batch, request: RequestHandle, runner: int, fence: int, progress: Progress) -> bool:
        """Returns False if the other runners ended the batch just before this one acquired its lease."""
        try:
            request.confirm(batch, progress, publish=False)
        except LeaseLost:
            self._runs.save(batch, fence, progress, 0, runner)
            return False
        return True

    def _run_items(
        self,
        batch: Batch,
        request: RequestHandle,
        runner: int,
        fence: int,
        progress: Progress,
        began: float,
        budget: DayBudget | None = None,
        made: list[int] | None = None,
    ) -> SliceEnd:
        """`made[0]` is set to the number of calls, also if this raises."""
        work = self._prepare.work(batch)
        share = batch.share(runner)
        # Items to retry may be further on than the rows that this process has indexed.
        furthest = max([progress.window.offset, *(item.index for item in progress.carried.open_items)])
        extent = self._prepare.extent(batch, share.index(furthest), wait=True)
        batch = self._ticker.store_total(batch, extent)
        work.items = self._prepare.items(batch, runner)
        now = _steady(self._clock)
        records = self._ticker.runner_records(batch)
        rules = self._ticker.rules(batch, runner, records, work)
        state = RunState(
            share.below(extent.items),
            rules,
            progress.window,
            now(),
            progress.counts,
            progress.carried,
            index_of=work.items.index,
            asynchronous=batch.ack == ASYNC,
            complete=extent.complete,
            batch_total=extent.items,
        )
        apply_controls(state, batch, runner, records, rules, now())
        workers = batch.workers(working(records, runner))
        run = Run(
            batch=batch,
            runner=runner,
            request=request,
            fence=fence,
            pool=WorkerPool(state, work, workers, lambda: time.monotonic() < run.lease_end, now),
            work=work,
            now=now,
            flushed_at=time.monotonic(),
            position=progress.position,
            lease_end=self._ticker.lease_end(began),
            parts=progress.outcome_parts,
            rate=rules.rate,
            pace=progress.rate_now or rules.rate,
            last_milestone=progress.last_milestone,
            records=records,
            complete=extent.complete,
            business_is_down=progress.business_is_down,
        )
        log = LogWriter(work.log, lambda lines: self._write_log(batch, lines))
        log.start()
        try:
            self._tick_until_done(run, began, budget)
            if run.pool.verdict is not None:
                # Write the last log lines before the batch shows as ended, unless that takes too long.
                log.close(_LOG_SECONDS_BEFORE_THE_END)
            return self._hand_over(run)
        finally:
            if made is not None:
                made[0] = work.calls
            log.close(_LOG_SECONDS)

    def _tick_until_done(self, run: Run, began: float, budget: DayBudget | None) -> None:
        pool = run.pool
        # Before the first call: results may have come while no runner worked.
        self._ticker.settle(run)
        pool.start()
        try:
            while not pool.done.wait(max(0.0, run.flushed_at + FLUSH_SECONDS - time.monotonic())):
                self._try_tick(run)
                out_of_calls = budget is not None and not _has_calls_left(run, budget)
                over = time.monotonic() >= began + self._slice_seconds(run.batch)
                if over or out_of_calls or self._sleep_is_worthwhile(run):
                    pool.change(pause)
        except BaseException:
            pool.change(pause)
            raise
        pool.join()
        self._ticker.settle(run, last=True)

    def _sleep_is_worthwhile(self, run: Run) -> bool:
        """Returns True, and stores when to wake up, if the next call is due much later."""
        idle_until = run.pool.idle_until()
        long_wait = idle_until is not None and idle_until > run.now() + _WORTH_SLEEPING
        run.wake_at = idle_until if long_wait else None
        return long_wait

    def _try_tick(self, run: Run) -> None:
        try:
            self._ticker.tick(run)
        except LeaseLost:
            raise
        except Exception:
            # Ignored while the lease is valid; when it expires, the workers stop by themselves.
            logger.exception("a tick failed", batch_id=run.batch.batch_id)
            run.flushed_at = time.monotonic()

    def _hand_over(self, run: Run) -> SliceEnd:
        ended = run.pool.verdict is not None and not run.request_lost
        run.wake_at = None if ended or run.request_lost else run.wake_at
        # A run whose request was lost was ended by somebody else. Its verdict must not end a later run.
        progress = self._ticker.save(run, None if ended else 0, forget_verdict=run.request_lost)
        if progress.verdict and ended:
            self._end(run.batch, run.request, run.runner, run.fence, progress)
        self._ticker.release_rate(run)
        if ended or run.request_lost:
            return SliceEnd(ENDED)
        if run.wake_at is None:
            return SliceEnd(CONTINUE)
        longest = _LONGEST_SLEEP_FOR_RESULTS if run.batch.ack == ASYNC else _LONGEST_SLEEP
        # A second early: the next function waits for the exact time.
        return SliceEnd(SLEEP, max(1, min(longest, math.floor(run.wake_at - run.now()) - 1)))

    def _end(self, batch: Batch, request: RequestHandle, runner: int, fence: int, progress: Progress) -> None:
        """Ends the batch if all other runners have ended.

        The caller has saved this runner's verdict: of two runners that end at the same time, at least one sees both.
        """
        records = self._runs.runners(batch)
        all_progress = [record.progress for record in records]
        verdict = common_verdict(all_progress)
        if verdict is None:
            self._runs.save(batch, fence, progress, 0, runner)
            return
        self._merge_outcomes(batch, all_progress)
        fences = [fence if number == runner else record.fence for number, record in enumerate(records)]
        request.end(batch, fences, verdict)

    def _merge_outcomes(self, batch: Batch, runners: Sequence[Progress]) -> None:
        """Prepares the file of outcomes. A failure does not keep the batch from ending: a download merges them too."""
        parts = [progress.outcome_parts for progress in runners]
        if not any(parts) or sum(progress.errors for progress in runners) > _MOST_MERGED:
            return
        try:
            self._outcomes.merge(batch, parts)
        except Exception:
            logger.exception("the outcomes were not merged", batch_id=batch.batch_id)

    def _write_log(self, batch: Batch, lines: Sequence[LogLine]) -> None:
        self._batches.add_logs(batch.project_id, batch.batch_id, lines, self._clock().timestamp())

    def _slice_seconds(self, batch: Batch) -> float:
        return seconds_to_call(self._timing.slice_seconds, 0 if batch.ack == ASYNC else batch.item_timeout)


def seconds_to_call(slice_seconds: float, answer_seconds: float) -> float:
    """Returns how long a slice may begin calls, so that the last answer still comes within the function's time. While
    it waits for the last answers it calls nothing: longer slices lose less to an item that hangs."""
    return min(slice_seconds, _LONGEST_SLICE - answer_seconds)


def _calls_ahead(batch: Batch) -> int:
    wanted = batch.rate / batch.items_per_call / batch.runners * _CALLS_AHEAD_SECONDS
    return max(1, min(math.ceil(wanted), _MOST_CALLS_AHEAD))


def _has_calls_left(run: Run, budget: DayBudget) -> bool:
    """Reserves more calls when half of those ahead are made. False if all are made and the quota is used up."""
    ahead, left = _calls_ahead(run.batch), budget.reserved[CALLS] - run.work.calls
    return left > ahead / 2 or budget.reserve(**{CALLS: max(ahead, ahead - left)}) or left > 0


def _steady(clock: Clock) -> Callable[[], float]:
    """Returns a clock of epoch seconds that never goes back, even if the machine's clock does."""
    difference = clock().timestamp() - time.monotonic()
    return lambda: difference + time.monotonic()
