"""The records of distribution and their states: Tasks, Jobs, targets, transfers, windows and hosts."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Any, NamedTuple, Protocol

from tidegate.common.ids import digest, iso
from tidegate.errors import DomainError, FileNotFound, QuotaExceeded, SignatureMismatch, TransferRefused, WaveFailed
from tidegate.files.model import FileName, FilePath, Signature
from tidegate.records import F, Number, Text, view_of

MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class SwarmFigures:
    """How many bytes of a Job came from S3 and from other hosts, as its hosts report."""

    origin_bytes: Annotated[int, F("bytes that came from S3")] = 0
    peer_bytes: Annotated[int, F("bytes that came from other hosts")] = 0
    bad_pieces: Annotated[int, F("pieces that were rejected because their SHA-256 was wrong")] = 0
    fallbacks: Annotated[int, F("hosts that downloaded the rest from S3, because peers did not send it")] = 0
    hosts: Annotated[int, F("number of hosts that reported figures")] = 0
    bad_peers: Annotated[tuple[str, ...], F("peers that sent wrong pieces")] = ()
    reused_bytes: Annotated[
        int, F("bytes that hosts copied from an older version of the file instead of downloading them")
    ] = 0
    fallback_reasons: Annotated[
        Mapping[str, int], F("number of hosts by the reason why they fell back to S3: see `fell_back`")
    ] = field(default_factory=dict)

    def __add__(self, other: SwarmFigures) -> SwarmFigures:
        named = sorted({*self.bad_peers, *other.bad_peers})[:MOST_NAMED]
        return SwarmFigures(
            self.origin_bytes + other.origin_bytes,
            self.peer_bytes + other.peer_bytes,
            self.bad_pieces + other.bad_pieces,
            self.fallbacks + other.fallbacks,
            self.hosts + other.hosts,
            tuple(named),
            self.reused_bytes + other.reused_bytes,
            dict(Counter(self.fallback_reasons) + Counter(other.fallback_reasons)),
        )

    def view(self, file_size: int | None = None) -> dict[str, Any]:
        """The figures in the API's answer. `egress` is how many times S3 sent the file."""
        return view_of(self) | ({"egress": round(self.origin_bytes / file_size, 2)} if file_size else {})


NO_FIGURES = SwarmFigures()


# --- targets
# Targets: the machines that receive a file, their states, and the shards in which a Job stores them.

SHARD_LIMIT = 500
# Hashing fills shards unevenly: with this average the fullest stays under the limit.
_SHARD_AIM = 400
LONGEST_MESSAGE_BYTES = 200

DONE, IN_PROGRESS = 0, 115
# GSE's code for a host whose agent it cannot reach.
UNREACHABLE = 117
# The host has newer content for the path, or cannot exclude it.
CODE_SUPERSEDED = 409
# Codes for targets on which no provider reported.
CODE_TIMEOUT, CODE_JOB_FAILED, CODE_CANCELLED, CODE_NOT_SENT, CODE_NOT_GRANTED = 9001, 9002, 9003, 9004, 9005


class Target(NamedTuple):
    """A host, or a container on it. `container_id` is empty for the host itself."""

    agent_id: str
    container_id: str = ""


class Figures(NamedTuple):
    """Size, speed and times of a target's transfer, by the host's clock. None for what the host did not report."""

    size: Annotated[int | None, F("bytes that the host downloaded")] = None
    speed: Annotated[int | None, F("bytes per second")] = None
    start_time: Annotated[str | None, F("when the host started, by its clock")] = None
    end_time: Annotated[str | None, F("when the host finished, by its clock")] = None


class TargetReport(NamedTuple):
    """A provider's report on one target. `swarm`: from where the target got the file's bytes, once it has all of them.

    `staged_at`: when the host had the whole file, if the file waits there for the Job's `activate_at`."""

    code: int
    message: str = ""
    progress: int | None = None
    figures: Figures | None = None
    swarm: SwarmFigures | None = None
    staged_at: str | None = None


class TargetState(NamedTuple):
    """The state of one target. `code` is None until the first report.

    The state can change only while `code` is None or 115 (in progress)."""

    code: int | None = None
    message: str = ""
    progress: int | None = None
    figures: Figures | None = None
    staged_at: str | None = None
    # The Job was cancelled, but the host has put the file in place.
    arrived: bool = False

    @property
    def ended(self) -> bool:
        return self.code is not None and self.code != IN_PROGRESS

    @property
    def succeeded(self) -> bool:
        return self.code == DONE

    @property
    def superseded(self) -> bool:
        return self.code == CODE_SUPERSEDED

    def after(self, report: TargetReport) -> TargetState:
        """The state after a report. A final state does not change."""
        if self.ended:
            return self
        progress = 100 if report.code == DONE else report.progress
        figures, staged_at = report.figures or self.figures, self.staged_at or report.staged_at
        return TargetState(report.code, shortened(report.message), progress, figures, staged_at)


UNREPORTED = TargetState()


def shortened(message: str) -> str:
    return message.encode()[:LONGEST_MESSAGE_BYTES].decode(errors="ignore")


def shard_of(target: Target, shard_count: int) -> int:
    hashed = hashlib.blake2b("\0".join(target).encode(), digest_size=8).digest()
    return int.from_bytes(hashed) % shard_count


