"""Tasks and Jobs: their ids, states and counts."""

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

# For Jobs, and for Tasks, whose state comes from their Job. Final states never change.
TRANSITIONS: Mapping[str, frozenset[str]] = {
    PENDING: frozenset({RUNNING}),
    RUNNING: ENDED,
    SUCCESS: frozenset(),
    FAILED: frozenset(),
    TIMEOUT: frozenset(),
    CANCELLED: frozenset(),
}

# Added to the life of the records of a Job that has not ended: none may expire during an outage (throttled functions,
# a table that refuses writes), or accepted work would vanish without an end and without a notice.
OUTAGE_SECONDS = 24 * 3600

JOB_PREFIX, TASK_PREFIX = "AsyncDownloadJob", "AsyncDownloadTask"
# Digits of the digest in a Job id. A second content in the same window needs 12; more only if that id is taken too.
_DIGEST_WIDTHS = (0, 12, 24, 64)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def may_become(status: str, following: str) -> bool:
    return following in TRANSITIONS[status]


def states_before(following: str) -> tuple[str, ...]:
    return tuple(status for status in STATUSES if may_become(status, following))


class Wave(NamedTuple):
    """After this wave, `percent` of all targets have the file. The next wave follows if few enough targets failed."""

    percent: int
    wait_s: int = 0
    max_failed_percent: int = 0


@dataclass(frozen=True, slots=True)
class TransferSpec:
    """What is delivered and where: everything that the Tasks of a Job share."""

    biz_id: int
    app_id: int
    file_path: str
    file_name: str
    file_signature: str
    target_user: str
    target_file_dir: str
    # Octal permissions, such as "0640". None: those of the file that is replaced, or 0644.
    mode: str | None = None
    # "off": every host fetches the file from S3. None: the project's setting applies.
    swarm: str | None = None
    waves: tuple[Wave, ...] = ()
    # Bytes per second that a host may use for this Job. The host's own limit applies too.
    limit_rate: int | None = None
    # The key of the Job whose failed targets this Job repeats.
    redrive_of: str | None = None
    # Preheat: hosts fetch the file now and activate it at this time (ISO 8601, UTC). None: on arrival.
    activate_at: str | None = None

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """The spec from the output of `asdict`, which may have been JSON. Ignores fields of later versions."""
        fields = {name: data[name] for name in cls.__slots__ if name in data}
        return cls(**fields | {"waves": tuple(Wave(*wave) for wave in data.get("waves") or ())})

    @property
    def digest(self) -> str:
        place = (str(self.biz_id), str(self.app_id), self.file_path)
        options = [self.mode] if self.mode else []
        options += [f"wave {wave.percent} {wave.wait_s} {wave.max_failed_percent}" for wave in self.waves]
        options += [f"swarm={self.swarm}"] if self.swarm else []
        options += [f"rate={self.limit_rate}"] if self.limit_rate else []
        options += [f"redrive {self.redrive_of}"] if self.redrive_of else []
        options += [f"activate {self.activate_at}"] if self.activate_at else []
        return digest(*place, self.file_signature, self.target_user, self.target_file_dir, self.file_name, *options)

    def extra_seconds(self, each: int, now: float) -> int:
        """How much longer than a plain Job this one may last: `each` plus the wait for every wave, and the time until
        its activation."""
        return self.wave_seconds(each) + math.ceil(self.until_activation(now))

    def wave_seconds(self, each: int) -> int:
        """How long its waves may last, if each of them has `each` seconds."""
        return sum(each + wave.wait_s for wave in self.waves)

    def until_activation(self, now: float) -> float:
        """Seconds until hosts activate the file; 0 if they do so on arrival."""
        return max(0.0, self.activation - now)

    @property
    def activation(self) -> float:
        """`activate_at` as a Unix time, or 0."""
        return datetime.fromisoformat(self.activate_at).timestamp() if self.activate_at else 0.0

    @property
    def named_path(self) -> str:
        """The path with the file name, which distinguishes two files of one directory."""
        path, name = self.file_path.rstrip("/"), self.file_name
        return self.file_path if path == name or path.endswith(f"/{name}") else f"{path}/{name}"

    def job_ids(self, bucket: int) -> tuple[str, ...]:
        """The ids to try in order: a Job with the first id may deliver other content."""
        place = f"{JOB_PREFIX}:{self.biz_id}:{self.app_id}:{self.named_path}"
        suffixes = (f"@{self.digest[:width]}" if width else "" for width in _DIGEST_WIDTHS)
        return tuple(f"{place}{suffix}:{bucket}" for suffix in suffixes)

    def task_id(self, uuid: str) -> str:
        return f"{TASK_PREFIX}:{self.biz_id}:{self.app_id}:{self.named_path}:{uuid}"

    def is_task_id(self, given: str, uuid: str) -> bool:
        """Whether `given` is this Task's id, in the present format or the older one without the file name."""
        older = f"{TASK_PREFIX}:{self.biz_id}:{self.app_id}:{self.file_path}:{uuid}"
        return given in (self.task_id(uuid), older)


def job_key(job_id: str) -> str:
    """A Job's short name for URLs and table keys; its id may contain slashes."""
    return digest("job", job_id, length=32)


