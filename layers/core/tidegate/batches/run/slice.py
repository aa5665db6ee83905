"""One slice of a batch: hold the lease, call items at the rate, write the progress once a second, hand over."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from aws_lambda_powertools import Logger

from tidegate.batches.log_lines import LogWriter
from tidegate.batches.milestones import Milestones
from tidegate.batches.model import ASYNC, Batch
from tidegate.batches.outcomes import Outcomes
from tidegate.batches.progress import Progress, common_verdict
from tidegate.batches.results import ItemResults
from tidegate.batches.run.rate_shares import RateShares
from tidegate.batches.run.state import RunState
from tidegate.batches.run.store import BatchRunStore
from tidegate.batches.run.tick import FLUSH_SECONDS, Charge, Preparation, Run, Ticker, obey, pause, working
from tidegate.batches.run.worker_pool import WorkerPool
from tidegate.batches.store import BatchStore
from tidegate.common.ids import Clock
from tidegate.errors import LeaseLost

logger = Logger(service="tidegate", child=True)

CONTINUE, BUSY, SLEEP, ENDED = "continue", "busy", "sleep", "ended"
# A function lives 900 s; a slice leaves time to hear the last answers and to write them.
_LONGEST_SLICE = 840.0
# Below this a function waits itself: to end and to start another takes a second or two.
_WORTH_SLEEPING = 10.0
# A new rate, a new limit or an asynchronous result is noticed after this long at most.
_LONGEST_SLEEP = 60
_LONGEST_SLEEP_FOR_RESULTS = 15
_LOG_SECONDS = 20.0
_LOG_SECONDS_BEFORE_THE_END = 1.0
# Outcomes are merged in memory, a kilobyte or so each.
_MOST_MERGED = 500_000


@dataclass(frozen=True, slots=True)
class Pace:
    slice_seconds: float = 240.0
    lease_seconds: float = 15.0


class SliceEnd(NamedTuple):
    outcome: str
    # With `sleep`: nothing is to be done for this long.
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
        pace: Pace | None = None,
    ) -> None:
        self._batches = batches
        self._runs = runs
        self._prepare = prepare
        self._outcomes = outcomes
        self._clock = clock
        self._pace = pace or Pace()
        self._ticker = Ticker(
            batches, runs, prepare, outcomes, results, shares, milestones, clock, self._pace.lease_seconds
        )

    def run(self, batch: Batch, charge: Charge, runner: int = 0) -> SliceEnd:
        """`continue` when the slice's time is up, `sleep` when the next call is far, `busy` while another holds the
        lease of this runner, `ended`."""
        asked_at = time.monotonic()
        taken = self._runs.acquire(batch, self._clock().timestamp(), self._pace.lease_seconds, runner)
        if taken is None:
            return SliceEnd(BUSY)
        fence, progress = taken
        try:
            if progress.verdict:
                self._end(batch, charge, runner, fence, progress)
                return SliceEnd(ENDED)
            if batch.runners > 1 and not self._may_begin(batch, charge, runner, fence, progress):
                return SliceEnd(ENDED)
            return self._work_through(batch, charge, runner, fence, progress, asked_at)
        except LeaseLost:
            return SliceEnd(BUSY)

    def _may_begin(self, batch: Batch, charge: Charge, runner: int, fence: int, progress: Progress) -> bool:
        """The other runners may have ended the batch just before this one got its lease."""
        try:
            charge.confirm(batch, progress, tell=False)
        except LeaseLost:
            self._runs.save(batch, fence, progress, 0, runner)
            return False
        return True

    def _work_through(
        self, batch: Batch, charge: Charge, runner: int, fence: int, progress: Progress, asked_at: float
    ) -> SliceEnd:
        work = self._prepare.work(batch)
        share = batch.share(runner)
        extent = self._prepare.extent(batch, share.index(progress.window.offset), wait=True)
        batch = self._ticker.counted(batch, extent)
        work.items = self._prepare.items(batch, runner)
        now = _steady(self._clock)
        records = self._ticker.others(batch)
        rules = self._ticker.rules(batch, runner, records, work)
        state = RunState(
            share.below(extent.items),
            rules,
            progress.window,
            now(),
            progress.counts,
            progress.carried,
            name_of=work.items.name,
            complete=extent.complete,
            batch_total=extent.items,
        )
        obey(state, batch, runner, records, rules, now())
        workers = batch.workers(working(records))
        run = Run(
            batch=batch,
            runner=runner,
            charge=charge,
            fence=fence,
            pool=WorkerPool(state, work, workers, lambda: time.monotonic() < run.lease_end, now),
            work=work,
            now=now,
            flushed_at=time.monotonic(),
            position=progress.position,
            lease_end=self._ticker.lease_end(asked_at),
            parts=progress.outcome_parts,
            rate=rules.rate,
            pace=progress.rate_now or rules.rate,
            told=progress.told,
            records=records,
            complete=extent.complete,
        )
        log = LogWriter(work.log, lambda lines: self._write_log(batch, lines))
        log.start()
        try:
            self._keep_up(run, asked_at + self._slice_seconds(batch))
            if run.pool.verdict is not None:
                # Whoever sees that the batch is over is to see its last lines too, unless they take too long.
                log.close(_LOG_SECONDS_BEFORE_THE_END)
            return self._hand_over(run)
        finally:
            log.close(_LOG_SECONDS)

    def _keep_up(self, run: Run, slice_end: float) -> None:
        pool = run.pool
        pool.start()
        try:
            while not pool.gone.wait(max(0.0, run.flushed_at + FLUSH_SECONDS - time.monotonic())):
                self._try_tick(run)
                if time.monotonic() >= slice_end or self._may_sleep(run):
                    pool.change(pause)
        except BaseException:
            pool.change(pause)
            raise
        pool.join()

    def _may_sleep(self, run: Run) -> bool:
        until = run.pool.idle_until()
        far = until is not None and until > run.now() + _WORTH_SLEEPING
        run.asleep_until = until if far else None
        return far

    def _try_tick(self, run: Run) -> None:
        try:
            self._ticker.tick(run)
        except LeaseLost:
            raise
        except Exception:
            # Ignored while the lease lasts; when it expires the workers stop by themselves.
            logger.exception("a tick failed", batch_id=run.batch.batch_id)
            run.flushed_at = time.monotonic()

    def _hand_over(self, run: Run) -> SliceEnd:
        ended = run.pool.verdict is not None and not run.discharged
        run.asleep_until = None if ended or run.discharged else run.asleep_until
        # Someone else has ended a discharged run: a later one is not to stop for its reasons.
        progress = self._ticker.save(run, None if ended else 0, forget_verdict=run.discharged)
        if progress.verdict and ended:
            self._end(run.batch, run.charge, run.runner, run.fence, progress)
        self._ticker.leave(run)
        if ended or run.discharged:
            return SliceEnd(ENDED)
        if run.asleep_until is None:
            return SliceEnd(CONTINUE)
        longest = _LONGEST_SLEEP_FOR_RESULTS if run.batch.ack == ASYNC else _LONGEST_SLEEP
        # A second early: the function then waits for the very moment.
        return SliceEnd(SLEEP, max(1, min(longest, math.floor(run.asleep_until - run.now()) - 1)))

    def _end(self, batch: Batch, charge: Charge, runner: int, fence: int, progress: Progress) -> None:
        """The last runner that comes to an end ends the batch. Its own end is written before it looks at the others:
        of two that end at once at least one sees both."""
        records = self._runs.runners(batch)
        everyone = [record.progress for record in records]
        verdict = common_verdict(everyone)
        if verdict is None:
            self._runs.save(batch, fence, progress, 0, runner)
            return
        self._merge_outcomes(batch, everyone)
        fences = [fence if number == runner else record.fence for number, record in enumerate(records)]
        charge.end(batch, fences, verdict)

    def _merge_outcomes(self, batch: Batch, runners: Sequence[Progress]) -> None:
        """For whoever downloads them. What fails here is made good by the download; the batch ends all the same."""
        if not 0 < sum(progress.errors for progress in runners) <= _MOST_MERGED:
            return
        try:
            self._outcomes.merge(batch, [progress.outcome_parts for progress in runners])
        except Exception:
            logger.exception("the outcomes were not merged", batch_id=batch.batch_id)

    def _write_log(self, batch: Batch, lines: Sequence[object]) -> None:
        self._batches.add_logs(batch.project_id, batch.batch_id, lines, self._clock().timestamp())  # type: ignore[arg-type]

    def _slice_seconds(self, batch: Batch) -> float:
        answer_time = 0 if batch.ack == ASYNC else batch.item_timeout
        return min(self._pace.slice_seconds, _LONGEST_SLICE - answer_time)


def _steady(clock: Clock) -> Callable[[], float]:
    """Epoch seconds that never go back, whatever happens to the machine's clock."""
    ahead = clock().timestamp() - time.monotonic()
    return lambda: ahead + time.monotonic()
