"""One slice of a batch: acquire the lease, call items at the rate, save the progress every second, hand over."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from aws_lambda_powertools import Logger

from tidegate.batches.log_lines import LogWriter
from tidegate.batches.milestones import Milestones
from tidegate.batches.model import ASYNC, Batch, LogLine
from tidegate.batches.outcomes import Outcomes
from tidegate.batches.progress import Progress, common_verdict
from tidegate.batches.results import ItemResults
from tidegate.batches.run.rate_shares import RateShares
from tidegate.batches.run.state import RunState
from tidegate.batches.run.store import BatchRunStore
from tidegate.batches.run.tick import (
    FLUSH_SECONDS,
    Preparation,
    RequestHandle,
    Run,
    Ticker,
    apply_controls,
    pause,
    working,
)
from tidegate.batches.run.worker_pool import WorkerPool
from tidegate.batches.store import BatchStore
from tidegate.common.ids import Clock
from tidegate.errors import LeaseLost

logger = Logger(service="tidegate", child=True)

CONTINUE, BUSY, SLEEP, ENDED = "continue", "busy", "sleep", "ended"
# A function may run 900 s; this leaves time to receive the last answers and to save them.
_LONGEST_SLICE = 840.0
# A shorter wait is spent inside the function: starting another one takes a second or two.
_WORTH_SLEEPING = 10.0
# A sleeping batch notices a changed rate or limit, or an asynchronous result, after this long at most.
_LONGEST_SLEEP = 60
_LONGEST_SLEEP_FOR_RESULTS = 15
_LOG_SECONDS = 20.0
_LOG_SECONDS_BEFORE_THE_END = 1.0
# Outcomes are merged in memory, about a kilobyte each.
_MOST_MERGED = 500_000


@dataclass(frozen=True, slots=True)
class SliceTiming:
    slice_seconds: float = 240.0
    lease_seconds: float = 15.0


class SliceEnd(NamedTuple):
    outcome: str
    # With `sleep`: how long there is nothing to do.
    seconds: int = 0


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
    ) -> None:
        self._batches = batches
        self._runs = runs
        self._prepare = prepare
        self._outcomes = outcomes
        self._clock = clock
        self._timing = timing or SliceTiming()
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
            return self._run_items(batch, request, runner, fence, progress, began)
        except LeaseLost:
            return SliceEnd(BUSY)

    def _may_begin(self, batch: Batch, request: RequestHandle, runner: int, fence: int, progress: Progress) -> bool:
        """Returns False if the other runners ended the batch just before this one acquired its lease."""
        try:
            request.confirm(batch, progress, publish=False)
        except LeaseLost:
            self._runs.save(batch, fence, progress, 0, runner)
            return False
        return True

    def _run_items(
        self, batch: Batch, request: RequestHandle, runner: int, fence: int, progress: Progress, began: float
    ) -> SliceEnd:
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
        )
        log = LogWriter(work.log, lambda lines: self._write_log(batch, lines))
        log.start()
        try:
            self._tick_until_done(run, began + self._slice_seconds(batch))
            if run.pool.verdict is not None:
                # Write the last log lines before the batch shows as ended, unless that takes too long.
                log.close(_LOG_SECONDS_BEFORE_THE_END)
            return self._hand_over(run)
        finally:
            log.close(_LOG_SECONDS)

    def _tick_until_done(self, run: Run, slice_end: float) -> None:
        pool = run.pool
        pool.start()
        try:
            while not pool.done.wait(max(0.0, run.flushed_at + FLUSH_SECONDS - time.monotonic())):
                self._try_tick(run)
                if time.monotonic() >= slice_end or self._sleep_is_worthwhile(run):
                    pool.change(pause)
        except BaseException:
            pool.change(pause)
            raise
        pool.join()

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
        answer_time = 0 if batch.ack == ASYNC else batch.item_timeout
        return min(self._timing.slice_seconds, _LONGEST_SLICE - answer_time)


def _steady(clock: Clock) -> Callable[[], float]:
    """Returns a clock of epoch seconds that never goes back, even if the machine's clock does."""
    difference = clock().timestamp() - time.monotonic()
    return lambda: difference + time.monotonic()
