"""Binds targets to Jobs. One that comes after its Job closed goes to a later Job, and its Task with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from aws_lambda_powertools import Logger

from tidegate.common.ids import Clock
from tidegate.common.slices import slices
from tidegate.distribution.job_opener import JobOpener, Windows
from tidegate.distribution.model import Job, Task, job_key
from tidegate.distribution.ports import Arrival
from tidegate.distribution.store.jobs import JobStore
from tidegate.distribution.store.targets import TargetStore
from tidegate.distribution.store.tasks import TaskStore
from tidegate.distribution.target_queue import NewTasks
from tidegate.errors import Busy

logger = Logger(service="tidegate", child=True)
# A transaction holds 100 items: the check, the chunk, its callbacks, a Task for each target.
_MOVED_TOGETHER = 90
_TRIES = 5


class TargetMessage(NamedTuple):
    message_id: str
    project_id: str
    job_id: str
    arrivals: Sequence[Arrival]
    new: NewTasks | None = None


class Collect:
    def __init__(
        self, jobs: JobStore, tasks: TaskStore, targets: TargetStore, door: JobOpener, clock: Clock, windows: Windows
    ) -> None:
        self._jobs = jobs
        self._tasks = tasks
        self._targets = targets
        self._door = door
        self._clock = clock
        self._windows = windows

    def collect(self, messages: Iterable[TargetMessage]) -> list[str]:
        """Answers the messages to be delivered again: those of a Job for which something failed."""
        by_job: Mapping[tuple[str, str], list[TargetMessage]] = defaultdict(list)
        for message in messages:
            by_job[message.project_id, message.job_id].append(message)
        failed: list[str] = []
        for (project_id, job_id), together in by_job.items():
            try:
                for message in together:
                    self._write_tasks(message)
                self.bind(project_id, job_id, [arrival for message in together for arrival in message.arrivals])
            except Exception:
                logger.exception("targets are collected again later", job_id=job_id)
                failed += [message.message_id for message in together]
        return failed

    def _write_tasks(self, message: TargetMessage) -> None:
        """Before their targets are bound. Only those that are not there: an earlier delivery may have moved them."""
        if message.new is None:
            return
        at, callback = message.new
        tasks = [
            Task(message.project_id, one.uuid, message.job_id, one.target, at, at, callback) for one in message.arrivals
        ]
        self._tasks.add_missing(tasks, self._expires_at())

    def bind(self, project_id: str, job_id: str, arrivals: Sequence[Arrival]) -> None:
        distinct = list({arrival.uuid: arrival for arrival in arrivals}.values())
        late = self._targets.bind(project_id, job_key(job_id), distinct, self._expires_at())
        if late:
            self._rehome(project_id, job_id, late)

    def _rehome(self, project_id: str, job_id: str, late: Sequence[Arrival]) -> None:
        source = self._jobs.get(project_id, job_key(job_id))
        if source is None:
            logger.warning("targets came after their Job had expired", job_id=job_id, count=len(late))
            return
        if source.cancelled_at:
            for portion in slices(self._submitted_after_cancel(source, late), _MOVED_TOGETHER):
                self._move(source, portion)
            return
        # A message delivered again may have been bound before the Job closed. Nothing is added any more: this is final.
        bound = set(self._targets.collected(project_id, source.key))
        tasks, targets = {arrival.uuid for arrival in bound}, {arrival.target for arrival in bound}
        self._join(source, [late_one for late_one in late if late_one.target in targets and late_one.uuid not in tasks])
        lost = [arrival for arrival in late if arrival.target not in targets]
        for portion in slices(self._still_here(source, lost), _MOVED_TOGETHER):
            self._move(source, portion)

    def _submitted_after_cancel(self, source: Job, late: Sequence[Arrival]) -> list[Arrival]:
        """The others were called off with their Job, and are told so."""
        tasks = {task.uuid: task for task in self._tasks.get_many(source.project_id, [one.uuid for one in late])}
        known = [one for one in late if one.uuid in tasks and tasks[one.uuid].job_id == source.job_id]
        later = [one for one in known if tasks[one.uuid].create_time > (source.cancelled_at or "")]
        self._join(source, [one for one in known if one not in later])
        return later

    def _still_here(self, source: Job, arrivals: Sequence[Arrival]) -> list[Arrival]:
        """Without those that an earlier delivery of their message has moved: they need no Job opened for them."""
        tasks = self._tasks.get_many(source.project_id, [arrival.uuid for arrival in arrivals])
        here = {task.uuid for task in tasks if task.job_id == source.job_id}
        return [arrival for arrival in arrivals if arrival.uuid in here]

    def _join(self, job: Job, arrivals: Sequence[Arrival]) -> None:
        """Another Task brought their target in time: they share what becomes of it, and are told of it."""
        uuids = [arrival.uuid for arrival in arrivals if arrival.notify]
        if uuids:
            self._targets.add_callbacks(job, uuids, self._expires_at())
            self._jobs.put_off(job, self._clock())

    def _move(self, source: Job, arrivals: Sequence[Arrival]) -> None:
        after = source.bucket
        # Content is as old as the Job that it was asked for with, also when it moves later than newer content does.
        arrivals = [one._replace(sequence=one.sequence or source.sequence) for one in arrivals]
        for _ in range(_TRIES):
            home = self._door.enter(source.project_id, source.parcel, after=after)
            rebound = self._targets.rebind(source, home, arrivals, self._clock(), self._expires_at())
            if rebound.done:
                logger.info("targets moved to a later Job", job_id=source.job_id, home=home.job_id, count=len(arrivals))
                return
            if rebound.home_closed:
                after = home.bucket
            # Another collector moved these already.
            arrivals = [arrival for arrival in arrivals if arrival.uuid not in rebound.gone]
            if not arrivals:
                return
        raise Busy("the windows close faster than targets can be moved")

    def _expires_at(self) -> int:
        return int(self._clock().timestamp()) + self._windows.longest
