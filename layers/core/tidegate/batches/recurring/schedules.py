"""Recurring batches: each moment of a schedule makes one batch and starts it, once, whoever dies in between.

The batch of a moment has an id made of the schedule and the moment. So a second try finds the batch of the first,
starts it only if that did not happen yet, and moves the schedule on; all three steps may be repeated.
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

# A moment whose batch cannot be made is tried again each minute for this long.
_TRIED_SECONDS = 3600
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
        """The batch is checked as if it were made now. QuotaExceeded if the project has as many as it may."""
        now = self._clock()
        due_at = int(next_run(schedule, now).timestamp())
        self._batches.check(project_id, batch)
        made = BatchSchedule(
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
        line = act(project_id, made.schedule_id, now, who, "batch_schedule.create", f"{batch.name}: {schedule}")
        self._store.add(made, batch, line, self._quotas(project_id).batch_schedules)
        return made

    def get(self, project_id: str, schedule_id: str) -> BatchSchedule:
        return self._store.get(project_id, schedule_id)

    def batch(self, schedule: BatchSchedule) -> NewBatch:
        """The batch that it makes each time."""
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
        """Changes what is given; `batch` has those of its fields that change, and they count from the next moment on.

        With a revision: Conflict if the schedule has another one. Moments that pass while it is paused are not made
        up for.
        """
        for _ in range(_CHANGE_TRIES):
            old = self._store.get(project_id, schedule_id)
            if revision not in (None, old.revision):
                raise Conflict(
                    f"the schedule has revision {old.revision}, not {revision}: it was changed since it was read"
                )
            changed = self._try_change(old, schedule, paused, batch, who)
            if changed is not None:
                return changed
        raise Conflict("the schedule is being changed by others: try again")

    def _try_change(
        self,
        old: BatchSchedule,
        schedule: str | None,
        paused: bool | None,
        batch: Mapping[str, Any] | None,
        who: str,
    ) -> BatchSchedule | None:
        """None if it was changed or has fired since it was read."""
        now = self._clock()
        new = replace(old, schedule=schedule or old.schedule)
        if paused is not None:
            new = replace(new, status=PAUSED if paused else ACTIVE)
        if new.status == PAUSED:
            new = replace(new, due_at=None)
        elif old.status == PAUSED or new.schedule != old.schedule:
            new = replace(new, due_at=int(next_run(new.schedule, now).timestamp()))
        order = replace(self._store.batch(old), **batch) if batch else None
        if order is not None:
            self._batches.check(old.project_id, order)
            new = replace(new, name=order.name, biz_id=order.biz_id)
        if order is None and new == old:
            return old
        extra = []
        if self._made_already(old):
            new = replace(new, last_batch_id=old.batch_id)
            extra.append(self._store.run_write(old, started(old), now))
        new = replace(new, revision=old.revision + 1)
        why = ", ".join([f"{new.schedule}, {new.status}", *(f"batch.{name}" for name in sorted(batch or {}))])
        line = act(old.project_id, old.schedule_id, now, who, "batch_schedule.change", why)
        return new if self._store.change(old, new, order, extra, line) else None

    def delete(self, project_id: str, schedule_id: str, who: str) -> None:
        """Batches that it made stay."""
        old = self._store.get(project_id, schedule_id)
        self._store.delete(old, act(project_id, schedule_id, self._clock(), who, "batch_schedule.delete"))

    def runs(self, project_id: str, schedule_id: str, limit: int, cursor: str | None) -> Listed[dict[str, Any]]:
        """Newest first, each with its batch as it is now."""
        self._store.get(project_id, schedule_id)
        page = self._store.runs(project_id, schedule_id, limit, cursor)
        batches = self._batches.get_many(project_id, [run.batch_id for run in page.items if run.batch_id])
        shown = [
            run.shown() | ({"batch": batches[run.batch_id]} if run.batch_id in batches else {}) for run in page.items
        ]
        return Listed(shown, page.next_cursor)

    def fire(self) -> int:
        """Once a minute: makes and starts the batches whose moment has come. Returns how many."""
        due = self._store.due(self._clock().timestamp())
        return fire_all(due, lambda item: self._try_fire(schedule_from(item)))

    def _try_fire(self, seen: BatchSchedule) -> bool:
        try:
            # The index may be behind: it was paused, changed or deleted, or another function has fired it.
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
            self._skip(schedule, f"{error.code}: {error.detail}")
            return False

    def _fire(self, schedule: BatchSchedule) -> bool:
        if self._still_runs(schedule):
            self._skip(schedule, f"the batch before, {schedule.last_batch_id}, still ran")
            return False
        batch = self._batch_of_moment(schedule)
        error = self._start(batch, schedule.created_by)
        run = skipped(schedule, error, batch.batch_id) if error else started(schedule)
        self._store.fired(schedule, self._after(schedule), run, self._clock())
        return True

    def _skip(self, schedule: BatchSchedule, reason: str) -> None:
        self._store.fired(schedule, self._after(schedule), skipped(schedule, reason), self._clock())

    def _batch_of_moment(self, schedule: BatchSchedule) -> Batch:
        try:
            return self._batches.get(schedule.project_id, schedule.batch_id)
        except RecordNotFound:
            wanted = self._store.batch(schedule)
        return self._batches.create(schedule.project_id, wanted, who=schedule.created_by, batch_id=schedule.batch_id)

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
            return f"{error.code}: {error.detail}"
        return None

    def _still_runs(self, schedule: BatchSchedule) -> bool:
        if schedule.last_batch_id is None or schedule.last_batch_id == schedule.batch_id:
            return False
        try:
            last = self._batches.get(schedule.project_id, schedule.last_batch_id)
        except RecordNotFound:
            return False
        return last.status not in (CREATED, FINISHED, STOPPED)

    def _made_already(self, schedule: BatchSchedule) -> bool:
        """Whether the moment that is due has its batch: a function made it, and died before it noted that."""
        if schedule.due_at is None or schedule.due_at > self._clock().timestamp():
            return False
        try:
            self._batches.get(schedule.project_id, schedule.batch_id)
        except RecordNotFound:
            return False
        return True

    def _after(self, schedule: BatchSchedule) -> int | None:
        return run_after(schedule.schedule, schedule.due_at or 0, self._clock())