def wave_rank(target: Target) -> int:
    """A target's rank in the order of waves: pseudo-random, and the same in every Job."""
    hashed = hashlib.blake2b("\0".join(target).encode(), digest_size=6, person=b"wave").digest()
    return int.from_bytes(hashed)


def spread(targets: Iterable[Target]) -> list[list[Target]]:
    """The distinct targets, in shards of at most 500. The same targets always give the same shards."""
    distinct = sorted(set(targets))
    if not distinct:
        return []
    count = 1 if len(distinct) <= SHARD_LIMIT else math.ceil(len(distinct) / _SHARD_AIM)
    while True:
        shards: list[list[Target]] = [[] for _ in range(count)]
        for target in distinct:
            shards[shard_of(target, count)].append(target)
        if max(map(len, shards)) <= SHARD_LIMIT:
            return shards
        count += 1


@dataclass(frozen=True, slots=True)
class Shard:
    """Up to 500 targets of a Job, stored together. `sequences`: only those that differ from the Job's sequence.

    `rev` counts the writes. If two pollers write at the same time, one of the writes fails."""

    number: int
    states: Mapping[Target, TargetState]
    rev: int = 0
    update_time: str = ""
    sequences: Mapping[Target, int] = field(default_factory=dict)
    # The sum over the targets that have ended or are staged.
    swarm: SwarmFigures = NO_FIGURES

    def after(self, reports: Mapping[Target, TargetReport]) -> Shard:
        """The shard after these reports. Returns the same object if nothing changed."""
        moved = {
            target: state.after(reports[target])
            for target, state in self.states.items()
            if target in reports and not state.ended
        }
        changed = {target: state for target, state in moved.items() if state != self.states[target]}
        if not changed:
            return self
        swarm = self.swarm
        for target, state in changed.items():
            # A staged host was counted when it was staged; at its end it reports the same figures again.
            is_first = (state.ended or state.staged_at) and not self.states[target].staged_at
            if is_first and (figures := reports[target].swarm) is not None:
                swarm += figures
        return replace(self, states={**self.states, **changed}, swarm=swarm)

    def after_all(self, report: TargetReport, chosen: Callable[[Target], bool] = lambda _: True) -> Shard:
        """The shard after all chosen targets got the same report."""
        return self.after({target: report for target in self.states if chosen(target)})

    def with_arrivals(self, arrived: Collection[Target]) -> Shard:
        """The shard after hosts put the file in place although their Job was cancelled: `arrived` is set for them.

        Returns the same object if nothing changed."""
        late = {
            target: state._replace(arrived=True)
            for target, state in self.states.items()
            if target in arrived and not (state.ended or state.arrived)
        }
        return replace(self, states={**self.states, **late}) if late else self

    def only(self, chosen: Callable[[Target], bool]) -> Shard:
        return replace(self, states={target: state for target, state in self.states.items() if chosen(target)})

    @property
    def begun(self) -> int:
        return sum(state.code == IN_PROGRESS for state in self.states.values())

    @property
    def staged(self) -> int:
        return sum(state.code == IN_PROGRESS and state.staged_at is not None for state in self.states.values())

    @property
    def figures(self) -> list[Figures]:
        """Figures of the successful transfers whose hosts reported their speed."""
        return [s.figures for s in self.states.values() if s.succeeded and s.figures and s.figures.speed is not None]

    @property
    def success(self) -> int:
        return sum(state.succeeded for state in self.states.values())

    @property
    def superseded(self) -> int:
        return sum(state.superseded for state in self.states.values())

    @property
    def failed(self) -> int:
        return sum(state.ended and not (state.succeeded or state.superseded) for state in self.states.values())

    @property
    def unfinished(self) -> list[Target]:
        return [target for target, state in self.states.items() if not state.ended]


# --- model
# Tasks and Jobs: their ids, states and counts.

PENDING, RUNNING, SUCCESS, FAILED, TIMEOUT = "Pending", "Running", "Success", "Failed", "Timeout"
CANCELLED = "Cancelled"
# A target whose host has newer content for the path, and a Job that has only such targets.
SUPERSEDED = "Superseded"
STATUSES = (PENDING, RUNNING, SUCCESS, FAILED, TIMEOUT, CANCELLED, SUPERSEDED)
ENDED = frozenset({SUCCESS, FAILED, TIMEOUT, CANCELLED, SUPERSEDED})

# For Jobs, and for Tasks, whose state comes from their Job. Final states never change.
TRANSITIONS: Mapping[str, frozenset[str]] = {
    PENDING: frozenset({RUNNING}),
    RUNNING: ENDED,
    SUCCESS: frozenset(),
    FAILED: frozenset(),
    TIMEOUT: frozenset(),
    CANCELLED: frozenset(),
    SUPERSEDED: frozenset(),
}

# Records of an unfinished Job are kept so much longer. If they expired during an outage (throttled functions, a table
# that refuses writes), accepted work would vanish without a notice.
OUTAGE_SECONDS = 24 * 3600

# A file for `/.tidegate/agent` is a new version of the agent. Only admins may send there.
AGENT_DIRECTORY = "/.tidegate"

