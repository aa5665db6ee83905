"""Jobs, Tasks, targets and transfers in the table. Every transition is one conditional write."""

from __future__ import annotations

import contextlib
import math
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Any

from tidegate.aws import keys
from tidegate.aws.table import (
    ConditionFailed,
    Store,
    Table,
    Write,
    can_be_stored,
    check,
    decode_cursor,
    delete,
    encode_cursor,
    pack,
    put,
    put_new,
    unknown_cursor,
    unpack,
    update,
)
from tidegate.common.ids import digest, iso
from tidegate.common.sequences import Listed, slices
from tidegate.distribution.model import (
    CANCELLED,
    CODE_CANCELLED,
    FAILED,
    FIRST_WATCH,
    INTENDED,
    OUTAGE_SECONDS,
    PENDING,
    REFUSED,
    RUNNING,
    SUCCESS,
    SUPERSEDED,
    Arrival,
    Figures,
    Job,
    Rebound,
    Remarks,
    Shard,
    SwarmFigures,
    Target,
    TargetCounts,
    TargetState,
    Task,
    Transfer,
    shard_of,
    states_before,
    watch_seconds,
)
from tidegate.distribution.model import job_key as key_of_job
from tidegate.errors import Busy, RecordNotFound
from tidegate.notifications.notices import Notice, notice_write
from tidegate.projects.audit import SYSTEM, AuditLine, audit_item, audit_write
from tidegate.projects.limits import RUNNER_SECONDS, START_SECONDS, day_write
from tidegate.records import item_of, record_from, view_of

DUE_KIND = "job"
# Much longer than any clock may be wrong.
SEQUENCE_TTL = 30 * 24 * 3600
# Longer than a message of targets can live: 14 days as a dead letter and, redriven, as long in the queue.
_CANCEL_KEPT_SECONDS = 30 * 24 * 3600
_SEQUENCE_TRIES = 10


def _swarm(job: Job) -> dict[str, Any]:
    if not job.swarm.hosts:
        return {}
    return {"swarm_figures": item_of(job.swarm), "swarm_closed": item_of(job.closed_swarm)}


def still_collects(project_id: str, job_key: str) -> Write:
    """The write that checks that the Job still accepts targets. It belongs to the transaction that binds them."""
    collects = "#status = :pending AND attribute_not_exists(#cancelled_at)"
    return check(keys.job(project_id, job_key), collects, pending=PENDING)


def still_runs(job: Job) -> Write:
    """The write that accompanies each change of shards. It fails if the Job does not run any more.

    The write raises `shard_rev`, so that the Job cannot end with counts from before the change."""
    key = keys.job(job.project_id, job.key)
    return update(key, adds={"shard_rev": 1}, condition="#status = :running", running=RUNNING)


def _unwatched(job: Job, now: datetime) -> list[Write]:
    """The write that gives back runner seconds: those that `close` charged today and that the Job did not need.

    Empty if there are none."""
    began = job.execute_time or ""
    lasts = (job.deadline or 0) - datetime.fromisoformat(began).timestamp() if began else 0
    left = math.floor(watch_seconds((job.deadline or 0) - now.timestamp())) if 0 < lasts <= FIRST_WATCH else 0
    same_day = began[:10] == iso(now)[:10]
    return [day_write(job.project_id, now, {RUNNER_SECONDS: -left})] if left and same_day else []


