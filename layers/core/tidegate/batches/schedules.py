"""Recurring batches: each run of a schedule creates one batch and starts it once, even if a function dies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from aws_lambda_powertools import Logger

from tidegate.aws import keys
from tidegate.aws.table import ConditionFailed, Item, Table, Write, delete, put, put_new, update
from tidegate.batches.batches import Batches
from tidegate.batches.control import BatchControl
from tidegate.batches.model import CREATED, FINISHED, STOPPED, Batch, NewBatch
from tidegate.common.ids import Clock, iso, named_id, new_id
from tidegate.common.schedules import next_run, run_after
from tidegate.common.sequences import Listed
from tidegate.errors import Conflict, DomainError, QuotaExceeded, RecordNotFound, WrongState
from tidegate.projects.audit import AuditLine, act, audit_write
from tidegate.projects.limits import count_write
from tidegate.projects.model import Quotas
from tidegate.queue.schedules import due_items, fire_all
from tidegate.records import record_from

# --- model
# A schedule of batches, and its runs.

ACTIVE, PAUSED = "active", "paused"
STARTED, SKIPPED = "started", "skipped"
LONGEST_REASON = 500


@dataclass(frozen=True, slots=True)
class BatchSchedule:
    """Creates and starts a batch at each scheduled time."""

    schedule_id: str
    project_id: str
    name: str
    biz_id: str
    schedule: str
    status: str
    created_at: str
    # Its batches are created on behalf of this caller.
    created_by: str
    # Incremented by every change that a caller makes, not by runs.
    revision: int = 1
    # Epoch seconds of the next run; None while it is paused, and after its last run.
    due_at: int | None = None
    last_batch_id: str | None = None
    # Why the last run created no batch, or its batch did not start.
    last_error: str | None = None

    def shown(self) -> dict[str, Any]:
        fields = {name: value for name, value in asdict(self).items() if name not in ("project_id", "due_at")}
        return fields | {"next_run": _moment(self.due_at) if self.due_at else None}

    @property
    def batch_id(self) -> str:
        """The id of the batch of the run that is due. It is derived from the schedule and the time, so that a retry
        finds the batch of the first attempt. Ids of later runs sort after it."""
        moment = datetime.fromtimestamp(self.due_at or 0, UTC)
        return named_id("bat", moment, self.schedule_id, str(self.due_at))


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a schedule: `started`, with its batch, or `skipped`, with the reason. A skipped run has a batch too
    if it was created and the business refused to run it."""

    due: str
    state: str
    batch_id: str | None = None
    reason: str | None = None

    def shown(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def started(schedule: BatchSchedule) -> Run:
    return Run(_moment(schedule.due_at or 0), STARTED, schedule.batch_id)


def skipped(schedule: BatchSchedule, reason: str, batch_id: str | None = None) -> Run:
    return Run(_moment(schedule.due_at or 0), SKIPPED, batch_id, reason[:LONGEST_REASON])


def _moment(seconds: int) -> str:
    return iso(datetime.fromtimestamp(seconds, UTC))


# --- store
# Schedules of batches in the table: their records, the batches that they create, and their runs.

_FIELDS = tuple(field.name for field in fields(BatchSchedule))
_RUN_FIELDS = tuple(field.name for field in fields(Run))
_RUNS_KEPT = timedelta(days=31)
# Somebody has to delete a schedule first.
_QUOTA_RETRY_SECONDS = 3600
_OPTIONAL = ("due_at", "last_batch_id", "last_error")


class BatchScheduleStore:
    def __init__(self, table: Table) -> None:
        self._table = table

    def add(self, schedule: BatchSchedule, batch: NewBatch, line: AuditLine, limit: int | None) -> None:
        """Stores a schedule. QuotaExceeded if the project has `limit` schedules of batches already."""
        fields = {name: value for name, value in asdict(schedule).items() if value is not None}
        listing = {"gsi1pk": keys.batch_schedules_list(schedule.project_id), "gsi1sk": schedule.schedule_id}
        due = keys.batch_scheduled(schedule.due_at) if schedule.due_at else {}
        writes = [
            put_new(_key(schedule) | fields | listing | due),
            put(_order_item(schedule, batch)),
            count_write(schedule.project_id, "batch_schedules", 1, limit),
            audit_write(line),
        ]
        try:
            self._table.transact(writes)
        except ConditionFailed as error:
            # If the record exists, the answer to the first write was lost and the SDK repeated it.
            if 0 not in error.failed:
                raise QuotaExceeded.of("batch_schedules", limit, _QUOTA_RETRY_SECONDS) from error

    def get(self, project_id: str, schedule_id: str) -> BatchSchedule:
        item = self._table.get(keys.batch_schedule(project_id, schedule_id), consistent=True)
        if item is None:
            raise RecordNotFound(f"this project has no schedule of batches with the id {schedule_id[:200]}")
        return schedule_from(item)

    def batch(self, schedule: BatchSchedule) -> NewBatch:
        """Returns the batch that each run creates."""
        item = self._table.get(keys.batch_schedule_order(schedule.project_id, schedule.schedule_id), consistent=True)
        if item is None:
            raise RecordNotFound("the schedule of batches was deleted by another request meanwhile")
        return record_from(NewBatch, json.loads(item["batch"]))

    def list(self, project_id: str, limit: int, cursor: str | None) -> Listed[BatchSchedule]:
        page = self._table.find(keys.batch_schedules_list(project_id), limit=limit, cursor=cursor, wanted={})
        return Listed([schedule_from(item) for item in page.items], page.cursor)

    def change(
        self, old: BatchSchedule, new: BatchSchedule, batch: NewBatch | None, extra: Sequence[Write], line: AuditLine
    ) -> bool:
        """Returns False if the schedule has run, was changed or was deleted meanwhile. `batch` is None if unchanged."""
        fields = asdict(new)
        sets = {name: value for name, value in fields.items() if value is not None}
        sets |= keys.batch_scheduled(new.due_at) if new.due_at else {}
        removed = [name for name in _OPTIONAL if fields[name] is None and name != "due_at"]
        unchanged, seen = _as_seen(old)
        write = update(
            _key(old),
            sets,
            removes=[*removed, *(() if new.due_at else keys.DUE_ATTRIBUTES)],
            condition=unchanged,
            **seen,
        )
        orders = [put(_order_item(new, batch))] if batch else []
        return self._table.try_write(write, *orders, *extra, audit_write(line))

    def delete(self, schedule: BatchSchedule, line: AuditLine) -> None:
        """Deletes the schedule. The records of its runs expire."""
        writes = [
            delete(_key(schedule), "attribute_exists(#pk)"),
            delete(keys.batch_schedule_order(schedule.project_id, schedule.schedule_id)),
            count_write(schedule.project_id, "batch_schedules", -1),
            audit_write(line),
        ]
        try:
            self._table.transact(writes)
        except ConditionFailed as error:
            raise RecordNotFound(
                f"this project has no schedule of batches with the id {schedule.schedule_id}"
            ) from error

    def due(self, now: float) -> Iterator[Item]:
        """Due records from the index, which may be stale, one of each project in turn."""
        return due_items(self._table, [keys.BATCH_SCHEDULES_DUE], now)

    def record_run(self, schedule: BatchSchedule, due_at: int | None, run: Run, now: datetime) -> None:
        """Stores the run and the time of the next one. Only the first of several functions succeeds.

        If the schedule was changed meanwhile, its new time stays and only the batch is stored: the next run must not
        start another batch while this one runs.
        """
        sets: dict[str, Any] = {"last_batch_id": run.batch_id} | (keys.batch_scheduled(due_at) if due_at else {})
        sets |= {"last_error": run.reason} if run.reason else {}
        removed = [*([] if run.reason else ["last_error"]), *([] if due_at else keys.DUE_ATTRIBUTES)]
        advanced = update(_key(schedule), sets, removes=removed, condition="#due_at = :seen", seen=schedule.due_at)
        run_record = self.run_write(schedule, run, now)
        if self._table.try_write(advanced, run_record) or run.batch_id is None:
            return
        newer = "attribute_not_exists(#last_batch_id) OR #last_batch_id < :made"
        batch_only = update(
            _key(schedule),
            {"last_batch_id": run.batch_id},
            condition=f"attribute_exists(#pk) AND ({newer})",
            made=run.batch_id,
        )
        self._table.try_write(batch_only, run_record)

    def run_write(self, schedule: BatchSchedule, run: Run, now: datetime) -> Write:
        key = keys.batch_schedule_run(schedule.project_id, schedule.schedule_id, run.due)
        return put(key | run.shown() | {"expires_at": int((now + _RUNS_KEPT).timestamp())})

    def runs(self, project_id: str, schedule_id: str, limit: int, cursor: str | None) -> Listed[Run]:
        pk = keys.batch_schedule_runs(project_id, schedule_id)
        page = self._table.query(pk, limit=limit, cursor=cursor, newest_first=True)
        runs = [Run(**{name: item[name] for name in _RUN_FIELDS if name in item}) for item in page.items]
        return Listed(runs, page.cursor)


def schedule_from(item: Mapping[str, Any]) -> BatchSchedule:
    return BatchSchedule(**{name: item[name] for name in _FIELDS if item.get(name) is not None})


def _key(schedule: BatchSchedule) -> dict[str, str]:
    return keys.batch_schedule(schedule.project_id, schedule.schedule_id)


def _order_item(schedule: BatchSchedule, batch: NewBatch) -> dict[str, Any]:
    key = keys.batch_schedule_order(schedule.project_id, schedule.schedule_id)
    return key | {"batch": json.dumps(asdict(batch))}


def _as_seen(old: BatchSchedule) -> tuple[str, dict[str, Any]]:
    """Returns the condition, with its values, that the schedule was not changed and has not run since it was read."""
    terms = ["#revision = :revision"]
    values: dict[str, Any] = {"revision": old.revision}
    for name in ("due_at", "last_batch_id"):
        value = getattr(old, name)
        if value is None:
            terms.append(f"attribute_not_exists(#{name})")
        else:
            terms.append(f"#{name} = :{name}_seen")
            values[f"{name}_seen"] = value
    return " AND ".join(terms), values


# --- schedules
# Recurring batches: each run of a schedule creates one batch and starts it once, even if a function dies in between.
#
# The id of the batch is derived from the schedule and the time of the run. So a retry finds the batch of the first
# attempt, starts it only if it was not started, and advances the schedule. Each of these steps may be repeated.

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
