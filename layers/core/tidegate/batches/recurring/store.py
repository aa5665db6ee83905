"""Schedules of batches in the table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from tidegate.aws import keys
from tidegate.aws.serialization import Item
from tidegate.aws.table import ConditionFailed, Table
from tidegate.aws.writes import delete, put, put_new, update
from tidegate.batches.model import NewBatch
from tidegate.common.listing import Listed
from tidegate.errors import RecordNotFound, WrongState
from tidegate.projects.audit import AuditLine
from tidegate.projects.audit_store import audit_write
from tidegate.queue.due_schedules import due_items


@dataclass(frozen=True, slots=True)
class BatchSchedule:
    """Makes and starts a batch at each moment of its schedule."""

    schedule_id: str
    project_id: str
    schedule: str
    batch: NewBatch
    created_at: str
    # Whoever made it: its batches are made in this name.
    created_by: str
    enabled: bool = True
    # Epoch seconds of the next moment; None if it is disabled or has no more.
    due_at: int | None = None
    last_batch_id: str | None = None
    # Why the last moment made no batch, or its batch did not start.
    last_error: str | None = None


class BatchScheduleStore:
    def __init__(self, table: Table) -> None:
        self._table = table

    def add(self, schedule: BatchSchedule, line: AuditLine) -> None:
        self._table.transact([put_new(_item(schedule)), audit_write(line)])

    def get(self, project_id: str, schedule_id: str) -> BatchSchedule:
        item = self._table.get(keys.batch_schedule(project_id, schedule_id), consistent=True)
        if item is None:
            raise RecordNotFound("no such schedule")
        return schedule_from(item)

    def list(self, project_id: str, limit: int, cursor: str | None) -> Listed[BatchSchedule]:
        page = self._table.find(keys.batch_schedules_list(project_id), limit=limit, cursor=cursor, wanted={})
        return Listed([schedule_from(item) for item in page.items], page.cursor)

    def replace(self, old: BatchSchedule, new: BatchSchedule, line: AuditLine) -> None:
        """Unless it has fired or was changed meanwhile."""
        seen = {"was": old.due_at, "last": old.last_batch_id, "rule": old.schedule}
        unchanged = " AND ".join(
            [
                "attribute_not_exists(#due_at)" if old.due_at is None else "#due_at = :was",
                "attribute_not_exists(#last_batch_id)" if old.last_batch_id is None else "#last_batch_id = :last",
                "#schedule = :rule",
            ]
        )
        values = {name: value for name, value in seen.items() if value is not None}
        try:
            self._table.transact([put(_item(new), unchanged, **values), audit_write(line)])
        except ConditionFailed as error:
            raise WrongState("the schedule has fired or was changed meanwhile: read it and try again") from error

    def delete(self, schedule: BatchSchedule, line: AuditLine) -> None:
        key = keys.batch_schedule(schedule.project_id, schedule.schedule_id)
        try:
            self._table.transact([delete(key, "attribute_exists(#pk)"), audit_write(line)])
        except ConditionFailed as error:
            raise RecordNotFound("no such schedule") from error

    def due(self, now: float) -> Iterator[Item]:
        """Records as the index has them, which may be behind."""
        return due_items(self._table, keys.BATCH_SCHEDULES_DUE, now)

    def fired(self, schedule: BatchSchedule, due_at: int | None, batch_id: str | None, error: str | None) -> None:
        """Moves on to the next moment. Of two that try, the first does it; a change of the schedule wins over both."""
        sets: dict[str, Any] = {"last_batch_id": batch_id} if batch_id else {}
        sets |= {"last_error": error} if error else {}
        gone = [*([] if error else ["last_error"]), *([] if due_at else keys.DUE_ATTRIBUTES)]
        self._table.try_write(
            update(
                keys.batch_schedule(schedule.project_id, schedule.schedule_id),
                sets | (keys.batch_scheduled(due_at) if due_at else {}),
                removes=gone,
                condition="#due_at = :seen",
                seen=schedule.due_at,
            )
        )


def _item(schedule: BatchSchedule) -> dict[str, Any]:
    key = keys.batch_schedule(schedule.project_id, schedule.schedule_id)
    listing = {"gsi1pk": keys.batch_schedules_list(schedule.project_id), "gsi1sk": schedule.schedule_id}
    names = ("schedule_id", "project_id", "schedule", "created_at", "created_by", "enabled")
    told = {name: getattr(schedule, name) for name in names}
    late = {"last_batch_id": schedule.last_batch_id, "last_error": schedule.last_error}
    due = keys.batch_scheduled(schedule.due_at) if schedule.due_at else {}
    kept = {name: value for name, value in late.items() if value is not None}
    return key | listing | told | kept | due | {"batch": json.dumps(asdict(schedule.batch))}


def schedule_from(item: Mapping[str, Any]) -> BatchSchedule:
    names = ("schedule_id", "project_id", "schedule", "created_at", "created_by", "enabled", "last_batch_id")
    told = {name: item[name] for name in (*names, "last_error") if name in item}
    batch = NewBatch(**json.loads(item["batch"]))
    windows = tuple((int(start), int(end)) for start, end in batch.pause_windows)
    due_at = int(item["due_at"]) if "due_at" in item else None
    return BatchSchedule(**told, due_at=due_at, batch=replace(batch, pause_windows=windows))
