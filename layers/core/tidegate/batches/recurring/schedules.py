"""Recurring batches: each run of a schedule creates one batch and starts it once, even if a function dies in between.

The id of the batch is derived from the schedule and the time of the run. So a retry finds the batch of the first
attempt, starts it only if it was not started, and advances the schedule. Each of these steps may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from aws_lambda_powertools import Logger

from tidegate.batches.batches import Batches
from tidegate.batches.control import BatchControl
from tidegate.batches.model import CREATED, FINISHED, STOPPED, Batch, NewBatch
from tidegate.batches.recurring.model import ACTIVE, PAUSED, BatchSchedule, skipped, started
from tidegate.batches.recurring.store import BatchScheduleStore, schedule_from
from tidegate.common.ids import Clock, iso, new_id
from tidegate.common.listing import Listed
from tidegate.common.schedules import next_run, run_after
from tidegate.errors import Conflict, DomainError, RecordNotFound, WrongState
from tidegate.projects.audit import act
from tidegate.projects.model import Quotas
from tidegate.queue.due_schedules import fire_all

logger = Logger(service="tidegate", child=True)

# A run whose batch cannot be created is retried every minute for this long.
_RETRY_SECONDS = 3600
_CHANGE_TRIES = 5


class BatchSchedules:
    def __init__(
        self,
        store: BatchScheduleStore,
        batches: Batches,
        control: BatchControl,
        quotas: Callable[[str], Quotas],
        clock: Clock,
    ) -> None:
        self._store = store
        self._batches = batches
        self._control = control
        self._quotas = quotas
        self._clock = clock

    def add(self, project_id: str, schedule: str, batch: NewBatch, who: str) -> BatchSchedule:
        """Stores a schedule. Checks its batch as if it were created now. QuotaExceeded if the project has too many."""
        now = self._clock()
        due_at = int(next_run(schedule, now).timestamp())
        self._batches.check(project_id, batch)
        new = BatchSchedule(
            schedule_id=new_id("bsc", now),
            project_id=project_id,
            name=batch.name,
            biz_id=batch.biz_id,
            schedule=schedule,
            status=ACTIVE,
            created_at=iso(now),
            created_by=who,
            due_at=due_at,
        )
        line = act(project_id, new.schedule_id, now, who, "batch_schedule.create", f"{batch.name}: {schedule}")
        self._store.add(new, batch, line, self._quotas(project_id).batch_schedules)
        return new

    def get(self, project_id: str, schedule_id: str) -> BatchSchedule:
        return self._store.get(project_id, schedule_id)

    def batch(self, schedule: BatchSchedule) -> NewBatch:
        """Returns the batch that each run creates."""
        return self._store.batch(schedule)

    def list(self, project_id: str, limit: int, cursor: str | None) -> Listed[BatchSchedule]:
        return self._store.list(project_id, limit, cursor)

    def change(
        self,
        project_id: str,
        schedule_id: str,
        *,
        schedule: str | None = None,
        paused: bool | None = None,
        batch: Mapping[str, Any] | None = None,
        revision: int | None = None,
        who: str,
    ) -> BatchSchedule:
        """Changes what is given. `batch` has only the fields that change; they apply from the next run on.

        With a revision: Conflict if the schedule has another one. Runs missed during a pause are not made up for.
        """
        for _ in range(_CHANGE_TRIES):
            old = self._store.get(project_id, schedule_id)
            if revision not in (None, old.revision):
                raise Conflict(f"the schedule has revision {old.revision}, not {revision}: read it and try again")
            changed = self._try_change(old, schedule, paused, batch, who)
            if changed is not None:
                return changed
        raise Conflict("the schedule is being changed by other requests: try again")

    def _try_change(
        self,
        old: BatchSchedule,
        schedule: str | None,
        paused: bool | None,
        batch: Mapping[str, Any] | None,
        who: str,
    ) -> BatchSchedule | None:
        """Returns None if it was changed or has run since it was read."""
        now = self._clock()
        new = replace(old, schedule=schedule or old.schedule)
        if paused is not None:
            new = replace(new, status=PAUSED if paused else ACTIVE)
        if new.status == PAUSED:
            new = replace(new, due_at=None)
        elif old.status == PAUSED or new.schedule != old.schedule:
            new = replace(new, due_at=int(next_run(new.schedule, now).timestamp()))
        new_batch = replace(self._store.batch(old), **batch) if batch else None
        if new_batch is not None:
            self._batches.check(old.project_id, new_batch)
            new = replace(new, name=new_batch.name, biz_id=new_batch.biz_id)
        if new_batch is None and new == old:
            return old
        extra = []
        if self._batch_exists(old):
            new = replace(new, last_batch_id=old.batch_id)
            extra.append(self._store.run_write(old, started(old), now))
        new = replace(new, revision=old.revision + 1)
        why = ", ".join([f"{new.schedule}, {new.status}", *(f"batch.{name}" for name in sorted(batch or {}))])
        line = act(old.project_id, old.schedule_id, now, who, "batch_schedule.change", why)
        return new if self._store.change(old, new, new_batch, extra, line) else None

    def delete(self, project_id: str, schedule_id: str, who: str) -> None:
        """Deletes the schedule. Its batches stay."""
        old = self._store.get(project_id, schedule_id)
        self._store.delete(old, act(project_id, schedule_id, self._clock(), who, "batch_schedule.delete"))

    def runs(self, project_id: str, schedule_id: str, limit: int, cursor: str | None) -> Listed[dict[str, Any]]:
        """Returns the runs, newest first, each with its batch as it is now."""
        self._store.get(project_id, schedule_id)
        page = self._store.runs(project_id, schedule_id, limit, cursor)
        batches = self._batches.get_many(project_id, [run.batch_id for run in page.items if run.batch_id])
        shown = [
            run.shown() | ({"batch": batches[run.batch_id]} if run.batch_id in batches else {}) for run in page.items
        ]
        return Listed(shown, page.next_cursor)

    def fire(self) -> int:
        """Creates and starts the batches that are due. Called once a minute. Returns how many runs there were."""
        due = self._store.due(self._clock().timestamp())
        return fire_all(due, lambda item: self._try_fire(schedule_from(item)))

    def _try_fire(self, seen: BatchSchedule) -> bool:
        try:
            # The index may be stale: the schedule was paused, changed or deleted, or another function ran it.
            schedule = self._store.get(seen.project_id, seen.schedule_id)
        except RecordNotFound:
            return False
        if schedule.due_at is None or schedule.due_at != seen.due_at:
            return False
        try:
            return self._fire(schedule)
        except DomainError as error:
            fields: dict[str, Any] = {"schedule_id": schedule.schedule_id, "code": error.code, "why": error.detail}
            if error.retryable and self._clock().timestamp() - schedule.due_at < _RETRY_SECONDS:
                logger.warning("a scheduled batch is retried", **fields)
                return False
            logger.warning("a scheduled batch was not created", **fields)
            self._skip(schedule, f"{error.code}: {error.detail}")
            return False

    def _fire(self, schedule: BatchSchedule) -> bool:
        if self._previous_batch_is_active(schedule):
            self._skip(schedule, f"the previous batch, {schedule.last_batch_id}, still ran")
            return False
        batch = self._due_batch(schedule)
        error = self._start(batch, schedule.created_by)
        run = skipped(schedule, error, batch.batch_id) if error else started(schedule)
        self._store.record_run(schedule, self._after(schedule), run, self._clock())
        return True

    def _skip(self, schedule: BatchSchedule, reason: str) -> None:
        self._store.record_run(schedule, self._after(schedule), skipped(schedule, reason), self._clock())

    def _due_batch(self, schedule: BatchSchedule) -> Batch:
        """Returns the batch of the run that is due; creates it unless an earlier attempt did."""
        try:
            return self._batches.get(schedule.project_id, schedule.batch_id)
        except RecordNotFound:
            new_batch = self._store.batch(schedule)
        return self._batches.create(schedule.project_id, new_batch, who=schedule.created_by, batch_id=schedule.batch_id)

    def _start(self, batch: Batch, who: str) -> str | None:
        """Returns None if the batch was started, otherwise the reason."""
        if batch.run > 0 or batch.status != CREATED:
            return None
        try:
            self._control.start(batch.project_id, batch.batch_id, who)
        except WrongState:
            # Another function or a person has started it since it was read.
            return None
        except DomainError as error:
            if error.retryable and self._batches.get(batch.project_id, batch.batch_id).status == CREATED:
                raise
            return f"{error.code}: {error.detail}"
        return None

    def _previous_batch_is_active(self, schedule: BatchSchedule) -> bool:
        if schedule.last_batch_id is None or schedule.last_batch_id == schedule.batch_id:
            return False
        try:
            last = self._batches.get(schedule.project_id, schedule.last_batch_id)
        except RecordNotFound:
            return False
        return last.status not in (CREATED, FINISHED, STOPPED)

    def _batch_exists(self, schedule: BatchSchedule) -> bool:
        """Whether the run that is due has its batch already: a function created it and died before recording that."""
        if schedule.due_at is None or schedule.due_at > self._clock().timestamp():
            return False
        try:
            self._batches.get(schedule.project_id, schedule.batch_id)
        except RecordNotFound:
            return False
        return True

    def _after(self, schedule: BatchSchedule) -> int | None:
        return run_after(schedule.schedule, schedule.due_at or 0, self._clock())