class JobStore:
    """Jobs in the table. Every transition is one conditional write.

    `ttl`: seconds that records are kept after their last change. `lasts`: the longest duration of a Job.
    """

    def __init__(self, table: Table, *, ttl: int, lasts: int) -> None:
        self._table = table
        self._ttl = ttl
        self._lasts = lasts

    def open(self, job: Job, due_at: datetime) -> tuple[Job, bool]:
        """Stores the Job if there is none. Returns the stored Job, and whether this call stored it."""
        for _ in range(_SEQUENCE_TRIES):
            item = self._opening(job, due_at)
            counter = self._sequence(job)
            try:
                self._table.transact([put_new(item), counter, self._job_to_path(job, item)], returns_met=True)
            except ConditionFailed as refused:
                if 0 in refused.failed:
                    met = refused.met.get(0)
                    return (record_from(Job, met) if met else self._known(job)), False
                job = replace(job, sequence=self._next_sequence(job, refused.met.get(1)))
                continue
            except Busy:
                # Many processes opened it at once: one of them has succeeded by now.
                if stored := self.get(job.project_id, job.key):
                    return stored, False
                raise
            return job, True
        raise Busy(f"too many Jobs for {job.spec.target_file_dir}/{job.spec.file_name} are opened at once: try again")

    def _sequence(self, job: Job) -> Write:
        """The write that stores the Job's sequence as the highest of its path. It fails unless the sequence is higher.

        The item expires after 30 days. From then on, the clock gives a higher sequence in any case."""
        spec = job.spec
        item = keys.path_sequence(job.project_id, spec.target_file_dir, spec.file_name)
        expires_at = int((job.sequence or 0) / 1000) + SEQUENCE_TTL
        rises = "attribute_not_exists(#sequence) OR #sequence < :sequence"
        return put(item | {"sequence": job.sequence, "expires_at": expires_at}, rises, sequence=job.sequence)

    def _job_to_path(self, job: Job, item: Mapping[str, Any]) -> Write:
        """The write that lists the Job under its path on hosts, in a partition that can be read consistently."""
        spec = job.spec
        key = keys.job_to_path(job.project_id, spec.target_file_dir, spec.file_name, job.sequence or 0, job.key)
        return put(key | {"job_key": job.key, "expires_at": item["expires_at"]})

    def later_jobs_to_path(self, job: Job, sequence: int, limit: int) -> list[str]:
        """The keys of Jobs to the same path that were opened after `sequence`: at most `limit`, newest first.

        Some of these Jobs may have expired."""
        return self._jobs_to_path_between(job, sequence + 1, 10**20 - 1, limit)

    def newest_jobs_to_path(self, job: Job, limit: int) -> list[str]:
        """The keys of the newest Jobs to the same path on hosts, except this one: at most `limit`."""
        return [key for key in self._jobs_to_path_between(job, 0, 10**20 - 1, limit + 1) if key != job.key][:limit]

    def _jobs_to_path_between(self, job: Job, low: int, high: int, limit: int) -> list[str]:
        spec = job.spec
        first, last = (
            keys.job_to_path(job.project_id, spec.target_file_dir, spec.file_name, bound)["sk"] for bound in (low, high)
        )
        pk = keys.jobs_to_path(job.project_id, spec.target_file_dir, spec.file_name)
        found = self._table.query_all(pk, sk_between=(first, last), newest_first=True, consistent=True)
        return [str(item["job_key"]) for item in islice(found, limit)]

    def sequences_between(self, job: Job, low: int, high: int, limit: int) -> list[int]:
        """The sequences above `low` and below `high` that Jobs to the same path on hosts have.

        Returns at most `limit` of them, the newest."""
        spec = job.spec
        first, last = (
            keys.job_to_path(job.project_id, spec.target_file_dir, spec.file_name, bound)["sk"]
            for bound in (low + 1, high)
        )
        pk = keys.jobs_to_path(job.project_id, spec.target_file_dir, spec.file_name)
        found = self._table.query(pk, sk_between=(first, last), newest_first=True, limit=limit, consistent=True)
        return [int(str(item["sk"]).partition("#")[0]) for item in found.items]

    def _next_sequence(self, job: Job, met: Mapping[str, Any] | None) -> int:
        last = int(met["sequence"]) if met else self.last_sequence(job)
        return max(last, job.sequence or 0) + 1

    def last_sequence(self, job: Job) -> int:
        """The sequence of the Job that was opened last for the same path on hosts."""
        key = keys.path_sequence(job.project_id, job.spec.target_file_dir, job.spec.file_name)
        return int((self._table.get(key, consistent=True) or {}).get("sequence", 0))

    def _opening(self, job: Job, due_at: datetime) -> dict[str, Any]:
        spec = job.spec
        return (
            keys.job(job.project_id, job.key)
            | item_of(job)
            | keys.due(job.key, due_at.timestamp(), DUE_KIND)
            | {
                "gsi1pk": keys.jobs_list(job.project_id),
                "gsi1sk": f"{job.create_time}#{job.key}",
                "gsi2pk": keys.jobs_at_path(job.project_id, spec.biz_id, spec.app_id, spec.file_path),
                "gsi2sk": f"{job.create_time}#{job.key}",
                "expires_at": self._needed_until(job, due_at),
            }
        )

    def _needed_until(self, job: Job, now: datetime) -> int:
        extra = job.spec.extra_seconds(self._lasts, now.timestamp())
        return int(now.timestamp()) + self._lasts + extra + self._ttl + OUTAGE_SECONDS

    def get(self, project_id: str, job_key: str, *, consistent: bool = True) -> Job | None:
        item = self._table.get(keys.job(project_id, job_key), consistent=consistent)
        return record_from(Job, item) if item else None

    def require(self, project_id: str, job_key: str, *, named: str = "") -> Job:
        """The Job, from a consistent read. RecordNotFound if there is none. `named`: what the caller called the Job."""
        job = self.get(project_id, job_key)
        if job is None:
            raise RecordNotFound(
                f"no Job {named or job_key} was found: check its id, and note that ended Jobs are deleted after a while"
            )
        return job

    def get_many(self, project_id: str, job_keys: Sequence[str], *, consistent: bool = False) -> dict[str, Job]:
        wanted = (keys.job(project_id, key) for key in dict.fromkeys(job_keys))
        found = self._table.batch_get(wanted, consistent=consistent)
        return {item["key"]: record_from(Job, item) for item in found}

    def list(
        self, project_id: str, place: tuple[int, int, str] | None, limit: int, cursor: str | None, **wanted: object
    ) -> Listed[Job]:
        pk = keys.jobs_at_path(project_id, *place) if place else keys.jobs_list(project_id)
        index = "gsi2" if place else "gsi1"
        page = self._table.find(pk, limit=limit, cursor=cursor, wanted=wanted, index=index)
        return Listed([record_from(Job, item) for item in page.items], page.cursor)

    def close(self, job: Job, now: datetime, deadline: float, due_at: datetime) -> Job:
        """Closes the window, once: the Job becomes Running. Returns the stored Job, whichever call closed it."""
        sets = {
            "status": RUNNING,
            "execute_time": iso(now),
            "deadline": deadline,
            "expires_at": self._needed_until(job, now),
            **keys.due(job.key, due_at.timestamp(), DUE_KIND),
        }
        lasts = min(FIRST_WATCH, deadline - now.timestamp())
        counted = day_write(job.project_id, now, {RUNNER_SECONDS: START_SECONDS + watch_seconds(lasts)})
        self._transition(job, now, sets, "the window is over", counted)
        return self._known(job)

    def shard(
        self,
        job: Job,
        now: datetime,
        portions: Sequence[tuple[int, int]],
        sizes: Sequence[int],
        wave_limits: Sequence[int] = (),
        wave_sizes: Sequence[int] = (),
    ) -> Job:
        """Stores how the Job's targets are divided into shards, transfers and waves. The first writer wins."""
        waves = {"wave_limits": list(wave_limits), "wave_sizes": list(wave_sizes)} if wave_limits else {}
        sets = waves | {
            "shard_count": len(sizes),
            "open_shards": list(range(len(sizes))),
            "portions": [list(portion) for portion in portions],
            "counts": item_of(TargetCounts(total=sum(sizes))),
            "swarm_key": secrets.token_hex(32),
        }
        unsharded = "#status = :running AND attribute_not_exists(#shard_count)"
        return self._change(job, now, sets, None, condition=unsharded, running=RUNNING)

    def sent(self, job: Job, now: datetime, transfer_id: str, file_size: int | None) -> Job:
        """Stores the id of the Job's first transfer and the size of the file. The first writer wins."""
        first = "#status = :running AND attribute_not_exists(#transfer_id)"
        sets = {"transfer_id": transfer_id, **({"file_size": file_size} if file_size else {})}
        return self._change(job, now, sets, None, condition=first, running=RUNNING)

    def sent_as(self, job: Job, now: datetime, transfer_ids: Sequence[str]) -> Job:
        """Stores the ids of all transfers of the Job."""
        sets = {"transfer_id": ",".join(transfer_ids)}
        return self._change(job, now, sets, None, condition="#status = :running", running=RUNNING)

    def wave_sent(self, job: Job, now: datetime) -> Job:
        """Stores when the wave was sent. The first writer wins."""
        first = "#status = :running AND #wave = :wave AND attribute_not_exists(#wave_at)"
        sets = {"wave_at": int(now.timestamp())}
        return self._change(job, now, sets, None, condition=first, running=RUNNING, wave=job.wave)

    def next_wave(self, job: Job, now: datetime, deadline: float) -> Job:
        """Begins the Job's next wave, with a new deadline. The first writer wins. Returns the stored Job."""
        key = keys.job(job.project_id, job.key)
        lives = {"expires_at": self._needed_until(job, now)}
        sets = {"wave": job.wave + 1, "failed_before": job.counts.failed, "deadline": deadline}
        here = "#status = :running AND #wave = :wave AND attribute_not_exists(#cancelled_at)"
        step = update(key, sets | lives, removes=("wave_at",), condition=here, running=RUNNING, wave=job.wave)
        try:
            return record_from(Job, self._table.write(step))
        except ConditionFailed:
            return self._known(job)

    def cancel(self, job: Job, now: datetime, who: str) -> Job:
        """Marks the Job as cancelled, once. Its next step ends the Job. Targets that have the file by then succeed."""
        sets = {"cancelled_at": iso(now), "cancelled_by": who}
        unended = "#status IN (:pending, :running) AND attribute_not_exists(#cancelled_at)"
        key = keys.job(job.project_id, job.key)
        change = update(key, sets, condition=unended, pending=PENDING, running=RUNNING)
        line = AuditLine(job.project_id, job.job_id, iso(now), who, "job.cancel", job.status, None, "")
        expires_at = int(now.timestamp()) + _CANCEL_KEPT_SECONDS
        noted = keys.cancelled_job(job.project_id, job.key) | {"cancelled_at": iso(now), "expires_at": expires_at}
        with contextlib.suppress(ConditionFailed):
            self._table.transact([change, put(noted), audit_write(line)])
        return self._known(job)

    def change(self, job: Job, now: datetime, changes: Mapping[str, Any], who: str) -> Job:
        """Changes the remarks of a Job in any state. None removes a field."""
        sets = {name: value for name, value in changes.items() if value is not None}
        removes = [name for name, value in changes.items() if value is None]
        why = ", ".join(f"no {name}" if value is None else f"{name} {value}" for name, value in changes.items())
        line = AuditLine(job.project_id, job.job_id, iso(now), who, "job.change", None, None, why)
        change = update(keys.job(job.project_id, job.key), sets, removes=removes)
        if changes and not self._table.try_write(change, audit_write(line)):
            raise RecordNotFound(f"no Job {job.job_id} was found: it was deleted some time after its end")
        return self._known(job)

    def add_remarks(self, job: Job, remarks: Remarks) -> None:
        """Adds the remarks of a later request to the Job. Remarks that the Job already has stay."""
        for name, value in item_of(remarks).items():
            if value and getattr(job.remarks, name) is None:
                first = f"attribute_exists(#pk) AND attribute_not_exists(#{name})"
                self._table.try_write(update(keys.job(job.project_id, job.key), {name: value}, condition=first))

    def cancelled_at(self, project_id: str, job_key: str) -> str | None:
        """When the Job was cancelled, even if its record has expired since. None if the Job was not cancelled."""
        noted = self._table.get(keys.cancelled_job(project_id, job_key), consistent=True)
        return str(noted["cancelled_at"]) if noted else None

    def progress(self, job: Job, now: datetime, counted: Job) -> Job:
        """Stores the counts of a poll, unless another poll has stored counts since `job` was read."""
        sets: dict[str, Any] = {
            "open_shards": list(counted.open_shards),
            "counts": item_of(counted.counts),
            "closed": item_of(counted.closed),
            **_swarm(counted),
            "rev": job.rev + 1,
        }
        unchanged = "#status = :running AND #rev = :seen"
        return self._change(job, now, sets, None, condition=unchanged, running=RUNNING, seen=job.rev)

    def put_off(self, job: Job, due_at: datetime) -> None:
        """Moves the time at which compensation checks the Job. The Job's record does not expire before that time."""
        key = keys.job(job.project_id, job.key)
        lives = {"expires_at": self._needed_until(job, due_at)}
        self._table.try_write(update(key, lives | keys.due(job.key, due_at.timestamp(), DUE_KIND)))

    def park(self, job: Job, now: datetime) -> None:
        """Makes a Job whose file was not sent due now, so that compensation restarts the Job after a freeze."""
        sets = {"parked": True, "expires_at": self._needed_until(job, now)}
        key = keys.job(job.project_id, job.key)
        self._table.try_write(update(key, sets | keys.due(job.key, now.timestamp(), DUE_KIND)))

    def next_generation(self, job: Job, due_at: datetime, deadline: float | None = None) -> Job:
        """Raises the generation, which names the Job's next execution.

        `deadline`: the Job's new deadline, if it was parked; None: the deadline stays."""
        sets: dict[str, Any] = {"generation": job.generation + 1, **keys.due(job.key, due_at.timestamp(), DUE_KIND)}
        sets |= {"parked": False} if job.parked else {}
        sets |= {"deadline": deadline} if deadline else {}
        same = "#generation = :seen"
        try:
            return record_from(
                Job,
                self._table.write(update(keys.job(job.project_id, job.key), sets, condition=same, seen=job.generation)),
            )
        except ConditionFailed:
            return self._known(job)

    def end(self, job: Job, now: datetime, notice: Notice, due_at: datetime) -> tuple[Job, bool]:
        """Ends the Job with the state of `job` and its notice. Returns the stored Job, and whether this call ended it.

        If the Job's shards have changed since `job` was read, nothing is written, and the stored Job has not ended."""
        sets = {
            "status": job.status,
            "finish_time": job.finish_time,
            "counts": item_of(job.counts),
            **_swarm(job),
            "rest_code": job.rest_code,
            "error": dict(job.error) if job.error else None,
            # Kept longer until `settle`, because the callbacks of its Tasks are still to be sent.
            "expires_at": int(now.timestamp()) + self._ttl + OUTAGE_SECONDS,
            **keys.due(job.key, due_at.timestamp(), DUE_KIND),
        }
        why = job.error["detail"] if job.error else "every target has ended"
        unchanged = "(attribute_not_exists(#shard_rev) OR #shard_rev = :shards)"
        writes = (notice_write(notice), *_unwatched(job, now))
        if not self._transition(job, now, sets, why, *writes, also=unchanged, shards=job.shard_rev):
            return self._known(job), False
        return replace(job, due_at=int(due_at.timestamp())), True

    def _transition(
        self, job: Job, now: datetime, sets: dict[str, Any], why: str, *more: Write, also: str = "", **values: Any
    ) -> bool:
        """Writes one transition with its audit line. `also`: a further condition.

        False if the Job is in another state, or if `also` is not fulfilled."""
        following = str(sets["status"])
        (before,) = states_before(following)
        condition = f"#status = :before AND {also}" if also else "#status = :before"
        change = update(keys.job(job.project_id, job.key), sets, condition=condition, before=before, **values)
        line = AuditLine(job.project_id, job.job_id, iso(now), SYSTEM, "job", before, following, why)
        return self._table.try_write(change, audit_write(line), *more)

    def settle(self, job: Job, now: datetime) -> bool:
        """Removes the Job from the due index when all notices are sent.

        Returns False, and removes nothing, if the Job was made due again meanwhile."""
        key = keys.job(job.project_id, job.key)
        lives = {"expires_at": int(now.timestamp()) + self._ttl}
        return self._table.try_write(
            update(key, lives, removes=keys.DUE_ATTRIBUTES, condition="#due_at = :seen", seen=job.due_at or 0)
        )

    def _change(
        self, job: Job, now: datetime, sets: dict[str, Any], due_at: datetime | None, *, condition: str, **values: Any
    ) -> Job:
        lives = {"expires_at": self._needed_until(job, now)}
        due = keys.due(job.key, due_at.timestamp(), DUE_KIND) if due_at else {}
        key = keys.job(job.project_id, job.key)
        try:
            return record_from(Job, self._table.write(update(key, sets | lives | due, condition=condition, **values)))
        except ConditionFailed as met:
            return record_from(Job, met.item) if met.item else self._known(job)

    def _known(self, job: Job) -> Job:
        return self.get(job.project_id, job.key) or job


