"""Binds targets to Jobs. A target that arrives after its Job closed moves to a later Job, together with its Task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from aws_lambda_powertools import Logger

from tidegate.aws.writes import Write
from tidegate.common.ids import Clock, iso
from tidegate.common.slices import slices
from tidegate.distribution.model import Job, Task, TransferSpec, job_key
from tidegate.distribution.ports import Arrival
from tidegate.distribution.store.jobs import JobStore
from tidegate.distribution.store.targets import TargetStore
from tidegate.distribution.store.tasks import TaskStore, move_task, renew_task
from tidegate.distribution.window.job_opener import JobOpener, Windows
from tidegate.distribution.window.target_queue import TargetMessage
from tidegate.errors import Busy, RecordNotFound

logger = Logger(service="tidegate", child=True)
# A transaction has at most 100 writes: the check, the chunk, its callbacks, and a Task for each target.
_MOVED_TOGETHER = 90
# Lambda may pass on 400 messages of a large submit at once. Each needs a transaction of a hundred puts for its Tasks,
# and one after another they would take longer than the function's time-out.
_WRITERS = 16
_TRIES = 5


class Collect:
    def __init__(
        self, jobs: JobStore, tasks: TaskStore, targets: TargetStore, opener: JobOpener, clock: Clock, windows: Windows
    ) -> None:
        self._jobs = jobs
        self._tasks = tasks
        self._targets = targets
        self._opener = opener
        self._clock = clock
        self._windows = windows

    def collect(self, messages: Iterable[TargetMessage]) -> list[str]:
        """Returns the ids of messages to retry: all messages of a Job that failed."""
        by_job: Mapping[tuple[str, str], list[TargetMessage]] = defaultdict(list)
        for message in messages:
            by_job[message.project_id, message.job_id].append(message)
        failed: list[str] = []
        for (project_id, job_id), together in by_job.items():
            try:
                self._write_all_tasks([message for message in together if message.new])
                self._bind(project_id, job_id, together)
            except Exception:
                logger.exception("targets were not bound and are retried", job_id=job_id)
                failed += [message.message_id for message in together]
        return failed

    def _write_all_tasks(self, messages: Sequence[TargetMessage]) -> None:
        if len(messages) < 2:
            for message in messages:
                self._write_tasks(message)
            return
        with ThreadPoolExecutor(min(_WRITERS, len(messages)), thread_name_prefix="tasks") as threads:
            list(threads.map(self._write_tasks, messages))

    def _write_tasks(self, message: TargetMessage) -> None:
        """Writes the Tasks that a large submit left to this function, before their targets are bound."""
        if message.new is None:
            return
        at, callback = message.new
        tasks = [
            Task(message.project_id, one.uuid, message.job_id, one.target, at, at, callback) for one in message.arrivals
        ]
        self._tasks.add_missing(tasks, self._expires_at(message.spec))

    def bind(self, project_id: str, job_id: str, arrivals: Sequence[Arrival]) -> None:
        """Binds targets without a message from the queue."""
        job = self._jobs.get(project_id, job_key(job_id))
        self._bind(project_id, job_id, [TargetMessage("", project_id, job_id, arrivals, job.spec if job else None)])

    def _bind(self, project_id: str, job_id: str, messages: Sequence[TargetMessage]) -> None:
        distinct = {arrival.uuid: arrival for message in messages for arrival in message.arrivals}
        expires_at = self._expires_at(messages[0].spec)
        late = self._targets.bind(project_id, job_key(job_id), list(distinct.values()), expires_at)
        if not late:
            return
        source = self._jobs.get(project_id, job_key(job_id))
        if source is None:
            self._after_expiry(messages)
        elif source.cancelled_at:
            for portion in slices(self._submitted_after_cancel(source, late), _MOVED_TOGETHER):
                self._move(source, portion)
        else:
            self._rehome(source, late, messages)

    def _rehome(self, source: Job, late: Sequence[Arrival], messages: Sequence[TargetMessage]) -> None:
        # A message delivered again may have been bound before the Job closed. The Job's chunks no longer change.
        bound = set(self._targets.collected(source.project_id, source.key))
        bound_uuids, targets = {arrival.uuid for arrival in bound}, {arrival.target for arrival in bound}
        self._join(source, [one for one in late if one.target in targets and one.uuid not in bound_uuids])
        unbound = [arrival for arrival in late if arrival.target not in targets]
        # Consistent: a Task that was written a moment ago and is not found would be dropped.
        uuids = [arrival.uuid for arrival in unbound]
        tasks = self._tasks.get_many(source.project_id, uuids, consistent=True)
        job_ids = {task.uuid: task.job_id for task in tasks}
        # An earlier delivery of the message has moved the others.
        here = [arrival for arrival in unbound if job_ids.get(arrival.uuid) == source.job_id]
        for portion in slices(here, _MOVED_TOGETHER):
            self._move(source, portion)
        missing = {arrival.uuid for arrival in unbound if arrival.uuid not in job_ids}
        if missing and self._tasks_have_expired(source):
            # TTL deleted the Tasks before the Job. Before they expire, only a failed submit deletes its Tasks.
            rest = (m._replace(arrivals=[one for one in m.arrivals if one.uuid in missing]) for m in messages)
            self._after_expiry([m._replace(spec=m.spec or source.spec) for m in rest if m.arrivals])

    def _tasks_have_expired(self, job: Job) -> bool:
        """Whether TTL may have deleted the Job's Tasks: all of them were written before its window closed."""
        written_by = datetime.fromisoformat(job.closes_at)
        return self._windows.needed_until(written_by, job.spec) <= self._clock().timestamp()

    def _after_expiry(self, messages: Sequence[TargetMessage]) -> None:
        """Binds targets whose Job has expired (a dead letter redriven days later) to the present window's Job.

        Skips Tasks that have moved to another Job, and those that were cancelled with their Job. Writes expired Tasks
        again."""
        cancelled_at = self._jobs.cancelled_at(messages[0].project_id, job_key(messages[0].job_id))
        for message in messages:
            if message.spec is None:
                raise RecordNotFound(
                    f"the Job {message.job_id} has expired, and the message of {len(message.arrivals)} targets "
                    "does not contain the file to deliver: submit them again and delete the message"
                )
            stored = {task.uuid: task for task in self._stored_tasks(message)}
            unserved = [
                one for one in message.arrivals if one.uuid not in stored or stored[one.uuid].job_id == message.job_id
            ]
            if cancelled_at is not None:
                # A message of an earlier version does not say when it was sent: hardly any come after a cancel.
                at = message.at or (message.new.create_time if message.new else "")
                later = [one for one in unserved if _submitted(stored.get(one.uuid), at) > cancelled_at]
                dropped = len(unserved) - len(later)
                logger.warning("targets of a cancelled Job are dropped", job_id=message.job_id, count=dropped)
                unserved = later
            logger.warning("targets arrived after their Job expired", job_id=message.job_id, count=len(unserved))
            for portion in slices(unserved, _MOVED_TOGETHER):
                self._renew(message, message.spec, portion)

    def _stored_tasks(self, message: TargetMessage) -> list[Task]:
        return self._tasks.get_many(message.project_id, [one.uuid for one in message.arrivals], consistent=True)

    def _renew(self, message: TargetMessage, spec: TransferSpec, arrivals: Sequence[Arrival]) -> None:
        def write_again(arrival: Arrival, home: Job) -> Write:
            now = iso(self._clock())
            task = Task(home.project_id, arrival.uuid, home.job_id, arrival.target, now, now, message.callback)
            return renew_task(task, message.job_id, self._expires_at(spec))

        self._bind_later(message.project_id, spec, -1, with_sequence(arrivals, message.sequence), write_again)

    def _submitted_after_cancel(self, source: Job, late: Sequence[Arrival]) -> list[Arrival]:
        """The arrivals submitted after the cancel. The others are cancelled with the Job, and get their callbacks."""
        tasks = {
            task.uuid: task
            for task in self._tasks.get_many(source.project_id, [one.uuid for one in late], consistent=True)
        }
        here = [one for one in late if one.uuid in tasks and tasks[one.uuid].job_id == source.job_id]
        later = [one for one in here if tasks[one.uuid].create_time > (source.cancelled_at or "")]
        self._join(source, [one for one in here if one not in later])
        return later

    def _join(self, job: Job, arrivals: Sequence[Arrival]) -> None:
        """Adds the callbacks of late Tasks whose target another Task bound in time: they share its outcome."""
        uuids = [arrival.uuid for arrival in arrivals if arrival.notify]
        if uuids:
            self._targets.add_callbacks(job, uuids, self._expires_at(job.spec))
            self._jobs.put_off(job, self._clock())

    def _move(self, source: Job, arrivals: Sequence[Arrival]) -> None:
        def move(arrival: Arrival, home: Job) -> Write:
            now = iso(self._clock())
            return move_task(home.project_id, arrival.uuid, source, home, now, self._expires_at(home.spec))

        arrivals = with_sequence(arrivals, source.sequence)
        self._bind_later(source.project_id, source.spec, source.bucket, arrivals, move)

    def _bind_later(
        self,
        project_id: str,
        spec: TransferSpec,
        after: int,
        arrivals: Sequence[Arrival],
        task_write: Callable[[Arrival, Job], Write],
    ) -> None:
        """Binds the arrivals to the first open Job after the window `after`. `task_write` moves a Task to that Job."""
        for _ in range(_TRIES):
            home = self._opener.enter(project_id, spec, after=after)
            moves = [task_write(arrival, home) for arrival in arrivals]
            rebound = self._targets.rebind(home, arrivals, moves, self._expires_at(spec))
            if rebound.done:
                logger.info("targets moved to a later Job", home=home.job_id, count=len(arrivals))
                return
            if rebound.home_closed:
                after = home.bucket
            # Another collector has moved the others.
            arrivals = [arrival for arrival in arrivals if arrival.uuid not in rebound.gone]
            if not arrivals:
                return
        raise Busy(f"{_TRIES} windows closed before the targets could be added to a Job: the message is retried")

    def _expires_at(self, spec: TransferSpec | None) -> int:
        return self._windows.needed_until(self._clock(), spec)


def _submitted(task: Task | None, at: str) -> str:
    return task.create_time if task else at


def with_sequence(arrivals: Sequence[Arrival], sequence: int | None) -> list[Arrival]:
    """The arrivals with the sequence of their first Job: content that moves late must not replace newer content."""
    return [one._replace(sequence=one.sequence or sequence) for one in arrivals]
