"""Opens the Job of a window, or joins it. Used by submits and for late targets."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta

from aws_lambda_powertools import Logger

from tidegate.common.ids import Clock, iso
from tidegate.distribution.executions import JobExecutions
from tidegate.distribution.model import OUTAGE_SECONDS, Job, TransferSpec, job_key
from tidegate.distribution.store.jobs import JobStore
from tidegate.distribution.window.buckets import bucket_of, window_end
from tidegate.errors import Conflict

logger = Logger(service="tidegate", child=True)
_REMEMBERED = 2000


@dataclass(frozen=True, slots=True)
class Windows:
    """`grace`: extra seconds for targets that are in the queue when their window ends."""

    seconds: int
    grace: int
    job_timeout: int
    ttl: int

    @property
    def lasts(self) -> int:
        """The longest time from a Task's creation to the end of its Job; late targets wait for one more window."""
        return 2 * self.seconds + self.grace + self.job_timeout

    @property
    def longest(self) -> int:
        """How long a record may be needed after its Task's creation."""
        return self.lasts + self.ttl

    def needed_until(self, now: datetime, spec: TransferSpec | None = None) -> int:
        """When a record written now may expire. Jobs with waves or `activate_at` need it for longer.

        Always includes the time of an outage, because Tasks and targets are not rewritten when their Job ends."""
        extra = spec.extra_seconds(self.lasts, now.timestamp()) if spec else 0
        return int(now.timestamp()) + self.longest + extra + OUTAGE_SECONDS


class JobOpener:
    def __init__(self, jobs: JobStore, executions: JobExecutions, clock: Clock, windows: Windows) -> None:
        self._jobs = jobs
        self._executions = executions
        self._clock = clock
        self._windows = windows
        self._known: OrderedDict[tuple[str, str, int], Job] = OrderedDict()

    def enter(self, project_id: str, spec: TransferSpec, *, after: int = -1) -> Job:
        """Returns the Job of the present window, or of the first window after `after`."""
        bucket = max(bucket_of(self._clock(), self._windows.seconds), after + 1)
        place = (project_id, spec.digest, bucket)
        job = self._known.get(place)
        if job is None:
            job = self._find(project_id, spec, bucket)
            self._known[place] = job
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return job

    def _find(self, project_id: str, spec: TransferSpec, bucket: int) -> Job:
        now = self._clock()
        closes_at = window_end(bucket, self._windows.seconds)
        due_at = closes_at + timedelta(seconds=self._windows.grace)
        for job_id in spec.job_ids(bucket):
            wanted = Job(
                project_id=project_id,
                job_id=job_id,
                key=job_key(job_id),
                spec=spec,
                bucket=bucket,
                closes_at=iso(closes_at),
                create_time=iso(now),
                sequence=int(now.timestamp() * 1000),
            )
            job, ours = self._jobs.open(wanted, due_at)
            if ours:
                self._start(job)
            if job.spec == spec:
                return job
        raise Conflict(
            f"the Job ids for {spec.file_path} in this window belong to other contents: try again in the next window"
        )

    def _start(self, job: Job) -> None:
        try:
            self._executions.start(job)
        except Exception:
            # The Job is due at the end of its window: compensation starts it then.
            logger.exception("the execution was not started; compensation will start it", job_id=job.job_id)