_WRITTEN_TOGETHER = 100


def _item(task: Task, expires_at: int) -> dict[str, Any]:
    """The Task's item with its index keys.

    Nothing rewrites the Tasks of a Job when the Job ends, so `expires_at` is late enough for an outage. A Task whose
    Job has expired is no longer shown."""
    spread = keys.task_spread(task.uuid)
    order = _order(task)
    return (
        keys.task(task.project_id, task.uuid)
        | item_of(task)
        | {
            "gsi1pk": keys.tasks_of_job(task.project_id, key_of_job(task.job_id), spread),
            "gsi1sk": order,
            "gsi2pk": keys.tasks_list(task.project_id, spread),
            "gsi2sk": order,
            "expires_at": expires_at,
        }
    )


def move_task(project_id: str, uuid: str, source: Job, new_home: Job, now: str, expires_at: int) -> Write:
    """The write that moves a Task to another Job, together with its target. It fails if the Task has left `source`."""
    sets = {
        "job_id": new_home.job_id,
        "update_time": now,
        "expires_at": expires_at,
        "gsi1pk": keys.tasks_of_job(project_id, new_home.key, keys.task_spread(uuid)),
    }
    return update(keys.task(project_id, uuid), sets, condition="#job_id = :source", source=source.job_id)


def renew_task(task: Task, source_id: str, expires_at: int) -> Write:
    """The write that moves a Task whose Job has expired. It fails if the Task has left the Job with the id `source_id`.

    The Task may have expired too, so the write has the whole Task."""
    unmoved = "attribute_not_exists(#pk) OR #job_id = :source"
    return put(_item(task, expires_at), unmoved, source=source_id)


