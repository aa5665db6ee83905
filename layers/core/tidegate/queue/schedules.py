"""The engine of all schedules, of exports, batches and scans.

Each planned time is run once, even if functions die, run twice or read stale records. For that, the id of what a run
starts is made from the schedule and the planned time. And the write that moves the schedule to its next run is
conditional.

Several missed runs become one. A run that fails is tried again with growing pauses until the next planned time. Then
its failure is recorded, and the next run follows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from itertools import islice, zip_longest
from typing import Annotated, Any, Generic, Literal, TypeVar

from aws_lambda_powertools import Logger

from tidegate.aws.keys import DUE_ATTRIBUTES, ScheduleKeys
from tidegate.aws.table import ConditionFailed, Item, Key, Table, Write, delete, noted, put, put_new, update
from tidegate.common.ids import digest, iso, new_id
from tidegate.common.schedules import UTC_NAME, check_schedule, check_timezone, next_run, run_after
from tidegate.common.sequences import Listed
from tidegate.errors import Conflict, DomainError, Invalid, QuotaExceeded, RecordNotFound
from tidegate.notifications.notices import Notice, notice_id_for, notice_write
from tidegate.projects.audit import act, audit_write
from tidegate.projects.limits import count_write
from tidegate.queue.queue import Queue
from tidegate.records import F, item_of, record_from

logger = Logger(service="tidegate", child=True)

# --- model
# When something runs, and how its last runs went.

ACTIVE, PAUSED = "active", "paused"
STARTED, SKIPPED = "started", "skipped"


def _checked_by(check: Callable[[str], None]) -> Callable[[str], str]:
    """Turns a check that raises Invalid into one for `F`, which returns the value or raises ValueError."""

    def checked(value: str) -> str:
        try:
            check(value)
        except Invalid as error:
            raise ValueError(error.detail) from error
        return value

    return checked


When = Annotated[
    str,
    F(
        "when it runs: `rate(1 day)` or `cron(0 6 ? * MON *)`",
        min_length=1,
        max_length=200,
        check=_checked_by(check_schedule),
    ),
]
TimeZone = Annotated[
    str, F("IANA name of the time zone of `schedule`, such as `Asia/Shanghai`", check=_checked_by(check_timezone))
]
Status = Literal["active", "paused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The fields that the records of all schedules share. Their times are in Unix seconds."""

    project_id: str
    name: Annotated[str, F("a name for people")]
    created_at: Annotated[str, F("when it was created, ISO 8601 UTC")]
    schedule: Annotated[When | None, F("when it runs: `rate(1 day)` or `cron(0 6 ? * MON *)`", changes=True)] = None
    timezone: Annotated[
        TimeZone, F("IANA name of the time zone of `schedule`, such as `Asia/Shanghai`", changes=True)
    ] = UTC_NAME
    status: Annotated[str, F("`active` or `paused`")] = ACTIVE
    # Runs do not increase it.
    revision: Annotated[int, F("increases with every change; send it with a change to refuse it if it is old")] = 0
    # When it runs or is tried next; None while it is paused, and after its last run.
    due_at: int | None = None
    # The planned time of a run that failed and is tried again at `due_at`, and how often it was tried.
    planned_at: int | None = None
    tries: int = 0
    # The planned time of the last run that started.
    last_run_at: int | None = None
    last_error: Annotated[str | None, F("why the last run, or its last try, started nothing")] = None
    # Runs that were skipped because the one before still ran do not count.
    failed_runs: Annotated[int, F("runs that failed in succession; at the third, `schedule.failing` is sent")] = 0
    # Whether the project's quota counts it; records older than the quota are not counted.
    counted: bool = False

    @property
    def planned(self) -> int:
        """The planned time of the run that is due."""
        return self.planned_at or self.due_at or 0

    @property
    def next_run(self) -> Annotated[str | None, F("when it runs next; absent while it is paused")]:
        return _moment(self.planned) if self.due_at and self.status == ACTIVE else None

    @property
    def last_run(self) -> Annotated[str | None, F("the planned time of the last run that started")]:
        return _moment(self.last_run_at) if self.last_run_at else None

    def rescheduled(self: S, old: S, now: datetime) -> S:
        """The record with its next run planned anew, if its schedule or status differs from that of `old`."""
        if self.status != ACTIVE or not self.schedule:
            return replace(self, due_at=None, planned_at=None, tries=0)
        if all(getattr(self, name) == getattr(old, name) for name in ("schedule", "timezone", "status")):
            return self
        due_at = int(next_run(self.schedule, now, self.timezone).timestamp())
        return replace(self, due_at=due_at, planned_at=None, tries=0)


