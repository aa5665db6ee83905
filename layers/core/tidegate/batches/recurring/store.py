"""Schedules of batches in the table: their records, the batches that they create, and their runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime, timedelta
from typing import Any

from tidegate.aws import keys
from tidegate.aws.serialization import Item
from tidegate.aws.table import ConditionFailed, Table
from tidegate.aws.writes import Write, delete, put, put_new, update
from tidegate.batches.model import NewBatch
from tidegate.batches.recurring.model import BatchSchedule, Run, batch_from
from tidegate.common.listing import Listed
from tidegate.errors import QuotaExceeded, RecordNotFound
from tidegate.projects.audit import AuditLine
from tidegate.projects.audit_store import audit_write
from tidegate.projects.usage_store import count_write
from tidegate.queue.due_schedules import due_items

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
        return batch_from(json.loads(item["batch"]))

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