def job_key_of(given: str) -> str:
    """The Job's key, from its id or its key."""
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
    # Unfinished targets that have started, and those of them that only wait for `activate_at`.
    begun: int = 0
    staged: int = 0
    # Of hosts that reported their transfer speed.
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
        optional = {"waiting": self.open - downloading - staged, "staged": staged, "cancelled": self.cancelled}
        return {"total": self.total, **ended, "downloading": downloading} | {k: v for k, v in optional.items() if v}

    def speed(self) -> dict[str, int] | None:
        """Bytes moved and mean speed (bytes per second) of the hosts that reported them."""
        if not self.measured:
            return None
        return {"moved_bytes": self.moved_bytes, "mean": self.speed_sum // self.measured, "hosts": self.measured}


@dataclass(frozen=True, slots=True)
class Job:
    """One file, one window. `open_shards` are the shards with unfinished targets."""

    project_id: str
    job_id: str
    key: str
    spec: TransferSpec
    bucket: int
    closes_at: str
    create_time: str
    # Rises with each Job for the same target path.
    sequence: int | None = None
    status: str = PENDING
    generation: int = 0
    rev: int = 0
    execute_time: str | None = None
    finish_time: str | None = None
    deadline: float | None = None
    transfer_id: str | None = None
    # In bytes; set when the file is sent.
    file_size: int | None = None
    shard_count: int | None = None
    open_shards: tuple[int, ...] = ()
    # The (first, last) shard of each transfer.
    portions: tuple[tuple[int, int], ...] = ()
    counts: Counts = Counts()
    # Counts of the shards that are no longer open.
    closed: Counts = Counts()
    swarm: SwarmFigures = NO_FIGURES
    closed_swarm: SwarmFigures = NO_FIGURES
    # Created when the window closes. The hosts' seats and tokens in their swarm are derived from it.
    swarm_key: str | None = field(default=None, repr=False)
    rest_code: int | None = None
    due_at: float | None = None
    error: Mapping[str, str] | None = None
    # When it was cancelled, and the id of the API key that did it.
    cancelled_at: str | None = None
    cancelled_by: str | None = None
    # The present wave; for each wave, its highest target rank and the number of targets up to it.
    wave: int = 0
    wave_limits: tuple[int, ...] = ()
    wave_sizes: tuple[int, ...] = ()
    # When the present wave was sent (Unix time), and how many targets had failed before it.
    wave_at: float | None = None
    failed_before: int = 0

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    @property
    def rest(self) -> str:
        """The final status of targets that were unfinished when the Job ended."""
        if self.status == CANCELLED or self.rest_code == CODE_NOT_SENT:
            return CANCELLED
        return TIMEOUT if self.status == TIMEOUT else FAILED

    @property
    def has_more_waves(self) -> bool:
        return self.wave + 1 < len(self.wave_limits)

    def in_wave(self, target: Target, wave: int) -> bool:
        """Whether the target is in this wave. True for every target of a Job without waves."""
        if not self.wave_limits:
            return True
        previous = self.wave_limits[wave - 1] if wave else -1
        return previous < wave_rank(target) <= self.wave_limits[wave]

    def shown(self, counts: Counts | None = None) -> dict[str, Any]:
        names = ("job_id", "key", "status", "transfer_id", "create_time", "execute_time", "finish_time")
        of_spec = ("biz_id", "app_id", "file_path", "file_name", "file_signature", "target_file_dir", "target_user")
        return (
            {name: getattr(self, name) for name in names}
            | {name: getattr(self.spec, name) for name in of_spec}
            | {"window_closes_at": self.closes_at, "counts": (counts or self.counts).shown()}
            | ({"error": dict(self.error)} if self.error else {})
            | ({"mode": self.spec.mode} if self.spec.mode else {})
            | ({"file_size": self.file_size} if self.file_size else {})
            | ({"limit_rate": self.spec.limit_rate} if self.spec.limit_rate else {})
            | ({"activate_at": self.spec.activate_at} if self.spec.activate_at else {})
            | ({"swarm": self.swarm.shown(self.file_size)} if self.swarm.hosts else {})
            | ({"redrive_of": self.spec.redrive_of} if self.spec.redrive_of else {})
            | ({"cancelled_at": self.cancelled_at} if self.cancelled_at else {})
            | ({"speed": speed} if (speed := (counts or self.counts).speed()) else {})
            | self._waves_shown()
        )

    def _waves_shown(self) -> dict[str, Any]:
        if not self.spec.waves:
            return {}
        sizes: list[int | None] = [size - before for before, size in pairwise((0, *self.wave_sizes))]
        sizes = sizes or [None] * len(self.spec.waves)
        waves = [wave._asdict() | {"targets": size} for wave, size in zip(self.spec.waves, sizes, strict=True)]
        return {"waves": waves, "wave": self.wave + 1}


@dataclass(frozen=True, slots=True)
class Task:
    """One caller's request, as stored. Its state, and everything that it shares with its Job, is read from the Job."""

    project_id: str
    uuid: str
    job_id: str
    target: Target
    create_time: str
    update_time: str
    callback: str | None = None
