"""Cancels Jobs, and redrives the failed targets of ended ones."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from aws_lambda_powertools import Logger

from tidegate.common.ids import Clock
from tidegate.distribution.executions import JobExecutions
from tidegate.distribution.model import Job, job_key_of
from tidegate.distribution.recovery import RECHECK_AFTER
from tidegate.distribution.store.jobs import JobStore
from tidegate.distribution.store.targets import TargetStore
from tidegate.distribution.submit import Submit
from tidegate.distribution.targets import Target
from tidegate.distribution.task_view import outcome
from tidegate.errors import WrongState

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
        """Cancels the Job: its next step ends unfinished targets as Cancelled. Idempotent."""
        job = self._job(project_id, given)
        if not job.ended and not job.cancelled_at:
            job = self._jobs.cancel(job, self._clock(), who)
        if not job.cancelled_at:
            raise WrongState(f"the Job has ended ({job.status}): there is nothing to cancel")
        if not job.ended and job.spec.until_activation(self._clock().timestamp()):
            self._end_now(job)
        return job

    def _end_now(self, job: Job) -> None:
        """Starts another execution: the one that waits for `activate_at` polls only every few minutes.

        Every step may run twice, so both can run. If this one fails, the other one ends the Job."""
        try:
            self._executions.start(self._jobs.next_generation(job, self._clock() + RECHECK_AFTER))
        except Exception:
            logger.exception(
                "no further execution was started: the cancelled Job ends at its next poll", job_id=job.job_id
            )

    def redrive(
        self, project_id: str, given: str, statuses: Collection[str], callback: str | None, who: str
    ) -> Redriven:
        """Submits the targets that ended with one of these statuses to a new Job in a later window.

        A second redrive in the same window uses the same Job."""
        job = self._job(project_id, given)
        if not job.ended:
            raise WrongState(f"the Job is {job.status}: redrive it when it has ended, or cancel it first")
        targets = self._ended_as(job, statuses)
        if not targets:
            raise WrongState(
                f"no target of the Job ended as {' or '.join(sorted(statuses))}: there is nothing to redrive"
            )
        spec = replace(job.spec, redrive_of=job.key)
        if not spec.until_activation(self._clock().timestamp()):
            spec = replace(spec, activate_at=None)
        submitted = self._submit.submit_any_number(
            project_id, spec, targets, callback, who=who, after=job.bucket, action="job.redrive", source=job.job_id
        )
        return Redriven(submitted.job, len(targets))

    def _ended_as(self, job: Job, statuses: Collection[str]) -> list[Target]:
        found: list[Target] = []
        for first in range(0, job.shard_count or 0, _SHARDS_READ_TOGETHER):
            numbers = range(first, min(first + _SHARDS_READ_TOGETHER, job.shard_count or 0))
            for shard in self._targets.shards(job, numbers):
                found += [target for target, state in shard.states.items() if outcome(job, state)["status"] in statuses]
        return found

    def _job(self, project_id: str, given: str) -> Job:
        return self._jobs.require(project_id, job_key_of(given), named=given)
