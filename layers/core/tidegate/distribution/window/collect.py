"""Binds targets to Jobs. A target that comes after its Job closed goes to a later Job, and its Task with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

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
# A transaction holds 100 items: the check, the chunk, its callbacks, a Task for each target.
_MOVED_TOGETHER = 90
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
        """Returns the ids of messages to retry: all of a Job for which something failed."""
        by_job: Mapping[tuple[str, str], list[TargetMessage]] = defaultdict(list)
        for message in messages:
            by_job[message.project_id, message.job_id].append(message)
        failed: list[str] = []
        for (project_id, job_id), together in by_job.items():
            try:
                for message in together:
                    self._write_tasks(message)
                self._bind(project_id, job_id, together)
            except Exception:
                logger.exception("the targets of this Job are tried again later", job_id=job_id)
                failed += [message.message_id for message in together]
        return failed

    def _write_tasks(self, message: TargetMessage) -> None:
        """Writes the Tasks that the submit left out, before their targets are bound; some may be there already."""
        if message.new is None:
            return
        at, callback = message.new
        tasks = [
            Task(message.project_id, one.uuid, message.job_id, one.target, at, at, callback) for one in message.arrivals
        ]
        self._tasks.add_missing(tasks, self._expires_at(message.spec))

    def bind(self, project_id: str, job_id: str, arrivals: Sequence[Arrival]) -> None:
        """Binds targets that did not come by the queue."""
        job = self._jobs.get(project_id, job_key(job_id))
        self._bind(project_id, job_id, [TargetMessage("", project_id, job_id, arrivals, job.parcel if job else None)])

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
            self._rehome(source, late)

    def _rehome(self, source: Job, late: Sequence[Arrival]) -> None:
        # A message delivered again may have been bound before the Job closed. Nothing is added any more: this is final.
        bound = set(self._targets.collected(source.project_id, source.key))
        tasks, targets = {arrival.uuid for arrival in bound}, {arrival.target for arrival in bound}
        self._join(source, [late_one for late_one in late if late_one.target in targets and late_one.uuid not in tasks])
        lost = [arrival for arrival in late if arrival.target not in targets]
        for portion in slices(self._still_here(source, lost), _MOVED_TOGETHER):
            self._move(source, portion)

    def _after_expiry(self, messages: Sequence[TargetMessage]) -> None:
        """Binds targets whose Job has expired (a dead letter that is redriven days later) to the present window's Job.

        A Task that is bound to another Job by now has been served. One that has expired is written again."""
        for message in messages:
            if message.spec is None:
                raise RecordNotFound(
                    f"{len(message.arrivals)} targets came after their Job {message.job_id} had expired, in a message "
                    "that does not say what to deliver: submit them again and delete the message"
                )
            known = {task.uuid: task.job_id for task in self._known(message)}
            unserved = [one for one in message.arrivals if known.get(one.uuid, message.job_id) == message.job_id]
            logger.warning("targets outlived their Job", job_id=message.job_id, count=len(unserved))
            for portion in slices(unserved, _MOVED_TOGETHER):
                self._renew(message, message.spec, portion)

    def _known(self, message: TargetMessage) -> list[Task]:
        return self._tasks.get_many(message.project_id, [one.uuid for one in message.arrivals], consistent=True)

    def _renew(self, message: TargetMessage, spec: TransferSpec, arrivals: Sequence[Arrival]) -> None:
        def renewed(arrival: Arrival, home: Job) -> Write:
            now = iso(self._clock())
            task = Task(home.project_id, arrival.uuid, home.job_id, arrival.target, now, now, message.callback)
            return renew_task(task, message.job_id, self._expires_at(spec))

        self._carry(message.project_id, spec, -1, aged(arrivals, message.sequence), renewed)

    def _submitted_after_cancel(self, source: Job, late: Sequence[Arrival]) -> list[Arrival]:
        """Arrivals submitted after the cancel. The others were cancelled with the Job, and their callbacks say so."""
        tasks = {
            task.uuid: task
            for task in self._tasks.get_many(source.project_id, [one.uuid for one in late], consistent=True)
        }
        known = [one for one in late if one.uuid in tasks and tasks[one.uuid].job_id == source.job_id]
        later = [one for one in known if tasks[one.uuid].create_time > (source.cancelled_at or "")]
        self._join(source, [one for one in known if one not in later])
        return later

    def _still_here(self, source: Job, arrivals: Sequence[Arrival]) -> list[Arrival]:
        """Without those that an earlier delivery of their message has moved: they need no Job opened for them.

        Reads consistently: a Task that was written a moment ago and is not seen would be dropped here."""
        uuids = [arrival.uuid for arrival in arrivals]
        tasks = self._tasks.get_many(source.project_id, uuids, consistent=True)
        here = {task.uuid for task in tasks if task.job_id == source.job_id}
        return [arrival for arrival in arrivals if arrival.uuid in here]

    def _join(self, job: Job, arrivals: Sequence[Arrival]) -> None:
        """Another Task bound the same target in time: these Tasks share its outcome, callbacks included."""
        uuids = [arrival.uuid for arrival in arrivals if arrival.notify]
        if uuids:
            self._targets.add_callbacks(job, uuids, self._expires_at(job.parcel))
            self._jobs.put_off(job, self._clock())

    def _move(self, source: Job, arrivals: Sequence[Arrival]) -> None:
        def moved(arrival: Arrival, home: Job) -> Write:
            now = iso(self._clock())
            return move_task(home.project_id, arrival.uuid, source, home, now, self._expires_at(home.parcel))

        self._carry(source.project_id, source.parcel, source.bucket, aged(arrivals, source.sequence), moved)

    def _carry(
        self,
        project_id: str,
        spec: TransferSpec,
        after: int,
        arrivals: Sequence[Arrival],
        moved: Callable[[Arrival, Job], Write],
    ) -> None:
        """Binds the arrivals to the first open Job after that window. `moved` makes the write that moves a Task."""
        for _ in range(_TRIES):
            home = self._opener.enter(project_id, spec, after=after)
            moves = [moved(arrival, home) for arrival in arrivals]
            rebound = self._targets.rebind(home, arrivals, moves, self._expires_at(spec))
            if rebound.done:
                logger.info("targets moved to a later Job", home=home.job_id, count=len(arrivals))
                return
            if rebound.home_closed:
                after = home.bucket
            # Another collector moved these already.
            arrivals = [arrival for arrival in arrivals if arrival.uuid not in rebound.gone]
            if not arrivals:
                return
        raise Busy("the windows close faster than targets can be moved: the message is tried again")

    def _expires_at(self, spec: TransferSpec | None) -> int:
        return self._windows.needed_until(self._clock(), spec)


def aged(arrivals: Sequence[Arrival], sequence: int | None) -> list[Arrival]:
    """Content is as old as the Job that it was asked for with, also when it moves later than newer content does."""
    return [one._replace(sequence=one.sequence or sequence) for one in arrivals]
