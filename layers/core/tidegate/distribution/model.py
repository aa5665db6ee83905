"""Tasks and Jobs: their names, their states, and how a Task's state is read through its Job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.common.ids import digest
from tidegate.distribution.swarm.figures import NO_FIGURES, SwarmFigures
from tidegate.distribution.targets import Target

PENDING, RUNNING, SUCCESS, FAILED, TIMEOUT = "Pending", "Running", "Success", "Failed", "Timeout"
STATUSES = (PENDING, RUNNING, SUCCESS, FAILED, TIMEOUT)
ENDED = frozenset({SUCCESS, FAILED, TIMEOUT})

# Of Jobs, and of a Task as it is seen through its Job. What has ended never changes.
TRANSITIONS: Mapping[str, frozenset[str]] = {
    PENDING: frozenset({RUNNING}),
    RUNNING: ENDED,
    SUCCESS: frozenset(),
    FAILED: frozenset(),
    TIMEOUT: frozenset(),
}

JOB_PREFIX, TASK_PREFIX = "AsyncDownloadJob", "AsyncDownloadTask"
# How much of the digest tells a window's second content from its first; more only if even that name is taken.
_DIGEST_WIDTHS = (0, 12, 24, 64)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def may_become(status: str, following: str) -> bool:
    return following in TRANSITIONS[status]


def states_before(following: str) -> tuple[str, ...]:
    return tuple(status for status in STATUSES if may_become(status, following))


@dataclass(frozen=True, slots=True)
class TransferSpec:
    """What is delivered and where to: all that the Tasks of a Job have in common."""

    biz_id: int
    app_id: int
    file_path: str
    file_name: str
    file_signature: str
    target_user: str
    target_file_dir: str
    # Octal permissions, as in "0640"; None leaves them to the host: those of the file it replaces, or 0644.
    mode: str | None = None
    # "off": every host fetches the file from S3; None leaves it to the project.
    swarm: str | None = None

    @property
    def digest(self) -> str:
        place = (str(self.biz_id), str(self.app_id), self.file_path)
        options = [f"{name}={value}" for name, value in (("swarm", self.swarm),) if value]
        mode = (self.mode,) if self.mode else ()
        what = (self.file_signature, self.target_user, self.target_file_dir, self.file_name)
        return digest(*place, *what, *mode, *options)

    def job_ids(self, bucket: int) -> tuple[str, ...]:
        """The names to try in turn: a Job of the first name may deliver another content."""
        place = f"{JOB_PREFIX}:{self.biz_id}:{self.app_id}:{self.file_path}"
        marks = (f"@{self.digest[:width]}" if width else "" for width in _DIGEST_WIDTHS)
        return tuple(f"{place}{mark}:{bucket}" for mark in marks)

    def task_id(self, uuid: str) -> str:
        return f"{TASK_PREFIX}:{self.biz_id}:{self.app_id}:{self.file_path}:{uuid}"


def job_key(job_id: str) -> str:
    """A Job's name for URLs and keys; its id may hold slashes."""
    return digest("job", job_id, length=32)


def job_key_of(given: str) -> str:
    """From what a caller calls the Job: its id or its key."""
    return job_key(given) if given.startswith(JOB_PREFIX + ":") else given


def task_uuid_of(given: str) -> str | None:
    uuid = given.rsplit(":", 1)[-1]
    return uuid if _UUID.fullmatch(uuid) else None


@dataclass(frozen=True, slots=True)
class Counts:
    total: int = 0
    success: int = 0
    failed: int = 0
    timeout: int = 0

    @property
    def open(self) -> int:
        return self.total - self.success - self.failed - self.timeout

    def shown(self) -> dict[str, int]:
        ended = {"success": self.success, "failed": self.failed, "timeout": self.timeout}
        return {"total": self.total, **ended, "downloading": self.open}


@dataclass(frozen=True, slots=True)
class Job:
    """One file, one window. `open_shards` are those with targets that have not ended; `rest` is how these ended."""

    project_id: str
    job_id: str
    key: str
    parcel: TransferSpec
    bucket: int
    closes_at: str
    create_time: str
    # Of two Jobs that bring a file to one path, the one that was opened later has the higher one.
    sequence: int | None = None
    status: str = PENDING
    generation: int = 0
    rev: int = 0
    execute_time: str | None = None
    finish_time: str | None = None
    deadline: float | None = None
    transfer_id: str | None = None
    shard_count: int | None = None
    open_shards: tuple[int, ...] = ()
    # (first, last) shard of each transfer.
    portions: tuple[tuple[int, int], ...] = ()
    counts: Counts = Counts()
    # Of the shards that are no longer open.
    closed: Counts = Counts()
    swarm: SwarmFigures = NO_FIGURES
    closed_swarm: SwarmFigures = NO_FIGURES
    # Made when the window closes: from it follow the places and the tokens of the hosts in their swarm.
    swarm_key: str | None = field(default=None, repr=False)
    rest_code: int | None = None
    due_at: float | None = None
    error: Mapping[str, str] | None = None

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    @property
    def rest(self) -> str:
        """What became of targets that had not ended when their Job did."""
        return TIMEOUT if self.status == TIMEOUT else FAILED

    def shown(self, counts: Counts | None = None) -> dict[str, Any]:
        names = ("job_id", "key", "status", "transfer_id", "create_time", "execute_time", "finish_time")
        of_parcel = ("biz_id", "app_id", "file_path", "file_name", "file_signature", "target_file_dir", "target_user")
        return (
            {name: getattr(self, name) for name in names}
            | {name: getattr(self.parcel, name) for name in of_parcel}
            | {"window_closes_at": self.closes_at, "counts": (counts or self.counts).shown()}
            | ({"error": dict(self.error)} if self.error else {})
            | ({"mode": self.parcel.mode} if self.parcel.mode else {})
            | ({"swarm": self.swarm.shown()} if self.swarm.hosts else {})
        )


@dataclass(frozen=True, slots=True)
class Task:
    """One caller's request, as stored. What it shares with its Job, its state included, is read from the Job."""

    project_id: str
    uuid: str
    job_id: str
    target: Target
    create_time: str
    update_time: str
    callback: str | None = None
