"""One slice of a batch: hold the lease, call items at the rate, write the progress once a second, hand over."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from aws_lambda_powertools import Logger

from tidegate.batches.items import Items
from tidegate.batches.log_lines import LogWriter
from tidegate.batches.milestones import Milestones
from tidegate.batches.model import ASYNC, STOPPING, Batch, Progress
from tidegate.batches.outcomes import Outcomes
from tidegate.batches.results import ItemResults
from tidegate.batches.run.item_call import ItemCaller
from tidegate.batches.run.rate_shares import RateShares
from tidegate.batches.run.state import FINISHED, Outcome, Rules, RunState, Verdict
from tidegate.batches.run.store import BatchRunStore
from tidegate.batches.run.worker_pool import WorkerPool
from tidegate.batches.store import BatchStore
from tidegate.common.ids import Clock
from tidegate.errors import LeaseLost

logger = Logger(service="tidegate", child=True)

CONTINUE, BUSY, SLEEP, ENDED = "continue", "busy", "sleep", "ended"
_FLUSH_SECONDS = 1.0
# A holder trusts its lease a little less than a taker does: clocks differ.
_CLOCK_MARGIN = 1.0
# A function lives 900 s; a slice leaves time to hear the last answers and to write them.
_LONGEST_SLICE = 840.0
# Below this a function waits itself: to end and to start another takes a second or two.
_WORTH_SLEEPING = 10.0
# A new rate, a new limit or an asynchronous result is noticed after this long at most.
_LONGEST_SLEEP = 60
_LONGEST_SLEEP_FOR_RESULTS = 15
_LOG_SECONDS = 20.0
_SMOOTHING = 0.2
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


class Preparation(Protocol):
    """Looks up what a run needs besides the batch itself."""

    def work(self, batch: Batch) -> ItemCaller: ...

    def items(self, batch: Batch) -> Items: ...

    def total(self, batch: Batch) -> int: ...


class Charge(Protocol):
    """The right to run this batch now, given by the queue."""

    def confirm(self, batch: Batch, progress: Progress) -> None:
        """Once a second. Raises LeaseLost when the right was taken away: cancelled, paused, another attempt."""

    def end(self, batch: Batch, fence: int, verdict: Verdict) -> None:
        """The batch and its request end together, if the fence still holds."""


@dataclass(slots=True)
class _Run:
    """What the main thread of a slice remembers between two ticks."""

    batch: Batch
    charge: Charge
    fence: int
    pool: WorkerPool
    work: ItemCaller
    now: Callable[[], float]
    flushed_at: float
    position: int
    lease_end: float
    parts: int
    # Items a second, over the last ten seconds or so.
    pace: float
    told: int
    # Not in a part that counts yet.
    outcomes: list[Outcome] = field(default_factory=list)
    discharged: bool = False
    asleep_until: float | None = None


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
        self._results = results
        self._shares = shares
        self._milestones = milestones
        self._clock = clock
        self._pace = pace or Pace()

    def run(self, batch: Batch, charge: Charge) -> SliceEnd:
        """`continue` when the slice's time is up, `sleep` when the next call is far, `busy` while another runner
        holds the lease, `ended`."""
        asked_at = time.monotonic()
        taken = self._runs.acquire(batch, self._clock().timestamp(), self._pace.lease_seconds)
        if taken is None:
            return SliceEnd(BUSY)
        fence, progress = taken
        try:
            if progress.verdict:
                charge.end(batch, fence, progress.verdict)
                return SliceEnd(ENDED)
            return self._work_through(batch, charge, fence, progress, asked_at)
        except LeaseLost:
            return SliceEnd(BUSY)

    def _work_through(self, batch: Batch, charge: Charge, fence: int, progress: Progress, asked_at: float) -> SliceEnd:
        work = self._prepare.work(batch)
        total = self._prepare.total(batch)
        batch = replace(batch, total=total)
        work.items = self._prepare.items(batch)
        now = _steady(self._clock)
        rules = self._rules(batch, work, now())
        state = RunState(
            total, rules, progress.window, now(), progress.counts, progress.carried, name_of=work.items.name
        )
        self._obey(state, batch, rules, now())
        run = _Run(
            batch=batch,
            charge=charge,
            fence=fence,
            pool=WorkerPool(state, work, batch.workers, lambda: time.monotonic() < run.lease_end, now),
            work=work,
            now=now,
            flushed_at=time.monotonic(),
            position=progress.position,
            lease_end=self._lease_end(asked_at),
            parts=progress.outcome_parts,
            pace=progress.rate_now or batch.rate,
            told=progress.told,
        )
        log = LogWriter(work.log, lambda lines: self._write_log(batch, lines))
        log.start()
        try:
            self._keep_up(run, asked_at + self._slice_seconds(batch))
            return self._hand_over(run)
        finally:
            log.close(_LOG_SECONDS)

    def _keep_up(self, run: _Run, slice_end: float) -> None:
        pool = run.pool
        pool.start()
        try:
            while not pool.gone.wait(max(0.0, run.flushed_at + _FLUSH_SECONDS - time.monotonic())):
                self._try_tick(run)
                if time.monotonic() >= slice_end or self._may_sleep(run):
                    pool.change(_pause)
        except BaseException:
            pool.change(_pause)
            raise
        pool.join()

    def _may_sleep(self, run: _Run) -> bool:
        until = run.pool.idle_until()
        far = until is not None and until > run.now() + _WORTH_SLEEPING
        run.asleep_until = until if far else None
        return far

    def _try_tick(self, run: _Run) -> None:
        try:
            self._tick(run)
        except LeaseLost:
            raise
        except Exception:
            # Ignored while the lease lasts; when it expires the workers stop by themselves.
            logger.exception("a tick failed", batch_id=run.batch.batch_id)
            run.flushed_at = time.monotonic()

    def _tick(self, run: _Run) -> None:
        batch = run.batch
        heard = self._hear_results(run)
        moment = time.monotonic()
        renew = moment > run.lease_end - self._pace.lease_seconds * 2 / 3
        progress = self._save(run, self._clock().timestamp() + self._pace.lease_seconds if renew else None)
        if renew:
            run.lease_end = self._lease_end(moment)
        self._results.forget(batch, heard)
        try:
            run.charge.confirm(batch, progress)
        except LeaseLost:
            # Nobody else works yet: what is under way may end, and its place is written.
            run.discharged = True
            run.pool.change(_pause)
            return
        present = self._batches.get(batch.project_id, batch.batch_id) or batch
        if (present.data_version, present.serial) != (batch.data_version, batch.serial):
            run.work.items = self._prepare.items(present)
        run.batch = replace(present, total=batch.total)
        run.pool.resize(present.workers)
        rules = self._rules(present, run.work, self._clock().timestamp())
        run.pool.change(lambda state, now: self._obey(state, present, rules, now))

    def _hear_results(self, run: _Run) -> list[int]:
        """Applies the asynchronous results that came; those that count are forgotten after the next save."""
        if run.batch.ack != ASYNC:
            return []
        heard: list[int] = []
        for index, position, parsed in self._results.read(run.batch, run.work.items):
            known: list[bool] = []
            run.pool.change(
                lambda state, now, at=position, said=parsed.answer, known=known: known.append(  # type: ignore[misc]
                    state.result(at, said, now)
                )
            )
            if known[0]:
                heard.append(index)
                run.work.note(index, None, parsed)
        return heard

    def _save(self, run: _Run, lease_until: float | None, *, forget_verdict: bool = False) -> Progress:
        """The outcomes go to S3 first: what the progress calls done must not be lost."""
        moment = time.monotonic()
        progress, fresh = run.pool.snapshot()
        run.outcomes += fresh
        parts = run.parts
        if run.outcomes:
            parts += 1
            self._outcomes.write_part(run.batch, parts, run.fence, run.outcomes, run.work.items)
        elapsed = max(moment - run.flushed_at, 0.001)
        run.pace += _SMOOTHING * ((progress.position - run.position) / elapsed - run.pace)
        progress = replace(
            progress,
            eta=_eta(run, progress),
            rate_now=round((progress.position - run.position) / elapsed, 1),
            verdict=None if forget_verdict and not _finished(progress.verdict) else progress.verdict,
            outcome_parts=parts,
            asleep_until=run.asleep_until,
        )
        run.told = self._milestones.tell(run.batch, progress, run.told)
        progress = replace(progress, told=run.told)
        self._runs.save(run.batch, run.fence, progress, lease_until)
        run.parts, run.outcomes = parts, []
        run.flushed_at, run.position = moment, progress.position
        return progress

    def _hand_over(self, run: _Run) -> SliceEnd:
        ended = run.pool.verdict is not None and not run.discharged
        run.asleep_until = None if ended or run.discharged else run.asleep_until
        # Someone else has ended a discharged run: a later one is not to stop for its reasons.
        progress = self._save(run, None if ended else 0, forget_verdict=run.discharged)
        if progress.verdict and ended:
            self._merge_outcomes(run.batch, progress)
            run.charge.end(run.batch, run.fence, progress.verdict)
        if run.work.shared_rate:
            self._shares.leave(run.batch)
        if ended or run.discharged:
            return SliceEnd(ENDED)
        if run.asleep_until is None:
            return SliceEnd(CONTINUE)
        longest = _LONGEST_SLEEP_FOR_RESULTS if run.batch.ack == ASYNC else _LONGEST_SLEEP
        # A second early: the function then waits for the very moment.
        return SliceEnd(SLEEP, max(1, min(longest, math.floor(run.asleep_until - run.now()) - 1)))

    def _merge_outcomes(self, batch: Batch, progress: Progress) -> None:
        """For whoever downloads them. What fails here is made good by the download; the batch ends all the same."""
        if not 0 < progress.errors <= _MOST_MERGED:
            return
        try:
            self._outcomes.merge(batch, progress.outcome_parts)
        except Exception:
            logger.exception("the outcomes were not merged", batch_id=batch.batch_id)

    def _write_log(self, batch: Batch, lines: Sequence[object]) -> None:
        self._batches.add_logs(batch.project_id, batch.batch_id, lines, self._clock().timestamp())  # type: ignore[arg-type]

    def _slice_seconds(self, batch: Batch) -> float:
        answer_time = 0 if batch.ack == ASYNC else batch.item_timeout
        return min(self._pace.slice_seconds, _LONGEST_SLICE - answer_time)

    def _lease_end(self, asked_at: float) -> float:
        return asked_at + self._pace.lease_seconds - _CLOCK_MARGIN

    def _rules(self, batch: Batch, work: ItemCaller, now: float) -> Rules:
        if not work.shared_rate:
            return batch.rules
        return replace(batch.rules, rate=self._shares.share(batch, work.shared_rate, now))

    @staticmethod
    def _obey(state: RunState, present: Batch, rules: Rules, now: float) -> None:
        state.change(rules, now)
        if present.status == STOPPING:
            state.halt(present.stop_reason or "stopped on request")


def _steady(clock: Clock) -> Callable[[], float]:
    """Epoch seconds that never go back, whatever happens to the machine's clock."""
    ahead = clock().timestamp() - time.monotonic()
    return lambda: ahead + time.monotonic()


def _eta(run: _Run, progress: Progress) -> float | None:
    """A slow batch that calls an item now and then has its rate for a pace."""
    left = (run.batch.total or 0) - progress.position
    pace = min(run.batch.rate, run.pace) if run.batch.rate * _FLUSH_SECONDS > 1 else run.batch.rate
    return run.now() + left / pace if left > 0 and pace > 0 else None


def _finished(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.status == FINISHED


def _pause(state: RunState, _: float) -> None:
    state.paused = True
