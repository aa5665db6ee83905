"""What a runner does once a second: save its progress, renew its lease and apply changes made by others."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from tidegate.batches.items import Items
from tidegate.batches.milestones import Milestones
from tidegate.batches.model import ASYNC, STOPPING, Batch
from tidegate.batches.outcomes import Outcomes
from tidegate.batches.progress import Progress, RunnerRecord, combined, ends_others
from tidegate.batches.results import ItemResults
from tidegate.batches.run.item_call import ItemCaller
from tidegate.batches.run.rate_shares import RateShares
from tidegate.batches.run.state import RunState
from tidegate.batches.run.store import BatchRunStore
from tidegate.batches.run.values import FINISHED, Extent, Outcome, Rules, Verdict
from tidegate.batches.run.worker_pool import WorkerPool
from tidegate.batches.store import BatchStore
from tidegate.common.ids import Clock
from tidegate.errors import DomainError, LeaseLost

FLUSH_SECONDS = 1.0
# The holder treats its lease as expired this much earlier than others do, because clocks differ.
_CLOCK_MARGIN = 1.0
_SMOOTHING = 0.2


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
        applied = self._apply_results(run)
        moment = time.monotonic()
        renew = moment > run.lease_end - self._lease_seconds * 2 / 3
        progress = self.save(run, self._clock().timestamp() + self._lease_seconds if renew else None)
        if renew:
            run.lease_end = self.lease_end(moment)
        self._results.delete(batch, applied)
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
        run.batch = present
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

    def _apply_results(self, run: Run) -> list[int]:
        """Applies the asynchronous results that arrived. Returns the indexes to delete after the next save."""
        if run.batch.ack != ASYNC:
            return []
        applied: list[int] = []
        for index, position, parsed in self._results.read(run.batch, run.work.items):
            accepted: list[bool] = []
            run.pool.change(
                lambda state, now, at=position, answer=parsed.answer, accepted=accepted: accepted.append(  # type: ignore[misc]
                    state.apply_result(at, answer, now)
                )
            )
            if accepted[0]:
                applied.append(index)
                run.work.log_answer(index, None, parsed)
        return applied

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
    """Uses the measured pace, or the rate if that is too low to measure a pace within a tick."""
    left = run.batch.share(run.runner).below(run.batch.total or 0) - progress.position
    pace = min(run.rate, run.pace) if run.rate * FLUSH_SECONDS > 1 else run.rate
    return run.now() + left / pace if left > 0 and pace > 0 else None


def _finished(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.status == FINISHED
