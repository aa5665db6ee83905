"""Recurring exports: each run of a schedule orders one export, once, even if a function dies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools import Logger

from tidegate.aws import keys
from tidegate.aws.table import ConditionFailed, Item, Table, Write, delete, put, put_new, update
from tidegate.common.ids import Clock, digest, iso, new_id
from tidegate.common.schedules import next_run, run_after
from tidegate.common.sequences import Listed
from tidegate.errors import Conflict, DomainError, Invalid, QuotaExceeded, RecordNotFound
from tidegate.exports import model as domain
from tidegate.exports.model import ExportOptions, ExportSpec
from tidegate.projects.audit import AuditLine, act, audit_write
from tidegate.projects.limits import count_write
from tidegate.queue.schedules import due_items, fire_all
from tidegate.records import record_from
from tidegate.sheets.values import plain, read_exact, write_exact

if TYPE_CHECKING:
    from tidegate.exports.exports import Exports
    from tidegate.projects.projects import ProjectStore
    from tidegate.queue.queue import RequestQueue

# --- model
# A recurring export: its schedule, its order and its runs.

PREFIX = "xsc"
ACTIVE, PAUSED = "active", "paused"
STARTED, SKIPPED = "started", "skipped"
# An order is stored in one DynamoDB item, which holds 400 KB.
MOST_BYTES = 300_000


@dataclass(frozen=True, slots=True)
class ExportSchedule:
    schedule_id: str
    project_id: str
    name: str
    type: str
    schedule: str
    status: str
    created_at: str
    created_by: str
    # The next run, in Unix seconds; None while it is paused, and after its last run.
    due_at: int | None = None
    last_task_id: str | None = None
    # Increases with every change by a caller.
    revision: int = 0
    # Whether the project's quota counts it; schedules older than the quota are not counted.
    counted: bool = False

    def shown(self) -> dict[str, Any]:
        names = (
            *("schedule_id", "name", "type", "schedule", "status", "created_at", "created_by", "last_task_id"),
            "revision",
        )
        fields = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return fields | ({"next_run": _moment(self.due_at)} if self.due_at else {})


@dataclass(frozen=True, slots=True)
class ScheduledOrder:
    """The export that each run orders. `multiple`: it was ordered as several tables, with a list per table field."""

    spec: ExportSpec
    options: ExportOptions
    multiple: bool = False

    def as_data(self) -> dict[str, Any]:
        return {"spec": self.spec.as_data(), "options": asdict(self.options), "multiple": self.multiple}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> ScheduledOrder:
        """From data that `read_exact` read."""
        spec = ExportSpec.from_data(data["spec"])
        multiple = bool(data.get("multiple", len(spec.tables) > 1))
        return cls(spec, record_from(ExportOptions, data["options"]), multiple)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a schedule. `state` is `started`, with its `task_id`, or `skipped`, with the reason."""

    due: str
    state: str
    task_id: str | None = None
    reason: str | None = None

    def shown(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def run_of(schedule: ExportSchedule, state: str, task_id: str | None = None, reason: str | None = None) -> Run:
    return Run(_moment(schedule.due_at or 0), state, task_id, reason)


def dated(options: ExportOptions, due_at: int) -> ExportOptions:
    """The options of one run: its due time, in UTC, replaces `{date}` and `{time}` in the names of its files."""
    copies = tuple(replace(each, key=_dated(each.key, due_at)) for each in options.deliver)
    return replace(options, deliver=copies, file_name=options.file_name and _dated(options.file_name, due_at))


def _dated(text: str, due_at: int) -> str:
    moment = _moment(due_at)
    return text.replace("{date}", moment[:10]).replace("{time}", moment[11:16].replace(":", ""))


def _moment(seconds: int) -> str:
    return iso(datetime.fromtimestamp(seconds, UTC))


# --- store
# DynamoDB access of recurring exports: their records, orders and runs.

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


# --- schedules
# Recurring exports: create, change, pause, delete; and once a minute, order those that are due.

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
