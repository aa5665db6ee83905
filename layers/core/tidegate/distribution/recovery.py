"""Keeps Jobs moving: a Job whose execution never began or died gets another, which goes on where it was."""

from __future__ import annotations

from datetime import timedelta

from aws_lambda_powertools import Logger

from tidegate.common.ids import Clock
from tidegate.distribution.executions import JobExecutions
from tidegate.distribution.model import Job
from tidegate.distribution.store.jobs import JobStore
from tidegate.distribution.transfers import next_wait
from tidegate.errors import RecordNotFound

logger = Logger(service="tidegate", child=True)
LOOK_AGAIN = timedelta(seconds=90)
_RENEW_BEFORE = 45


class Heartbeat:
    def __init__(self, jobs: JobStore, clock: Clock) -> None:
        self._jobs = jobs
        self._clock = clock

    def still_open(self, project_id: str, job_key: str) -> Job | None:
        """The Job whose step begins, if there is still something to do in it."""
        job = self._jobs.get(project_id, job_key)
        if job is None:
            raise RecordNotFound("no such Job")
        if job.ended or job.cancelled_at or not job.open_shards or self._clock().timestamp() >= (job.deadline or 0):
            return None
        self.alive(job)
        return job

    def alive(self, job: Job) -> None:
        """Tells compensation that a step is at work; written only when the due time comes near."""
        now = self._clock()
        until_activation = job.parcel.until_activation(now.timestamp())
        # A Job that waits for its `activate_at` is polled less often.
        ahead = next_wait(0, until_activation) if until_activation else 0
        if (job.due_at or 0) - now.timestamp() < _RENEW_BEFORE + ahead:
            self._jobs.put_off(job, now + LOOK_AGAIN + timedelta(seconds=ahead))


class JobRecovery:
    def __init__(self, jobs: JobStore, executions: JobExecutions, clock: Clock) -> None:
        self._jobs = jobs
        self._executions = executions
        self._clock = clock

    def look(self, project_id: str, job_key: str) -> bool:
        """Starts the Job's execution again if it died. Returns whether it did. Steps that are done are not repeated."""
        job = self._jobs.get(project_id, job_key)
        if job is None:
            return False
        due_at = self._clock() + LOOK_AGAIN
        status = self._executions.status(job)
        if status == "RUNNING":
            self._jobs.put_off(job, due_at)
            return False
        if status is None:
            self._jobs.put_off(job, due_at)
        else:
            # The name of a dead execution is taken: the next one needs another.
            job = self._jobs.next_generation(job, due_at)
        logger.info("the Job's execution is started again", job_id=job.job_id, generation=job.generation, was=status)
        self._executions.start(job)
        return True