S = TypeVar("S", bound=Schedule)
Order = TypeVar("Order")
# In the class below, `list` is a method.
Writes = list[Write]


def stored(made: Schedule, record_id: str, keys: ScheduleKeys) -> Item:
    """The item of a new record."""
    listing = {"gsi1pk": keys.list(made.project_id), "gsi1sk": record_id}
    due = keys.due(made.due_at) if made.due_at else {}
    return keys.record(made.project_id, record_id) | item_of(made) | listing | due


def changes(old: S, new: S, keys: ScheduleKeys) -> tuple[dict[str, Any], list[str]]:
    """The attributes to set and those to remove, to change the stored item from `old` to `new`."""
    names = [field.name for field in fields(new) if getattr(new, field.name) != getattr(old, field.name)]
    sets = {name: getattr(new, name) for name in names if getattr(new, name) is not None}
    gone = [name for name in names if getattr(new, name) is None and name != "due_at"]
    # Else `due_at` stays as stored: the schedule may have run since `old` was read, and must not be due again.
    if "due_at" in names:
        sets |= keys.due(new.due_at) if new.due_at else {}
        gone += () if new.due_at else DUE_ATTRIBUTES
    return sets, gone


def unchanged(old: Schedule, *names: str) -> tuple[str, dict[str, Any]]:
    """A condition, and the values for it. It says that these fields and the revision are still those of `old`."""
    # Records older than revisions have none.
    terms, values = ["(attribute_not_exists(#revision) OR #revision = :revision)"], {"revision": old.revision}
    for name in names:
        value = getattr(old, name)
        terms.append(f"attribute_not_exists(#{name})" if value is None else f"#{name} = :{name}_seen")
        values |= {} if value is None else {f"{name}_seen": value}
    return " AND ".join(terms), values


def check_revision(old: Schedule, revision: int | None, what: str = "schedule") -> None:
    """Conflict if a revision is given and is not the present one."""
    if revision not in (None, old.revision):
        raise Conflict(f"the {what} has revision {old.revision}, not {revision}: read it and try again")


def _moment(seconds: int) -> str:
    return iso(datetime.fromtimestamp(seconds, UTC))


_RUNS_KEPT = timedelta(days=31)
# Room in the quota comes from people who delete schedules, so it does not come within seconds.
_QUOTA_RETRY_SECONDS = 3600
_CHANGE_TRIES = 5
_CHANGED = "the schedule was changed by another request at the same time: read it and try again"
# Pauses before a failed run is tried again: 60 s, doubled each time, at most 15 minutes; about a day in all.
_FIRST_PAUSE, _LONGEST_PAUSE, _MOST_TRIES = 60, 900, 100
# After this many failed runs in succession, a notice is sent.
FAILING_RUNS = 3
_LONGEST_REASON = 500


@dataclass(frozen=True, kw_only=True)
class ScheduleKind(Generic[S, Order]):
    """What the schedules of one capability start, and how."""

    record: type[S]
    keys: ScheduleKeys
    # How error texts call a schedule, and the name of the field with its id.
    noun: str
    id_name: str = "schedule_id"
    # The name of the field with the id of what a run started.
    work_name: str
    # The id of what the due run starts: the same for every try.
    work_id: Callable[[S], str]
    # What runs started, as callers see it, by id.
    works: Callable[[str, Sequence[str]], Mapping[str, Any]]
    # Whether what a run started has not ended.
    is_active: Callable[[str, str], bool]
    # Starts the run with this id, with `started_writes` in the same transaction; or else calls `record_run` afterwards.
    start: Callable[[Schedules[S, Order], S, str], None]
    # Whether the due run was started but is not recorded, because a function died in between.
    is_started: Callable[[S], bool] = lambda _: False
    # None if the record itself is the order.
    orders: RunOrders[S, Order] | None = None


