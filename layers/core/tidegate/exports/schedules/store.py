"""DynamoDB access of recurring exports: their records, orders and runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields
from datetime import datetime, timedelta
from typing import Any

from tidegate.aws import keys
from tidegate.aws.serialization import Item
from tidegate.aws.table import ConditionFailed, Table
from tidegate.aws.writes import Write, delete, put, put_new, update
from tidegate.common.listing import Listed
from tidegate.errors import QuotaExceeded
from tidegate.exports.schedules.model import ACTIVE, ExportSchedule, Run
from tidegate.projects.audit import AuditLine
from tidegate.projects.audit_store import audit_write
from tidegate.projects.usage_store import count_write
from tidegate.queue.due_schedules import due_items

_FIELDS = tuple(field.name for field in fields(ExportSchedule))
_RUN_FIELDS = tuple(field.name for field in fields(Run))
# As long as the exports are listed.
_RUNS_KEPT = timedelta(days=31)
# People delete schedules; a slot does not become free within seconds.
_QUOTA_RETRY_SECONDS = 3600


class ScheduleStore:
    def __init__(self, table: Table) -> None:
        self._table = table

    def add(self, schedule: ExportSchedule, order: bytes, line: AuditLine, limit: int | None) -> None:
        """QuotaExceeded if the project has `limit` schedules already."""
        attributes = {name: value for name, value in asdict(schedule).items() if value is not None}
        index_keys = {"gsi1pk": keys.export_schedules_list(schedule.project_id), "gsi1sk": schedule.schedule_id}
        due = keys.export_schedule_due(schedule.due_at) if schedule.due_at else {}
        ids = schedule.project_id, schedule.schedule_id
        writes = [
            put_new(keys.export_schedule(*ids) | attributes | index_keys | due),
            put(keys.export_schedule_order(*ids) | {"order": order.decode()}),
            count_write(schedule.project_id, "export_schedules", 1, limit),
            audit_write(line),
        ]
        try:
            self._table.transact(writes)
        except ConditionFailed as error:
            # If the record exists, the response to the first try was lost and the SDK wrote again.
            if 0 not in error.failed:
                raise QuotaExceeded.of("export_schedules", limit, _QUOTA_RETRY_SECONDS) from error

    def get(self, project_id: str, schedule_id: str) -> ExportSchedule | None:
        item = self._table.get(keys.export_schedule(project_id, schedule_id), consistent=True)
        return schedule_from(item) if item else None

    def order(self, project_id: str, schedule_id: str) -> str | None:
        item = self._table.get(keys.export_schedule_order(project_id, schedule_id), consistent=True)
        return str(item["order"]) if item else None

    def page(self, project_id: str, limit: int, cursor: str | None) -> Listed[ExportSchedule]:
        page = self._table.find(keys.export_schedules_list(project_id), limit=limit, cursor=cursor, wanted={})
        return Listed([schedule_from(item) for item in page.items], page.cursor)

    def due(self, now: float) -> Iterator[Item]:
        """Due records from the index, which may be stale, one of each project in turn."""
        return due_items(self._table, [keys.EXPORT_SCHEDULES_DUE], now)

    def change(self, old: ExportSchedule, new: ExportSchedule, order: bytes | None, line: AuditLine) -> bool:
        """Stores the changed fields, and the order if given. False if the schedule was changed or deleted meanwhile."""
        ids = old.project_id, old.schedule_id
        sets: dict[str, Any] = {name: getattr(new, name) for name in ("name", "type", "schedule", "status")}
        if new.due_at != old.due_at and new.due_at:
            sets |= keys.export_schedule_due(new.due_at)
        write = update(
            keys.export_schedule(*ids),
            sets | {"revision": old.revision + 1},
            removes=() if new.due_at else keys.DUE_ATTRIBUTES,
            # Schedules older than revisions have none.
            condition="#status = :was AND "
            + ("(attribute_not_exists(#revision) OR #revision = :seen)" if not old.revision else "#revision = :seen"),
            was=old.status,
            seen=old.revision,
        )
        orders = [put(keys.export_schedule_order(*ids) | {"order": order.decode()})] if order is not None else []
        return self._table.try_write(write, *orders, audit_write(line))

    def run_writes(self, schedule: ExportSchedule, due_at: int | None, run: Run, now: datetime) -> list[Write]:
        """Writes that move the schedule to its next run and record this one. If two functions try, one succeeds."""
        ids = schedule.project_id, schedule.schedule_id
        sets: dict[str, Any] = ({"last_task_id": run.task_id} if run.task_id else {}) | (
            {"due_at": due_at} if due_at else {}
        )
        moved = update(
            keys.export_schedule(*ids),
            sets,
            removes=() if due_at else keys.DUE_ATTRIBUTES,
            condition="#due_at = :seen AND #status = :active",
            seen=schedule.due_at,
            active=ACTIVE,
        )
        record = run.shown() | {"expires_at": int((now + _RUNS_KEPT).timestamp())}
        return [moved, put(keys.export_schedule_run(*ids, run.due) | record)]

    def skip(self, schedule: ExportSchedule, due_at: int | None, run: Run, now: datetime) -> bool:
        return self._table.try_write(*self.run_writes(schedule, due_at, run, now))

    def runs(self, project_id: str, schedule_id: str, limit: int, cursor: str | None) -> Listed[Run]:
        pk = keys.export_schedule_runs(project_id, schedule_id)
        page = self._table.query(pk, limit=limit, cursor=cursor, newest_first=True)
        runs = [Run(**{name: item[name] for name in _RUN_FIELDS if name in item}) for item in page.items]
        return Listed(runs, page.cursor)

    def remove(self, schedule: ExportSchedule, line: AuditLine) -> bool:
        """Deletes the schedule; its runs expire. False if it was deleted meanwhile."""
        ids = schedule.project_id, schedule.schedule_id
        counted = [count_write(schedule.project_id, "export_schedules", -1)] if schedule.counted else []
        return self._table.try_write(
            delete(keys.export_schedule(*ids), "attribute_exists(#pk)"),
            delete(keys.export_schedule_order(*ids)),
            *counted,
            audit_write(line),
        )


def schedule_from(item: Item) -> ExportSchedule:
    return ExportSchedule(**{name: item[name] for name in _FIELDS if item.get(name) is not None})
