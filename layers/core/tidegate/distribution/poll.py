"""Asks the provider how the targets of a Job fare, and writes down only what changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aws_lambda_powertools import Logger

from tidegate.common.ids import Clock
from tidegate.distribution.counts import tally
from tidegate.distribution.model import Job
from tidegate.distribution.ports import Engine
from tidegate.distribution.recovery import Heartbeat
from tidegate.distribution.store.jobs import JobStore
from tidegate.distribution.store.targets import TargetStore
from tidegate.distribution.store.transfers import TransferStore
from tidegate.distribution.targets import Shard
from tidegate.distribution.transfers import SENT, Transfer
from tidegate.errors import DomainError, RecordNotFound

logger = Logger(service="tidegate", child=True)
GOING_ON, OVER = "running", "over"

Tell = Callable[[str, str, Mapping[str, Any]], None]


class PollTransfer:
    def __init__(
        self,
        jobs: JobStore,
        targets: TargetStore,
        transfers: TransferStore,
        engine: Engine,
        heartbeat: Heartbeat,
        tell: Tell,
        clock: Clock,
    ) -> None:
        self._jobs = jobs
        self._targets = targets
        self._transfers = transfers
        self._engine = engine
        self._heartbeat = heartbeat
        self._tell = tell
        self._clock = clock

    def poll(self, project_id: str, job_key: str) -> str:
        job = self._jobs.get(project_id, job_key)
        if job is None:
            raise RecordNotFound("no such Job")
        if job.ended:
            return OVER
        self._heartbeat.alive(job)
        job = self._read(job)
        if not job.open_shards or self._clock().timestamp() >= (job.deadline or 0):
            return OVER
        return GOING_ON

    def _read(self, job: Job) -> Job:
        before = self._targets.shards(job, job.open_shards)
        after = {shard.number: shard for shard in before}
        for transfer in self._transfers.list(job):
            if transfer.state == SENT:
                after |= self._news(job, transfer, [after[n] for n in transfer.shards if n in after])
        changed = [after[shard.number] for shard in before if after[shard.number] is not shard]
        now = self._clock()
        # What another poller wrote meanwhile is newer than what was read here.
        if changed and not self._targets.save(job, changed, now):
            return job
        counted = tally(job, list(after.values()))
        if counted == job:
            return job
        job = self._jobs.progress(job, now, counted)
        # With nothing left open the end is told in a moment, and a crowd that watches need not hear twice.
        if job.open_shards:
            self._tell(job.project_id, job.job_id, job.shown())
        return job

    def _news(self, job: Job, transfer: Transfer, shards: Sequence[Shard]) -> dict[int, Shard]:
        """A provider that does not answer, or answers nonsense, fails nobody."""
        if not shards:
            return {}
        try:
            results = self._engine.results(job, transfer, [shard.number for shard in shards])
        except DomainError as error:
            logger.warning("the provider does not answer", job_id=job.job_id, code=error.code, reason=error.detail)
            return {}
        reported = (shard.after(results.targets) for shard in shards)
        upload = results.upload
        return {s.number: s.all_failed(upload) if upload else s for s in reported}
