"""Jobs in the table. Each step of a Job's life is one conditional write."""

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
from tidegate.distribution.model import PENDING, RUNNING, Counts, Job, TransferSpec, states_before
from tidegate.distribution.swarm.figures import figures_from
from tidegate.errors import Busy
from tidegate.notifications.notice import Notice
from tidegate.notifications.outbox import notice_write
from tidegate.projects.audit import SYSTEM, AuditLine
from tidegate.projects.audit_store import audit_write

DUE_KIND = "job"
# Far longer than any clock is wrong.
SEQUENCE_TTL = 30 * 24 * 3600
_SEQUENCE_TRIES = 10
_PARCEL = tuple(field.name for field in fields(TransferSpec))
_MADE_UP = ("parcel", "counts", "closed", "portions", "swarm", "closed_swarm")
_PLAIN = tuple(field.name for field in fields(Job) if field.name not in _MADE_UP)
_LISTS = ("open_shards", "wave_limits", "wave_sizes")


def job_from(item: Mapping[str, Any]) -> Job:
    plain = {name: item[name] for name in _PLAIN if name in item}
    return Job(
        **plain | {name: tuple(item.get(name, ())) for name in _LISTS},
        parcel=TransferSpec.from_data(item),
        portions=tuple((first, last) for first, last in item.get("portions", ())),
        counts=_counts(item.get("counts")),
        closed=_counts(item.get("closed")),
        swarm=figures_from(item.get("swarm_figures")),
        closed_swarm=figures_from(item.get("swarm_closed")),
    )


def _counts(stored: Mapping[str, int] | None) -> Counts:
    """Fields of a later version are left out."""
    return Counts(**{name: value for name, value in (stored or {}).items() if name in Counts.__slots__})


def _swarm(job: Job) -> dict[str, Any]:
    if not job.swarm.hosts:
        return {}
    return {"swarm_figures": job.swarm.stored(), "swarm_closed": job.closed_swarm.stored()}


def still_collects(project_id: str, job_key: str) -> Write:
    """Goes into the transaction that binds targets: a Job that closed meanwhile takes no more."""
    collects = "#status = :pending AND attribute_not_exists(#cancelled_at)"
    return check(keys.job(project_id, job_key), collects, pending=PENDING)


def still_runs(job: Job) -> Write:
    """Goes into the transaction that changes shards: a Job that has ended changes no more."""
    return check(keys.job(job.project_id, job.key), "#status = :running", running=RUNNING)


