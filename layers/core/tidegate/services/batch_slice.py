"""One slice of a batch: hold the lease, call items at the rate, write the place once a second, hand over."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Protocol

from aws_lambda_powertools import Logger

from tidegate.domain.batch_course import Course, Verdict
from tidegate.domain.batches import ACTIVE, STOPPING, Batch, LogLine, Progress
from tidegate.domain.ids import Clock, iso
from tidegate.errors import LeaseLost
from tidegate.services.batch_crew import Crew
from tidegate.services.batch_work import Items, ItemWork

logger = Logger(service="tidegate", child=True)

CONTINUE, BUSY, ENDED = "continue", "busy", "ended"
_FLUSH_SECONDS = 1.0
# A holder trusts its lease a little less than a taker does: clocks differ.
_CLOCK_MARGIN = 1.0


@dataclass(frozen=True, slots=True)
class Pace:
    slice_seconds: float = 240.0
    lease_seconds: float = 15.0
    heartbeat_seconds: float = 30.0


class RunStore(Protocol):
    def acquire(self, batch: Batch, now: float, lease_seconds: float) -> tuple[int, Progress] | None: ...

    def save(self, batch: Batch, fence: int, progress: Progress, lease_until: float | None = None) -> None: ...

    def conclude(self, batch: Batch, fence: int, progress: Progress, verdict: Verdict, finish_time: str) -> None: ...


class BatchReader(Protocol):
    def get(self, project_id: str, batch_id: str) -> Batch | None: ...

    def add_logs(self, project_id: str, batch_id: str, lines: list[LogLine], now: float) -> None: ...


class Preparation(Protocol):
    """Looks up what a run needs besides the batch itself."""

    def work(self, batch: Batch) -> ItemWork: ...

    def items(self, batch: Batch) -> Items: ...

    def total(self, batch: Batch) -> int: ...


class Heartbeat(Protocol):
    def beat(self, batch: Batch, progress: Progress) -> None: ...


@dataclass(slots=True)
class _Watch:
    """What the main thread remembers between two ticks."""

    flushed_at: float
    position: int
    lease_end: float
    beat_at: float
    data_version: int


class SliceRunner:
    def __init__(
        self,
        batches: BatchReader,
        runs: RunStore,
        prepare: Preparation,
        heartbeat: Heartbeat,
        clock: Clock,
        pace: Pace | None = None,
    ) -> None:
        self._batches = batches
        self._runs = runs
        self._prepare = prepare
        self._heartbeat = heartbeat
        self._clock = clock
        self._pace = pace or Pace()

    def run(self, project_id: str, batch_id: str, run: int) -> str:
        """`continue` when the slice's time is up, `busy` while another runner holds the lease, `ended`."""
        batch = self._batches.get(project_id, batch_id)
        if batch is None or batch.run != run or batch.status not in ACTIVE:
            return ENDED
        asked_at = time.monotonic()
        taken = self._runs.acquire(batch, self._clock().timestamp(), self._pace.lease_seconds)
        if taken is None:
            return BUSY
        fence, progress = taken
        if progress.verdict:
            self._conclude(batch, fence, progress, progress.verdict)
            return ENDED
        try:
            return self._work_through(batch, fence, progress, asked_at)
        except LeaseLost:
            return BUSY

    def _work_through(self, batch: Batch, fence: int, progress: Progress, asked_at: float) -> str:
        work = self._prepare.work(batch)
        total = self._prepare.total(batch)
        work.items = self._prepare.items(batch)
        now = time.monotonic()
        course = Course(total, batch.rules, progress.ledger, now, progress.errors)
        self._obey(course, batch, now)
        watch = _Watch(now, progress.position, self._lease_end(asked_at), now, batch.data_version)
        crew = Crew(course, work, batch.workers, lambda: time.monotonic() < watch.lease_end)
        crew.start()
        slice_end = asked_at + self._pace.slice_seconds
        try:
            while not crew.gone.wait(max(0.0, watch.flushed_at + _FLUSH_SECONDS - time.monotonic())):
                self._try_tick(batch, fence, crew, work, watch)
                if time.monotonic() >= slice_end:
                    crew.change(_pause)
        except BaseException:
            crew.change(_pause)
            raise
        crew.join()
        return self._hand_over(batch, fence, crew, work, watch)

    def _try_tick(self, batch: Batch, fence: int, crew: Crew, work: ItemWork, watch: _Watch) -> None:
        try:
            self._tick(batch, fence, crew, work, watch)
        except LeaseLost:
            raise
        except Exception:
            # A table that stammers costs nothing while the lease lasts; when it ends the workers stop by themselves.
            logger.exception("a tick failed", batch_id=batch.batch_id)
            watch.flushed_at = time.monotonic()

    def _tick(self, batch: Batch, fence: int, crew: Crew, work: ItemWork, watch: _Watch) -> None:
        now = time.monotonic()
        progress = self._progress(crew, watch, now)
        renew = now > watch.lease_end - self._pace.lease_seconds * 2 / 3
        lease_until = self._clock().timestamp() + self._pace.lease_seconds if renew else None
        self._runs.save(batch, fence, progress, lease_until)
        if renew:
            watch.lease_end = self._lease_end(now)
        watch.flushed_at, watch.position = now, progress.position
        self._save_lines(batch, work)
        present = self._batches.get(batch.project_id, batch.batch_id)
        if present is None or present.run != batch.run or present.status not in ACTIVE:
            raise LeaseLost("the batch was ended by someone else")
        if present.data_version != watch.data_version:
            work.items, watch.data_version = self._prepare.items(present), present.data_version
        crew.resize(present.workers)
        crew.change(lambda course, moment: self._obey(course, present, moment))
        if now >= watch.beat_at:
            watch.beat_at = now + self._pace.heartbeat_seconds
            self._heartbeat.beat(present, progress)

    def _hand_over(self, batch: Batch, fence: int, crew: Crew, work: ItemWork, watch: _Watch) -> str:
        progress = self._progress(crew, watch, time.monotonic())
        self._save_lines(batch, work)
        if progress.verdict:
            self._conclude(batch, fence, progress, progress.verdict)
            return ENDED
        self._runs.save(batch, fence, progress, 0)
        return CONTINUE

    def _conclude(self, batch: Batch, fence: int, progress: Progress, verdict: Verdict) -> None:
        self._runs.conclude(batch, fence, replace(progress, rate_now=0.0), verdict, iso(self._clock()))

    def _save_lines(self, batch: Batch, work: ItemWork) -> None:
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
    def _progress(crew: Crew, watch: _Watch, now: float) -> Progress:
        progress = crew.snapshot()
        elapsed = max(now - watch.flushed_at, 0.001)
        return replace(progress, rate_now=round((progress.position - watch.position) / elapsed, 1))

    @staticmethod
    def _obey(course: Course, present: Batch, now: float) -> None:
        course.change(present.rules, now)
        if present.status == STOPPING:
            course.halt(present.stop_reason or "stopped on request")


def _pause(course: Course, _: float) -> None:
    course.paused = True
