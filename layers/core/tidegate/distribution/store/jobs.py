"""Jobs in the table. Every transition is one conditional write."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from datetime import datetime
from typing import Any

from tidegate.aws import keys
from tidegate.aws.table import ConditionFailed, Table
from tidegate.aws.writes import Write, check, put, put_new, update
from tidegate.common.ids import iso
from tidegate.common.listing import Listed
from tidegate.distribution.model import OUTAGE_SECONDS, PENDING, RUNNING, Counts, Job, TransferSpec, states_before
from tidegate.distribution.swarm.figures import figures_from
from tidegate.errors import Busy, RecordNotFound
from tidegate.notifications.notice import Notice
from tidegate.notifications.outbox import notice_write
from tidegate.projects.audit import SYSTEM, AuditLine
from tidegate.projects.audit_store import audit_write

DUE_KIND = "job"
# Much longer than any clock may be wrong.
SEQUENCE_TTL = 30 * 24 * 3600
# Longer than a message of targets can live: 14 days as a dead letter and, redriven, as long in the queue.
_CANCEL_KEPT_SECONDS = 30 * 24 * 3600
_SEQUENCE_TRIES = 10
_NESTED = ("spec", "counts", "closed", "portions", "swarm", "closed_swarm")
_PLAIN = tuple(field.name for field in fields(Job) if field.name not in _NESTED)
_LISTS = ("open_shards", "wave_limits", "wave_sizes")


def job_from(item: Mapping[str, Any]) -> Job:
    plain = {name: item[name] for name in _PLAIN if name in item}
    return Job(
        **plain | {name: tuple(item.get(name, ())) for name in _LISTS},
        spec=TransferSpec.from_data(item),
        portions=tuple((first, last) for first, last in item.get("portions", ())),
        counts=_counts(item.get("counts")),
        closed=_counts(item.get("closed")),
        swarm=figures_from(item.get("swarm_figures")),
        closed_swarm=figures_from(item.get("swarm_closed")),
    )


def _counts(stored: Mapping[str, int] | None) -> Counts:
    """The stored counts. Ignores fields of later versions."""
    return Counts(**{name: value for name, value in (stored or {}).items() if name in Counts.__slots__})


def _swarm(job: Job) -> dict[str, Any]:
    if not job.swarm.hosts:
        return {}
    return {"swarm_figures": job.swarm.stored(), "swarm_closed": job.closed_swarm.stored()}


def still_collects(project_id: str, job_key: str) -> Write:
    """For the transaction that binds targets: it fails if the Job has closed."""
    collects = "#status = :pending AND attribute_not_exists(#cancelled_at)"
    return check(keys.job(project_id, job_key), collects, pending=PENDING)


def still_runs(job: Job) -> Write:
    """For the transaction that changes shards: it fails if the Job has ended."""
    return check(keys.job(job.project_id, job.key), "#status = :running", running=RUNNING)


class JobStore:
    """`ttl`: seconds that records are kept after their last change. `lasts`: the longest duration of a Job."""

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
                self._table.transact([put_new(item), counter], returns_met=True)
            except ConditionFailed as refused:
                if 0 in refused.failed:
                    met = refused.met.get(0)
                    return (job_from(met) if met else self._known(job)), False
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
        """The write that raises the path's sequence, even if clocks differ. Expires when the time is surely higher."""
        spec = job.spec
        item = keys.path_sequence(job.project_id, spec.target_file_dir, spec.file_name)
        expires_at = int((job.sequence or 0) / 1000) + SEQUENCE_TTL
        rises = "attribute_not_exists(#sequence) OR #sequence < :sequence"
        return put(item | {"sequence": job.sequence, "expires_at": expires_at}, rises, sequence=job.sequence)

    def _next_sequence(self, job: Job, met: Mapping[str, Any] | None) -> int:
        spec = job.spec
        key = keys.path_sequence(job.project_id, spec.target_file_dir, spec.file_name)
        last = met or self._table.get(key, consistent=True) or {}
        return max(int(last.get("sequence", 0)), job.sequence or 0) + 1

    def _opening(self, job: Job, due_at: datetime) -> dict[str, Any]:
        spec = job.spec
        return (
            keys.job(job.project_id, job.key)
            | keys.due(job.key, due_at.timestamp(), DUE_KIND)
            | {name: getattr(job, name) for name in _PLAIN if name not in (*_LISTS, "due_at")}
            | asdict(spec)
            | {"waves": [list(wave) for wave in spec.waves] or None}
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
        return job_from(item) if item else None

    def require(self, project_id: str, job_key: str, *, named: str = "") -> Job:
        """The Job, from a consistent read. RecordNotFound if there is none; `named` is what the caller called it."""
        job = self.get(project_id, job_key)
        if job is None:
            raise RecordNotFound(
                f"no Job {named or job_key} was found: check its id, and note that ended Jobs are deleted after a while"
            )
        return job

    def get_many(self, project_id: str, job_keys: Sequence[str], *, consistent: bool = False) -> dict[str, Job]:
        wanted = (keys.job(project_id, key) for key in dict.fromkeys(job_keys))
        found = self._table.batch_get(wanted, consistent=consistent)
        return {item["key"]: job_from(item) for item in found}

    def list(
        self, project_id: str, place: tuple[int, int, str] | None, limit: int, cursor: str | None, **wanted: object
    ) -> Listed[Job]:
        pk = keys.jobs_at_path(project_id, *place) if place else keys.jobs_list(project_id)
        index = "gsi2" if place else "gsi1"
        page = self._table.find(pk, limit=limit, cursor=cursor, wanted=wanted, index=index)
        return Listed([job_from(item) for item in page.items], page.cursor)

    def close(self, job: Job, now: datetime, deadline: float, due_at: datetime) -> Job:
        """Pending → Running, once. Returns the stored Job, whichever call closed it."""
        sets = {
            "status": RUNNING,
            "execute_time": iso(now),
            "deadline": deadline,
            "expires_at": self._needed_until(job, now),
            **keys.due(job.key, due_at.timestamp(), DUE_KIND),
        }
        self._transition(job, now, sets, "the window is over")
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
        waves = {"wave_limits": list(wave_limits), "wave_sizes": list(wave_sizes)} if wave_limits else {}
        sets = waves | {
            "shard_count": len(sizes),
            "open_shards": list(range(len(sizes))),
            "portions": [list(portion) for portion in portions],
            "counts": asdict(Counts(total=sum(sizes))),
            "swarm_key": secrets.token_hex(32),
        }
        unsharded = "#status = :running AND attribute_not_exists(#shard_count)"
        return self._change(job, now, sets, None, condition=unsharded, running=RUNNING)

    def sent(self, job: Job, now: datetime, transfer_id: str, file_size: int | None) -> Job:
        first = "#status = :running AND attribute_not_exists(#transfer_id)"
        sets = {"transfer_id": transfer_id, **({"file_size": file_size} if file_size else {})}
        return self._change(job, now, sets, None, condition=first, running=RUNNING)

    def wave_sent(self, job: Job, now: datetime) -> Job:
        """Stores when the wave was sent. The first writer wins."""
        first = "#status = :running AND #wave = :wave AND attribute_not_exists(#wave_at)"
        sets = {"wave_at": int(now.timestamp())}
        return self._change(job, now, sets, None, condition=first, running=RUNNING, wave=job.wave)

    def next_wave(self, job: Job, now: datetime, deadline: float) -> Job:
        key = keys.job(job.project_id, job.key)
        lives = {"expires_at": self._needed_until(job, now)}
        sets = {"wave": job.wave + 1, "failed_before": job.counts.failed, "deadline": deadline}
        here = "#status = :running AND #wave = :wave AND attribute_not_exists(#cancelled_at)"
        step = update(key, sets | lives, removes=("wave_at",), condition=here, running=RUNNING, wave=job.wave)
        try:
            return job_from(self._table.write(step))
        except ConditionFailed:
            return self._known(job)

    def cancel(self, job: Job, now: datetime, who: str) -> Job:
        """Marks the Job as cancelled, once. Its next step ends it; targets that have the file by then succeed."""
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

    def cancelled_at(self, project_id: str, job_key: str) -> str | None:
        """When a Job was cancelled that has expired since; None if it was not."""
        noted = self._table.get(keys.cancelled_job(project_id, job_key), consistent=True)
        return str(noted["cancelled_at"]) if noted else None

    def progress(self, job: Job, now: datetime, counted: Job) -> Job:
        sets: dict[str, Any] = {
            "open_shards": list(counted.open_shards),
            "counts": asdict(counted.counts),
            "closed": asdict(counted.closed),
            **_swarm(counted),
            "rev": job.rev + 1,
        }
        unchanged = "#status = :running AND #rev = :seen"
        return self._change(job, now, sets, None, condition=unchanged, running=RUNNING, seen=job.rev)

    def put_off(self, job: Job, due_at: datetime) -> None:
        """Moves the time at which compensation checks the Job. The record does not expire before that."""
        key = keys.job(job.project_id, job.key)
        lives = {"expires_at": self._needed_until(job, due_at)}
        self._table.try_write(update(key, lives | keys.due(job.key, due_at.timestamp(), DUE_KIND)))

    def next_generation(self, job: Job, due_at: datetime) -> Job:
        sets = {"generation": job.generation + 1, **keys.due(job.key, due_at.timestamp(), DUE_KIND)}
        same = "#generation = :seen"
        try:
            return job_from(
                self._table.write(update(keys.job(job.project_id, job.key), sets, condition=same, seen=job.generation))
            )
        except ConditionFailed:
            return self._known(job)

    def end(self, job: Job, now: datetime, notice: Notice, due_at: datetime) -> tuple[Job, bool]:
        """Running → the final state of `job`, with its notice. Returns the stored Job, and whether it was this call."""
        sets = {
            "status": job.status,
            "finish_time": job.finish_time,
            "counts": asdict(job.counts),
            **_swarm(job),
            "rest_code": job.rest_code,
            "error": dict(job.error) if job.error else None,
            # Until `settle`: the callbacks of its Tasks are still to be sent.
            "expires_at": int(now.timestamp()) + self._ttl + OUTAGE_SECONDS,
            **keys.due(job.key, due_at.timestamp(), DUE_KIND),
        }
        why = job.error["detail"] if job.error else "every target has ended"
        if not self._transition(job, now, sets, why, notice_write(notice)):
            return self._known(job), False
        return replace(job, due_at=int(due_at.timestamp())), True

    def _transition(self, job: Job, now: datetime, sets: dict[str, Any], why: str, *more: Write) -> bool:
        """Writes one transition with its audit line. False if the Job has left the state before it."""
        following = str(sets["status"])
        (before,) = states_before(following)
        change = update(keys.job(job.project_id, job.key), sets, condition="#status = :before", before=before)
        line = AuditLine(job.project_id, job.job_id, iso(now), SYSTEM, "job", before, following, why)
        return self._table.try_write(change, audit_write(line), *more)

    def settle(self, job: Job, now: datetime) -> bool:
        """Removes the Job from the due index when all notices are sent, unless it was made due again meanwhile."""
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
            return job_from(self._table.write(update(key, sets | lives | due, condition=condition, **values)))
        except ConditionFailed as met:
            return job_from(met.item) if met.item else self._known(job)

    def _known(self, job: Job) -> Job:
        return self.get(job.project_id, job.key) or job
