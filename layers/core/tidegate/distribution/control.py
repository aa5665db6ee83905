"""What a caller does to a Job: call it off, or try its failed targets again."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from aws_lambda_powertools import Logger

from tidegate.common.ids import Clock
from tidegate.distribution.executions import JobExecutions
from tidegate.distribution.model import Job, job_key_of
from tidegate.distribution.recovery import LOOK_AGAIN
from tidegate.distribution.store.jobs import JobStore
from tidegate.distribution.store.targets import TargetStore
from tidegate.distribution.submit import Submit
from tidegate.distribution.targets import Target
from tidegate.distribution.task_view import outcome
from tidegate.errors import RecordNotFound, WrongState

logger = Logger(service="tidegate", child=True)
_SHARDS_READ_TOGETHER = 50


@dataclass(frozen=True, slots=True)
class Redriven:
    job: Job
    targets: int


class JobControl:
    def __init__(
        self, jobs: JobStore, targets: TargetStore, submit: Submit, executions: JobExecutions, clock: Clock
    ) -> None:
        self._jobs = jobs
        self._targets = targets
        self._submit = submit
        self._executions = executions
        self._clock = clock

    def cancel(self, project_id: str, given: str, who: str) -> Job:
        """What has not arrived becomes Cancelled, by the Job's next step. Repeating it changes nothing."""
        job = self._job(project_id, given)
        if not job.ended and not job.cancelled_at:
            job = self._jobs.cancel(job, self._clock(), who)
        if not job.cancelled_at:
            raise WrongState(f"the Job is {job.status} already: there is nothing to cancel")
        if not job.ended and job.parcel.until_activation(self._clock().timestamp()):
            self._end_now(job)
        return job

    def _end_now(self, job: Job) -> None:
        """Starts another execution: the one that waits for `activate_at` looks only every few minutes.

        A step may run twice, so the two do not disturb each other, and without this one the other ends the Job."""
        try:
            self._executions.start(self._jobs.next_generation(job, self._clock() + LOOK_AGAIN))
        except Exception:
            logger.exception("the cancelled Job ends at its next poll", job_id=job.job_id)

    def redrive(
        self, project_id: str, given: str, statuses: Collection[str], callback: str | None, who: str
    ) -> Redriven:
        """A new Job, in a later window, of the targets that ended so. Asked twice in one window, it is the same Job."""
        job = self._job(project_id, given)
        if not job.ended:
            raise WrongState(f"the Job is {job.status}: redrive it when it has ended, or cancel it first")
        targets = self._ended_as(job, statuses)
        if not targets:
            raise WrongState(f"no target of the Job ended as {' or '.join(sorted(statuses))}")
        parcel = replace(job.parcel, redrive_of=job.key)
        if not parcel.until_activation(self._clock().timestamp()):
            parcel = replace(parcel, activate_at=None)
        taken = self._submit.submit_any_number(
            project_id, parcel, targets, callback, who=who, after=job.bucket, action="job.redrive", source=job.job_id
        )
        return Redriven(taken.job, len(targets))

    def _ended_as(self, job: Job, statuses: Collection[str]) -> list[Target]:
        found: list[Target] = []
        for first in range(0, job.shard_count or 0, _SHARDS_READ_TOGETHER):
            numbers = range(first, min(first + _SHARDS_READ_TOGETHER, job.shard_count or 0))
            for shard in self._targets.shards(job, numbers):
                found += [target for target, state in shard.states.items() if outcome(job, state)["status"] in statuses]
        return found

    def _job(self, project_id: str, given: str) -> Job:
        job = self._jobs.get(project_id, job_key_of(given))
        if job is None:
            raise RecordNotFound("no such Job")
        return job
