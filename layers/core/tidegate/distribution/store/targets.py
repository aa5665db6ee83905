"""Targets in the table: as chunks while they are collected, as shards once their Job has closed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from tidegate.aws import keys
from tidegate.aws.packing import pack, unpack
from tidegate.aws.table import ConditionFailed, Table
from tidegate.aws.writes import Write, delete, put, put_new, update
from tidegate.common.ids import digest, iso
from tidegate.common.slices import slices
from tidegate.distribution.model import OUTAGE_SECONDS, Job
from tidegate.distribution.ports import Arrival, Rebound
from tidegate.distribution.store.jobs import still_collects, still_runs
from tidegate.distribution.swarm.figures import figures_from
from tidegate.distribution.targets import Figures, Shard, Target, TargetState

CHUNK_LIMIT = 1000
_CHUNKS_A_TRANSACTION = 10
_SHARDS_A_TRANSACTION = 10
NONE: Mapping[Target, int] = {}


def shard_from(item: dict[str, Any]) -> Shard:
    states = {
        Target(agent, container): TargetState(code, message, progress, *_optional(rest))
        for agent, container, code, message, progress, *rest in unpack(item["packed"])
    }
    moved = unpack(item["sequences"]) if "sequences" in item else ()
    sequences = {Target(agent, container): sequence for agent, container, sequence in moved}
    return Shard(item["number"], states, item["rev"], item["update_time"], sequences, figures_from(item.get("swarm")))


def _optional(rest: Sequence[Any]) -> tuple[Figures | None, str | None]:
    """The figures and `staged_at`, from the end of a row: nothing, four figures, or four figures and `staged_at`."""
    figures = Figures(*rest[:4]) if any(value is not None for value in rest[:4]) else None
    return figures, rest[4] if len(rest) > 4 else None


def _packed(shard: Shard) -> bytes:
    return pack((*target, *state[:3], *_optional_row(state)) for target, state in shard.states.items())


def _optional_row(state: TargetState) -> tuple[Any, ...]:
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
    """`lasts`: how long shards are needed, which is the longest duration of a Job plus the TTL after it."""

    def __init__(self, table: Table, *, lasts: int) -> None:
        self._table = table
        self._lasts = lasts

    def _needed_until(self, job: Job, now: datetime) -> int:
        extra = job.spec.extra_seconds(self._lasts, now.timestamp())
        return int(now.timestamp()) + self._lasts + extra + OUTAGE_SECONDS

    def bind(self, project_id: str, job_key: str, arrivals: Sequence[Arrival], expires_at: int) -> Sequence[Arrival]:
        """Binds arrivals to a Job whose window is open. Returns those that came too late."""
        portion = CHUNK_LIMIT * _CHUNKS_A_TRANSACTION
        for start in range(0, len(arrivals), portion):
            writes = [still_collects(project_id, job_key)]
            for chunk in slices(arrivals[start : start + portion], CHUNK_LIMIT):
                writes += self._chunk(project_id, job_key, chunk, expires_at)
            if not self._table.try_write(*writes):
                return arrivals[start:]
        return ()

    def rebind(self, home: Job, arrivals: Sequence[Arrival], moves: Sequence[Write], expires_at: int) -> Rebound:
        """Binds late arrivals to another Job and moves their Tasks, all or none."""
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
        for item in self._table.query_all(keys.chunks(project_id, job_key), consistent=True):
            yield from (Arrival(*row) for row in unpack(item["packed"]))

    def any_collected(self, project_id: str, job_key: str) -> bool:
        return bool(self._table.query(keys.chunks(project_id, job_key), limit=1, consistent=True).items)

    def add_shards(
        self, job: Job, shards: Sequence[Sequence[Target]], now: datetime, sequences: Mapping[Target, int] = NONE
    ) -> None:
        """Writes the shards that do not exist yet: a close that runs twice must not undo a poll."""
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

    def shards_of_jobs(
        self, wanted: Iterable[tuple[Job, int]], *, consistent: bool = False
    ) -> dict[tuple[str, int], Shard]:
        places = {(job.key, number): keys.shard(job.project_id, job.key, number) for job, number in wanted}
        found = self._table.batch_get(places.values(), consistent=consistent)
        return {(item["job_key"], item["number"]): shard_from(item) for item in found}

    def one_shard(self, job: Job, number: int) -> Shard | None:
        item = self._table.get(keys.shard(job.project_id, job.key, number))
        return shard_from(item) if item else None

    def save(self, job: Job, shards: Sequence[Shard], now: datetime) -> bool:
        """Writes changed shards. False if another poller was faster or the Job has ended: what was read is stale."""
        for portion in slices(shards, _SHARDS_A_TRANSACTION):
            writes = [
                update(
                    keys.shard(job.project_id, job.key, shard.number),
                    {
                        "packed": _packed(shard),
                        **({"swarm": shard.swarm.stored()} if shard.swarm.hosts else {}),
                        "rev": shard.rev + 1,
                        "update_time": iso(now),
                        "expires_at": self._needed_until(job, now),
                    },
                    condition="#rev = :seen",
                    seen=shard.rev,
                )
                for shard in portion
            ]
            if not self._table.try_write(still_runs(job), *writes):
                return False
        return True

    def add_callbacks(self, job: Job, uuids: Sequence[str], expires_at: int) -> None:
        self._table.write(_callbacks(job.project_id, job.key, uuids, expires_at))

    def callbacks(self, job: Job) -> Iterator[tuple[str, list[str]]]:
        """Portions (id, Task uuids) of the Tasks whose callback has not been published yet."""
        for item in self._table.query_all(keys.job_callbacks(job.project_id, job.key), consistent=True):
            yield item["sk"], [uuid for (uuid,) in unpack(item["packed"])]

    def forget_callbacks(self, job: Job, chunk_id: str) -> None:
        self._table.write(delete(keys.job_callback(job.project_id, job.key, chunk_id)))
