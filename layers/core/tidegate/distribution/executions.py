"""The execution of a Job. Its name is a hash of project and Job id, so it starts once, and a generation number."""

from __future__ import annotations

from datetime import datetime, timedelta

from tidegate.aws.sfn import Machines
from tidegate.common.ids import digest, iso
from tidegate.distribution.model import Job


class JobExecutions:
    def __init__(self, machines: Machines, machine_arn: str, *, grace: int, job_timeout: int) -> None:
        self._machines = machines
        self._machine_arn = machine_arn
        self._grace = timedelta(seconds=grace)
        self._job_timeout = timedelta(seconds=job_timeout)

    def start(self, job: Job) -> None:
        collect_until = datetime.fromisoformat(job.closes_at) + self._grace
        data = {
            "project_id": job.project_id,
            "job_key": job.key,
            "job_id": job.job_id,
            "collect_until": iso(collect_until),
            "deadline": iso(collect_until + self._job_timeout + self._until_activation(job, collect_until)),
            "step": {"wait": 0},
        }
        self._machines.start(self._machine_arn, self._name(job), data)

    @staticmethod
    def _until_activation(job: Job, since: datetime) -> timedelta:
        return timedelta(seconds=job.spec.until_activation(since.timestamp()))

    def status(self, job: Job) -> str | None:
        return self._machines.status(self._machine_arn, self._name(job))

    @staticmethod
    def _name(job: Job) -> str:
        return f"{digest(job.project_id, job.job_id, length=40)}-{job.generation}"