class TaskStore(Store):
    """Tasks in the table: small, written once, and moved only together with their target."""

    def add(self, tasks: Sequence[Task], expires_at: int, line: AuditLine | None, note: Sequence[Write] = ()) -> None:
        """Writes the Tasks and the audit line. `note` is the write of `noted`: it notes the Job at the Idempotency-Key.

        With a `note`, the first records are written in one transaction with it. Without a `note`, no transaction is
        needed, because the targets are queued afterwards; a transaction would cost twice as much."""
        lines = [audit_item(line)] if line else []
        self._table.batch_put([*lines, *(_item(task, expires_at) for task in tasks)], note)

    def delete(self, tasks: Sequence[Task]) -> None:
        """Deletes the Tasks of a submit that failed."""
        self._table.batch_delete(keys.task(task.project_id, task.uuid) for task in tasks)

    def add_missing(self, tasks: Sequence[Task], expires_at: int) -> None:
        """Writes the Tasks that do not exist yet, a hundred in each transaction."""
        for portion in slices(tasks, _WRITTEN_TOGETHER):
            left = [*portion]
            while left:
                try:
                    self._table.transact([put_new(_item(task, expires_at)) for task in left])
                    break
                except ConditionFailed as refused:
                    left = [task for place, task in enumerate(left) if place not in refused.failed]

    def get(self, project_id: str, uuid: str) -> Task | None:
        item = self._table.get(keys.task(project_id, uuid), consistent=True)
        return record_from(Task, item) if item else None

    def get_many(self, project_id: str, uuids: Iterable[str], *, consistent: bool = False) -> list[Task]:
        wanted = (keys.task(project_id, uuid) for uuid in uuids)
        return [record_from(Task, item) for item in self._table.batch_get(wanted, consistent=consistent)]

    def uuids_of_job(self, job: Job) -> Iterator[str]:
        """The ids of a Job's Tasks, from an eventually consistent index."""
        partitions = [keys.tasks_of_job(job.project_id, job.key, spread) for spread in range(keys.TASK_SPREAD)]
        for pk in partitions:
            for item in self._table.query_all(pk, index="gsi1", project=("uuid",)):
                yield item["uuid"]

    def list(self, project_id: str, job_key: str | None, limit: int, cursor: str | None) -> Listed[Task]:
        """A page of Tasks, newest first, merged from all partitions."""
        before = _position(cursor)
        index, range_name = ("gsi1", "gsi1sk") if job_key else ("gsi2", "gsi2sk")
        found: list[dict[str, Any]] = []
        for spread in range(keys.TASK_SPREAD):
            pk = keys.tasks_of_job(project_id, job_key, spread) if job_key else keys.tasks_list(project_id, spread)
            between = (_FIRST, before) if before else None
            # Two more than needed: the bound itself is the last Task of the page before, and one tells if more follow.
            page = self._table.query(pk, index=index, newest_first=True, limit=limit + 2, sk_between=between)
            found += [item for item in page.items if item[range_name] != before]
        found.sort(key=lambda item: str(item[range_name]), reverse=True)
        shown = found[:limit]
        # Read again, as the index lags behind: a Task that has just moved would have its former Job's status.
        tasks = [record_from(Task, item) for item in self._table.current(shown)]
        here = [task for task in tasks if job_key is None or key_of_job(task.job_id) == job_key]
        return Listed(here, self.cursor_after(record_from(Task, shown[-1])) if len(found) > limit else None)

    @staticmethod
    def cursor_after(task: Task) -> str:
        return encode_cursor({"before": {"S": _order(task)}})


