"""Accepts requests: writes a Task for each target and queues the targets. The hot path: two AWS calls when warm."""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from aws_lambda_powertools import Logger

from tidegate.common.ids import Clock, iso
from tidegate.distribution.model import Job, Task, TransferSpec
from tidegate.distribution.ports import Arrival
from tidegate.distribution.store.tasks import TaskStore
from tidegate.distribution.targets import Target
from tidegate.distribution.window.job_opener import JobOpener, Windows
from tidegate.distribution.window.target_queue import NewTasks, TargetMessages
from tidegate.errors import FileNotFound, Invalid
from tidegate.files.contents import ContentStore
from tidegate.files.model import COMING, READY
from tidegate.projects.audit import SYSTEM, AuditLine, act

logger = Logger(service="tidegate", child=True)
# Binds targets to a Job directly, as collect_targets does.
Bind = Callable[[str, str, Sequence[Arrival]], None]
_REMEMBERED = 2000
_REMEMBERED_SECONDS = 300
SUBMIT = "download.submit"
# More Tasks than this take many seconds to write, and the answer would have megabytes.
TASKS_A_SUBMIT = 1000
# `activate_at` may be this many seconds ahead.
MOST_AHEAD = 7 * 86400


@dataclass(frozen=True, slots=True)
class Submitted:
    job: Job
    tasks: Sequence[Task]


class Submit:
    def __init__(
        self,
        opener: JobOpener,
        tasks: TaskStore,
        contents: ContentStore,
        queue: TargetMessages,
        bind: Bind,
        check_callback: Callable[[str, str], None],
        clock: Clock,
        windows: Windows,
        *,
        can_stage: bool = True,
    ) -> None:
        """`can_stage`: whether the transfer engine can hold a file until its `activate_at`."""
        self._can_stage = can_stage
        self._opener = opener
        self._tasks = tasks
        self._contents = contents
        self._queue = queue
        self._bind = bind
        self._check_callback = check_callback
        self._clock = clock
        self._windows = windows
        self._stored: OrderedDict[tuple[str, str], float] = OrderedDict()

    def submit(
        self,
        project_id: str,
        spec: TransferSpec,
        targets: Sequence[Target],
        callback: str | None = None,
        *,
        who: str = SYSTEM,
        after: int = -1,
        action: str = SUBMIT,
        source: str = "",
    ) -> Submitted:
        """Stores a Task for each target and queues them. FileNotFound if the file is neither stored nor coming.

        The message is sent last, because it starts the delivery. `after`: use a window later than that one; `source`:
        the Job that a redrive repeats."""
        return self._submit(project_id, spec, targets, callback, who, after, action, source, writes_tasks=True)

    def submit_any_number(
        self,
        project_id: str,
        spec: TransferSpec,
        targets: Sequence[Target],
        callback: str | None = None,
        *,
        who: str = SYSTEM,
        after: int = -1,
        action: str = SUBMIT,
        source: str = "",
    ) -> Submitted:
        """As `submit`, but above 1,000 targets collect_targets writes the Tasks, and the result lists none."""
        few = len(targets) <= TASKS_A_SUBMIT
        return self._submit(project_id, spec, targets, callback, who, after, action, source, writes_tasks=few)

    def _submit(
        self,
        project_id: str,
        spec: TransferSpec,
        targets: Sequence[Target],
        callback: str | None,
        who: str,
        after: int,
        action: str,
        source: str,
        *,
        writes_tasks: bool,
    ) -> Submitted:
        self._check_activation(spec)
        self._require_file(project_id, spec)
        if callback:
            self._check_callback(project_id, callback)
        job = self._opener.enter(project_id, spec, after=after)
        now = self._clock()
        expires_at = self._windows.needed_until(now, spec)
        tasks = [
            Task(project_id, str(uuid.uuid4()), job.job_id, target, iso(now), iso(now), callback) for target in targets
        ]
        written = tasks if writes_tasks else []
        self._tasks.add(written, expires_at, _audit_line(job, tasks, now, who, action, source))
        arrivals = [Arrival(*task.target, task.uuid, callback is not None) for task in tasks]
        new = None if writes_tasks else NewTasks(iso(now), callback)
        try:
            self._queue.send(job, arrivals, callback, new, at=iso(now))
        except Exception:
            logger.exception("the queue failed: the targets are bound directly", job_id=job.job_id)
            self._bind_directly(job, tasks, arrivals, expires_at, writes_tasks=writes_tasks)
        return Submitted(job, written)

    def _bind_directly(
        self, job: Job, tasks: Sequence[Task], arrivals: Sequence[Arrival], expires_at: int, *, writes_tasks: bool
    ) -> None:
        """Binds the targets without the queue. If that fails too, deletes the Tasks: the caller gets an error.

        Messages that the queue accepted without an answer bind the same targets again, which changes nothing."""
        try:
            if not writes_tasks:
                # The queue may have accepted some messages: collect_targets then writes the same Tasks.
                self._tasks.add_missing(tasks, expires_at)
            self._bind(job.project_id, job.job_id, arrivals)
        except Exception:
            self._tasks.take_back(tasks)
            raise

    def _check_activation(self, spec: TransferSpec) -> None:
        if spec.activate_at is None:
            return
        ahead = spec.until_activation(self._clock().timestamp())
        if not self._can_stage:
            why = "is not possible with the transfer engine of this installation: submit without it"
        elif not ahead:
            why = f"must be in the future: it is {iso(self._clock())} now, and {spec.activate_at} was given"
        elif ahead > MOST_AHEAD:
            why = f"must be at most {MOST_AHEAD // 86400} days ahead: {spec.activate_at} was given"
        elif spec.waves:
            why = "cannot be combined with waves, because all hosts switch at the same time: leave one of them out"
        else:
            return
        raise Invalid(f"activate_at {why}", errors=[{"loc": ["body", "activate_at"], "msg": why}])

    def _require_file(self, project_id: str, spec: TransferSpec) -> None:
        now, signature = self._clock().timestamp(), spec.file_signature
        extra = spec.extra_seconds(self._windows.lasts, now)
        if not extra and self._stored.get((project_id, signature), 0) > now:
            return
        # A write instead of a read: it protects the file against deletion while a Job may need it.
        until = now + _REMEMBERED_SECONDS + self._windows.lasts + extra
        content = self._contents.use(project_id, signature, until)
        if content is None or content.state not in (READY, COMING):
            raise FileNotFound(
                f"no stored file has the signature {signature}, and no ingest is fetching it: "
                "upload it first (POST /v1/files, PUT, complete)"
            )
        if content.state == READY:
            self._stored[project_id, signature] = now + _REMEMBERED_SECONDS
            if len(self._stored) > _REMEMBERED:
                self._stored.popitem(last=False)


def _audit_line(job: Job, tasks: Sequence[Task], now: datetime, who: str, action: str, source: str) -> AuditLine:
    """One line per submit: for its Task, for the Job if there are several Tasks, for the repeated Job of a redrive."""
    spec, first = job.spec, tasks[0]
    place = f"{spec.target_file_dir.rstrip('/')}/{spec.file_name} as {spec.target_user}"
    if source:
        record, receivers = source, f"{len(tasks)} targets by {job.job_id}"
    elif len(tasks) == 1:
        record, receivers = spec.task_id(first.uuid), ":".join(filter(None, first.target))
    else:
        record, receivers = job.job_id, f"{len(tasks)} targets"
    why = f"to {receivers}: {place}, SHA-256 {spec.file_signature}"
    return act(job.project_id, record, now, who, action, why, states=(None, "submitted"))
