"""What a runner does once a second: it writes its progress, renews its lease, and learns what has changed."""

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
# A holder trusts its lease a little less than a taker does: clocks differ.
_CLOCK_MARGIN = 1.0
_SMOOTHING = 0.2


class Preparation(Protocol):
    """Looks up what a run needs besides the batch itself."""

    def work(self, batch: Batch) -> ItemCaller: ...

    def items(self, batch: Batch, runner: int) -> Items: ...

    def extent(self, batch: Batch, at: int, *, wait: bool = False) -> Extent:
        """The items that are known by now, to a runner that is `at` this one; `wait` until it is known itself."""


class Charge(Protocol):
    """The right to run this batch now, given by the queue."""

    def confirm(self, batch: Batch, progress: Progress, *, tell: bool) -> None:
        """Once a second. Raises LeaseLost when the right was taken away: cancelled, paused, another attempt."""

    def end(self, batch: Batch, fences: Sequence[int], verdict: Verdict) -> None:
        """The batch and its request end together, if the fencing tokens of all runners still hold."""


@dataclass(slots=True)
class Run:
    """What the main thread of a slice remembers between two ticks."""

    batch: Batch
    runner: int
    charge: Charge
    fence: int
    pool: WorkerPool
    work: ItemCaller
    now: Callable[[], float]
    flushed_at: float
    position: int
    lease_end: float
    parts: int
    # What this runner may call a second, and what it did over the last ten seconds or so.
    rate: float
    pace: float
    told: int
    # All runners of the batch as they were last read; with one runner, nobody.
    records: list[RunnerRecord]
    # Whether all items are known.
    complete: bool
    # Not in a part that counts yet.
    outcomes: list[Outcome] = field(default_factory=list)
    discharged: bool = False
    asleep_until: float | None = None

    def whole(self, own: Progress) -> Progress:
        """The progress of the batch, with this runner's own as it is now."""
        known = [record.progress for record in self.records] or [own]
        return combined(self.batch, [own if runner == self.runner else one for runner, one in enumerate(known)])

    @property
    def leads(self) -> bool:
        """The first of the runners that still work speaks for all of them."""
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
        heard = self._hear_results(run)
        moment = time.monotonic()
        renew = moment > run.lease_end - self._lease_seconds * 2 / 3
        progress = self.save(run, self._clock().timestamp() + self._lease_seconds if renew else None)
        if renew:
            run.lease_end = self.lease_end(moment)
        self._results.forget(batch, heard)
        run.records = self.others(batch)
        try:
            run.charge.confirm(batch, run.whole(progress), tell=run.leads)
        except LeaseLost:
            # Nobody else works yet: what is under way may end, and its place is written.
            run.discharged = True
            run.pool.change(pause)
            return
        present = self._batches.get(batch.project_id, batch.batch_id) or batch
        if (present.data_version, present.serial) != (batch.data_version, batch.serial):
            run.work.items = self._prepare.items(present, run.runner)
        run.batch = present
        self._extend(run)
        run.pool.resize(present.workers(working(run.records)))
        rules = self.rules(present, run.runner, run.records, run.work)
        run.rate = rules.rate
        run.pool.change(lambda state, now: obey(state, run.batch, run.runner, run.records, rules, now))

    def _extend(self, run: Run) -> None:
        """A file's rows are counted while they are called."""
        if run.complete:
            return
        share = run.batch.share(run.runner)
        try:
            extent = self._prepare.extent(run.batch, share.index(run.position))
        except DomainError as error:
            why = error.detail
            run.pool.change(lambda state, _: state.halt(f"its rows cannot be read: {why}", failed=True))
            return
        run.batch, run.complete = self.counted(run.batch, extent), extent.complete
        own = share.below(extent.items)
        run.pool.change(lambda state, _: state.extend(own, complete=extent.complete, batch_total=extent.items))

    def counted(self, batch: Batch, extent: Extent) -> Batch:
        """Written before any runner ends because of it: the others read it before they follow a verdict."""
        if extent.complete and batch.total != extent.items:
            self._runs.set_total(batch, extent.items)
            return replace(batch, total=extent.items)
        return batch

    def others(self, batch: Batch) -> list[RunnerRecord]:
        """All runners, this one among them; read only where there are others."""
        return self._runs.runners(batch) if batch.runners > 1 else []

    def lease_end(self, asked_at: float) -> float:
        return asked_at + self._lease_seconds - _CLOCK_MARGIN

    def rules(self, batch: Batch, runner: int, records: Sequence[RunnerRecord], work: ItemCaller) -> Rules:
        """Runners that are done leave their part of the rate to the others."""
        rules, parts = batch.rules, working(records)
        most_open = None if rules.most_open is None else max(1, rules.most_open // parts)
        rules = replace(rules, rate=rules.rate / parts, most_open=most_open)
        if not work.shared_rate:
            return rules
        now = self._clock().timestamp()
        return replace(rules, rate=self._shares.share(batch, runner, rules.rate, work.shared_rate, now))

    def leave(self, run: Run) -> None:
        if run.work.shared_rate:
            self._shares.leave(run.batch, run.runner)

    def _hear_results(self, run: Run) -> list[int]:
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

    def save(self, run: Run, lease_until: float | None, *, forget_verdict: bool = False) -> Progress:
        """The outcomes go to S3 first: what the progress calls done must not be lost."""
        moment = time.monotonic()
        progress, fresh = run.pool.snapshot()
        run.outcomes += fresh
        parts = run.parts
        if run.outcomes:
            parts += 1
            self._outcomes.write_part(run.batch, run.runner, parts, run.fence, run.outcomes, run.work.items)
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
        if run.leads:
            whole = run.whole(progress)
            run.told = self._milestones.tell(run.batch, whole, max(run.told, whole.told))
        progress = replace(progress, told=run.told)
        self._runs.save(run.batch, run.fence, progress, lease_until, run.runner)
        run.parts, run.outcomes = parts, []
        run.flushed_at, run.position = moment, progress.position
        return progress


def working(records: Sequence[RunnerRecord]) -> int:
    """How many runners share the rate."""
    return max(1, sum(1 for record in records if record.progress.verdict is None))


def obey(
    state: RunState, present: Batch, runner: int, records: Sequence[RunnerRecord], rules: Rules, now: float
) -> None:
    """What people and the other runners want of this one."""
    state.change(rules, now)
    others = [(number, one.progress) for number, one in enumerate(records) if number != runner]
    verdicts = (ends_others(present, number, progress) for number, progress in others)
    state.hear_others(
        sum(progress.errors for _, progress in others), next((verdict for verdict in verdicts if verdict), None)
    )
    if present.status == STOPPING:
        state.halt(present.stop_reason or "stopped on request")


def pause(state: RunState, _: float) -> None:
    state.paused = True


def _eta(run: Run, progress: Progress) -> float | None:
    """A slow batch that calls an item now and then has its rate for a pace."""
    left = run.batch.share(run.runner).below(run.batch.total or 0) - progress.position
    pace = min(run.rate, run.pace) if run.rate * FLUSH_SECONDS > 1 else run.rate
    return run.now() + left / pace if left > 0 and pace > 0 else None


def _finished(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.status == FINISHED
