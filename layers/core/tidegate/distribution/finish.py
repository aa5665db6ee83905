"""Ends a Job: unfinished targets end with it and are cancelled at the provider; then notifications are sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice

from aws_lambda_powertools import Logger

from tidegate.common.ids import Clock, iso
from tidegate.common.slices import slices
from tidegate.distribution.counts import tally
from tidegate.distribution.model import CANCELLED, FAILED, PENDING, SUCCESS, TIMEOUT, Job, Task, job_key
from tidegate.distribution.ports import Engine
from tidegate.distribution.recovery import RECHECK_AFTER
from tidegate.distribution.store.jobs import JobStore
from tidegate.distribution.store.targets import TargetStore
from tidegate.distribution.store.tasks import TaskStore
from tidegate.distribution.store.transfers import TransferStore
from tidegate.distribution.targets import CODE_CANCELLED, CODE_JOB_FAILED, CODE_NOT_SENT, CODE_TIMEOUT, Target
from tidegate.distribution.task_view import seen, shard_number
from tidegate.distribution.transfers import INTENDED, SENT, UNKNOWN, Transfer
from tidegate.distribution.window.strays import StrayTasks
from tidegate.errors import DomainError, WaveFailed
from tidegate.notifications.notice import Notice, notice_id_for
from tidegate.notifications.notify import Notifier
from tidegate.notifications.topic import Topic

logger = Logger(service="tidegate", child=True)
NOT_YET, MORE, ENDED = "running", "more", "ended"
_PORTIONS_A_STEP = 5
_READ_TOGETHER = 100


class Finish:
    def __init__(
        self,
        jobs: JobStore,
        tasks: TaskStore,
        targets: TargetStore,
        transfers: TransferStore,
        engine: Engine,
        strays: StrayTasks,
        notifier: Notifier,
        topic: Topic,
        clock: Clock,
        measure: Callable[[Job], None] = lambda _job: None,
    ) -> None:
        self._jobs = jobs
        self._tasks = tasks
        self._targets = targets
        self._transfers = transfers
        self._engine = engine
        self._strays = strays
        self._notifier = notifier
        self._topic = topic
        self._clock = clock
        self._measure = measure

    def finish(self, project_id: str, job_key: str, error: DomainError | None = None) -> str:
        """Ends the Job if it can end, and sends its notices. `error`: why the Job cannot continue.

        Without an error, it ends when all its targets have ended, or at its deadline."""
        job = self._jobs.require(project_id, job_key)
        if not job.ended:
            verdict = self._verdict(job, error)
            if verdict is None:
                return NOT_YET
            # Before the end is written: a crash in between sends them twice, but never loses them.
            self._strays.send(job)
            job = self._end(verdict)
        return self._notify_tasks(job)

    def _verdict(self, job: Job, error: DomainError | None) -> Job | None:
        """The Job in its final state, or None if it cannot end yet."""
        if job.status == PENDING or job.shard_count is None:
            return None
        # A poll may have died after it wrote the shards and before it wrote the Job's counts.
        job = tally(job, self._targets.shards(job, job.open_shards))
        unfinished, now = job.counts.open, self._clock()
        # A Job that was cancelled before it got a target has no shards either.
        if not job.open_shards and not (job.cancelled_at and job.counts.total == 0):
            return replace(job, status=FAILED if job.counts.failed else SUCCESS, finish_time=iso(now))
        if isinstance(error, WaveFailed):
            reason = {"code": error.code, "detail": error.detail}
            counts = replace(job.counts, cancelled=unfinished)
            ended = replace(job, status=FAILED, counts=counts, error=reason, rest_code=CODE_NOT_SENT)
        elif job.cancelled_at:
            reason = {"code": "cancelled", "detail": f"cancelled at {job.cancelled_at} by {job.cancelled_by}"}
            counts = replace(job.counts, cancelled=unfinished)
            ended = replace(job, status=CANCELLED, counts=counts, error=reason, rest_code=CODE_CANCELLED)
        elif error is not None:
            counts = replace(job.counts, failed=job.counts.failed + unfinished)
            reason = {"code": error.code, "detail": error.detail}
            ended = replace(job, status=FAILED, counts=counts, error=reason, rest_code=CODE_JOB_FAILED)
        elif now.timestamp() >= (job.deadline or 0):
            counts = replace(job.counts, timeout=unfinished)
            ended = replace(job, status=TIMEOUT, counts=counts, error=self._why_late(job), rest_code=CODE_TIMEOUT)
        else:
            return None
        return replace(ended, finish_time=iso(now))

    def _why_late(self, job: Job) -> dict[str, str]:
        if any(transfer.state == UNKNOWN for transfer in self._transfers.list(job)):
            return {"code": "transfer_answer_lost", "detail": "the provider's answer to the transfer was lost"}
        return {"code": "timeout", "detail": "not delivered before the Job's deadline"}

    def _end(self, job: Job) -> Job:
        """Writes the end of the Job and publishes it. Terminates the transfers first: repeating that is harmless."""
        if job.open_shards:
            self._terminate(job)
        now = self._clock()
        notice_id = notice_id_for("job.finished", job.job_id)
        notice = Notice(notice_id, job.project_id, "job.finished", job.job_id, job.status, job.shown(), None, now)
        ended, ours = self._jobs.end(job, now, notice, now + RECHECK_AFTER)
        if ours:
            # Otherwise the outbox has the notice of the execution that ended the Job, perhaps with other counts.
            self._notifier.publish([notice])
            self._measure(ended)
            logger.info("the Job has ended", job_id=job.job_id, status=ended.status, counts=ended.counts.shown())
        return ended

    def _terminate(self, job: Job) -> None:
        shards = {shard.number: shard for shard in self._targets.shards(job, job.open_shards)}
        for transfer in self._transfers.list(job):
            wave = transfer.number // max(1, len(job.portions))
            open_ones = [t for number in transfer.shards if number in shards for t in shards[number].unfinished]
            targets = [target for target in open_ones if job.in_wave(target, wave)]
            # A dispatcher that died may have written some inbox entries; a GSE transfer has no id before it is sent.
            is_known = transfer.state == SENT or (transfer.state == INTENDED and self._engine.repeatable)
            if is_known and targets:
                self._terminate_transfer(job, transfer, targets)

    def _terminate_transfer(self, job: Job, transfer: Transfer, targets: Sequence[Target]) -> None:
        for _ in range(3):
            try:
                self._engine.terminate(job, transfer, targets)
                return
            except DomainError as error:
                logger.warning("the provider did not terminate the transfer", job_id=job.job_id, reason=error.detail)

    def _notify_tasks(self, job: Job) -> str:
        """Publishes a notice for each Task with a callback, some portions per step. A repeat sends the same ids."""
        for chunk_id, uuids in islice(self._targets.callbacks(job), _PORTIONS_A_STEP):
            for some in slices(uuids, _READ_TOGETHER):
                # Consistent: a Task that has just moved here would get no callback if it is read in its old Job.
                tasks = self._tasks.get_many(job.project_id, some, consistent=True)
                notices = self._notices(job, tasks)
                if len(self._topic.publish(notices)) < len(notices):
                    return MORE
            self._targets.forget_callbacks(job, chunk_id)
        if next(self._targets.callbacks(job), None) is not None:
            return MORE
        self._jobs.settle(job, self._clock())
        return ENDED

    def _notices(self, job: Job, tasks: Sequence[Task]) -> list[Notice]:
        here = [task for task in tasks if job_key(task.job_id) == job.key]
        numbers = {n for task in here if (n := shard_number(task, job)) is not None}
        shards = {shard.number: shard for shard in self._targets.shards(job, sorted(numbers))}
        return [self._notice(job, task, seen(task, job, shards.get(shard_number(task, job) or 0))) for task in here]

    def _notice(self, job: Job, task: Task, data: dict[str, object]) -> Notice:
        status = str(data["status"])
        kind = "task.completed" if status == SUCCESS else "task.failed"
        task_id = str(data["task_id"])
        notice_id = notice_id_for(kind, task_id)
        shown = {name: value for name, value in data.items() if value is not None}
        return Notice(notice_id, job.project_id, kind, task_id, status, shown, task.callback, self._clock())