@dataclass(frozen=True, kw_only=True)
class RunOrders(Generic[S, Order]):
    """How to store and read the order of a schedule, which is what the caller wants from each run.

    The order is an item beside the schedule's record.
    """

    # The first word of audit lines; the prefix of the schedule's id; the project's quota; the attribute with the order.
    action: str
    prefix: str
    quota: str
    attribute: str
    # The fields of the record that come from the order.
    about: Callable[[Order], dict[str, Any]]
    # The order as it is stored. Raises if its runs could only fail.
    stored: Callable[[S, Order], str]
    read: Callable[[str], Order]


def request_id_of_run(record_id: str, schedule: Schedule) -> str:
    """The id, without its prefix, of the request that the schedule's due run starts."""
    return digest(record_id, str(schedule.planned), length=26)


def request_is_active(queue: Queue, project_id: str, request_id: str) -> bool:
    request = queue.store.get(project_id, request_id)
    return request is not None and not request.is_over


class Schedules(Generic[S, Order]):
    """Creates, changes, pauses and deletes schedules of one kind. Once a minute, runs those that are due."""

    def __init__(self, queue: Queue, kind: ScheduleKind[S, Order]) -> None:
        self._table, self._clock = queue.table, queue.clock
        self._queue = queue
        self.kind = kind

    @property
    def _orders(self) -> RunOrders[S, Order]:
        assert self.kind.orders is not None
        return self.kind.orders

    # For callers.

    def create(self, project_id: str, schedule: str, order: Order, who: str, *, timezone: str = UTC_NAME) -> S:
        """Stores a schedule. Checks its order as if the order were placed now.

        QuotaExceeded if the project has as many schedules as its quota allows.
        """
        now = self._clock()
        given: dict[str, Any] = {
            "schedule_id": new_id(self._orders.prefix, now),
            "created_at": iso(now),
            "created_by": who,
        }
        given |= {"project_id": project_id, "schedule": schedule, "timezone": timezone, "counted": True}
        due_at = int(next_run(schedule, now, timezone).timestamp())
        made = self.kind.record(**given, due_at=due_at, **self._orders.about(order))
        new = put_new(stored(made, self._id(made), self.kind.keys))
        order_put = put(self._order_key(made) | {self._orders.attribute: self._orders.stored(made, order)})
        line = act(project_id, self._id(made), now, who, f"{self._orders.action}.create", f"{made.name}: {schedule}")
        limit: int | None = getattr(self._queue.project_store.quotas(project_id), self._orders.quota)
        counted = count_write(project_id, self._orders.quota, 1, limit)
        try:
            self._table.transact([new, order_put, counted, audit_write(line), *noted(schedule_id=self._id(made))])
        except ConditionFailed as error:
            # If the record exists, the answer to the first try was lost and boto3 wrote again.
            if 0 not in error.failed:
                raise QuotaExceeded.for_limit(self._orders.quota, limit, _QUOTA_RETRY_SECONDS) from error
        return made

    def get(self, project_id: str, schedule_id: str) -> S:
        item = self._table.get(self.kind.keys.record(project_id, schedule_id), consistent=True)
        if item is None:
            raise RecordNotFound(f"this project has no {self.kind.noun} with the id {schedule_id[:200]}")
        return record_from(self.kind.record, item)

    def order(self, schedule: S) -> Order:
        item = self._table.get(self._order_key(schedule), consistent=True)
        if item is None:
            raise RecordNotFound(f"this project has no {self.kind.noun} with the id {self._id(schedule)}")
        return self._orders.read(str(item[self._orders.attribute]))

    def list(self, project_id: str, limit: int, cursor: str | None) -> Listed[S]:
        page = self._table.find(self.kind.keys.list(project_id), limit=limit, cursor=cursor, wanted={})
        return Listed([record_from(self.kind.record, item) for item in page.items], page.cursor)

    def change(
        self,
        project_id: str,
        schedule_id: str,
        who: str,
        *,
        schedule: str | None = None,
        timezone: str | None = None,
        paused: bool | None = None,
        revision: int | None = None,
        reorder: Callable[[Order], Order] | None = None,
        fields: Iterable[str] = (),
    ) -> S:
        """Changes the schedule. None leaves a value as it is.

        `reorder` changes the order, and `fields` names the fields that it changes. Conflict if another request changes
        the schedule meanwhile, or if `revision` is given and outdated. A run that has begun keeps its order. Runs
        missed during a pause do not run later.
        """
        first = old = self.get(project_id, schedule_id)
        check_revision(old, revision)
        for _ in range(_CHANGE_TRIES):
            status = old.status if paused is None else PAUSED if paused else ACTIVE
            new = replace(old, schedule=schedule or old.schedule, timezone=timezone or old.timezone, status=status)
            changed = self._try_change(old, new.rescheduled(old, self._clock()), who, reorder, sorted(fields))
            if changed is not None:
                return changed
            # The schedule has run meanwhile, or was changed.
            old = self.get(project_id, schedule_id)
            if old.revision != first.revision:
                break
        raise Conflict(_CHANGED)

    def _try_change(
        self, old: S, new: S, who: str, reorder: Callable[[Order], Order] | None, order_fields: Sequence[str]
    ) -> S | None:
        """The changed schedule. None if the schedule was changed or has run since `old` was read."""
        now, writes = self._clock(), Writes()
        names = [name for name in ("schedule", "timezone", "status") if getattr(new, name) != getattr(old, name)]
        if reorder is not None:
            order = reorder(self.order(old))
            new = replace(new, **self._orders.about(order))
            writes.append(put(self._order_key(new) | {self._orders.attribute: self._orders.stored(new, order)}))
        elif new == old:
            return old
        action = "change" if order_fields or names != ["status"] else "pause" if new.status == PAUSED else "resume"
        why = ", ".join([*names, *order_fields])
        line = act(old.project_id, self._id(old), now, who, f"{self._orders.action}.{action}", why)
        if old.due_at is not None and old.planned <= now.timestamp() and self.kind.is_started(old):
            run = self._run(old, self.kind.work_id(old))
            new = replace(new, **{self._last: run[self.kind.work_name], "last_run_at": old.planned})
            writes.append(self._run_put(old, self._id(old), run))
        new = replace(new, revision=old.revision + 1)
        sets, gone = changes(old, new, self.kind.keys)
        condition, values = unchanged(old, "due_at", self._last)
        write = update(self._key(old), sets, removes=gone, condition=condition, **values)
        return new if self._table.try_write(write, *writes, audit_write(line)) else None

    def delete(self, project_id: str, schedule_id: str, who: str) -> None:
        """Deletes the schedule. What its runs have started stays. The records of its runs expire later."""
        old = self.get(project_id, schedule_id)
        counted = [count_write(project_id, self._orders.quota, -1)] if old.counted else []
        line = audit_write(act(project_id, schedule_id, self._clock(), who, f"{self._orders.action}.delete"))
        gone = delete(self._key(old), "attribute_exists(#pk)")
        if not self._table.try_write(gone, delete(self._order_key(old)), *counted, line):
            raise RecordNotFound(f"this project has no {self.kind.noun} with the id {schedule_id[:200]}")

    def runs(self, project_id: str, schedule_id: str, limit: int, cursor: str | None) -> Listed[dict[str, Any]]:
        """A page of a schedule's runs, newest first.

        Each run has the present state of what it started, if that exists.
        """
        self.get(project_id, schedule_id)
        keys = self.kind.keys.runs(project_id, schedule_id)
        page = self._table.page(keys, limit=limit, cursor=cursor, newest_first=True)
        names = ("due", "state", self.kind.work_name, "reason", "code")
        runs = [{name: item[name] for name in names if name in item} for item in page.items]
        works = self.kind.works(project_id, [run[self.kind.work_name] for run in runs if self.kind.work_name in run])
        for run in runs:
            if (work := works.get(run.get(self.kind.work_name, ""))) is not None:
                run[self.kind.work_name.removesuffix("_id")] = work
        return Listed(runs, page.cursor)

    # Once a minute.

    def fire(self) -> int:
        """Starts all runs that are due. Returns how many runs it started."""
        return fire_all(due_items(self._table, [self.kind.keys.due_pk], self._clock().timestamp()), self.fire_one)

    def fire_one(self, seen: Item) -> bool:
        """Starts the run that is due. False if it failed or was skipped, or if another function started it first."""
        # `seen` may be stale: the schedule was paused, changed or deleted, or another function has run it.
        item = self._table.get({"pk": seen["pk"], "sk": seen["sk"]}, consistent=True)
        if item is None or (item.get("due_pk"), item.get("due_at")) != (self.kind.keys.due_pk, seen["due_at"]):
            return False
        try:
            return self._fire(record_from(self.kind.record, item))
        except Exception as error:
            self._failed(item, error)
            return False

    def _fire(self, schedule: S) -> bool:
        work_id, last = self.kind.work_id(schedule), getattr(schedule, self._last)
        if last and last != work_id and self.kind.is_active(schedule.project_id, last):
            self.record_run(schedule, None, reason=f"the previous run, {last}, still ran")
            return False
        self.kind.start(self, schedule, work_id)
        return True

    def _failed(self, item: Item, error: Exception) -> None:
        """Plans another try of a failed run, or records its failure.

        The failure is recorded if another try cannot help, if there were too many tries, or if the next run comes
        first. Reads only what it needs from the item, because a malformed record may be why the run failed.
        """
        schedule = record_from(Schedule, {"project_id": "", "name": "", "created_at": ""} | item)
        record_id, now = str(item[self.kind.id_name]), self._clock()
        code, reason = "internal", f"an internal error ({type(error).__name__})"
        # After a conflict, either another function was first, and the writes below are refused, or another try helps.
        retryable = not isinstance(error, DomainError) or error.retryable or isinstance(error, Conflict)
        if isinstance(error, DomainError):
            code, reason = error.code, error.detail
            logger.warning("a scheduled run failed", record=record_id, code=code, why=reason, tries=schedule.tries + 1)
        else:
            logger.exception("a scheduled run failed", record=record_id, tries=schedule.tries + 1)
        again = int(now.timestamp()) + min(_FIRST_PAUSE * 2**schedule.tries, _LONGEST_PAUSE)
        following = self._following(schedule)
        if not retryable or schedule.tries + 1 >= _MOST_TRIES or (following is not None and again >= following):
            self.record_run(schedule, None, reason=reason, code=code, record_id=record_id)
            return
        tried = {"due_at": again, "planned_at": schedule.planned, "tries": schedule.tries + 1}
        self._table.try_write(self._moved(schedule, record_id, tried | {"last_error": reason[:_LONGEST_REASON]}))

    def started_writes(self, schedule: S, work_id: str) -> Writes:
        """The writes that move the schedule to its next run and record this one. If two functions try, one succeeds."""
        return self._run_writes(schedule, self._id(schedule), self._run(schedule, work_id))

    def record_run(
        self,
        schedule: Schedule,
        work_id: str | None,
        *,
        reason: str | None = None,
        code: str | None = None,
        record_id: str | None = None,
    ) -> None:
        """Records a run and moves the schedule to the next one. `reason`: why the run did not start, if it did not.

        If the schedule was changed meanwhile, its new time stays. What was started is stored all the same, so that the
        next run does not start while this one runs.
        """
        record_id, run = record_id or self._id(schedule), self._run(schedule, work_id, reason, code)
        if self._table.try_write(*self._run_writes(schedule, record_id, run)) or work_id is None:
            return
        newer = f"attribute_exists(#pk) AND (attribute_not_exists(#{self._last}) OR #{self._last} < :made)"
        key = self.kind.keys.record(schedule.project_id, record_id)
        started = update(key, {self._last: work_id, "last_run_at": schedule.planned}, condition=newer, made=work_id)
        self._table.try_write(started, self._run_put(schedule, record_id, run))

    def _run(
        self, schedule: Schedule, work_id: str | None, reason: str | None = None, code: str | None = None
    ) -> dict[str, Any]:
        run = {"due": _moment(schedule.planned), "state": SKIPPED if reason else STARTED, self.kind.work_name: work_id}
        run |= {"reason": reason and reason[:_LONGEST_REASON], "code": code}
        return {name: value for name, value in run.items() if value is not None}

    def _run_put(self, schedule: Schedule, record_id: str, run: dict[str, Any]) -> Write:
        expires_at = int((self._clock() + _RUNS_KEPT).timestamp())
        return put(self.kind.keys.run(schedule.project_id, record_id, run["due"]) | run | {"expires_at": expires_at})

    def _run_writes(self, schedule: Schedule, record_id: str, run: dict[str, Any]) -> Writes:
        started, following = run["state"] == STARTED, self._following(schedule)
        failed_runs = 0 if started else schedule.failed_runs + ("code" in run)
        sets = {self._last: run.get(self.kind.work_name), "due_at": following, "failed_runs": failed_runs}
        sets |= {"last_run_at": schedule.planned} if started else {"last_error": run["reason"]}
        removes = ["planned_at", "tries", *(["last_error"] if started else []), *(() if following else DUE_ATTRIBUTES)]
        given = {name: value for name, value in sets.items() if value is not None}
        writes = [self._moved(schedule, record_id, given, removes), self._run_put(schedule, record_id, run)]
        if "code" in run and failed_runs == FAILING_RUNS:
            writes.append(self._failing_notice(schedule, record_id, run))
        return writes

    def _moved(self, schedule: Schedule, record_id: str, sets: Mapping[str, Any], removes: Sequence[str] = ()) -> Write:
        return update(
            self.kind.keys.record(schedule.project_id, record_id),
            sets,
            removes=removes,
            condition="#due_at = :seen AND #status = :active",
            seen=schedule.due_at,
            active=ACTIVE,
        )

    def _failing_notice(self, schedule: Schedule, record_id: str, run: Mapping[str, Any]) -> Write:
        data = {self.kind.id_name: record_id, "name": schedule.name, "status": "failing", "failed_runs": FAILING_RUNS}
        return notice_write(
            Notice(
                notice_id=notice_id_for("schedule.failing", record_id, run["due"]),
                project_id=schedule.project_id,
                kind="schedule.failing",
                record_id=record_id,
                status="failing",
                data=data | {"due": run["due"], "reason": run["reason"], "code": run["code"]},
                callback=None,
                created_at=self._clock(),
            )
        )

    def _following(self, schedule: Schedule) -> int | None:
        """The time for which the next run is planned. None if this was the last run."""
        try:
            return run_after(str(schedule.schedule), schedule.planned, self._clock(), schedule.timezone)
        except (DomainError, KeyError, ValueError):
            # An older release accepted it, or its time zone no longer exists. `last_error` says so.
            logger.exception("a stored schedule is invalid and will not run again", schedule=schedule.schedule)
            return None

    @property
    def _last(self) -> str:
        return f"last_{self.kind.work_name}"

    def _id(self, schedule: Schedule) -> str:
        return str(getattr(schedule, self.kind.id_name))

    def _key(self, schedule: Schedule) -> dict[str, str]:
        return self.kind.keys.record(schedule.project_id, self._id(schedule))

    def _order_key(self, schedule: Schedule) -> dict[str, str]:
        return self.kind.keys.order(schedule.project_id, self._id(schedule))