class JobStore:
    """`ttl` is how long records live after their last change; `lasts` the longest that a Job itself may last."""

    def __init__(self, table: Table, *, ttl: int, lasts: int) -> None:
        self._table = table
        self._ttl = ttl
        self._lasts = lasts

    def open(self, job: Job, due_at: datetime) -> tuple[Job, bool]:
        """Puts the Job if it is not there. Returns the stored one, and whether this call put it."""
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
                # Many opened it at the same moment: one of them has succeeded by now.
                if known := self.get(job.project_id, job.key):
                    return known, False
                raise
            return job, True
        raise Busy(f"too many Jobs are opened at once for {job.parcel.target_file_dir}/{job.parcel.file_name}")

    def _sequence(self, job: Job) -> Write:
        """The write that raises the path's sequence, whatever the clock says. It expires once the time is higher."""
        parcel = job.parcel
        item = keys.path_sequence(job.project_id, parcel.target_file_dir, parcel.file_name)
        expires_at = int((job.sequence or 0) / 1000) + SEQUENCE_TTL
        rises = "attribute_not_exists(#sequence) OR #sequence < :sequence"
        return put(item | {"sequence": job.sequence, "expires_at": expires_at}, rises, sequence=job.sequence)

    def _next_sequence(self, job: Job, met: Mapping[str, Any] | None) -> int:
        parcel = job.parcel
        key = keys.path_sequence(job.project_id, parcel.target_file_dir, parcel.file_name)
        last = met or self._table.get(key, consistent=True) or {}
        return max(int(last.get("sequence", 0)), job.sequence or 0) + 1

    def _opening(self, job: Job, due_at: datetime) -> dict[str, Any]:
        parcel = job.parcel
        return (
            keys.job(job.project_id, job.key)
            | keys.due(job.key, due_at.timestamp(), DUE_KIND)
            | {name: getattr(job, name) for name in _PLAIN if name not in (*_LISTS, "due_at")}
            | asdict(parcel)
            | {"waves": [list(wave) for wave in parcel.waves] or None}
            | {
                "gsi1pk": keys.jobs_list(job.project_id),
                "gsi1sk": f"{job.create_time}#{job.key}",
                "gsi2pk": keys.jobs_at_path(job.project_id, parcel.biz_id, parcel.app_id, parcel.file_path),
                "gsi2sk": f"{job.create_time}#{job.key}",
                "expires_at": self._needed_until(job, due_at),
            }
        )

    def _needed_until(self, job: Job, now: datetime) -> int:
        extra = job.parcel.extra_seconds(self._lasts, now.timestamp())
        return int(now.timestamp()) + self._lasts + extra + self._ttl

    def get(self, project_id: str, job_key: str, *, consistent: bool = True) -> Job | None:
        item = self._table.get(keys.job(project_id, job_key), consistent=consistent)
        return job_from(item) if item else None

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
        """Pending → Running, once. Returns the Job as it is then, whoever closed it."""
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
        """Notes when the wave was sent; the first to write it wins."""
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
        """Marks the Job as cancelled, once. Its next step ends it, with what has arrived by then."""
        sets = {"cancelled_at": iso(now), "cancelled_by": who}
        going = "#status IN (:pending, :running) AND attribute_not_exists(#cancelled_at)"
        key = keys.job(job.project_id, job.key)
        change = update(key, sets, condition=going, pending=PENDING, running=RUNNING)
        line = AuditLine(job.project_id, job.job_id, iso(now), who, "job.cancel", job.status, None, "")
        with contextlib.suppress(ConditionFailed):
            self._table.transact([change, audit_write(line)])
        return self._known(job)

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
        """Moves the time at which compensation looks at the Job."""
        key = keys.job(job.project_id, job.key)
        self._table.try_write(update(key, keys.due(job.key, due_at.timestamp(), DUE_KIND)))

    def next_generation(self, job: Job, due_at: datetime) -> Job:
        sets = {"generation": job.generation + 1, **keys.due(job.key, due_at.timestamp(), DUE_KIND)}
        same = "#generation = :seen"
        try:
            return job_from(
                self._table.write(update(keys.job(job.project_id, job.key), sets, condition=same, seen=job.generation))
            )
        except ConditionFailed:
            return self._known(job)

    def end(self, job: Job, now: datetime, notice: Notice, due_at: datetime) -> Job:
        """Running → the ended state that `job` carries, with the notice of it. The first to end it wins."""
        sets = {
            "status": job.status,
            "finish_time": job.finish_time,
            "counts": asdict(job.counts),
            **_swarm(job),
            "rest_code": job.rest_code,
            "error": dict(job.error) if job.error else None,
            "expires_at": int(now.timestamp()) + self._ttl,
            **keys.due(job.key, due_at.timestamp(), DUE_KIND),
        }
        why = job.error["detail"] if job.error else "every target has ended"
        if not self._transition(job, now, sets, why, notice_write(notice)):
            return self._known(job)
        return replace(job, due_at=int(due_at.timestamp()))

    def _transition(self, job: Job, now: datetime, sets: dict[str, Any], why: str, *more: Write) -> bool:
        """One step of the table of transitions, with its audit line. False if the Job was elsewhere already."""
        following = str(sets["status"])
        (before,) = states_before(following)
        change = update(keys.job(job.project_id, job.key), sets, condition="#status = :before", before=before)
        line = AuditLine(job.project_id, job.job_id, iso(now), SYSTEM, "job", before, following, why)
        return self._table.try_write(change, audit_write(line), *more)

    def settle(self, job: Job) -> bool:
        """Takes the Job out of the due index once all notices are sent, unless it was made due again meanwhile."""
        key = keys.job(job.project_id, job.key)
        return self._table.try_write(
            update(key, removes=keys.DUE_ATTRIBUTES, condition="#due_at = :seen", seen=job.due_at or 0)
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
