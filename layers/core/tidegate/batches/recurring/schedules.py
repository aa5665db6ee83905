"""Recurring batches: each moment of a schedule makes one batch and starts it, once, whoever dies in between.

The batch of a moment has an id made of the schedule and the moment. So a second try finds the batch of the first,
starts it only if that did not happen yet, and moves the schedule on; all three steps may be repeated.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from aws_lambda_powertools import Logger

from tidegate.batches.batches import Batches
from tidegate.batches.control import BatchControl
from tidegate.batches.model import CREATED, FINISHED, STOPPED, Batch, NewBatch
from tidegate.batches.recurring.store import BatchSchedule, BatchScheduleStore, schedule_from
from tidegate.common.ids import Clock, iso, named_id, new_id
from tidegate.common.listing import Listed
from tidegate.common.schedules import next_run, run_after
from tidegate.errors import DomainError, RecordNotFound, WrongState
from tidegate.projects.audit import act
from tidegate.queue.due_schedules import fire_all

logger = Logger(service="tidegate", child=True)

# A moment whose batch cannot be made is tried again each minute for this long.
_TRIED_SECONDS = 3600


class BatchSchedules:
    def __init__(self, store: BatchScheduleStore, batches: Batches, control: BatchControl, clock: Clock) -> None:
        self._store = store
        self._batches = batches
        self._control = control
        self._clock = clock

    def add(self, project_id: str, schedule: str, batch: NewBatch, who: str) -> BatchSchedule:
        """The batch is checked as if it were made now."""
        now = self._clock()
        due_at = int(next_run(schedule, now).timestamp())
        self._batches.check(project_id, batch)
        made = BatchSchedule(new_id("bsc", now), project_id, schedule, batch, iso(now), who, due_at=due_at)
        why = f"{batch.name}: {schedule}"
        self._store.add(made, act(project_id, made.schedule_id, now, who, "batch_schedule.create", why))
        return made

    def get(self, project_id: str, schedule_id: str) -> BatchSchedule:
        return self._store.get(project_id, schedule_id)

    def list(self, project_id: str, limit: int, cursor: str | None) -> Listed[BatchSchedule]:
        return self._store.list(project_id, limit, cursor)

    def change(
        self, project_id: str, schedule_id: str, *, schedule: str | None, enabled: bool | None, who: str
    ) -> BatchSchedule:
        """Moments that passed while it was disabled are not made up for."""
        old = self._store.get(project_id, schedule_id)
        now = self._clock()
        new = replace(
            old,
            schedule=old.schedule if schedule is None else schedule,
            enabled=old.enabled if enabled is None else enabled,
        )
        if not new.enabled:
            new = replace(new, due_at=None)
        elif not old.enabled or new.schedule != old.schedule:
            new = replace(new, due_at=int(next_run(new.schedule, now).timestamp()))
        new = replace(new, last_batch_id=self._made_already(old) or old.last_batch_id)
        why = f"{new.schedule}, {'enabled' if new.enabled else 'disabled'}"
        self._store.replace(old, new, act(project_id, schedule_id, now, who, "batch_schedule.change", why))
        return new

    def delete(self, project_id: str, schedule_id: str, who: str) -> None:
        """Batches that it made stay."""
        old = self._store.get(project_id, schedule_id)
        self._store.delete(old, act(project_id, schedule_id, self._clock(), who, "batch_schedule.delete"))

    def fire(self) -> int:
        """Once a minute: makes and starts the batches whose moment has come. Returns how many."""
        due = self._store.due(self._clock().timestamp())
        return fire_all(due, lambda item: self._try_fire(schedule_from(item)))

    def _try_fire(self, seen: BatchSchedule) -> bool:
        try:
            # The index may be behind: it was disabled, changed or deleted, or another function has fired it.
            schedule = self._store.get(seen.project_id, seen.schedule_id)
        except RecordNotFound:
            return False
        if schedule.due_at is None or schedule.due_at != seen.due_at:
            return False
        try:
            return self._fire(schedule)
        except DomainError as error:
            told: dict[str, Any] = {"schedule_id": schedule.schedule_id, "code": error.code, "why": error.detail}
            if error.retryable and self._clock().timestamp() - schedule.due_at < _TRIED_SECONDS:
                logger.warning("a scheduled batch is tried again", **told)
                return False
            logger.warning("a scheduled batch was not made", **told)
            self._store.fired(schedule, self._after(schedule), None, f"{error.code}: {error.detail}"[:500])
            return False

    def _fire(self, schedule: BatchSchedule) -> bool:
        if self._still_runs(schedule):
            why = f"the batch before, {schedule.last_batch_id}, still ran"
            self._store.fired(schedule, self._after(schedule), None, why)
            return False
        batch = self._batch_of_moment(schedule)
        error = self._start(batch, schedule.created_by)
        self._store.fired(schedule, self._after(schedule), batch.batch_id, error)
        return True

    def _batch_of_moment(self, schedule: BatchSchedule) -> Batch:
        batch_id = self._name(schedule)
        try:
            return self._batches.get(schedule.project_id, batch_id)
        except RecordNotFound:
            return self._batches.create(schedule.project_id, schedule.batch, who=schedule.created_by, batch_id=batch_id)

    def _start(self, batch: Batch, who: str) -> str | None:
        """None if it is started; otherwise why not."""
        if batch.run > 0 or batch.status != CREATED:
            return None
        try:
            self._control.start(batch.project_id, batch.batch_id, who)
        except WrongState:
            # Another function, or someone by hand, has started it since it was read.
            return None
        except DomainError as error:
            if error.retryable and self._batches.get(batch.project_id, batch.batch_id).status == CREATED:
                raise
            return f"{error.code}: {error.detail}"[:500]
        return None

    def _still_runs(self, schedule: BatchSchedule) -> bool:
        if schedule.last_batch_id is None or schedule.last_batch_id == self._name(schedule):
            return False
        try:
            last = self._batches.get(schedule.project_id, schedule.last_batch_id)
        except RecordNotFound:
            return False
        return last.status not in (CREATED, FINISHED, STOPPED)

    def _made_already(self, schedule: BatchSchedule) -> str | None:
        """The batch of a moment that has come, if a function made it and died before it noted that."""
        if schedule.due_at is None or schedule.due_at > self._clock().timestamp():
            return None
        try:
            return self._batches.get(schedule.project_id, self._name(schedule)).batch_id
        except RecordNotFound:
            return None

    def _after(self, schedule: BatchSchedule) -> int | None:
        return run_after(schedule.schedule, schedule.due_at or 0, self._clock())

    @staticmethod
    def _name(schedule: BatchSchedule) -> str:
        moment = datetime.fromtimestamp(schedule.due_at or 0, UTC)
        return named_id("bat", moment, schedule.schedule_id, str(schedule.due_at))