# Sorts before every Task in a list.
_FIRST = " "


def _order(task: Task) -> str:
    return f"{task.create_time}#{task.uuid}"


def _position(cursor: str | None) -> str | None:
    if cursor is None:
        return None
    position = decode_cursor(cursor).get("before", {}).get("S")
    # A bound below the other one is an error for DynamoDB.
    if not isinstance(position, str) or not position > _FIRST or not can_be_stored("", position):
        raise unknown_cursor()
    return position


CHUNK_LIMIT = 1000
_CHUNKS_A_TRANSACTION = 10
_SHARDS_A_TRANSACTION = 10
# How often a late report is noted again after another one changed the shard.
_TRIES = 5
NONE: Mapping[Target, int] = {}


def shard_from(item: dict[str, Any]) -> Shard:
    states = {
        Target(agent, container): TargetState(code, message, progress, *_optional(rest))
        for agent, container, code, message, progress, *rest in unpack(item["packed"])
    }
    moved = unpack(item["sequences"]) if "sequences" in item else ()
    sequences = {Target(agent, container): sequence for agent, container, sequence in moved}
    swarm = record_from(SwarmFigures, item.get("swarm", {}))
    return Shard(item["number"], states, item["rev"], item["update_time"], sequences, swarm)


def _optional(rest: Sequence[Any]) -> tuple[Figures | None, str | None, bool]:
    """Returns (figures, `staged_at`, `arrived`) from the end of a row. A row may end before any of them."""
    figures = Figures(*rest[:4]) if any(value is not None for value in rest[:4]) else None
    return figures, rest[4] if len(rest) > 4 else None, len(rest) > 5


