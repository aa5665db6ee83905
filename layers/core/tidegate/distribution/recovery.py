"""Keeps Jobs running: a Job whose execution never started or died gets another one, which continues."""

from __future__ import annotations

from datetime import timedelta

from aws_lambda_powertools import Logger

from tidegate.common.ids import Clock
from tidegate.distribution.executions import JobExecutions
from tidegate.distribution.model import Job
from tidegate.distribution.store.jobs import JobStore
from tidegate.distribution.transfers import LONGEST_WAIT

logger = Logger(service="tidegate", child=True)
RECHECK_AFTER = timedelta(seconds=90)
_RENEW_BEFORE = 45


class Heartbeat:
    def __init__(self, jobs: JobStore, clock: Clock) -> None:
        self._jobs = jobs
        self._clock = clock

    def still_open(self, project_id: str, job_key: str) -> Job | None:
        """The Job for a step that begins; None if nothing is left to do."""
        job = self._jobs.require(project_id, job_key)
        if job.ended or job.cancelled_at or not job.open_shards or self._clock().timestamp() >= (job.deadline or 0):
            return None
        self.alive(job)
        return job

    def alive(self, job: Job, next_within: int = LONGEST_WAIT) -> None:
        """Postpones compensation's check of the Job, whose next step follows within that many seconds. Writes only
        when that check is near."""
        now = self._clock()
        ahead = max(0, next_within - LONGEST_WAIT)
        if (job.due_at or 0) - now.timestamp() < _RENEW_BEFORE + ahead:
            self._jobs.put_off(job, now + RECHECK_AFTER + timedelta(seconds=ahead))


class JobRecovery:
    def __init__(self, jobs: JobStore, executions: JobExecutions, clock: Clock) -> None:
        self._jobs = jobs
        self._executions = executions
        self._clock = clock

    def restart_if_dead(self, project_id: str, job_key: str) -> bool:
        """Starts another execution if the Job's has died. Returns whether it did. Completed steps are not repeated."""
        job = self._jobs.get(project_id, job_key)
        if job is None:
            return False
        due_at = self._clock() + RECHECK_AFTER
        status = self._executions.status(job)
        if status == "RUNNING":
            self._jobs.put_off(job, due_at)
            return False
        if status is None:
            self._jobs.put_off(job, due_at)
        else:
            # An execution's name cannot be used twice.
            job = self._jobs.next_generation(job, due_at)
        logger.info("the Job gets another execution", job_id=job.job_id, generation=job.generation, was=status)
        self._executions.start(job)
        return True
