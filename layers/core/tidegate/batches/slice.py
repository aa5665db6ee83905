"""Runs a batch slice by slice: the step of the state machine, the lease, the calls, the save every second, the end."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from aws_lambda_powertools import Logger

from tidegate.batches.batches import get_business
from tidegate.batches.items import ParsedAnswer, check_rows, extent_of, index_rows, items_of, listing_of
from tidegate.batches.listing import is_listed, list_items
from tidegate.batches.model import (
    ASYNC,
    FINISHED,
    STOPPED,
    STOPPING,
    SUCCEEDED,
    Batch,
    BatchLogLine,
    BatchProgress,
    Decision,
    Extent,
    ItemOutcome,
    Rules,
    RunnerRecord,
    Verdict,
    batch_view,
    combined,
    common_verdict,
    ends_others,
    paused_until,
    time_after_calls,
)
from tidegate.batches.run_state import NO_RESULT, RunState
from tidegate.batches.workers import ItemCaller, LogWriter, WorkerPool, steady_clock
from tidegate.common.ids import iso
from tidegate.errors import BatchStopped, DomainError, LeaseLost, NotReady, RequestTimedOut, WorkerLost, WrongState
from tidegate.notifications.notices import Notice, notice_id_for, notice_write
from tidegate.projects.limits import CALLS, RUNNER_SECONDS, DayBudget, until_next_day
from tidegate.queue.model import Request
from tidegate.queue.queue import RunningAttempt, Timing
from tidegate.queue.store import Refused

if TYPE_CHECKING:
    from tidegate.batches import Batches

logger = Logger(service="tidegate", child=True)

CONTINUE, BUSY, SLEEP, ENDED = "continue", "busy", "sleep", "ended"
# Outcome of the first step of a batch with several functions: the machine starts an execution for each of the others.
SPLIT = "split"
RENEW = "renew"
TIMING = Timing(look=0.0, beat=10.0)
_INDEX_SECONDS = 600.0
# Outcome of a first step that has not listed all objects of a bucket: the next step is a first step again.
LISTING = "listing"
# After how many seconds a listing checks again whether it was told to stop.
_LOOK_SECONDS = 2.0


class SliceEnd(NamedTuple):
    outcome: str
    # With `sleep`: the seconds until there is something to do.
    seconds: int = 0
    # Why it sleeps, if it could work otherwise.
    reason: str | None = None


# --- steps
# The step of the batch machine: runs slices until the batch ends, and ends the request if a slice fails.


def step(b: Batches, event: Mapping[str, Any]) -> dict[str, Any]:
    """Runs one slice of one runner, or a part of the row index.

    After `batch_rounds` slices the machine continues in a new execution, because an execution's history is limited.
    """
    attempt = {name: event[name] for name in ("project_id", "request_id", "attempt")}
    named = {"name": event["name"]} if "name" in event else {}
    if "indexer" in event:
        return {**attempt, "indexer": event["indexer"], "outcome": _index(b, attempt, event)}
    runner = event.get("runner", 0)
    counters: dict[str, int] = {
        "runner": runner,
        "round": event.get("round", 0) + 1,
        "generation": event.get("generation", 1),
    }
    try:
        ended = _slice(b, b.queue.running(**attempt), event)
    except LeaseLost as error:
        logger.info("this attempt may no longer run the batch", **attempt, why=error.detail)
        ended = SliceEnd(ENDED)
    except DomainError as error:
        logger.warning("a slice failed", **attempt, code=error.code, why=error.detail)
        b.queue.finish(**attempt, error=error)
        ended = SliceEnd(ENDED)
    if isinstance(ended, list):
        others = [{"name": _execution_name(event, 1, **one), "input": {**attempt, **named, **one}} for one in ended]
        return {**attempt, **named, **counters, "outcome": SPLIT, "runners": others}
    if ended.outcome == LISTING:
        del counters["runner"]
        ended = SliceEnd(CONTINUE)
    if ended.outcome != ENDED and counters["round"] >= b.settings.batch_rounds:
        successor = {**attempt, **named, **counters, "round": 0, "generation": counters["generation"] + 1}
        name = _execution_name(event, successor["generation"], runner)
        return {**attempt, **named, **counters, "outcome": RENEW, "successor": {"name": name, "input": successor}}
    return {**attempt, **named, **counters, "outcome": ended.outcome, "seconds": ended.seconds}


def _index(b: Batches, attempt: Mapping[str, Any], event: Mapping[str, Any]) -> str:
    """Indexes the ranges of rows that belong to one indexer.

    If a runner needs a range that is not indexed yet, the runner indexes that range itself.
    """
    until = time.monotonic() + _INDEX_SECONDS

    def may_continue() -> bool:
        heartbeats()
        return time.monotonic() < until

    try:
        if "failure" in event:
            raise WorkerLost(str(event["failure"])[:300])
        request = b.queue.running(**attempt)
        batch = b.store.get(request.project_id, request.payload["batch_id"])
        heartbeats = RunningAttempt(b.queue, request, TIMING, worker=f"i{event['indexer']}")
        with heartbeats, b.runner_time.counted(request.project_id):
            done = batch is None or index_rows(b, batch, event["indexer"], may_continue)
        heartbeats.rest()
    except DomainError as error:
        logger.info("an indexer of rows ended", **attempt, indexer=event["indexer"], why=error.detail)
        return ENDED
    return ENDED if done else CONTINUE


def _slice(b: Batches, request: Request, event: Mapping[str, Any]) -> SliceEnd | list[dict[str, Any]]:
    """Runs one slice. The first step of a batch with several functions only returns the inputs of the others."""
    if "failure" in event:
        failure = event["failure"]
        # Only for the log: the cause may have a stack trace and names of AWS resources.
        cause = str(failure.get("Cause"))[:500]
        logger.error("the function that ran a slice died", request_id=request.request_id, cause=cause)
        raise WorkerLost(f"the function that ran a slice of the batch died ({failure.get('Error')})")
    began, batch = time.monotonic(), b.store.get(request.project_id, request.payload["batch_id"])
    if batch is None or batch.run != request.payload["run"] or batch.status == FINISHED:
        b.queue.finish(request.project_id, request.request_id, request.attempt, result={"status": "outdated"})
        return SliceEnd(ENDED)
    first_step = "runner" not in event
    if batch.status == STOPPED:
        if not first_step:
            raise LeaseLost("another runner has ended the batch")
        # Somebody retried the failed request: the batch continues where it stopped.
        batch = b.store.resume(batch, request)
    if first_step:
        # Only in the first step, not in each runner.
        with RunningAttempt(b.queue, request, TIMING, parks=False, longest_call=_INDEX_SECONDS) as heartbeats:
            if unlisted := _list(b, batch, request, heartbeats):
                return unlisted
            indexers = check_rows(b, batch)
        runners = [{"runner": other} for other in range(1, batch.runners)]
        others = runners + [{"indexer": number} for number in range(indexers)]
        if others:
            heartbeats.rest()
            return others
    runner = event.get("runner", 0)
    queued = QueuedRun(b, request, runner)
    with queued.heartbeats:
        ended = run_slice(b, batch, queued, runner, spent=time.monotonic() - began)
    queued.heartbeats.rest()
    fields = {"batch_id": batch.batch_id, "runner": runner}
    logger.info("a slice ended", **fields, outcome=ended.outcome, seconds=ended.seconds)
    if ended.outcome != ENDED and ended.reason != request.last_wait_reason:
        b.queue.note_wait(request, ended.reason)
    return ended


def _list(b: Batches, batch: Batch, request: Request, heartbeats: RunningAttempt) -> SliceEnd | None:
    """Lists the objects of a bucket that are the items, for some minutes.

    Returns None if all objects are listed, or if the items are not objects of a bucket. No runner works during the
    listing, so a batch that is told to stop is ended here.
    """
    folder, until, looked = listing_of(batch), time.monotonic() + _INDEX_SECONDS, -math.inf
    if batch.source is None or batch.source.s3_url is None or is_listed(b, folder):
        return None

    def may_continue() -> bool:
        nonlocal batch, looked
        if time.monotonic() - looked > _LOOK_SECONDS:
            heartbeats()
            batch = b.store.get(batch.project_id, batch.batch_id) or batch
            looked = time.monotonic()
        return batch.status != STOPPING and looked < until

    with b.runner_time.counted(batch.project_id):
        if list_items(b, batch, batch.source, folder, may_continue):
            return None
    if batch.status != STOPPING:
        heartbeats.rest()
        return SliceEnd(LISTING)
    fences = [record.fence for record in b.store.runners(batch)]
    QueuedRun(b, request).end(batch, fences, Verdict(STOPPED, batch.stop_reason or "stopped on request"))
    return SliceEnd(ENDED)


def _execution_name(event: Mapping[str, Any], generation: int, runner: int = 0, indexer: int | None = None) -> str:
    part = f"r{runner}-" if runner else "" if indexer is None else f"i{indexer}-"
    # Executions that an older version started have no `name` in their input.
    first = event.get("name") or f"{event['request_id']}-{event['attempt']}"
    return f"{first}-{part}{generation}"


class QueuedRun:
    """The queued request of this run. The request allows the run, and ends together with the batch."""

    def __init__(self, b: Batches, request: Request, runner: int = 0) -> None:
        self._b = b
        self._attempt = (request.project_id, request.request_id, request.attempt)
        self.heartbeats = RunningAttempt(b.queue, request, TIMING, parks=False, worker=str(runner))

    def confirm(self, batch: Batch, progress: BatchProgress, *, publish: bool) -> None:
        """Checks, once a second, that the request still runs.

        Raises LeaseLost if the request was cancelled, paused or retried. With `publish`, the progress is also sent to
        clients that watch the batch.
        """
        try:
            self.heartbeats(progress.view(batch).fields())
        except RequestTimedOut as error:
            raise LeaseLost(error.detail) from error
        if publish:
            self._b.topic.publish_progress(batch.project_id, batch.batch_id, batch_view(batch, progress))

    def end(self, batch: Batch, fences: Sequence[int], verdict: Verdict) -> None:
        """Ends the batch and its request in one transaction, if the fencing tokens of all runners are still valid."""
        error = BatchStopped(verdict.reason or "") if verdict.failed else None
        writes = self._b.store.end_writes(batch, fences, verdict, iso(self._b.clock()))
        result = {"batch_id": batch.batch_id, "status": verdict.status, "stop_reason": verdict.reason}
        try:
            used = self.heartbeats.used
            self._b.queue.finish(*self._attempt, result=result, error=error, extra_writes=writes, used=used)
        except Refused as refused:
            raise LeaseLost("another runner has taken over the batch") from refused


# --- slice
# Acquires the lease, calls items at the rate, saves the progress every second, hands over.

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
# The most items aside whose results are read at one tick.
_MOST_ASIDES_READ = 500
# A function may run 900 s; this leaves time to receive the last answers and to save them.
_LONGEST_SLICE = 840.0
# A shorter wait is spent inside the function: starting another one takes a second or two.
_WORTH_SLEEPING = 10.0
# A sleeping batch notices a changed rate or limit, or an asynchronous result, after this long at most.
_LONGEST_SLEEP = 60
_LONGEST_SLEEP_FOR_RESULTS = 15
# A batch that waits for the next day's quotas looks again this often: an operator may have raised them.
_LONGEST_QUOTA_SLEEP = 900
# Calls are reserved for this many seconds, and at most this many calls at a time.
_CALLS_AHEAD_SECONDS, _MOST_CALLS_AHEAD = 30.0, 20_000
# The reason why a batch waits whose project has used up its runner-hours or calls of the day.
QUOTA = "quota"
_LOG_SECONDS = 20.0
_LOG_SECONDS_BEFORE_THE_END = 1.0
# A later ETA is not shown: dates end with the year 9999.
_LATEST = 2.5e11
# The most seconds for merging outcomes at the end of a batch.
_LONGEST_MERGE = 60.0


def run_slice(b: Batches, batch: Batch, request: QueuedRun, runner: int = 0, *, spent: float = 0.0) -> SliceEnd:
    """Runs one slice of one runner, if no other function holds the runner's lease.

    The outcome is `continue` when the slice's time is up, `sleep` when the next call is not due soon, `busy` while
    another function holds the lease, `ended` when the runner is done. `spent`: seconds for which the function has
    worked before, for instance on a listing.
    """
    began = time.monotonic()
    acquired = b.store.acquire(batch, b.clock().timestamp(), b.timing.lease_seconds, runner)
    if acquired is None:
        return SliceEnd(BUSY)
    try:
        return Slice(b, batch, request, runner, *acquired, began, spent).run()
    except LeaseLost:
        return SliceEnd(BUSY)


@dataclass(slots=True)
class Slice:
    """One slice of a runner: the state of its main thread between two ticks. The slice holds the runner's lease."""

    b: Batches
    batch: Batch
    request: QueuedRun
    runner: int
    fence: int
    # As it was last saved.
    progress: BatchProgress
    began: float
    # Seconds that the function had worked before.
    spent: float
    flushed_at: float = field(init=False)
    work: ItemCaller = field(init=False)
    pool: WorkerPool = field(init=False)
    # Epoch seconds that never go back.
    now: Callable[[], float] = field(init=False)
    # Items per second that this runner may call, and its average over about the last ten seconds.
    rate: float = field(init=False)
    pace: float = field(init=False)
    # Whether all items are known.
    complete: bool = field(init=False)
    # All runners of the batch as they were last read; empty if there is only one.
    records: Sequence[RunnerRecord] = ()
    # Outcomes that are not in a part yet, and the parts that this runner has written.
    outcomes: list[ItemOutcome] = field(default_factory=list)
    parts: int = field(init=False)
    # The same of the report.
    done: list[ItemOutcome] = field(default_factory=list)
    report_parts: int = field(init=False)
    # The last milestone for which the progress webhook was sent.
    last_milestone: int = field(init=False)
    # The request was cancelled, paused or retried: this run must not end the batch.
    request_lost: bool = False
    wake_at: float | None = None
    # Epoch seconds: when results were last read. None: read all of them.
    results_read_at: float | None = None
    # The item aside whose result was read last: the next tick reads results of the items after it.
    aside_read: int = -1
    # Whether the records of items that a finished batch leaves undone are closed: they take no results any more.
    closed: bool = False

    def __post_init__(self) -> None:
        self.parts, self.last_milestone = self.progress.outcome_parts, self.progress.last_milestone
        self.report_parts = self.progress.report_parts

    def run(self) -> SliceEnd:
        if self.progress.verdict:
            self._end()
            return SliceEnd(ENDED)
        if self.batch.runners > 1 and not self._may_begin():
            return SliceEnd(ENDED)
        return self._run_within(self.b.runner_time.budget(self.batch.project_id))

    def _may_begin(self) -> bool:
        """Returns False if the other runners ended the batch just before this one acquired its lease."""
        try:
            self.request.confirm(self.batch, self.progress, publish=False)
        except LeaseLost:
            self.b.store.save(self.batch, self.fence, self.progress, 0, self.runner)
            return False
        return True

    def _run_within(self, budget: DayBudget) -> SliceEnd:
        """Reserves runner-hours and calls of the project's day, then runs the slice. Sleeps if they are used up."""
        seconds = math.ceil(self._slice_seconds)
        # With one call left the slice still runs: what it calls until its first tick, a second later, may exceed it.
        ahead = _calls_ahead(self.batch)
        if not any(budget.reserve(**{RUNNER_SECONDS: seconds, CALLS: calls}) for calls in (ahead, 1)):
            return self._wait_for_quota()
        made = 0
        try:
            self._prepare()
            try:
                return self._run_items(budget)
            finally:
                made = self.work.calls
        finally:
            budget.settle(**{RUNNER_SECONDS: math.ceil(time.monotonic() - self.began), CALLS: made})

    def _wait_for_quota(self) -> SliceEnd:
        now = self.b.clock()
        seconds = min(_LONGEST_QUOTA_SLEEP, math.ceil(until_next_day(now)) + 1)
        asleep = replace(self.progress, wake_at=now.timestamp() + seconds, eta=None, rate_now=0.0)
        self.b.store.save(self.batch, self.fence, asleep, 0, self.runner)
        return SliceEnd(SLEEP, seconds, QUOTA)

    def _prepare(self) -> None:
        b, batch, progress = self.b, self.batch, self.progress
        work = ItemCaller(b, batch, b.project(batch.project_id), get_business(b, batch.project_id, batch.biz_id))
        share = batch.share(self.runner)
        # Items to retry may be further on than the rows that this process has indexed.
        furthest = max([progress.window.offset, *(item.index for item in progress.carried.open_items)])
        extent = extent_of(b, batch, share.index(furthest), wait=True)
        self._store_total(extent)
        work.items = items_of(b, self.batch, self.runner)
        self.work, self.now, self.complete = work, steady_clock(b.clock), extent.complete
        self.records = self._runner_records()
        rules = self._rules()
        state = RunState(
            share.below(extent.items),
            rules,
            progress.window,
            self.now(),
            progress.counts,
            progress.carried,
            index_of=work.items.index,
            asynchronous=batch.ack == ASYNC,
            complete=extent.complete,
            reports=batch.report,
            batch_total=extent.items,
        )
        self._apply_controls(state, rules, self.now())
        self.pool = WorkerPool(state, work, self._workers, self._lease_end(self.began), self.now)
        self.rate, self.pace = rules.rate, progress.rate_now or rules.rate
        self.flushed_at = time.monotonic()

    def _run_items(self, budget: DayBudget) -> SliceEnd:
        log = LogWriter(self.work.log, self._write_log)
        log.start()
        try:
            self._tick_until_done(budget)
            if self.pool.verdict is not None:
                # Write the last log lines before the batch shows as ended, unless that takes too long.
                log.close(_LOG_SECONDS_BEFORE_THE_END)
            return self._hand_over()
        finally:
            log.close(_LOG_SECONDS)

    def _tick_until_done(self, budget: DayBudget) -> None:
        pool = self.pool
        # Before the first call: results may have come while no runner worked.
        self._settle()
        if self._is_time_up:
            pool.change(pause)
        pool.start()
        try:
            while not pool.done.wait(max(0.0, self.flushed_at + FLUSH_SECONDS - time.monotonic())):
                self._try_tick()
                out_of_calls = not self._has_calls_left(budget)
                if self._is_time_up or out_of_calls or self._sleep_is_worthwhile():
                    pool.change(pause)
        except BaseException:
            pool.change(pause)
            raise
        pool.join()
        self._settle(last=True)

    def _has_calls_left(self, budget: DayBudget) -> bool:
        """Whether calls may still be made. When half of the reserved calls are made, reserves more of the quota."""
        ahead, left = _calls_ahead(self.batch), budget.reserved[CALLS] - self.work.calls
        return left > ahead / 2 or budget.reserve(**{CALLS: max(ahead, ahead - left)}) or left > 0

    def _sleep_is_worthwhile(self) -> bool:
        """Returns True, and stores when to wake up, if the next call is due much later."""
        idle_until = self.pool.idle_until()
        long_wait = idle_until is not None and idle_until > self.now() + _WORTH_SLEEPING
        self.wake_at = idle_until if long_wait else None
        return long_wait

    def _hand_over(self) -> SliceEnd:
        ended = self.pool.verdict is not None and not self.request_lost
        self.wake_at = None if ended or self.request_lost else self.wake_at
        # A run whose request was lost was ended by somebody else. Its verdict must not end a later run.
        self._save(None if ended else 0, forget_verdict=self.request_lost)
        if self.progress.verdict and ended:
            self._end()
        if self.work.shared_rate:
            self.b.store.release_rate(self.batch, self.runner)
        if ended or self.request_lost:
            return SliceEnd(ENDED)
        if self.wake_at is None:
            return SliceEnd(CONTINUE)
        longest = _LONGEST_SLEEP_FOR_RESULTS if self.batch.ack == ASYNC else _LONGEST_SLEEP
        # A second early: the next function waits for the exact time.
        return SliceEnd(SLEEP, max(1, min(longest, math.floor(self.wake_at - self.now()) - 1)))

    def _end(self) -> None:
        """Ends the batch if all other runners have ended.

        This runner's verdict was saved before. So if two runners end at the same time, at least one of them sees both
        verdicts.
        """
        records = self.b.store.runners(self.batch)
        all_progress = [record.progress for record in records]
        verdict = common_verdict(all_progress)
        if verdict is None:
            self.b.store.save(self.batch, self.fence, self.progress, 0, self.runner)
            return
        self._merge_outcomes(all_progress)
        fences = [self.fence if number == self.runner else record.fence for number, record in enumerate(records)]
        self.request.end(self.batch, fences, verdict)

    def _merge_outcomes(self, runners: Sequence[BatchProgress]) -> None:
        """Merges the outcomes into one file, if there is time.

        If merging fails, the batch ends nevertheless. The first download of the outcomes then merges them.
        """
        parts = [progress.outcome_parts for progress in runners]
        left = _LONGEST_SLICE - self.spent - (time.monotonic() - self.began)
        if not any(parts) or left < 0:
            return
        try:
            self.b.outcomes.merge(self.batch, parts, min(left, _LONGEST_MERGE))
        except (NotReady, WrongState) as error:
            logger.info("the outcomes are not merged yet", batch_id=self.batch.batch_id, why=error.detail)
        except Exception:
            logger.exception("the outcomes were not merged", batch_id=self.batch.batch_id)

    def _write_log(self, lines: Sequence[BatchLogLine]) -> None:
        self.b.store.add_logs(self.batch.project_id, self.batch.batch_id, lines, self.b.clock().timestamp())

    def _lease_end(self, acquired_at: float) -> float:
        return acquired_at + self.b.timing.lease_seconds - _CLOCK_MARGIN

    @property
    def _slice_seconds(self) -> float:
        answer_seconds = 0 if self.batch.ack == ASYNC else self.batch.item_timeout
        return seconds_to_call(self.b.timing.slice_seconds, answer_seconds + self.spent)

    @property
    def _is_time_up(self) -> bool:
        return time.monotonic() >= self.began + self._slice_seconds

    # --- tick: saves the progress, renews the lease and applies changes made by others, once a second

    def _try_tick(self) -> None:
        try:
            self._tick()
        except LeaseLost:
            raise
        except Exception:
            # Ignored while the lease is valid; when it expires, the workers stop by themselves.
            logger.exception("a tick failed", batch_id=self.batch.batch_id)
            self.flushed_at = time.monotonic()

    def _tick(self) -> None:
        b, batch, lease_seconds = self.b, self.batch, self.b.timing.lease_seconds
        self._settle()
        moment = time.monotonic()
        renew = moment > self.pool.lease_end - lease_seconds * 2 / 3
        self._save(b.clock().timestamp() + lease_seconds if renew else None)
        if renew:
            self.pool.lease_end = self._lease_end(moment)
        self.records = self._runner_records()
        try:
            self.request.confirm(batch, self._batch_progress(self.progress), publish=self._is_reporter)
        except LeaseLost:
            # No other runner works yet: calls under way may end, and the progress is saved.
            self.request_lost = True
            self.pool.change(pause)
            return
        present = b.store.get(batch.project_id, batch.batch_id) or batch
        if (present.data_version, present.serial) != (batch.data_version, batch.serial):
            self.work.items = items_of(b, present, self.runner)
        self.batch = self.work.batch = present
        self._extend()
        self.pool.resize(self._workers)
        rules = self._rules()
        self.rate = rules.rate
        self.pool.change(lambda state, now: self._apply_controls(state, rules, now))

    def _extend(self) -> None:
        """Adds the rows of a file that were indexed since the last tick."""
        if self.complete:
            return
        share = self.batch.share(self.runner)
        try:
            extent = extent_of(self.b, self.batch, share.index(self.progress.position))
        except DomainError as error:
            why = error.detail
            self.pool.change(lambda state, _: state.halt(f"its rows cannot be read: {why}", failed=True))
            return
        self._store_total(extent)
        self.complete = extent.complete
        own = share.below(extent.items)
        self.pool.change(lambda state, _: state.extend(own, complete=extent.complete, batch_total=extent.items))

    def _store_total(self, extent: Extent) -> None:
        """Stores the total once it is known.

        This happens before any runner can end because of the total. The other runners read the total before they adopt
        a verdict.
        """
        if extent.complete and self.batch.total != extent.items:
            self.b.store.set_total(self.batch, extent.items)
            self.batch = replace(self.batch, total=extent.items)

    def _runner_records(self) -> Sequence[RunnerRecord]:
        return self.b.store.runners(self.batch) if self.batch.runners > 1 else ()

    @property
    def _others(self) -> list[tuple[int, BatchProgress]]:
        return [(number, one.progress) for number, one in enumerate(self.records) if number != self.runner]

    @property
    def _working(self) -> int:
        """How many runners share the rate: this one, and all others that have no verdict yet.

        This runner counts also after its own verdict, so that it does not take over the rate of the others.
        """
        return 1 + sum(1 for _, progress in self._others if progress.verdict is None)

    @property
    def _workers(self) -> int:
        return self.batch.workers(self._working)

    @property
    def _is_reporter(self) -> bool:
        """Whether this is the first runner that still works. It publishes progress for all of them."""
        return all(record.progress.verdict for record in self.records[: self.runner])

    def _batch_progress(self, own: BatchProgress) -> BatchProgress:
        """Returns the progress of the whole batch, with `own` for this runner."""
        stored = [record.progress for record in self.records] or [own]
        return combined(self.batch, [own if runner == self.runner else one for runner, one in enumerate(stored)])

    def _rules(self) -> Rules:
        """Returns the batch's rules with this runner's part of the rate. All runners that work have equal parts."""
        rules, parts, limit = self.batch.rules, self._working, self.work.shared_rate
        most_open = None if rules.most_open is None else max(1, rules.most_open // parts)
        rate = rules.rate / parts
        if limit:
            rate = self.b.store.share_rate(self.batch, self.runner, rate, limit, self.b.clock().timestamp())
        return replace(rules, rate=rate, most_open=most_open, most_calls=self._workers)

    def _apply_controls(self, state: RunState, rules: Rules, now: float) -> None:
        """Applies changed rules, the errors and verdicts of the other runners, and a requested stop."""
        state.change_rules(rules, now)
        verdicts = (ends_others(self.batch, number, progress) for number, progress in self._others)
        errors = sum(progress.errors for _, progress in self._others)
        state.merge_other_runners(errors, next((verdict for verdict in verdicts if verdict), None))
        if self.batch.status == STOPPING:
            state.halt(self.batch.stop_reason or "stopped on request")

    # --- results: of asynchronous batches

    def _settle(self, *, last: bool = False) -> None:
        """Counts the stored asynchronous results, decides the calls without a result, and prepares the next calls.

        `last`: no more calls follow. Must run before each save, so that no later result contradicts a saved verdict.
        """
        if self.batch.ack != ASYNC:
            return
        pool, everything = self.pool, self.results_read_at is None
        seen = self._count_stored()
        self._decide(pool.change(lambda state, now: state.undecided(now)))
        left = pool.change(lambda state, _: state.left_open())
        if left and not self.closed:
            self._decide(left)
            self.closed = True
        if last or left:
            return
        soon = self.now() + _AHEAD_SECONDS
        calls = pool.change(lambda state, _: state.to_open(soon))
        if everything:
            calls += pool.change(lambda state, _: state.to_open_again(seen))
        now = self.b.clock().timestamp()
        opened = self.b.results.open(self.batch, self.runner, self.fence, calls, self.work.items, now) if calls else []
        pool.change(lambda state, now: [state.apply(one, now) for one in opened])
        self._extend_reach()

    def _count_stored(self) -> set[int]:
        """Counts the stored results. Returns the positions of the items for which it has read a record."""
        first = self.pool.change(lambda state, _: min(state.window.offset, state.total - 1))
        if first < 0:
            return set()
        began, items, results = self.b.clock().timestamp(), self.work.items, self.b.results
        since = None if self.results_read_at is None else self.results_read_at - _OVERLAP_SECONDS
        found = list(results.read(self.batch, items, items.index(first), since))
        found += results.read_some(self.batch, items, self._asides_to_read())
        self._count(found)
        self.results_read_at = began
        return {decision.index for decision, _ in found}

    def _asides_to_read(self) -> list[int]:
        """Returns the items aside whose results are to be read: all of them at first, later some at a time, in turn."""
        asides = self.pool.change(lambda state, now: state.aside_with_results(now + _AHEAD_SECONDS))
        if self.results_read_at is None or len(asides) <= _MOST_ASIDES_READ:
            return asides
        at = bisect_right(asides, self.aside_read)
        chosen = (asides[at:] + asides[:at])[:_MOST_ASIDES_READ]
        self.aside_read = chosen[-1]
        return chosen

    def _decide(self, pending: Sequence[Decision]) -> None:
        if not pending:
            return
        work, now = self.work, self.b.clock().timestamp()
        # This runner's own decisions are counted from memory: the table does not hold Retry-After.
        own = {(one.index, one.number): one for one in pending if one.attempt}
        counted = self.b.results.decide(self.batch, self.runner, self.fence, pending, work.items, now)
        self._count([(own.get((one.index, one.number), one) if by is None else one, by) for one, by in counted])
        for one, by in counted:
            if by is None and one.answer == NO_RESULT:
                work.log_answer(work.items.index(one.index), one.attempt, ParsedAnswer(NO_RESULT))

    def _count(self, found: Sequence[tuple[Decision, ParsedAnswer | None]]) -> None:
        def apply(state: RunState, now: float) -> list[bool]:
            new = [state.apply(decision, now) for decision, _ in found]
            state.apply_early(now)
            return new

        for (decision, parsed), new in zip(found, self.pool.change(apply), strict=True):
            if new and parsed:
                self.work.log_answer(self.work.items.index(decision.index), None, parsed)

    def _extend_reach(self) -> None:
        reach, known = self.pool.change(lambda state, _: (state.reach_within(_AHEAD_SECONDS), state.window.reach or 0))
        if reach > known:
            self.b.results.store_reach(self.batch, self.runner, reach)
            self.pool.change(lambda state, _: setattr(state.window, "reach", reach))

    # --- save

    def _save(self, lease_until: float | None, *, forget_verdict: bool = False) -> None:
        """Saves the outcomes to S3, then the progress.

        In this order no outcome is lost: an item that the progress counts as done is never called again.
        """
        moment, former = time.monotonic(), self.progress
        progress, fresh = self.pool.snapshot()
        self.outcomes += [one for one in fresh if one.state != SUCCEEDED]
        self.done += [one for one in fresh if one.done] if self.batch.report else []
        if self.done:
            part = self.report_parts + 1
            self.b.outcomes.write_report(self.batch, self.runner, part, self.fence, self.done, self.work.items)
            self.report_parts, self.done = part, []
        if self.outcomes:
            part = self.parts + 1
            self.b.outcomes.write_part(self.batch, self.runner, part, self.fence, self.outcomes, self.work.items)
            # Also if the save below fails: it may have been carried out, and then this part counts and must not change.
            self.parts, self.outcomes = part, []
        elapsed = max(moment - self.flushed_at, 0.001)
        rate_now = (progress.position - former.position) / elapsed
        if paused_until(self.batch.pause_windows, self.now()) <= self.now():
            self.pace += _SMOOTHING * (rate_now - self.pace)
        forgotten = forget_verdict and not (progress.verdict and progress.verdict.status == FINISHED)
        progress = replace(
            progress,
            eta=self._eta(progress),
            rate_now=round(rate_now, 1),
            verdict=None if forgotten else progress.verdict,
            outcome_parts=self.parts,
            report_parts=self.report_parts,
            wake_at=self.wake_at,
        )
        if self._is_reporter:
            self._notify_milestone(self._batch_progress(progress))
        progress = replace(progress, last_milestone=self.last_milestone)
        self.b.store.save(self.batch, self.fence, progress, lease_until, self.runner)
        self.flushed_at, self.progress = moment, progress
        if progress.business_is_down != former.business_is_down:
            self.work.log.add(None, [_DOWN if progress.business_is_down else _UP])

    def _notify_milestone(self, progress: BatchProgress) -> None:
        """Calls the progress webhook if the batch has reached another milestone: a number of items, or a percentage.

        A crash before the save of the milestone sends the notice twice, with the same id. If several milestones were
        passed at once, only the last one is sent. The end of the batch has a notice of its own.
        """
        batch, reached = self.batch, self.batch.milestone(progress.position)
        last = max(self.last_milestone, progress.last_milestone)
        over = batch.total is not None and progress.position >= batch.total
        if reached > last and batch.progress_url and not over:
            notice = Notice(
                notice_id=notice_id_for("batch.progress", batch.batch_id, str(reached)),
                project_id=batch.project_id,
                kind="batch.progress",
                record_id=batch.batch_id,
                status=batch.status,
                data=batch_view(batch, progress),
                callback=batch.progress_url,
                created_at=self.b.clock(),
            )
            self.b.table.write(notice_write(notice))
            self.b.notifier.publish([notice])
        self.last_milestone = max(last, reached)

    def _eta(self, progress: BatchProgress) -> float | None:
        """Returns the expected time of the last call, pauses included. None if it is unknown.

        The estimate assumes that new items are called at the measured pace. If the rate is too low to measure a pace
        within a tick, the estimate uses the rate instead. The result is not earlier than the last retry.
        """
        left = self.batch.share(self.runner).below(self.batch.total or 0) - progress.position
        pace = min(self.rate, self.pace) if self.rate * FLUSH_SECONDS > 1 else self.rate
        if left <= 0 or pace <= 0 or progress.business_is_down:
            return None
        open_items, windows = progress.carried.open_items, self.batch.pause_windows
        last_new = time_after_calls(windows, self.now(), max(0, left - len(open_items)) / pace)
        last_open = max((item.at for item in open_items), default=0.0)
        eta = max(last_new, paused_until(windows, last_open))
        return eta if eta < _LATEST else None


def pause(state: RunState, _: float) -> None:
    state.paused = True


def seconds_to_call(slice_seconds: float, answer_seconds: float) -> float:
    """Returns for how many seconds a slice begins calls, so that the last answer comes before the function's time-out.

    A slice begins no calls while it waits for its last answers. So a long slice loses less time to items that hang.
    """
    return max(0.0, min(slice_seconds, _LONGEST_SLICE - answer_seconds))


def _calls_ahead(batch: Batch) -> int:
    wanted = batch.rate / batch.items_per_call / batch.runners * _CALLS_AHEAD_SECONDS
    return max(1, min(math.ceil(wanted), _MOST_CALLS_AHEAD))
