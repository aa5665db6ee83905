"""Recurring exports: create, change, pause, delete; and once a minute, order those that are due."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools import Logger

from tidegate.common.ids import Clock, digest, iso, new_id
from tidegate.common.listing import Listed
from tidegate.common.schedules import next_run, run_after
from tidegate.errors import Conflict, DomainError, Invalid, QuotaExceeded, RecordNotFound
from tidegate.exports import model as domain
from tidegate.exports.schedules.model import (
    ACTIVE,
    MOST_BYTES,
    PAUSED,
    PREFIX,
    SKIPPED,
    STARTED,
    ExportSchedule,
    ScheduledOrder,
    dated,
    run_of,
)
from tidegate.exports.schedules.store import ScheduleStore, schedule_from
from tidegate.exports.source_json import plain, read_exact, write_exact
from tidegate.projects.audit import act
from tidegate.queue.due_schedules import fire_all

if TYPE_CHECKING:
    from tidegate.exports.exports import Exports
    from tidegate.projects.store import ProjectStore
    from tidegate.queue.queue import RequestQueue

logger = Logger(service="tidegate", child=True)

_CHANGED = "the schedule was changed by another request at the same time: read it and try again"


class ExportSchedules:
    def __init__(
        self, store: ScheduleStore, exports: Exports, queue: RequestQueue, quotas: ProjectStore, clock: Clock
    ) -> None:
        self._store = store
        self._exports = exports
        self._queue = queue
        self._quotas = quotas
        self._clock = clock

    def create(self, project_id: str, schedule: str, order: ScheduledOrder, who: str) -> ExportSchedule:
        """Checks the order as if it were placed now. QuotaExceeded if the project has as many schedules as it may."""
        data, now = self._checked(project_id, order), self._clock()
        made = ExportSchedule(
            schedule_id=new_id(PREFIX, now),
            project_id=project_id,
            name=order.options.name,
            type=order.spec.type,
            schedule=schedule,
            status=ACTIVE,
            created_at=iso(now),
            created_by=who,
            due_at=int(next_run(schedule, now).timestamp()),
            counted=True,
        )
        line = act(project_id, made.schedule_id, now, who, "export-schedule.create", f"{made.name}: {schedule}")
        self._store.add(made, data, line, self._quotas.quotas(project_id).export_schedules)
        return made

    def _checked(self, project_id: str, order: ScheduledOrder) -> bytes:
        self._exports.check_order(project_id, order.spec, order.options)
        data = write_exact(order.as_data())
        if len(data) > MOST_BYTES:
            detail = f"a recurring export may have {MOST_BYTES:,} bytes, not {len(data):,}: use a source_url instead"
            raise Invalid(detail, errors=[{"loc": ["body", "source_data"], "msg": detail}])
        return data

    def get(self, project_id: str, schedule_id: str) -> ExportSchedule:
        found = self._store.get(project_id, schedule_id)
        if found is None:
            raise RecordNotFound(f"this project has no recurring export with the id {schedule_id[:200]}")
        return found

    def list(self, project_id: str, limit: int, cursor: str | None) -> Listed[ExportSchedule]:
        return self._store.page(project_id, limit, cursor)

    def change(
        self,
        project_id: str,
        schedule_id: str,
        who: str,
        *,
        schedule: str | None = None,
        paused: bool | None = None,
        revision: int | None = None,
        reorder: Callable[[ScheduledOrder], ScheduledOrder] | None = None,
    ) -> ExportSchedule:
        """Changes what is not None. Conflict if `revision` is given and is not the present one.

        A run that has begun continues with the order that it started with.
        """
        old = self.get(project_id, schedule_id)
        if revision is not None and revision != old.revision:
            raise Conflict(f"the schedule has revision {old.revision}, not {revision}: read it and try again")
        now, new, data = self._clock(), old, None
        if reorder is not None:
            order = reorder(self.order(old))
            data = self._checked(project_id, order)
            new = replace(new, name=order.options.name, type=order.spec.type)
        new = replace(
            new,
            schedule=schedule or old.schedule,
            status=old.status if paused is None else PAUSED if paused else ACTIVE,
        )
        if new.status == PAUSED:
            new = replace(new, due_at=None)
        elif (new.schedule, new.status) != (old.schedule, old.status):
            new = replace(new, due_at=int(next_run(new.schedule, now).timestamp()))
        if data is None and new == old:
            return old
        changed = [name for name in ("name", "schedule", "status") if getattr(new, name) != getattr(old, name)]
        detail = ", ".join([*changed, *(["order"] if data else [])])
        line = act(project_id, schedule_id, now, who, "export-schedule.change", detail)
        if not self._store.change(old, new, data, line):
            raise Conflict(_CHANGED)
        return replace(new, revision=old.revision + 1)

    def order(self, schedule: ExportSchedule) -> ScheduledOrder:
        data = self._store.order(schedule.project_id, schedule.schedule_id)
        if data is None:
            raise RecordNotFound(f"this project has no recurring export with the id {schedule.schedule_id}")
        return _order_of(data)

    def pause(self, project_id: str, schedule_id: str, who: str) -> ExportSchedule:
        """Stops further runs. Idempotent."""
        old = self.get(project_id, schedule_id)
        return old if old.status == PAUSED else self._set(old, PAUSED, None, who)

    def resume(self, project_id: str, schedule_id: str, who: str) -> ExportSchedule:
        """Continues with the next run from now on; missed runs are not made up for. Idempotent."""
        old = self.get(project_id, schedule_id)
        if old.status == ACTIVE:
            return old
        return self._set(old, ACTIVE, int(next_run(old.schedule, self._clock()).timestamp()), who)

    def _set(self, old: ExportSchedule, status: str, due_at: int | None, who: str) -> ExportSchedule:
        action = "export-schedule.pause" if status == PAUSED else "export-schedule.resume"
        line = act(old.project_id, old.schedule_id, self._clock(), who, action)
        new = replace(old, status=status, due_at=due_at)
        if not self._store.change(old, new, None, line):
            raise Conflict(_CHANGED)
        return replace(new, revision=old.revision + 1)

    def delete(self, project_id: str, schedule_id: str, who: str) -> None:
        """Deletes the schedule; the exports that it ordered stay."""
        old = self.get(project_id, schedule_id)
        line = act(project_id, schedule_id, self._clock(), who, "export-schedule.delete")
        if not self._store.remove(old, line):
            raise RecordNotFound(f"this project has no recurring export with the id {schedule_id[:200]}")

    def runs(self, project_id: str, schedule_id: str, limit: int, cursor: str | None) -> Listed[dict[str, Any]]:
        """Its runs, newest first, each with the present state of its export. A deleted export has no `task`."""
        self.get(project_id, schedule_id)
        page = self._store.runs(project_id, schedule_id, limit, cursor)
        tasks = self._exports.get_many(project_id, [run.task_id for run in page.items if run.task_id])
        shown = [run.shown() | ({"task": tasks[run.task_id]} if run.task_id in tasks else {}) for run in page.items]
        return Listed(shown, page.next_cursor)

    def fire(self) -> int:
        """Orders an export for each due schedule. Returns how many. Runs once a minute."""
        due = self._store.due(self._clock().timestamp())
        return fire_all(due, lambda item: self._fire(schedule_from(item), self._clock()))

    def _fire(self, seen: ExportSchedule, now: datetime) -> bool:
        # The index may be stale: the schedule was paused, resumed or deleted, or another function has run it.
        schedule = self._store.get(seen.project_id, seen.schedule_id)
        if schedule is None or schedule.due_at is None or schedule.due_at != seen.due_at:
            return False
        due_at = run_after(schedule.schedule, schedule.due_at, now)
        if self._still_runs(schedule):
            self._skip(schedule, due_at, now, f"{schedule.last_task_id} of the run before had not ended")
            return False
        data = self._store.order(schedule.project_id, schedule.schedule_id)
        if data is None:
            # Deleted meanwhile.
            return False
        order = _order_of(data)
        # A deterministic id: a run that is repeated after a crash is the same export.
        task_id = f"{domain.PREFIX}-{digest(schedule.schedule_id, str(schedule.due_at), length=26)}"
        run_writes = self._store.run_writes(schedule, due_at, run_of(schedule, STARTED, task_id), now)
        options = dated(order.options, schedule.due_at)
        try:
            self._exports.place(
                schedule.project_id,
                order.spec,
                options,
                "schedule",
                task_id=task_id,
                schedule_id=schedule.schedule_id,
                extra_writes=run_writes,
            )
        except Conflict:
            # Another invocation ordered it, or it was paused or deleted meanwhile.
            return False
        except DomainError as error:
            if error.retryable and not isinstance(error, QuotaExceeded):
                raise
            self._skip(schedule, due_at, now, error.detail)
            return False
        return True

    def _skip(self, schedule: ExportSchedule, due_at: int | None, now: datetime, reason: str) -> None:
        if self._store.skip(schedule, due_at, run_of(schedule, SKIPPED, reason=reason[:300]), now):
            logger.warning("a scheduled export was skipped", schedule_id=schedule.schedule_id, why=reason)

    def _still_runs(self, schedule: ExportSchedule) -> bool:
        if not schedule.last_task_id:
            return False
        try:
            return not self._queue.get(schedule.project_id, schedule.last_task_id).is_over
        except RecordNotFound:
            return False


def _order_of(stored: str) -> ScheduledOrder:
    data = read_exact(stored)
    return ScheduledOrder.from_data(data | {"options": plain(data["options"])})
