"""Opens the Job of a window, or joins it. Submits and late targets both come through here."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta

from aws_lambda_powertools import Logger

from tidegate.common.ids import Clock, iso
from tidegate.distribution.executions import JobExecutions
from tidegate.distribution.model import Job, TransferSpec, job_key
from tidegate.distribution.store.jobs import JobStore
from tidegate.distribution.window.buckets import bucket_of, window_end
from tidegate.errors import Conflict

logger = Logger(service="tidegate", child=True)
_REMEMBERED = 2000


@dataclass(frozen=True, slots=True)
class Windows:
    """`grace` is for targets still on their way through the queue when their window ends."""

    seconds: int
    grace: int
    job_timeout: int
    ttl: int

    @property
    def lasts(self) -> int:
        """From a Task's creation to the end of its Job, at most; late targets wait for one window more."""
        return 2 * self.seconds + self.grace + self.job_timeout

    @property
    def longest(self) -> int:
        """How long after its Task's creation a record may still be needed."""
        return self.lasts + self.ttl

    def needed_until(self, now: datetime, parcel: TransferSpec | None = None) -> int:
        """When a record of that moment may expire; a Job that goes in waves or is preheated needs it for longer."""
        extra = parcel.extra_seconds(self.lasts, now.timestamp()) if parcel else 0
        return int(now.timestamp()) + self.longest + extra


class JobOpener:
    def __init__(self, jobs: JobStore, executions: JobExecutions, clock: Clock, windows: Windows) -> None:
        self._jobs = jobs
        self._executions = executions
        self._clock = clock
        self._windows = windows
        self._known: OrderedDict[tuple[str, str, int], Job] = OrderedDict()

    def enter(self, project_id: str, parcel: TransferSpec, *, after: int = -1) -> Job:
        """Returns the Job of the present window, or of the first window after `after`."""
        bucket = max(bucket_of(self._clock(), self._windows.seconds), after + 1)
        place = (project_id, parcel.digest, bucket)
        known = self._known.get(place)
        if known is None:
            known = self._find(project_id, parcel, bucket)
            self._known[place] = known
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return known

    def _find(self, project_id: str, parcel: TransferSpec, bucket: int) -> Job:
        now = self._clock()
        closes_at = window_end(bucket, self._windows.seconds)
        due_at = closes_at + timedelta(seconds=self._windows.grace)
        for job_id in parcel.job_ids(bucket):
            wanted = Job(
                project_id=project_id,
                job_id=job_id,
                key=job_key(job_id),
                parcel=parcel,
                bucket=bucket,
                closes_at=iso(closes_at),
                create_time=iso(now),
                sequence=int(now.timestamp() * 1000),
            )
            job, ours = self._jobs.open(wanted, due_at)
            if ours:
                self._start(job)
            if job.parcel == parcel:
                return job
        raise Conflict("every name of this Job is taken by another content")

    def _start(self, job: Job) -> None:
        try:
            self._executions.start(job)
        except Exception:
            # The Job is due at its window's end: compensation starts it then.
            logger.exception("the execution is started later", job_id=job.job_id)
