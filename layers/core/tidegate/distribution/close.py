"""Closes a window: the Job takes no more targets, and those it has are laid out in shards."""

from __future__ import annotations

from datetime import timedelta

from tidegate.common.ids import Clock
from tidegate.distribution.model import PENDING, Job
from tidegate.distribution.recovery import LOOK_AGAIN
from tidegate.distribution.store.jobs import JobStore
from tidegate.distribution.store.targets import TargetStore
from tidegate.distribution.targets import spread
from tidegate.distribution.transfers import portions
from tidegate.errors import RecordNotFound


class CloseWindow:
    def __init__(
        self, jobs: JobStore, targets: TargetStore, clock: Clock, *, job_timeout: int, transfer_max_targets: int
    ) -> None:
        self._jobs = jobs
        self._targets = targets
        self._clock = clock
        self._job_timeout = job_timeout
        self._transfer_max_targets = transfer_max_targets

    def close(self, project_id: str, job_key: str) -> Job:
        """Once Pending → Running has happened no chunk can be added: whoever repeats this sees the same targets."""
        job = self._jobs.get(project_id, job_key)
        if job is None:
            raise RecordNotFound("no such Job")
        if job.status == PENDING:
            now = self._clock()
            deadline = now + timedelta(seconds=self._job_timeout)
            job = self._jobs.close(job, now, deadline.timestamp(), now + LOOK_AGAIN)
        if job.ended or job.shard_count is not None:
            return job
        shards = spread(arrival.target for arrival in self._targets.collected(project_id, job_key))
        now = self._clock()
        self._targets.add_shards(job, shards, now)
        sizes = [len(shard) for shard in shards]
        return self._jobs.shard(job, now, portions(sizes, self._transfer_max_targets), sizes)