def _packed(shard: Shard) -> bytes:
    return pack((*target, *state[:3], *_optional_row(state)) for target, state in shard.states.items())


def _optional_row(state: TargetState) -> tuple[Any, ...]:
    if state.arrived:
        return (*(state.figures or Figures()), state.staged_at, True)
    if state.staged_at:
        return (*(state.figures or Figures()), state.staged_at)
    return tuple(state.figures or ())


def _callbacks(project_id: str, job_key: str, uuids: Sequence[str], expires_at: int) -> Write:
    key = keys.job_callback(project_id, job_key, digest(*uuids, length=32))
    return put(key | {"packed": pack([uuid] for uuid in uuids), "expires_at": expires_at})


def _row(arrival: Arrival) -> tuple[Any, ...]:
    row = (arrival.agent_id, arrival.container_id, arrival.uuid)
    return row if arrival.sequence is None else (*row, False, arrival.sequence)


class TargetStore:
    """Targets in the table: as chunks while they are collected, as shards once their Job has closed.

    `lasts`: the seconds for which shards are needed. That is the longest duration of a Job, plus the TTL after its end.
    """

    def __init__(self, table: Table, *, lasts: int) -> None:
        self._table = table
        self._lasts = lasts

    def _needed_until(self, job: Job, now: datetime) -> int:
        extra = job.spec.extra_seconds(self._lasts, now.timestamp())
        return int(now.timestamp()) + self._lasts + extra + OUTAGE_SECONDS

    def bind(self, project_id: str, job_key: str, arrivals: Sequence[Arrival], expires_at: int) -> Sequence[Arrival]:
        """Binds arrivals to a Job whose window is open. Returns the arrivals that came too late."""
        portion = CHUNK_LIMIT * _CHUNKS_A_TRANSACTION
        for start in range(0, len(arrivals), portion):
            writes = [still_collects(project_id, job_key)]
            for chunk in slices(arrivals[start : start + portion], CHUNK_LIMIT):
                writes += self._chunk(project_id, job_key, chunk, expires_at)
            if not self._table.try_write(*writes):
                return arrivals[start:]
        return ()

    def rebind(self, home: Job, arrivals: Sequence[Arrival], moves: Sequence[Write], expires_at: int) -> Rebound:
        """Binds late arrivals to another Job and moves their Tasks. Writes all of this or nothing."""
        chunk = self._chunk(home.project_id, home.key, arrivals, expires_at)
        try:
            self._table.transact([still_collects(home.project_id, home.key), *chunk, *moves])
        except ConditionFailed as refused:
            gone = [index - 1 - len(chunk) for index in refused.failed if index > len(chunk)]
            return Rebound(False, 0 in refused.failed, frozenset(arrivals[index].uuid for index in gone))
        return Rebound(True)

    @staticmethod
    def _chunk(project_id: str, job_key: str, arrivals: Sequence[Arrival], expires_at: int) -> list[Write]:
        # The id is derived from all Tasks: messages delivered twice make one chunk, and no chunk overwrites another.
        chunk_id = digest(*(arrival.uuid for arrival in arrivals), length=32)
        rows = pack(_row(arrival) for arrival in arrivals)
        common = {"packed": rows, "count": len(arrivals), "expires_at": expires_at}
        writes = [put(keys.chunk(project_id, job_key, chunk_id) | common)]
        notify = [arrival.uuid for arrival in arrivals if arrival.notify]
        return [*writes, _callbacks(project_id, job_key, notify, expires_at)] if notify else writes

    def collected(self, project_id: str, job_key: str) -> Iterator[Arrival]:
        """The arrivals bound to the Job. A target that was requested several times occurs several times."""
        for item in self._table.query_all(keys.chunks(project_id, job_key), consistent=True):
            yield from (Arrival(*row) for row in unpack(item["packed"]))

    def any_collected(self, project_id: str, job_key: str) -> bool:
        return bool(self._table.query(keys.chunks(project_id, job_key), limit=1, consistent=True).items)

    def add_shards(
        self, job: Job, shards: Sequence[Sequence[Target]], now: datetime, sequences: Mapping[Target, int] = NONE
    ) -> None:
        """Writes the shards that do not exist yet. Leaves the others, so that a second close does not undo a poll."""
        for number, targets in enumerate(shards):
            fresh = Shard(number, dict.fromkeys(targets, TargetState()), 0, iso(now))
            moved = [(*target, sequences[target]) for target in targets if target in sequences]
            item = keys.shard(job.project_id, job.key, number) | {
                "number": number,
                "job_key": job.key,
                "packed": _packed(fresh),
                "rev": 0,
                "update_time": fresh.update_time,
                "expires_at": self._needed_until(job, now),
                **({"sequences": pack(moved)} if moved else {}),
            }
            self._table.try_write(put_new(item))

    def shards(self, job: Job, numbers: Iterable[int]) -> list[Shard]:
        wanted = [keys.shard(job.project_id, job.key, number) for number in numbers]
        found = self._table.batch_get(wanted, consistent=True)
        return sorted((shard_from(item) for item in found), key=lambda shard: shard.number)

    def shards_of_jobs(self, wanted: Iterable[tuple[Job, int]]) -> dict[tuple[str, int], Shard]:
        """The shards by Job key and number, from a consistent read.

        Read the Jobs before you call this, because an unfinished target ends with its Job."""
        places = {(job.key, number): keys.shard(job.project_id, job.key, number) for job, number in wanted}
        found = self._table.batch_get(places.values(), consistent=True)
        return {(item["job_key"], item["number"]): shard_from(item) for item in found}

    def one_shard(self, job: Job, number: int) -> Shard | None:
        """The shard, from a consistent read; None if there is none."""
        item = self._table.get(keys.shard(job.project_id, job.key, number), consistent=True)
        return shard_from(item) if item else None

    def save(self, job: Job, shards: Sequence[Shard], now: datetime) -> bool:
        """Writes changed shards. False if another poller was faster or the Job has ended.

        The shards that the caller read are then stale."""
        for portion in slices(shards, _SHARDS_A_TRANSACTION):
            if not self._table.try_write(still_runs(job), *(self._saved(job, shard, now) for shard in portion)):
                return False
        return True

    def _saved(self, job: Job, shard: Shard, now: datetime) -> Write:
        sets = {
            "packed": _packed(shard),
            **({"swarm": item_of(shard.swarm)} if shard.swarm.hosts else {}),
            "rev": shard.rev + 1,
            "update_time": iso(now),
            "expires_at": self._needed_until(job, now),
        }
        place = keys.shard(job.project_id, job.key, shard.number)
        return update(place, sets, condition="#rev = :seen", seen=shard.rev)

    def note_arrivals(self, job: Job, arrived: Collection[Target], now: datetime) -> None:
        """Stores that these hosts have put the file in place, although their Job has ended as cancelled."""
        left = {shard_of(target, job.shard_count) for target in arrived} if job.shard_count else set()
        for _ in range(_TRIES):
            for shard in self.shards(job, left):
                late = shard.with_arrivals(arrived)
                if late is shard or self._table.try_write(self._saved(job, late, now)):
                    left = left - {shard.number}
            if not left:
                return

    def add_callbacks(self, job: Job, uuids: Sequence[str], expires_at: int) -> None:
        self._table.write(_callbacks(job.project_id, job.key, uuids, expires_at))

    def callbacks(self, job: Job) -> Iterator[tuple[str, list[str]]]:
        """The Tasks whose callback has not been published yet. Yields (id of a portion, uuids of its Tasks)."""
        for item in self._table.query_all(keys.job_callbacks(job.project_id, job.key), consistent=True):
            yield item["sk"], [uuid for (uuid,) in unpack(item["packed"])]

    def forget_callbacks(self, job: Job, chunk_id: str) -> None:
        self._table.write(delete(keys.job_callback(job.project_id, job.key, chunk_id)))


