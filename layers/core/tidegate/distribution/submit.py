"""Takes a request: a Task each, one message for their targets. The hot path: a warm one costs two calls."""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from tidegate.common.ids import Clock, iso
from tidegate.distribution.job_opener import JobOpener, Windows
from tidegate.distribution.model import Job, Task, TransferSpec
from tidegate.distribution.ports import Arrival
from tidegate.distribution.store.tasks import TaskStore
from tidegate.distribution.target_queue import TargetMessages
from tidegate.distribution.targets import Target
from tidegate.errors import FileNotFound
from tidegate.files.contents import ContentStore
from tidegate.files.model import COMING, READY
from tidegate.projects.audit import SYSTEM, AuditLine, act

_REMEMBERED = 2000
_REMEMBERED_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Submitted:
    job: Job
    tasks: Sequence[Task]


class Submit:
    def __init__(
        self,
        door: JobOpener,
        tasks: TaskStore,
        contents: ContentStore,
        queue: TargetMessages,
        check_callback: Callable[[str, str], None],
        clock: Clock,
        windows: Windows,
    ) -> None:
        self._door = door
        self._tasks = tasks
        self._contents = contents
        self._queue = queue
        self._check_callback = check_callback
        self._clock = clock
        self._windows = windows
        self._stored: OrderedDict[tuple[str, str], float] = OrderedDict()

    def submit(
        self,
        project_id: str,
        parcel: TransferSpec,
        targets: Sequence[Target],
        callback: str | None = None,
        *,
        who: str = SYSTEM,
    ) -> Submitted:
        """Nothing is stored unless the file is here or coming. The message goes last: it is what makes targets move."""
        self._require_file(project_id, parcel.file_signature)
        if callback:
            self._check_callback(project_id, callback)
        job = self._door.enter(project_id, parcel)
        now = self._clock()
        tasks = [
            Task(project_id, str(uuid.uuid4()), job.job_id, target, iso(now), iso(now), callback) for target in targets
        ]
        line = _line(job, tasks, now, who)
        self._tasks.add(tasks, int(now.timestamp()) + self._windows.longest, line)
        arrivals = [Arrival(*task.target, task.uuid, callback is not None) for task in tasks]
        self._queue.send(project_id, job.job_id, arrivals)
        return Submitted(job, tasks)

    def _require_file(self, project_id: str, signature: str) -> None:
        now = self._clock().timestamp()
        if self._stored.get((project_id, signature), 0) > now:
            return
        # One write in place of a read: a file that a Job may need is not deleted meanwhile.
        until = now + _REMEMBERED_SECONDS + self._windows.lasts
        content = self._contents.use(project_id, signature, until)
        if content is None or content.state not in (READY, COMING):
            raise FileNotFound("no stored file has this signature and no ingest is bringing it")
        if content.state == READY:
            self._stored[project_id, signature] = now + _REMEMBERED_SECONDS
            if len(self._stored) > _REMEMBERED:
                self._stored.popitem(last=False)


def _line(job: Job, tasks: Sequence[Task], now: datetime, who: str) -> AuditLine:
    """One line a submit: of its Task, or of the Job if it has several Tasks."""
    parcel, first = job.parcel, tasks[0]
    place = f"{parcel.target_file_dir.rstrip('/')}/{parcel.file_name} as {parcel.target_user}"
    if len(tasks) == 1:
        record, whom = parcel.task_id(first.uuid), ":".join(filter(None, first.target))
    else:
        record, whom = job.job_id, f"{len(tasks)} targets"
    why = f"to {whom}: {place}, SHA-256 {parcel.file_signature}"
    return act(job.project_id, record, now, who, "download.submit", why, states=(None, "submitted"))
