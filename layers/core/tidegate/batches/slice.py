"""One slice of a batch: hold the lease, call items at the rate, write the place once a second, hand over."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Protocol

from aws_lambda_powertools import Logger

from tidegate.batches.item_call import ItemCaller, Items
from tidegate.batches.model import STOPPING, Batch, Progress
from tidegate.batches.run_state import FINISHED, RunState, Verdict
from tidegate.batches.run_store import BatchRunStore
from tidegate.batches.store import BatchStore
from tidegate.batches.worker_pool import WorkerPool
from tidegate.common.ids import Clock
from tidegate.errors import LeaseLost

logger = Logger(service="tidegate", child=True)

CONTINUE, BUSY, ENDED = "continue", "busy", "ended"
_FLUSH_SECONDS = 1.0
# A holder trusts its lease a little less than a taker does: clocks differ.
_CLOCK_MARGIN = 1.0


@dataclass(frozen=True, slots=True)
class Pace:
    slice_seconds: float = 240.0
    lease_seconds: float = 15.0


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
class _Watch:
    """What the main thread remembers between two ticks."""

    flushed_at: float
    position: int
    lease_end: float
    data_version: int
    discharged: bool = False


class SliceRunner:
    def __init__(
        self,
        batches: BatchStore,
        runs: BatchRunStore,
        prepare: Preparation,
        clock: Clock,
        pace: Pace | None = None,
    ) -> None:
        self._batches = batches
        self._runs = runs
        self._prepare = prepare
        self._clock = clock
        self._pace = pace or Pace()

    def run(self, batch: Batch, charge: Charge) -> str:
        """`continue` when the slice's time is up, `busy` while another runner holds the lease, `ended`."""
        asked_at = time.monotonic()
        taken = self._runs.acquire(batch, self._clock().timestamp(), self._pace.lease_seconds)
        if taken is None:
            return BUSY
        fence, progress = taken
        try:
            if progress.verdict:
                charge.end(batch, fence, progress.verdict)
                return ENDED
            return self._work_through(batch, charge, fence, progress, asked_at)
        except LeaseLost:
            return BUSY

    def _work_through(self, batch: Batch, charge: Charge, fence: int, progress: Progress, asked_at: float) -> str:
        work = self._prepare.work(batch)
        total = self._prepare.total(batch)
        work.items = self._prepare.items(batch)
        now = time.monotonic()
        course = RunState(total, batch.rules, progress.ledger, now, progress.errors)
        self._obey(course, batch, now)
        watch = _Watch(now, progress.position, self._lease_end(asked_at), batch.data_version)
        crew = WorkerPool(course, work, batch.workers, lambda: time.monotonic() < watch.lease_end)
        crew.start()
        slice_end = asked_at + self._pace.slice_seconds
        try:
            while not crew.gone.wait(max(0.0, watch.flushed_at + _FLUSH_SECONDS - time.monotonic())):
                self._try_tick(batch, charge, fence, crew, work, watch)
                if time.monotonic() >= slice_end:
                    crew.change(_pause)
        except BaseException:
            crew.change(_pause)
            raise
        crew.join()
        return self._hand_over(batch, charge, fence, crew, work, watch)

    def _try_tick(
        self, batch: Batch, charge: Charge, fence: int, crew: WorkerPool, work: ItemCaller, watch: _Watch
    ) -> None:
        try:
            self._tick(batch, charge, fence, crew, work, watch)
        except LeaseLost:
            raise
        except Exception:
            # A table that stammers costs nothing while the lease lasts; when it ends the workers stop by themselves.
            logger.exception("a tick failed", batch_id=batch.batch_id)
            watch.flushed_at = time.monotonic()

    def _tick(
        self, batch: Batch, charge: Charge, fence: int, crew: WorkerPool, work: ItemCaller, watch: _Watch
    ) -> None:
        now = time.monotonic()
        progress = self._progress(crew, watch, now)
        renew = now > watch.lease_end - self._pace.lease_seconds * 2 / 3
        lease_until = self._clock().timestamp() + self._pace.lease_seconds if renew else None
        self._runs.save(batch, fence, progress, lease_until)
        if renew:
            watch.lease_end = self._lease_end(now)
        watch.flushed_at, watch.position = now, progress.position
        try:
            charge.confirm(batch, progress)
        except LeaseLost:
            # Nobody else works yet: what is under way may end, and its place is written.
            watch.discharged = True
            crew.change(_pause)
            return
        present = self._batches.get(batch.project_id, batch.batch_id) or batch
        if present.data_version != watch.data_version:
            work.items, watch.data_version = self._prepare.items(present), present.data_version
        crew.resize(present.workers)
        crew.change(lambda course, moment: self._obey(course, present, moment))
        # Last: whatever is wrong with them, a stop must be heard.
        self._save_lines(batch, work)

    def _hand_over(
        self, batch: Batch, charge: Charge, fence: int, crew: WorkerPool, work: ItemCaller, watch: _Watch
    ) -> str:
        progress = self._progress(crew, watch, time.monotonic())
        if watch.discharged and progress.verdict and progress.verdict.status != FINISHED:
            # Someone else has ended this run: a later one is not to stop for its reasons.
            progress = replace(progress, verdict=None)
        ended = progress.verdict is not None and not watch.discharged
        self._runs.save(batch, fence, progress, None if ended else 0)
        self._save_lines(batch, work)
        if progress.verdict and ended:
            charge.end(batch, fence, progress.verdict)
        return ENDED if ended or watch.discharged else CONTINUE

    def _save_lines(self, batch: Batch, work: ItemCaller) -> None:
        lines = work.drain_lines()
        if not lines:
            return
        try:
            self._batches.add_logs(batch.project_id, batch.batch_id, lines, self._clock().timestamp())
        except Exception:
            work.put_back(lines)
            raise

    def _lease_end(self, asked_at: float) -> float:
        return asked_at + self._pace.lease_seconds - _CLOCK_MARGIN

    @staticmethod
    def _progress(crew: WorkerPool, watch: _Watch, now: float) -> Progress:
        progress = crew.snapshot()
        elapsed = max(now - watch.flushed_at, 0.001)
        return replace(progress, rate_now=round((progress.position - watch.position) / elapsed, 1))

    @staticmethod
    def _obey(course: RunState, present: Batch, now: float) -> None:
        course.change(present.rules, now)
        if present.status == STOPPING:
            course.halt(present.stop_reason or "stopped on request")


def _pause(course: RunState, _: float) -> None:
    course.paused = True