class TransferStore:
    """Transfers in the table. Each is stored before it is requested from the provider."""

    def __init__(self, table: Table, *, lasts: int) -> None:
        self._table = table
        self._lasts = lasts

    def list(self, job: Job) -> list[Transfer]:
        found = self._table.query_all(keys.transfers(job.project_id, job.key), consistent=True)
        return [record_from(Transfer, item) for item in found]

    def intend(self, job: Job, transfer: Transfer, counted: Write | None = None) -> tuple[Transfer, bool] | None:
        """Stores the intent if there is none. Returns the stored transfer, and whether this call may request it.

        `counted` is written in the same transaction, and counts the transfer towards a quota. If the quota refuses
        that, nothing is stored, and None is returned.
        """
        key = keys.transfer(job.project_id, job.key, transfer.number)
        extra = job.spec.extra_seconds(self._lasts, transfer.asked_at)
        expires_at = int(transfer.asked_at) + self._lasts + extra + OUTAGE_SECONDS
        item = key | item_of(transfer) | {"expires_at": expires_at}
        try:
            self._table.transact([put_new(item), *([counted] if counted else [])])
        except ConditionFailed as met:
            stored = self._table.get(key, consistent=True)
            if stored is None and 0 not in met.failed:
                return None
            return (record_from(Transfer, stored) if stored else transfer), False
        return transfer, True

    def ask_again(self, job: Job, transfer: Transfer, now: float) -> bool:
        """Marks a refused transfer as intended again. Returns whether this caller may now request it.

        If several callers try at once, only one of them may."""
        sets = {"state": INTENDED, "asked_at": now, "attempts": transfer.attempts + 1}
        same = "#state = :refused AND #attempts = :seen"
        key = keys.transfer(job.project_id, job.key, transfer.number)
        return self._table.try_write(update(key, sets, condition=same, refused=REFUSED, seen=transfer.attempts))

    def settle(self, job: Job, transfer: Transfer, state: str, **more: str | int | None) -> None:
        """Moves an intended transfer to `state`, with further fields. The first writer wins."""
        key = keys.transfer(job.project_id, job.key, transfer.number)
        changed = update(key, {"state": state, **more}, condition="#state = :intended", intended=INTENDED)
        self._table.try_write(changed)