JOB_PREFIX, TASK_PREFIX = "AsyncDownloadJob", "AsyncDownloadTask"
# Digits of the digest in a Job id. A second content in the same window needs 12; more only if that id is taken too.
_DIGEST_WIDTHS = (0, 12, 24, 64)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def is_agent_directory(directory: str) -> bool:
    """Whether hosts treat a file in this directory as part of their agent, which runs as root."""
    parts = [part for part in directory.replace("\\", "/").split("/") if part not in ("", ".")]
    return bool(parts) and parts[0].lower() == AGENT_DIRECTORY.strip("/")


def may_become(status: str, following: str) -> bool:
    return following in TRANSITIONS[status]


def states_before(following: str) -> tuple[str, ...]:
    return tuple(status for status in STATUSES if may_become(status, following))


class Wave(NamedTuple):
    """A stage in which more targets get the file, until `percent` of all targets have been sent it.

    If too many targets of the wave fail, the Job stops."""

    percent: Annotated[
        int,
        F("percentage of all targets that have been sent the file in this wave or before", ge=1, le=100, strict=True),
    ]
    wait_s: Annotated[
        int, F("seconds from the start of this wave to the earliest start of the next one", ge=0, le=3600, strict=True)
    ] = 0
    max_failed_percent: Annotated[
        int, F("the Job stops if more than this percentage of the wave's targets fail", ge=0, le=100, strict=True)
    ] = 0


def absolute_path(value: str) -> str:
    if not (value.startswith("/") or (value[1:3] in (":\\", ":/") and value[0].isalpha())):
        raise ValueError("must be an absolute path, such as /srv/releases")
    return value


def four_digits(mode: str) -> str:
    return mode.zfill(4)


@dataclass(frozen=True, slots=True)
class TransferSpec:
    """What a Job delivers, where to, and with which options. All Tasks of the Job share this."""

    biz_id: Annotated[Number, F("a number of your choice for a business; recorded, and a filter of lists")]
    app_id: Annotated[Number, F("a number of your choice for an application; recorded, and a filter of lists")]
    file_path: Annotated[FilePath, F("path of the file in the library")]
    file_name: Annotated[FileName, F("name of the file")]
    file_signature: Annotated[Signature, F("SHA-256 of the content, 64 hexadecimal digits")]
    target_user: Annotated[Text, F("owner of the file on the host")]
    target_file_dir: Annotated[FilePath, F("absolute path of the directory on the host", check=absolute_path)]
    # None: those of the file that is replaced, or 0644.
    mode: Annotated[
        str | None,
        F("permissions of the file on the host in octal, such as `0640`", pattern=r"^0?[0-7]{3}$", check=four_digits),
    ] = None
    # "off": every host fetches the file from S3. None: the project's setting applies.
    swarm: str | None = None
    waves: tuple[Wave, ...] = ()
    # The highest rank of each wave, in a Job that continues the waves of another one.
    wave_ranks: tuple[int, ...] = ()
    # The host's own limit applies too.
    limit_rate: Annotated[
        int | None, F("limit in bytes per second on each host, for this Job", strict=True, ge=1024, le=2**40)
    ] = None
    redrive_of: Annotated[str | None, F("the key of the Job whose targets this Job retries")] = None
    activate_at: Annotated[
        str | None,
        F(
            "hosts download the file at once and put it in place at this time by their clocks, all together (RFC 3339, "
            "at most 7 days ahead); not with waves"
        ),
    ] = None
    # Hosts keep the content aside, and put it in place by themselves.
    release: Annotated[str | None, F("the release whose content this is")] = None
    force: Annotated[
        bool | None, F("replace the file even if a release put it there; the release then reports drift")
    ] = None

    @property
    def digest(self) -> str:
        place = (str(self.biz_id), str(self.app_id), self.file_path)
        options = [self.mode] if self.mode else []
        options += [f"wave {wave.percent} {wave.wait_s} {wave.max_failed_percent}" for wave in self.waves]
        options += [f"swarm={self.swarm}"] if self.swarm else []
        options += [f"rate={self.limit_rate}"] if self.limit_rate else []
        options += [f"redrive {self.redrive_of}"] if self.redrive_of else []
        options += [f"activate {self.activate_at}"] if self.activate_at else []
        options += [f"release {self.release}"] if self.release else []
        options += ["force"] if self.force else []
        return digest(*place, self.file_signature, self.target_user, self.target_file_dir, self.file_name, *options)

    def extra_seconds(self, each: int, now: float) -> int:
        """Seconds that this Job may last longer than a Job without options: for its waves, and until its activation."""
        return self.wave_seconds(each) + math.ceil(self.until_activation(now))

    def wave_seconds(self, each: int) -> int:
        """The most seconds that all waves take together: for each wave, its `wait_s`, and `each` for the transfer."""
        return sum(each + wave.wait_s for wave in self.waves)

    def until_activation(self, now: float) -> float:
        """Seconds until hosts activate the file. 0 if they activate it on arrival."""
        return max(0.0, self.activation - now)

    @property
    def activation(self) -> float:
        """`activate_at` as a Unix time, or 0."""
        return datetime.fromisoformat(self.activate_at).timestamp() if self.activate_at else 0.0

    @property
    def named_path(self) -> str:
        """The path with the file name. So two files of one directory have different paths."""
        path, name = self.file_path.rstrip("/"), self.file_name
        return self.file_path if path == name or path.endswith(f"/{name}") else f"{path}/{name}"

    def job_ids(self, bucket: int) -> tuple[str, ...]:
        """The Job ids to try, in this order. A Job with other content may already have the first ones."""
        place = f"{JOB_PREFIX}:{self.biz_id}:{self.app_id}:{self.named_path}"
        digest = self.digest
        suffixes = (f"@{digest[:width]}" if width else "" for width in _DIGEST_WIDTHS)
        return tuple(f"{place}{suffix}:{bucket}" for suffix in suffixes)

    def task_id(self, uuid: str) -> str:
        return f"{TASK_PREFIX}:{self.biz_id}:{self.app_id}:{self.named_path}:{uuid}"

    def is_task_id(self, given: str, uuid: str) -> bool:
        """Whether `given` is the id of the Task with this `uuid`, in the present format or in the older one.

        The older format has no file name."""
        older = f"{TASK_PREFIX}:{self.biz_id}:{self.app_id}:{self.file_path}:{uuid}"
        return given in (self.task_id(uuid), older)