# --- what is due
# Lists due schedules, one of each project in turn, and runs them in parallel.

# Schedules that became due within this many seconds come first: they are tried for the first or second time.
_RECENT_SECONDS = 90
_THREADS = 8
# Records held in memory at once.
_CHUNK = 64
# More than one run can fire; the keys of so many need a few megabytes.
_MOST_OF_A_PROJECT = 10_000
_GOLDEN_RATIO = (5**0.5 - 1) / 2
# No schedule is started after this many seconds. The rest stays due, and the function runs again in a minute.
SECONDS = 40.0


def due_items(table: Table, partitions: Sequence[str], now: float) -> Iterator[Item]:
    """The due records of these partitions of the sparse index, one of each project in turn.

    So a project with very many due schedules does not delay those of others. Each minute another project comes first,
    because one run may not get to all projects. Within a project, schedules that became due last come first, so that
    schedules that fail again and again do not delay the others.

    The keys are all listed at once. The records are read as they are needed.
    """
    turns = _in_turns(_rotated(_listed(table, partitions, now), int(now // 60)))
    while some := list(islice(turns, _CHUNK)):
        found = {_table_key(item): item for item in table.batch_get(some, consistent=True)}
        for key in some:
            item = found.get(_table_key(key))
            # The index may be stale: the schedule was deleted, paused or run meanwhile.
            if item and item.get("due_pk") in partitions and item["due_at"] <= now:
                yield item


def _listed(table: Table, partitions: Sequence[str], now: float) -> dict[str, list[Key]]:
    """The keys of the records that are due, by project."""
    recent = int(now) - _RECENT_SECONDS
    listed: dict[str, list[Key]] = {}
    for between in ((recent, int(now)), (0, recent - 1)):
        for partition in partitions:
            for item in table.query_all(partition, index="due", sk_between=between, project=("pk", "sk", "project_id")):
                own = listed.setdefault(str(item.get("project_id", "")), [])
                if len(own) < _MOST_OF_A_PROJECT:
                    own.append({"pk": item["pk"], "sk": item["sk"]})
    return listed


def _rotated(listed: Mapping[str, Sequence[Key]], minute: int) -> list[Sequence[Key]]:
    """The keys of each project, beginning with another project each minute.

    The first project is chosen by multiples of the golden ratio, which spread evenly for any number of projects. If one
    run serves k of n projects, each project is served within 2n/k minutes. If the first project moved on by one each
    minute, it could take n minutes.
    """
    order = [listed[project_id] for project_id in sorted(listed)]
    first = int(minute * _GOLDEN_RATIO % 1 * len(order))
    return order[first:] + order[:first]


def _in_turns(projects: Sequence[Sequence[Key]]) -> Iterator[Key]:
    for turn in zip_longest(*projects):
        yield from (key for key in turn if key is not None)


def _table_key(item: Mapping[str, Any]) -> tuple[str, str]:
    return item["pk"], item["sk"]


def fire_all(due: Iterable[Item], fire: Callable[[Item], bool], *, seconds: float = SECONDS) -> int:
    """Runs all schedules that are due, several in parallel. Returns how many started something.

    A schedule that fails, even because its record is malformed, is logged and stays due. It does not stop the others.
    """
    ends = time.monotonic() + seconds

    def try_fire(item: Item) -> bool:
        if time.monotonic() >= ends:
            return False
        try:
            return fire(item)
        except Exception:
            logger.exception("a schedule did not fire and will be tried again", record=item.get("pk"))
            return False

    fired, left = 0, iter(due)
    while time.monotonic() < ends and (chunk := list(islice(left, _CHUNK))):
        if len(chunk) == 1:
            fired += try_fire(chunk[0])
            continue
        with ThreadPoolExecutor(_THREADS) as threads:
            fired += sum(threads.map(try_fire, chunk))
    return fired
