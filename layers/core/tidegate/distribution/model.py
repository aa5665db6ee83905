"""Tasks and Jobs: their names, their states, and how a Task's state is read through its Job."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple, Self

from tidegate.common.ids import digest
from tidegate.distribution.swarm.figures import NO_FIGURES, SwarmFigures
from tidegate.distribution.targets import CODE_NOT_SENT, Target, wave_rank

PENDING, RUNNING, SUCCESS, FAILED, TIMEOUT = "Pending", "Running", "Success", "Failed", "Timeout"
CANCELLED = "Cancelled"
STATUSES = (PENDING, RUNNING, SUCCESS, FAILED, TIMEOUT, CANCELLED)
ENDED = frozenset({SUCCESS, FAILED, TIMEOUT, CANCELLED})

# Of Jobs, and of a Task as it is seen through its Job. What has ended never changes.
TRANSITIONS: Mapping[str, frozenset[str]] = {
    PENDING: frozenset({RUNNING}),
    RUNNING: ENDED,
    SUCCESS: frozenset(),
    FAILED: frozenset(),
    TIMEOUT: frozenset(),
    CANCELLED: frozenset(),
}

JOB_PREFIX, TASK_PREFIX = "AsyncDownloadJob", "AsyncDownloadTask"
# How much of the digest tells a window's second content from its first; more only if even that name is taken.
_DIGEST_WIDTHS = (0, 12, 24, 64)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def may_become(status: str, following: str) -> bool:
    return following in TRANSITIONS[status]


def states_before(following: str) -> tuple[str, ...]:
    return tuple(status for status in STATUSES if may_become(status, following))


class Wave(NamedTuple):
    """The Job goes to `percent` of its targets in all; the next wave follows if few enough of this one failed."""

    percent: int
    wait_s: int = 0
    max_failed_percent: int = 0


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
    waves: tuple[Wave, ...] = ()
    # Bytes a second that a host may use for this Job, beside its own limit.
    limit_rate: int | None = None
    # The key of the Job whose failed targets this one tries again.
    redrive_of: str | None = None
    # Preheat: hosts fetch the file at once and put it in place at this moment (ISO 8601, UTC). None: as it arrives.
    activate_at: str | None = None

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """From what `asdict` made of it, also by way of JSON; fields of a later version are left out."""
        known = {name: data[name] for name in cls.__slots__ if name in data}
        return cls(**known | {"waves": tuple(Wave(*wave) for wave in data.get("waves") or ())})

    @property
    def digest(self) -> str:
        place = (str(self.biz_id), str(self.app_id), self.file_path)
        more = [self.mode] if self.mode else []
        more += [f"wave {wave.percent} {wave.wait_s} {wave.max_failed_percent}" for wave in self.waves]
        more += [f"swarm={self.swarm}"] if self.swarm else []
        more += [f"rate={self.limit_rate}"] if self.limit_rate else []
        more += [f"redrive {self.redrive_of}"] if self.redrive_of else []
        more += [f"activate {self.activate_at}"] if self.activate_at else []
        return digest(*place, self.file_signature, self.target_user, self.target_file_dir, self.file_name, *more)

    def extra_seconds(self, each: int, now: float) -> int:
        """How much longer than others this Job may last from now on: `each` and its wait for every wave, and the time
        until its files are put in place."""
        return sum(each + wave.wait_s for wave in self.waves) + math.ceil(self.until_activation(now))

    def until_activation(self, now: float) -> float:
        """Seconds until the hosts put the file in place; 0 if they do so as it arrives."""
        return max(0.0, self.activation - now)

    @property
    def activation(self) -> float:
        """`activate_at` in seconds since 1970, or 0."""
        return datetime.fromisoformat(self.activate_at).timestamp() if self.activate_at else 0.0

    @property
    def named_path(self) -> str:
        """With the file's name, which tells two files of one directory apart."""
        path, name = self.file_path.rstrip("/"), self.file_name
        return self.file_path if path == name or path.endswith(f"/{name}") else f"{path}/{name}"

    def job_ids(self, bucket: int) -> tuple[str, ...]:
        """The names to try in turn: a Job of the first name may deliver another content."""
        place = f"{JOB_PREFIX}:{self.biz_id}:{self.app_id}:{self.named_path}"
        marks = (f"@{self.digest[:width]}" if width else "" for width in _DIGEST_WIDTHS)
        return tuple(f"{place}{mark}:{bucket}" for mark in marks)

    def task_id(self, uuid: str) -> str:
        return f"{TASK_PREFIX}:{self.biz_id}:{self.app_id}:{self.named_path}:{uuid}"

    def is_task_id(self, given: str, uuid: str) -> bool:
        """Whether it is this Task's id, in the present form or the one without the file's name."""
        older = f"{TASK_PREFIX}:{self.biz_id}:{self.app_id}:{self.file_path}:{uuid}"
        return given in (self.task_id(uuid), older)


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
    cancelled: int = 0
    # Of those that have not ended: hosts that have begun, and those of them that only wait for `activate_at`.
    begun: int = 0
    staged: int = 0
    # Of the hosts that reported the speed of their transfer.
    measured: int = 0
    moved_bytes: int = 0
    speed_sum: int = 0

    @property
    def open(self) -> int:
        return self.total - self.success - self.failed - self.timeout - self.cancelled

    def shown(self) -> dict[str, int]:
        ended = {"success": self.success, "failed": self.failed, "timeout": self.timeout}
        staged = min(self.staged, self.open)
        downloading = min(self.begun, self.open) - staged
        more = {"waiting": self.open - downloading - staged, "staged": staged, "cancelled": self.cancelled}
        return {"total": self.total, **ended, "downloading": downloading} | {k: v for k, v in more.items() if v}

    def speed(self) -> dict[str, int] | None:
        """Bytes moved and mean speed in bytes a second, of the hosts that reported them."""
        if not self.measured:
            return None
        return {"moved_bytes": self.moved_bytes, "mean": self.speed_sum // self.measured, "hosts": self.measured}


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
    # In bytes, known once it was sent.
    file_size: int | None = None
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
    # When it was cancelled, and by which key.
    cancelled_at: str | None = None
    cancelled_by: str | None = None
    # The present wave; up to which hash of a target each wave goes, and to how many targets in all.
    wave: int = 0
    wave_limits: tuple[int, ...] = ()
    wave_sizes: tuple[int, ...] = ()
    # When the present wave was sent (epoch seconds), and how many targets had failed before it.
    wave_at: float | None = None
    failed_before: int = 0

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    @property
    def rest(self) -> str:
        """What became of targets that had not ended when their Job did."""
        if self.status == CANCELLED or self.rest_code == CODE_NOT_SENT:
            return CANCELLED
        return TIMEOUT if self.status == TIMEOUT else FAILED

    @property
    def has_more_waves(self) -> bool:
        return self.wave + 1 < len(self.wave_limits)

    def in_wave(self, target: Target, wave: int) -> bool:
        """Every target, for a Job without waves."""
        if not self.wave_limits:
            return True
        above = self.wave_limits[wave - 1] if wave else -1
        return above < wave_rank(target) <= self.wave_limits[wave]

    def shown(self, counts: Counts | None = None) -> dict[str, Any]:
        names = ("job_id", "key", "status", "transfer_id", "create_time", "execute_time", "finish_time")
        of_parcel = ("biz_id", "app_id", "file_path", "file_name", "file_signature", "target_file_dir", "target_user")
        return (
            {name: getattr(self, name) for name in names}
            | {name: getattr(self.parcel, name) for name in of_parcel}
            | {"window_closes_at": self.closes_at, "counts": (counts or self.counts).shown()}
            | ({"error": dict(self.error)} if self.error else {})
            | ({"mode": self.parcel.mode} if self.parcel.mode else {})
            | ({"file_size": self.file_size} if self.file_size else {})
            | ({"limit_rate": self.parcel.limit_rate} if self.parcel.limit_rate else {})
            | ({"activate_at": self.parcel.activate_at} if self.parcel.activate_at else {})
            | ({"swarm": self.swarm.shown(self.file_size)} if self.swarm.hosts else {})
            | ({"redrive_of": self.parcel.redrive_of} if self.parcel.redrive_of else {})
            | ({"cancelled_at": self.cancelled_at} if self.cancelled_at else {})
            | ({"speed": speed} if (speed := (counts or self.counts).speed()) else {})
            | self._waves_shown()
        )

    def _waves_shown(self) -> dict[str, Any]:
        if not self.parcel.waves:
            return {}
        sizes: list[int | None] = [size - before for before, size in pairwise((0, *self.wave_sizes))]
        sizes = sizes or [None] * len(self.parcel.waves)
        waves = [wave._asdict() | {"targets": size} for wave, size in zip(self.parcel.waves, sizes, strict=True)]
        return {"waves": waves, "wave": self.wave + 1}


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