# --- task view
# A Task as its caller sees it, from its own record, its Job and its target's state in a shard of the Job.


def shard_number(task: Task, job: Job) -> int | None:
    """The number of the shard with the Task's target; None if the Job has no shards."""
    return shard_of(task.target, job.shard_count) if job.shard_count else None


def outcome(job: Job, state: TargetState) -> dict[str, Any]:
    """The fields of the API that show a target's state. An unfinished target of an ended Job is shown as ended."""
    if state.succeeded:
        shown: dict[str, Any] = {"status": SUCCESS, "error_code": state.code}
    elif state.ended:
        status = SUPERSEDED if state.superseded else FAILED
        shown = {"status": status, "error_code": state.code, "error_msg": state.message}
    elif job.ended:
        # The host's own reason (it was offline) is more specific than the Job's.
        reason = state.message or (job.error or {}).get("detail", "")
        shown = {"status": job.rest, "error_code": job.rest_code, "error_msg": reason}
        if state.arrived:
            shown["arrived"] = True
    else:
        shown = {"status": RUNNING, "error_code": state.code, "error_msg": state.message or None}
    shown |= {"progress": state.progress} | ({"staged_at": state.staged_at} if state.staged_at else {})
    return shown | (state.figures._asdict() if state.figures else {})


def task_view(task: Task, job: Job, shard: Shard | None) -> dict[str, Any]:
    spec = job.spec
    state = shard.states.get(task.target) if shard else None
    # Without a state the target has not reached a Job yet, or is moving to a later one.
    result = outcome(job, state) if state is not None else {"status": PENDING}
    if state is None and job.cancelled_at and task.create_time <= job.cancelled_at:
        # The target had not reached the Job when that was cancelled.
        result = {"status": CANCELLED, "error_code": CODE_CANCELLED, "error_msg": "the Job was cancelled"}
    changes = [task.update_time, shard.update_time if shard and state else "", job.finish_time or "" if state else ""]
    return {
        "task_id": spec.task_id(task.uuid),
        **view_of(spec),
        **view_of(task),
        **view_of(job.remarks),
        "target_agent_id": task.target.agent_id,
        "target_container_id": task.target.container_id,
        **result,
        "update_time": max(changes),
    }