def job_key(job_id: str) -> str:
    """A Job's short name for URLs and table keys. The Job's id may contain slashes, so it cannot be used there."""
    return digest("job", job_id, length=32)


def job_key_of(given: str) -> str:
    """The Job's key. `given`: the Job's id or its key."""
    return job_key(given) if given.startswith(JOB_PREFIX + ":") else given


def task_uuid_of(given: str) -> str | None:
    uuid = given.rsplit(":", 1)[-1]
    return uuid if _UUID.fullmatch(uuid) else None


_RARE = frozenset({"waiting", "staged", "cancelled", "superseded"})


@dataclass(frozen=True, slots=True)
class TargetCounts:
    total: Annotated[int, F("all targets of the Job")] = 0
    success: Annotated[int, F("targets that have the file")] = 0
    failed: Annotated[int, F("targets that failed")] = 0
    timeout: Annotated[int, F("targets that did not finish in time")] = 0
    cancelled: Annotated[int, F("cancelled targets; absent if there are none")] = 0
    superseded: Annotated[
        int,
        F(
            "targets whose host has newer content for the path, neither successes nor failures; absent if there are "
            "none"
        ),
    ] = 0
    # Unfinished targets that have started, and those of them that only wait for `activate_at`.
    begun: int = 0
    staged: Annotated[int, F("targets that have the file and wait for activate_at; absent if there are none")] = 0
    # Sums over the hosts that reported their transfer speed.
    measured: int = 0
    moved_bytes: int = 0
    speed_sum: int = 0

    @property
    def open(self) -> int:
        return self.total - self.success - self.failed - self.timeout - self.cancelled - self.superseded

    @property
    def downloading(self) -> Annotated[int, F("targets that have begun")]:
        return min(self.begun, self.open) - min(self.staged, self.open)

    @property
    def waiting(self) -> Annotated[int, F("targets that have not begun; absent if there are none")]:
        return self.open - min(self.begun, self.open)

    def view(self) -> dict[str, int]:
        """The counts in the API's answer. Rare ones, such as `cancelled`, are left out if they are 0."""
        view = view_of(self) | {"staged": min(self.staged, self.open)}
        return {name: count for name, count in view.items() if count or name not in _RARE}

    def speed(self) -> dict[str, int] | None:
        """Bytes moved and mean speed (bytes per second) of the hosts that reported their speed. None if no host did."""
        if not self.measured:
            return None
        return {"moved_bytes": self.moved_bytes, "mean": self.speed_sum // self.measured, "hosts": self.measured}


@dataclass(frozen=True, slots=True)
class Remarks:
    """Texts that callers attach to a Job. They do not affect the Job's work.

    Requests that share a Job may have different remarks."""

    note: Annotated[
        str | None,
        F(
            "a remark for people, from the first request that has one; the console searches it",
            max_length=500,
            changes=True,
        ),
    ] = None


NO_REMARKS = Remarks()


@dataclass(frozen=True, slots=True)
class Job:
    """One file for all targets requested within one window. `open_shards`: the shards that have unfinished targets."""

    project_id: str
    job_id: Annotated[str, F("id of the Job: one file, one window, all its targets")]
    key: Annotated[str, F("a short form of the id, for use in paths")]
    spec: Annotated[TransferSpec, F(flat=True)]
    bucket: int
    closes_at: Annotated[str, F("when the window closes and the Job is sent, ISO 8601 UTC", shown="window_closes_at")]
    create_time: Annotated[str, F("when it was created, ISO 8601 UTC")]
    # Rises with each Job for the same target path.
    sequence: int | None = None
    status: Annotated[
        str,
        F(
            "`Pending` (its window is open), `Running`, `Success`, `Failed`, `Timeout`, `Cancelled` or `Superseded` "
            "(no "
            "target failed, and none got the file, because all have newer content)"
        ),
    ] = PENDING
    generation: int = 0
    rev: int = 0
    # Counts the writes of shards. The Job can end only if no shard was written after its targets were counted.
    shard_rev: int = 0
    execute_time: Annotated[str | None, F("when the transfer began, ISO 8601 UTC")] = None
    finish_time: Annotated[str | None, F("when it ended, ISO 8601 UTC")] = None
    deadline: float | None = None
    transfer_id: Annotated[
        str | None, F("id of the transfer; with GSE the ids of all its tasks for this Job, separated by commas")
    ] = None
    file_size: Annotated[int | None, F("size of the file in bytes; absent until it is sent")] = None
    shard_count: int | None = None
    open_shards: tuple[int, ...] = ()
    # The (first, last) shard of each transfer.
    portions: tuple[tuple[int, int], ...] = ()
    counts: TargetCounts = TargetCounts()
    # Counts of the shards that are no longer open.
    closed: TargetCounts = TargetCounts()
    swarm: Annotated[SwarmFigures, F(stored="swarm_figures", shown=False)] = NO_FIGURES
    closed_swarm: Annotated[SwarmFigures, F(stored="swarm_closed", shown=False)] = NO_FIGURES
    # Created when the window closes. The hosts' seats and tokens in their swarm are derived from it.
    swarm_key: str | None = field(default=None, repr=False)
    rest_code: int | None = None
    due_at: float | None = None
    # A freeze ended its execution before the file was sent.
    parked: bool = False
    error: Annotated[Mapping[str, str] | None, F("why it failed")] = None
    cancelled_at: Annotated[str | None, F("when it was cancelled, ISO 8601 UTC")] = None
    # The id of the API key that cancelled it.
    cancelled_by: str | None = None
    # The present wave; for each wave, its highest target rank and the number of targets up to it.
    wave: int = 0
    wave_limits: tuple[int, ...] = ()
    wave_sizes: tuple[int, ...] = ()
    # When the present wave was sent (Unix time), and how many targets had failed before it.
    wave_at: float | None = None
    failed_before: int = 0
    remarks: Annotated[Remarks, F(flat=True)] = NO_REMARKS

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

    def view(self, counts: TargetCounts | None = None) -> dict[str, Any]:
        counts = counts or self.counts
        return (
            view_of(self)
            | {"counts": counts.view()}
            | ({"swarm": self.swarm.view(self.file_size)} if self.swarm.hosts else {})
            | ({"speed": speed} if (speed := counts.speed()) else {})
            | self._wave_views()
        )

    def _wave_views(self) -> dict[str, Any]:
        if not self.spec.waves:
            return {}
        sizes: list[int | None] = [size - before for before, size in pairwise((0, *self.wave_sizes))]
        sizes = sizes or [None] * len(self.spec.waves)
        waves = [wave._asdict() | {"targets": size} for wave, size in zip(self.spec.waves, sizes, strict=True)]
        return {"waves": waves, "wave": self.wave + 1}


@dataclass(frozen=True, slots=True)
class Task:
    """One target of a request, as stored. Its state, and all that Tasks of a Job share, are read from the Job."""

    project_id: str
    uuid: str
    job_id: Annotated[str, F("id of the Job: one file, one window, all its targets")]
    target: Annotated[Target, F(flat=True, shown=False)]
    create_time: Annotated[str, F("when it was created, ISO 8601 UTC")]
    update_time: Annotated[str, F("when it last changed, ISO 8601 UTC")]
    callback: str | None = None
    # The sequence of its content for the target's path; None: that of its Job.
    sequence: int | None = None


# --- buckets
# Windows: equal intervals of time. All requests for one file within a window share a Job.


def bucket_of(moment: datetime, window_seconds: int) -> int:
    return int(moment.timestamp()) // window_seconds


def window_end(bucket: int, window_seconds: int) -> datetime:
    """The first moment after the window."""
    return datetime.fromtimestamp((bucket + 1) * window_seconds, UTC)


@dataclass(frozen=True, slots=True)
class Windows:
    """How long windows, Jobs and records last, in seconds.

    `grace`: extra time at the end of a window for targets that are still queued."""

    seconds: int
    grace: int
    job_timeout: int
    ttl: int

    @property
    def lasts(self) -> int:
        """The longest time from a Task's creation to the end of its Job, with one more window for late targets."""
        return 2 * self.seconds + self.grace + self.job_timeout

    @property
    def longest(self) -> int:
        """The most seconds for which a record is needed after its Task's creation."""
        return self.lasts + self.ttl

    def needed_until(self, now: datetime, spec: TransferSpec | None = None) -> int:
        """The Unix time when a record written now may expire. Later for Jobs with waves or `activate_at`.

        The time allows for an outage, because Tasks and targets are not rewritten when their Job ends."""
        extra = spec.extra_seconds(self.lasts, now.timestamp()) if spec else 0
        return int(now.timestamp()) + self.longest + extra + OUTAGE_SECONDS


# --- transfers
# Transfers: portions of a Job that a provider accepts, and the intervals between polls.

# intended: requested, no answer yet. sent: accepted. refused: to be requested again. rejected: refused for good.
# unknown: requested several times without an answer, and not requested again.
INTENDED, SENT, REFUSED, REJECTED, UNKNOWN = "intended", "sent", "refused", "rejected", "unknown"
# GSE works with up to this many targets in a call.
GSE_TARGETS = 500

FIRST_WAIT, LONGEST_WAIT = 2, 15
# Each poll takes nine of the 25,000 events that an execution may have.
_MOST_POLLS = 2_400
# The longest interval while hosts wait for `activate_at`; also at most a twentieth of the time left. So seven days of
# polls stay far below the 25,000 events that an execution may have.
LONGEST_WAIT_AHEAD, _AHEAD_PARTS = 300, 20


@dataclass(frozen=True, slots=True)
class Transfer:
    """One call to a provider, for the shards `first_shard` to `last_shard` (inclusive)."""

    number: int
    token: str
    first_shard: int
    last_shard: int
    state: str = INTENDED
    transfer_id: str | None = None
    asked_at: float = 0.0
    attempts: int = 1
    # Attempts without an answer.
    unanswered: int = 0
    # Why it was refused for good.
    reason: str | None = None
    # Refused because it would send more bytes than the project may on this day.
    over_quota: bool = False

    @property
    def shards(self) -> range:
        return range(self.first_shard, self.last_shard + 1)


def most_targets(engine: str, wanted: int) -> int:
    """The most targets of one transfer: `wanted`, the operator's limit, or the engine's limit if that is lower."""
    return min(wanted, GSE_TARGETS) if engine == "gse" else wanted


def portions(shard_sizes: Sequence[int], most_targets: int) -> list[tuple[int, int]]:
    """The (first, last) shard of each transfer. Makes as few transfers as the limit allows, each of whole shards."""
    found: list[tuple[int, int]] = []
    first, held = 0, 0
    for number, size in enumerate(shard_sizes):
        if held and held + size > most_targets:
            found.append((first, number - 1))
            first, held = number, 0
        held += size
    if shard_sizes:
        found.append((first, len(shard_sizes) - 1))
    return found


def next_wait(wait: int, longest: int = LONGEST_WAIT) -> int:
    """Seconds until the next poll: 1.5 times the last interval `wait`, at most `longest`.

    The first intervals are short, because hosts report most in the first minute. That is also so when they only stage
    the file."""
    return min(max(FIRST_WAIT, wait + (wait + 1) // 2), longest)


# Runner seconds charged for a poll: it costs three transitions of the state machine and a function call.
_POLL_SECONDS = 4
# So many seconds of a Job are charged when its window closes, and the rest when it is dispatched.
FIRST_WATCH = 900


def watch_seconds(lasts: float) -> int:
    """The runner seconds charged for the polls of a Job that lasts `lasts` seconds."""
    return _POLL_SECONDS * math.ceil(max(0.0, lasts) / longest_wait(lasts))


def longest_wait(lasts: float, until_activation: float = 0.0) -> int:
    """The longest interval between two polls of a Job that may last `lasts` seconds with all its waves.

    `until_activation`: seconds until hosts activate the file. Until then, polls are rarer."""
    longest = max(LONGEST_WAIT, math.ceil(lasts / _MOST_POLLS))
    if not until_activation:
        return longest
    ahead = min(LONGEST_WAIT_AHEAD, int(until_activation / _AHEAD_PARTS))
    return min(max(longest, ahead), math.ceil(until_activation) + 1)


# Retries cannot help against these. All other failures are retried until the Job's deadline.
HOPELESS = (FileNotFound, QuotaExceeded, SignatureMismatch, TransferRefused, WaveFailed)
_BY_NAME = {error.__name__: error for error in HOPELESS}


def refused(error: DomainError) -> dict[str, Any]:
    """The step's result for an error that retries cannot help. Raising the error would set off an alarm."""
    return {"state": "refused", "wait": 0, "error": {"Error": type(error).__name__, "Cause": error.detail}}


def failure(error_name: str, cause: str) -> DomainError | None:
    """The error that ended a Job's step. None if steps with this error are retried.

    `error_name` and `cause` come from the step's result, or from Step Functions, which has the message as JSON."""
    kind = _BY_NAME.get(error_name.rsplit(".", 1)[-1])
    if kind is None:
        return None
    try:
        caught = json.loads(cause)
    except ValueError:
        caught = None
    return kind(str(caught["errorMessage"]) if isinstance(caught, dict) and "errorMessage" in caught else cause)


# --- ports
# The interface of transfer engines, and the types it uses.


class Arrival(NamedTuple):
    """The target of one Task, on its way to a Job. `notify`: the Task has a callback.

    `sequence` is None until the target is collected, then the time of its request. In a redrive, it is the sequence of
    the first Job with this content."""

    agent_id: str
    container_id: str
    uuid: str
    notify: bool = False
    sequence: int | None = None

    @property
    def target(self) -> Target:
        return Target(self.agent_id, self.container_id)


class Rebound(NamedTuple):
    """The result of binding late arrivals to another Job, their new home.

    `done`: the arrivals are bound to the new home. Otherwise, `home_closed` says whether the new home has closed, too,
    and `gone` has the ids of Tasks that another collector has moved meanwhile."""

    done: bool
    home_closed: bool = False
    gone: frozenset[str] = frozenset()


class Results(NamedTuple):
    """An engine's reports on targets.

    `upload`: the report of the source host, if it failed. No target can get the file then."""

    targets: Mapping[Target, TargetReport]
    upload: TargetReport | None = None


class Engine(Protocol):
    """Sends a file to many targets. Raises NotAccepted, TransferRefused or AnswerLost."""

    # Whether `create` with the same token is idempotent.
    repeatable: bool

    def stage(self, job: Job, size: int) -> TargetReport:
        """Brings the file to the source host, if the engine needs one. Returns how far the source host has got."""

    def create(self, job: Job, transfer: Transfer, shards: Sequence[Shard], size: int) -> str:
        """Starts the transfer to the targets of these shards. Returns the id that the provider gave to the transfer."""

    def egress(self, job: Job, transfer: Transfer, shards: Sequence[Shard], size: int) -> int:
        """About how many bytes the transfer sends out of the bucket."""

    def results(self, job: Job, transfer: Transfer, open_shards: Sequence[int]) -> Results:
        """The provider's latest reports."""

    def remind(self, job: Job, targets: Sequence[Target]) -> None:
        """Wakes targets that have not started."""

    def terminate(self, job: Job, transfer: Transfer, targets: Sequence[Target]) -> None:
        """Stops the transfer to these targets."""


def tally(job: Job, open_shards: Sequence[Shard]) -> Job:
    """The Job with new counts: stored totals of closed shards plus current totals of open ones."""
    closed, closed_swarm = job.closed, job.closed_swarm
    for shard in open_shards:
        if not shard.unfinished:
            closed, closed_swarm = _plus(closed, shard), closed_swarm + shard.swarm
    unfinished = [shard for shard in open_shards if shard.unfinished]
    counts = closed
    for shard in unfinished:
        counts = _plus(counts, shard)
    begun, staged = sum(shard.begun for shard in unfinished), sum(shard.staged for shard in unfinished)
    counts = replace(counts, total=job.counts.total, begun=begun, staged=staged)
    swarm = sum((shard.swarm for shard in unfinished), start=closed_swarm)
    numbers = tuple(shard.number for shard in unfinished)
    return replace(job, open_shards=numbers, counts=counts, closed=closed, swarm=swarm, closed_swarm=closed_swarm)


def _plus(counts: TargetCounts, shard: Shard) -> TargetCounts:
    figures = shard.figures
    return replace(
        counts,
        success=counts.success + shard.success,
        failed=counts.failed + shard.failed,
        superseded=counts.superseded + shard.superseded,
        measured=counts.measured + len(figures),
        moved_bytes=counts.moved_bytes + sum(one.size or 0 for one in figures),
        speed_sum=counts.speed_sum + sum(one.speed or 0 for one in figures),
    )


# --- model
# Hosts of the fleet: their inventory, groups, and whether they are online.

ONLINE, OFFLINE = "online", "offline"
# API Gateway ends connections after two hours. An older one has ended, and its end was not reported.
CONNECTION_LASTS = timedelta(hours=2, minutes=10)
# Longer than the interval between two polls of a host without a connection.
POLL_LASTS = timedelta(minutes=7)
# API Gateway gives the function of `$connect` 29 s, and opens the connection only after it.
OPENING_LASTS = timedelta(minutes=1)


# Longer than a request can take: a former process that calls after this time still runs.
HAND_OVER_LASTS = timedelta(seconds=30)
# Longer than a refused agent waits before it tries again.
DUPLICATE_LASTS = timedelta(minutes=15)
# So many processes may take over in this time, because each costs a transaction.
MOST_STARTS, STARTS_LAST = 30, timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class AgentProcess:
    """The process that calls as an agent.

    `life`: the life of the host for which the process's API key was made; None for an admin's key. A life ends when the
    host is deleted or replaced.

    `instance`: the random id of this process. `after`: the id of the process that ran on the host before this one.
    Older agents send neither."""

    life: int | None = None
    instance: str | None = None
    after: str | None = None


ANY_PROCESS = AgentProcess()


class Claim(StrEnum):
    """Whether a calling process may act as the host: how it relates to the process in the host's record."""

    KNOWN = "known"
    # It is new: a restarted agent, or a second host.
    TAKES_OVER = "takes over"
    # It was replaced a moment ago: a last request, or a second host.
    TOO_EARLY = "too early"
    # It was replaced and still runs: there are two hosts. It stays, and the newer one is refused.
    COMES_BACK = "comes back"
    # It does not name its process, while one that does runs on the host.
    NAMELESS = "nameless"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Inventory:
    """What an agent reports about its host when it connects, and every hour."""

    version: Annotated[str | None, F("version of the agent")] = None
    zone: Annotated[str | None, F("rack or availability zone; peers of the same zone are preferred")] = None
    free_bytes: Annotated[int | None, F("free space on the host's target disk, in bytes")] = None
    allows: Annotated[
        str | None,
        F("hooks and loopback ports that the host's operator allows releases, such as `reload,:8080`; `-`: none"),
    ] = None


@dataclass(frozen=True, slots=True)
class FetchedJob:
    """The newest Job for which the host has fetched its transfer, and when. The Job's own record has its outcome."""

    job_id: Annotated[str, F("id of the Job: one file, one window, all its targets")]
    file_name: Annotated[str, F("name of the file")]
    transfer_id: str
    container_id: str
    at: Annotated[str, F("when, ISO 8601 UTC")]


@dataclass(frozen=True, slots=True)
class FleetAgent:
    """A host of the fleet. `key_id`, `enrolment_id` and `claim_sha256` are set if it enrolled.

    `instance` is the process that the host has run since `instance_at`, and `former_instance` the process before that.
    `rival` is a process of a second host with the same id; it was last refused at `rival_at`."""

    project_id: str
    agent_id: Annotated[str, F("id of the host")]
    groups: Annotated[tuple[str, ...], F("groups of the host")] = ()
    labels: Annotated[Mapping[str, str], F("labels of the host, as `{name: value}`")] = field(default_factory=dict)
    inventory: Annotated[Inventory, F(flat=True)] = Inventory()
    connection_id: str | None = None
    connected_at: str | None = None
    last_seen: Annotated[str | None, F("when the host last called the API, ISO 8601 UTC")] = None
    key_id: str | None = None
    enrolment_id: str | None = None
    last_job: FetchedJob | None = None
    claim_sha256: str | None = None
    life: int = 0
    instance: str | None = None
    instance_at: str | None = None
    former_instance: str | None = None
    rival: str | None = None
    rival_at: str | None = None
    # How many processes have taken over since `starts_since`.
    starts: int = 0
    starts_since: str | None = None

    def starts_at(self, now: datetime) -> tuple[int, str]:
        """How many processes have taken over in the current ten minutes, and when these began."""
        if self.starts_since is not None and self._within(self.starts_since, STARTS_LAST, now):
            return self.starts, self.starts_since
        return 0, iso(now)

    def claim_of(self, process: AgentProcess, now: datetime) -> Claim:
        """How this process relates to the one in the record, and so whether it may act as the host.

        A process cannot know whether it is the only one. A restart looks like a second host at first, so a new process
        takes over. If the former process then calls again, both run. In that case the former process keeps the id."""
        if process.instance == self.instance:
            return Claim.KNOWN
        if process.instance is None:
            # This host names its processes: a second host must not avoid the check by leaving the name out.
            return Claim.TAKES_OVER if self.state(now) == OFFLINE else Claim.NAMELESS
        if self.instance is None or self.state(now) == OFFLINE:
            return Claim.TAKES_OVER
        if process.instance == self.former_instance:
            return Claim.TOO_EARLY if self._within(self.instance_at, HAND_OVER_LASTS, now) else Claim.COMES_BACK
        if self.rival is not None and self.rival in (process.instance, process.after):
            return Claim.REFUSED
        if process.after != self.instance and self.is_duplicate(now):
            return Claim.REFUSED
        return Claim.TAKES_OVER

    def is_duplicate(self, now: datetime) -> bool:
        """Whether two hosts have used this id in the last minutes."""
        return self._within(self.rival_at, DUPLICATE_LASTS, now)

    def state(self, now: datetime) -> str:
        if self.connection_id and self._within(self.connected_at, CONNECTION_LASTS, now):
            return ONLINE
        return ONLINE if self._within(self.last_seen, POLL_LASTS, now) else OFFLINE

    def may_be_opening(self, now: datetime) -> bool:
        """Whether the connection was opened so recently that API Gateway may still report it as gone."""
        return self._within(self.connected_at, OPENING_LASTS, now)

    @staticmethod
    def _within(moment: str | None, span: timedelta, now: datetime) -> bool:
        return moment is not None and now - datetime.fromisoformat(moment) < span

    def has(self, groups: frozenset[str], labels: Mapping[str, str]) -> bool:
        """Whether the agent is in one of the groups, if any are given, and has all labels."""
        in_group = not groups or not groups.isdisjoint(self.groups)
        return in_group and all(self.labels.get(name) == value for name, value in labels.items())

    def forbids(self, wanted: Iterable[str]) -> list[str]:
        """Those of these hooks and ports that the host does not allow. Empty if its agent is too old to report any."""
        allowed = self.inventory.allows
        return [] if allowed is None else [one for one in wanted if one not in allowed.split(",")]

    def view(self, now: datetime) -> dict[str, Any]:
        """The agent in the API's answer, with its state at `now`."""
        duplicate = {"duplicate_at": self.rival_at if self.is_duplicate(now) else None}
        return view_of(self) | {"state": self.state(now)} | duplicate


@dataclass(frozen=True, slots=True)
class Enrolment:
    """A token with which hosts get API keys. Only its hash is stored. `used` counts the hosts that got a key.

    `replace`: a host may enrol under an id that another host has. The other host is then locked out."""

    enrolment_id: str
    project_id: str
    token_sha256: str
    groups: tuple[str, ...]
    labels: Mapping[str, str]
    uses: int
    valid_until: int
    used: int = 0
    replace: bool = False


def why_silent(agent: FleetAgent | None, now: datetime) -> str:
    """The reason shown for a host without a report: since when the host is offline, or that it is online."""
    if agent is None or agent.last_seen is None:
        return "offline: no agent of this name has ever connected"
    if agent.state(now) == OFFLINE:
        return f"offline: the agent was last seen at {agent.last_seen}"
    return "online, and has not reported on this transfer yet"
