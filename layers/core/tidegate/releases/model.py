"""Releases: what should be on which hosts. Pure rules, which tests run with random hosts and reports.

The release record decides: `desired`, `stable`, and the share of the hosts that may have `desired`. The wave of a host
is not stored. It is computed from a hash of release and host, so the same rule holds for a host that returns, enrols or
gets a label later. Revision numbers only rise: a rollback is a new revision with the content of an older one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import urlsplit

from tidegate.common.ids import digest, iso
from tidegate.distribution.model import (
    CODE_CANCELLED,
    CODE_JOB_FAILED,
    CODE_NOT_GRANTED,
    CODE_NOT_SENT,
    CODE_TIMEOUT,
    PENDING,
    RUNNING,
    SUCCESS,
    SUPERSEDED,
    UNREACHABLE,
    FleetAgent,
    Wave,
)
from tidegate.errors import WrongState
from tidegate.records import F

NAME = r"^[a-z0-9][a-z0-9._-]{0,62}$"
HookName = Annotated[str, F(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
MOST_RELEASES = 200
MOST_FILES = 50
MOST_KEPT = 10
# Revisions of a release that stay listed; older ones are deleted, but for the stable one.
LISTED_REVISIONS = 100
# Of a revision and its targets, as JSON: each look at a roll-out and each function that compares goals reads it.
MOST_BYTES = 100_000
# Of an archive, as it is stored and unpacked. Hosts hold the latter.
MOST_TREE_BYTES = 10 * 2**30

ROLLING, WAITING, CONVERGED, PAUSED, FAILED, ROLLED_BACK = (
    "rolling",
    "waiting",
    "converged",
    "paused",
    "failed",
    "rolled_back",
)
ROLLBACK, STOP = "rollback", "stop"
NOW, MANUAL = "now", "manual"

# States of a host, as it reports them. `current`: it has the revision; `staged`: it has the files and waits for the
# activation; `failed`: it went back by itself; `drifted`: somebody changed a file since.
CURRENT, STAGED, HOST_FAILED, DRIFTED = "current", "staged", "failed", "drifted"
# Shown for hosts that have not reported the revision that they should have.
BEHIND, OFFLINE, GONE = "behind", "offline", "gone"
# A host that was not seen for this many days no longer counts.
GONE_DAYS = 30

# A host's word that it checked its files again is stored at most this often.
CHECKED_SECONDS = 3600

# The share of the connected hosts of a wave that must have reported before it can pass.
_HEARD = 0.9
# A look is at most this many seconds after the one before.
SLOWEST_LOOK = 900
# A revision whose hosts are still not heard of after this many seconds is no longer watched; they ask when they return.
WATCHED_SECONDS = 3600

# A transfer by GSE that failed is sent again after 30, 60, 120 seconds and so on, at most an hour; the host has failed
# when it was the third. A host that GSE cannot reach is tried again at this pace.
_GSE_TRIES, _GSE_LONGEST, _GSE_UNREACHABLE = 3, 3600, 900
# Codes that say nothing about the host: the transfer was not made, or nobody knows how it ended.
_NOT_THE_HOST = frozenset({CODE_TIMEOUT, CODE_JOB_FAILED, CODE_CANCELLED, CODE_NOT_SENT, CODE_NOT_GRANTED})


def rank(release: str, host: str) -> float:
    """The host's place in every roll-out of the release, from 0 to 1. It never changes, and hosts are spread evenly."""
    return int.from_bytes(hashlib.sha256(f"{release}\0{host}".encode()).digest()[:8], "big") / 2**64


@dataclass(frozen=True, slots=True)
class ReleaseFile:
    """One file of a revision: its content in the library, and its place on each host."""

    biz_id: int
    app_id: int
    file_path: Annotated[str, F("path of the file in the library")]
    file_name: Annotated[str, F("name of the file on the host")]
    signature: Annotated[str, F("SHA-256 of the content, 64 hexadecimal digits")]
    size: Annotated[int, F("size in bytes")]
    target_file_dir: Annotated[str, F("absolute path of the directory on the host")]
    target_user: Annotated[str, F("owner of the file on the host")]
    mode: Annotated[str | None, F("permissions of the file on the host in octal, such as `0640`")] = None
    unpack: Annotated[
        Literal["tar", "zip"] | None,
        F(
            "the file is an archive (`tar` may be compressed), unpacked to `releases/<revision>` below "
            "`target_file_dir`, where the symlink `current` leads to it"
        ),
    ] = None

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths on a host that belong to this file. Everything below such a path belongs to the file, too."""
        directory = self.target_file_dir.rstrip("/")
        names = ("current", "releases") if self.unpack else (self.file_name,)
        return tuple(f"{directory}/{name}" for name in names)


def overlap(paths: Iterable[str], others: Iterable[str]) -> str | None:
    """The first of `paths` that equals one of `others`, contains one, or is inside one. None if no path does."""
    taken = [_parts(other) for other in others]
    for path in paths:
        parts = _parts(path)
        if any(parts[: len(other)] == other[: len(parts)] for other in taken):
            return path
    return None


def _parts(path: str) -> list[str]:
    """The names in a path. `/opt//app` and `/opt/./app` have the same names, because both are the same directory."""
    return [part for part in path.replace("\\", "/").split("/") if part not in ("", ".")]


def possible_port(url: str) -> str:
    """Returns the URL unchanged. ValueError if its port is not possible, such as 70000."""
    _ = urlsplit(url).port
    return url


def possible_time(text: str) -> str:
    """Returns the text unchanged. ValueError if there is no such time, such as on the 30th of February."""
    datetime.fromisoformat(text)
    return text


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """How to find out whether a host is healthy: by a hook that its operator allowed, or by an HTTP check.

    The HTTP check asks one of the host's loopback ports. The result must hold for `soak_s` seconds before the next
    wave."""

    hook: Annotated[HookName | None, F("a hook that the host's operator allowed by this name")] = None
    url: Annotated[
        str | None,
        F(
            "a page on a loopback port of the host, which its operator allowed; 2xx is healthy",
            max_length=500,
            pattern=r"^http://(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?(/\S*)?$",
            check=possible_port,
        ),
    ] = None
    timeout_s: Annotated[int, F("seconds until the check counts as failed", ge=1, le=600)] = 30
    soak_s: Annotated[int, F("seconds for which a wave must hold before the next one", ge=0, le=86400)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """One version of a release's files and rules. Immutable. `number` rises with each revision of the release."""

    name: Annotated[str, F(shown=False)]
    number: Annotated[int, F("the number of the revision; numbers only rise")]
    files: Annotated[tuple[ReleaseFile, ...], F("the files that should be on the hosts")]
    waves: Annotated[tuple[Wave, ...], F("stages of the roll-out; after the last one, all hosts")] = ()
    activate: Annotated[
        str, F("`now`, `manual`, or a time (ISO 8601); until then hosts only stage the files", max_length=40)
    ] = NOW
    hook: Annotated[
        HookName | None, F("run after the files were put in place, if the host's operator allowed it by this name")
    ] = None
    health: Annotated[HealthCheck | None, F("how a host finds out whether it is healthy with the revision")] = None
    alarm: Annotated[
        str | None,
        F(
            "a CloudWatch alarm by name or ARN, which an admin allowed the project: in ALARM it fails the wave; while "
            "it has no data or cannot be read, the wave waits",
            max_length=400,
            pattern=r"^[^\x00-\x1f\x7f]+$",
        ),
    ] = None
    on_failure: Annotated[
        str, F("when a wave fails: take the revision back, or stop where it is", pattern="^(rollback|stop)$")
    ] = ROLLBACK
    keep: Annotated[int, F("former revisions whose content a host keeps", ge=1, le=MOST_KEPT)] = 2
    heal: Annotated[bool, F("put files in place again that somebody changed on a host")] = False
    note: Annotated[str | None, F("a remark for people", max_length=500)] = None
    created_at: Annotated[str, F("when it was created, ISO 8601 UTC")] = ""
    created_by: Annotated[str, F("key_id of its creator, or `system`")] = ""
    rollback_to: Annotated[int | None, F("the revision whose content this one brings back")] = None
    # Rises with each revision. With GSE it orders the transfers to one path, as hosts cannot.
    sequence: int = 0

    @property
    def content(self) -> str:
        """A digest that is equal for revisions with the same files and the same rules."""
        what = {name: getattr(self, name) for name in ("activate", "hook", "alarm", "on_failure", "keep", "heal")}
        parts = [asdict(file) for file in sorted(self.files, key=lambda file: file.paths)]
        rest = [list(self.waves), asdict(self.health) if self.health else None]
        return digest(repr([what, parts, rest]))

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(path for file in self.files for path in file.paths)

    @property
    def needs(self) -> list[str]:
        """What hosts must allow: the names of the revision's hooks, and the port of its health check, as `:8080`."""
        hooks = [name for name in (self.hook, self.health.hook if self.health else None) if name]
        if self.health is None or self.health.url is None or self.health.hook:
            return hooks
        return [*hooks, f":{urlsplit(self.health.url).port or 80}"]

    @property
    def soak_s(self) -> int:
        return self.health.soak_s if self.health else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """The hosts of a release: those that are named, and those that are in one of the groups and have all labels."""

    groups: Annotated[tuple[str, ...], F("hosts in any of these groups")] = ()
    labels: Annotated[Mapping[str, str], F("hosts with all of these labels")] = field(default_factory=dict)
    agents: Annotated[tuple[str, ...], F("hosts by their ids")] = ()

    def has(self, agent: FleetAgent) -> bool:
        if agent.agent_id in self.agents:
            return True
        return bool(self.groups or self.labels) and agent.has(frozenset(self.groups), self.labels)

    def as_data(self) -> dict[str, Any]:
        return {"groups": list(self.groups), "labels": dict(self.labels), "agents": list(self.agents)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A release, as stored. It decides what each host should have. Every write is conditional on `version`."""

    project_id: str
    name: Annotated[str, F("the name of the release")]
    targets: Annotated[Selector, F("the hosts that it is for")]
    desired: Annotated[int, F("the revision that hosts should have", shown="revision")] = 0
    # What hosts outside the share have, and what a rollback brings back.
    stable: Annotated[int, F("the last revision that passed; 0 if none has")] = 0
    latest: int = 0
    share: Annotated[int, F("percent of the hosts that may have the desired revision now")] = 0
    wave: int = 0
    # Unix times: when the share was last opened, and since when the wave could have passed but for its soak time; 0, if
    # the caller's verdict skips it.
    wave_at: float = 0
    held_since: float | None = None
    # The highest revision that hosts may activate; those above it are only staged.
    opened: int = 0
    paused: bool = False
    withdrawn: Annotated[tuple[int, ...], F("revisions that failed, and converge nowhere")] = ()
    status: str = ROLLING
    reason: Annotated[str | None, F("why it was stopped or taken back")] = None
    # The paths of the desired revision's files, for releases and submits that want the same path.
    paths: tuple[str, ...] = ()
    # As the last look at the hosts found them.
    counts: Annotated[Mapping[str, int], F("hosts by state; in a list, at the last look at the roll-out")] = field(
        default_factory=dict
    )
    created_at: Annotated[str, F("when it was created, ISO 8601 UTC")] = ""
    updated_at: Annotated[str, F("when it was last changed, ISO 8601 UTC")] = ""
    version: int = 0
    # Counts the executions that watched the present revision: an execution's name cannot be used twice.
    generation: int = 0
    # The sequence of the latest revision.
    sequence: int = 0
    # Hosts that had failed when somebody resumed the revision all the same: they no longer count against it.
    excused: int = 0
    # Before any revision has passed: the one that the widest share of hosts had, and that share in percent.
    kept: int = 0
    kept_share: int = 0

    @property
    def former(self) -> int:
        """The revision of all or some of the hosts outside the share. 0 if there is no such revision."""
        return self.stable or self.kept

    def goal(self, host: str) -> int:
        """The revision that the host should have; 0 for none. A withdrawn revision is the goal of no host.

        A host whose goal is 0 forgets the release. So, while no revision is stable, a host that was sent an earlier
        revision may keep that one as its goal.
        """
        position = rank(self.name, host) * 100
        if position < self.share and self.desired not in self.withdrawn:
            return self.desired
        return self.stable or (self.kept if position < self.kept_share else 0)

    def holds(self, number: int) -> bool:
        """Whether hosts must still wait before they activate this revision."""
        return self.paused or number > self.opened

    @property
    def present_wave(self) -> Annotated[int, F("the present wave, from 1", shown="wave")]:
        return self.wave + 1

    @property
    def is_rolling(self) -> bool:
        return self.status in (ROLLING, WAITING)

    @property
    def shown_status(self) -> Annotated[str, F("where the roll-out is", shown="status")]:
        return PAUSED if self.paused else self.status


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """What a host has of a release, as the host reported it.

    A report changes nothing if its (life, revision) is lower than that of the stored report."""

    project_id: str
    agent_id: Annotated[str, F("id of the host")]
    name: Annotated[str, F("the name of the release", pattern=NAME)]
    life: int
    revision: Annotated[int, F("what the host has; 0 for nothing", strict=True, ge=0, le=10**9)]
    state: Annotated[str, F("what is known of the host")]
    reason: Annotated[str | None, F("why the revision failed on the host", max_length=1000)] = None
    hook: Annotated[Mapping[str, Any] | None, F("how the hook ended")] = None
    health: Annotated[Mapping[str, Any] | None, F("how the health check ended")] = None
    drift: Annotated[tuple[str, ...], F("files that were changed on the host, and how")] = ()
    # A revision that failed is not in place: the one before it is.
    placed: Annotated[
        int | None, F("the revision whose files are in place, if it is not `revision`", strict=True, ge=0, le=10**9)
    ] = None
    checked_at: Annotated[
        str | None,
        F(
            "when the host last compared its files with what they should be, ISO 8601 UTC",
            pattern=r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,6})?Z$",
            check=possible_time,
        ),
    ] = None
    reported_at: Annotated[str, F("when the host reported it, ISO 8601 UTC")] = ""
    # Only with GSE: the revision that was sent to the host last, the Task until its result is known, how many transfers
    # of it have ended without success, and when it may be sent again (Unix time).
    sent: int = 0
    task: str | None = None
    tries: int = 0
    try_at: float = 0

    @property
    def in_place(self) -> int:
        """The revision whose files are on the host. 0 if this is not known."""
        if self.placed is not None:
            return self.placed
        return self.revision if self.state in (CURRENT, DRIFTED) else 0

    def is_news(self, known: HostReport | None) -> bool:
        """Whether the report says more than the report `known`. True if `known` is None.

        A revision that failed on a host stays failed there."""
        if known is None:
            return True
        if (self.life, self.revision) != (known.life, known.revision):
            return (self.life, self.revision) > (known.life, known.revision)
        if known.state == HOST_FAILED or (self.state == STAGED != known.state):
            return False
        then = replace(self, reported_at=known.reported_at, checked_at=known.checked_at)
        return then != known or self._is_checked_again(known)

    def _is_checked_again(self, known: HostReport) -> bool:
        """Whether the host's last check of its files was an hour or more before or after the known one.

        Smaller differences are not stored, because each new time costs a write. The new time may be the earlier one,
        because a host's clock may have been set back. If only one report has a time, this is true.
        """
        if self.checked_at is None or known.checked_at is None:
            return self.checked_at != known.checked_at
        try:
            before = datetime.fromisoformat(known.checked_at)
        except ValueError:
            # A time that does not exist, which an earlier version stored.
            return True
        return abs((datetime.fromisoformat(self.checked_at) - before).total_seconds()) >= CHECKED_SECONDS


@dataclass(frozen=True, slots=True)
class HostFile:
    """A file that, by its own report, a host has."""

    path: Annotated[str, F("path of the file on the host; of an archive, the symlink to what was unpacked")]
    sha256: Annotated[str, F("SHA-256 of the content, 64 hexadecimal digits; of an archive, of the archive")]
    release: Annotated[str, F("the release that has put it in place")]
    revision: Annotated[int, F("the revision that it belongs to")]
    checked_at: Annotated[
        str | None, F("when the host last compared it with what it should be, ISO 8601 UTC; stored once an hour")
    ] = None
    drift: Annotated[str | None, F("what was changed about it on the host; absent if nothing was")] = None


def files_in_place(report: HostReport, revision: Revision) -> Iterator[HostFile]:
    """The files of a revision that is in place on a host, sorted by path, with the drift that the host reported."""
    for file in sorted(revision.files, key=lambda file: file.paths):
        path = file.paths[0]
        lines = [line.removeprefix(path) for line in report.drift if line.startswith((f"{path}: ", f"{path}/"))]
        drift = "; ".join(line.removeprefix(": ").removeprefix("/") for line in lines) or None
        yield HostFile(path, file.signature, report.name, revision.number, report.checked_at, drift)


class Host(NamedTuple):
    """A host of a release with its state, from the fleet's record and the host's report.

    `lost`: the host was online after the present wave opened, and went offline before it reached its goal."""

    agent_id: str
    state: str
    revision: int
    online: bool
    lost: bool = False


def host_of(release: Release, agent: FleetAgent, report: HostReport | None, now: datetime) -> Host:
    """The host's state in the release. `report` counts only if it is from the host's present life."""
    if report is not None and agent.life and report.life != agent.life:
        report = None
    online = agent.state(now) == "online"
    revision = report.revision if report else 0
    if report is not None and revision >= release.goal(agent.agent_id):
        return Host(agent.agent_id, report.state, revision, online)
    if not online:
        seen = datetime.fromisoformat(agent.last_seen) if agent.last_seen else None
        gone = seen is not None and (now - seen).days >= GONE_DAYS
        lost = seen is not None and seen.timestamp() > release.wave_at > 0
        return Host(agent.agent_id, GONE if gone else OFFLINE, revision, online, lost)
    return Host(agent.agent_id, BEHIND, revision, online)


# --- hosts that GSE sends to
# They have no presence and report nothing: the results of transfers are their reports.


def beyond_gse(revision: Revision, targets: Selector) -> list[str]:
    """The names of the fields of a revision and of its targets that GSE cannot fulfil.

    GSE can only send a file and tell the result. It cannot put several files in place at the same moment."""
    wanted = {
        "hook": revision.hook,
        "health": revision.health,
        "heal": revision.heal,
        "activate": revision.activate != NOW,
        "files": len(revision.files) > 1,
        "files.mode": any(file.mode for file in revision.files),
        "files.unpack": any(file.unpack for file in revision.files),
        "targets.groups": targets.groups,
        "targets.labels": targets.labels,
    }
    return [name for name, value in wanted.items() if value]


def sent_host(release: Release, agent_id: str, report: HostReport | None, now: datetime) -> Host:
    """The state of a host that GSE sends to. The host counts as online unless GSE could not reach it."""
    revision, state = (report.revision, report.state) if report else (0, BEHIND)
    if report is not None and state == OFFLINE:
        gone = (now - datetime.fromisoformat(report.reported_at)).days >= GONE_DAYS
        return Host(agent_id, GONE if gone else OFFLINE, revision, False)
    return Host(agent_id, state if revision >= release.goal(agent_id) else BEHIND, revision, True)


def is_due(report: HostReport | None, goal: int, now: float) -> bool:
    """Whether GSE is to send the goal to the host now.

    Never true if GSE has sent the host a higher revision before."""
    if report is None or report.sent < goal:
        return goal > (report.revision if report else 0)
    is_there = report.revision == goal and report.state == CURRENT
    return report.sent == goal and report.task is None and not is_there and report.try_at <= now


def after_sent(report: HostReport, result: Mapping[str, Any], now: datetime) -> HostReport:
    """The report with the result of its Task. Returns the same object while the Task runs.

    The revision has failed on the host only after the third error that GSE reports about the host itself."""
    status, code = result.get("status"), result.get("error_code")
    if status in (PENDING, RUNNING):
        return report
    ended = replace(report, task=None, reason=None, reported_at=iso(now))
    if status == SUCCESS:
        return replace(ended, revision=report.sent, state=CURRENT, placed=None, tries=0, try_at=0)
    tries = report.tries + 1
    why = f"{result.get('error_msg') or 'the transfer was not made'} ({code})"[:1000]
    later = now.timestamp() + min(_GSE_LONGEST, 15 * 2 ** min(tries, 10))
    ended = replace(ended, reason=why, tries=tries, try_at=later)
    has_failed = report.revision == report.sent
    if code == UNREACHABLE and not has_failed:
        since = report.reported_at if report.state == OFFLINE else ended.reported_at
        pace = now.timestamp() + _GSE_UNREACHABLE
        return replace(ended, state=OFFLINE, reported_at=since, tries=report.tries, try_at=pace)
    if has_failed or code is None or code in _NOT_THE_HOST or status == SUPERSEDED or tries < _GSE_TRIES:
        return ended
    return replace(ended, revision=report.sent, state=HOST_FAILED, placed=report.in_place)


def counted(hosts: Iterable[Host]) -> dict[str, int]:
    """The number of hosts of the release, and how many are in each state."""
    found = dict.fromkeys(("desired", CURRENT, STAGED, HOST_FAILED, OFFLINE, DRIFTED, BEHIND, GONE), 0)
    for host in hosts:
        found["desired"] += host.state != GONE
        found[host.state] += 1
    return found


# --- the gate between waves


def next_share(revision: Revision, wave: int) -> int:
    """The percentage of hosts that are in this wave or an earlier one. 100 after the last wave."""
    return revision.waves[wave].percent if wave < len(revision.waves) else 100


def wave_of(revision: Revision, host: str) -> int:
    """The wave in which the host gets the revision, counted from 1. A host in no wave gets it after the last wave."""
    at = rank(revision.name, host) * 100
    return 1 + sum(wave.percent <= at for wave in revision.waves)


def alarm_name(alarm: str) -> str:
    """The alarm's name. `alarm`: its name or its ARN."""
    return alarm.partition(":alarm:")[2] if alarm.startswith("arn:") else alarm


class AlarmSays(NamedTuple):
    """The state of the revision's alarm, as CloudWatch names it. UNREADABLE if the alarm could not be read."""

    state: str
    reason: str


OK, ALARM, UNREADABLE = "OK", "ALARM", "UNREADABLE"
QUIET = AlarmSays(OK, "")


def decide(
    release: Release, revision: Revision, hosts: Sequence[Host], now: float, alarm: AlarmSays = QUIET
) -> Release:
    """The release after a look at its hosts. It waits, opens the next wave, is converged, is stopped, or is taken back.

    A wave passes when nine tenths of its connected hosts have reported, at least one has, few enough have failed, and
    this has held for the soak time. A wave without a connected host grows to the nearest one of the next wave. If that
    wave has none either, the wave passes. While no host of the release is connected, it waits.

    Hosts that were offline before the wave neither fail it nor delay it. Hosts that go offline during the wave may do
    so because of the revision, so they delay the wave for an hour. While no host has reported, the wave waits longer.

    An alarm in the state ALARM fails the wave. An alarm without data, or one that cannot be read, delays the wave,
    because nobody knows whether the hosts are well. The reason that is shown then names the alarm."""
    desired = revision.number
    if release.paused or not release.is_rolling or release.desired != desired:
        return release
    inside = [host for host in hosts if release.goal(host.agent_id) == desired]
    told = [host for host in inside if host.revision == desired and host.state != STAGED]
    failed = [host for host in told if host.state == HOST_FAILED]
    lost = [host for host in inside if host.lost]
    expected = [host for host in inside if host.online]
    expected += lost if now - release.wave_at < WATCHED_SECONDS else []
    heard = [host for host in expected if host.revision > desired or host in told]
    wave = revision.waves[release.wave] if release.wave < len(revision.waves) else None
    # After the last wave, those that failed in it still count, as do all others: its limit goes on.
    limit = revision.waves[min(release.wave, len(revision.waves) - 1)].max_failed_percent if revision.waves else 0
    counting = len(failed) - release.excused
    if counting > 0 and counting * 100 > limit * (len(told) - release.excused):
        return refused(release, revision, f"{len(failed)} of {len(told)} hosts failed, {failed[0].agent_id} among them")
    if alarm.state == ALARM:
        return refused(release, revision, alarm.reason)
    # The caller's verdict, which skips the soak time, waits too.
    not_yet = 0.0 if release.held_since == 0 else None
    if alarm.state != OK:
        return replace(release, status=WAITING, held_since=not_yet, reason=alarm.reason)
    release = replace(release, reason=None)
    status = WAITING if release.holds(desired) else ROLLING
    is_last = release.share >= 100
    # No host of the wave is or was there: the connected hosts are all outside the share.
    is_empty = not (told or expected or lost or is_last) and any(host.online for host in hosts)
    if is_empty:
        nearest = min(rank(release.name, host.agent_id) for host in hosts if host.online) * 100
        if nearest < next_share(revision, release.wave + 1):
            share = math.floor(nearest) + 1
            return replace(release, share=share, status=status, held_since=not_yet, wave_at=now)
    if not (told or is_empty) or len(heard) < _HEARD * len(expected):
        return replace(release, status=status, held_since=not_yet)
    held_since = release.held_since if release.held_since is not None else now
    soak = revision.soak_s + (wave.wait_s if wave else 0)
    if now - held_since < soak:
        return replace(release, status=status, held_since=held_since)
    if is_last:
        return replace(release, stable=desired, status=CONVERGED, held_since=None, reason=None)
    following = release.wave + 1
    return replace(
        release,
        wave=following,
        share=max(release.share, next_share(revision, following)),
        wave_at=now,
        held_since=None,
        status=ROLLING,
    )


def refused(release: Release, revision: Revision, reason: str) -> Release:
    """The release after its wave failed: it is rolled back.

    It is stopped instead if there is no stable revision, or if the revision says `on_failure: stop`."""
    if revision.on_failure == ROLLBACK and release.stable:
        return withdrawn(release, reason)
    return replace(release, status=FAILED, reason=reason, held_since=None, withdrawn=_with_desired(release))


def _with_desired(release: Release) -> tuple[int, ...]:
    """The withdrawn revisions and the desired one, sorted. Only the newest LISTED_REVISIONS of them."""
    return tuple(sorted({*release.withdrawn, release.desired})[-LISTED_REVISIONS:])


def withdrawn(release: Release, reason: str) -> Release:
    """The release after its desired revision was withdrawn. All hosts at once get a new revision as their goal.

    The caller gives that new revision the content of an earlier one."""
    number = release.latest + 1
    return replace(
        release,
        desired=number,
        stable=number,
        latest=number,
        opened=number,
        share=100,
        wave=0,
        held_since=None,
        withdrawn=_with_desired(release),
        status=ROLLED_BACK,
        reason=reason,
        generation=0,
        excused=0,
    )


def after_put(release: Release, revision: Revision, now: float) -> Release:
    """The release with a new revision as its goal. Hosts outside the first wave keep what they have."""
    if release.desired not in release.withdrawn and release.share >= release.kept_share:
        release = replace(release, kept=release.desired, kept_share=release.share)
    return replace(
        release,
        desired=revision.number,
        latest=revision.number,
        opened=revision.number if revision.activate == NOW else release.opened,
        share=next_share(revision, 0),
        wave=0,
        wave_at=now,
        held_since=None,
        paused=False,
        status=ROLLING,
        reason=None,
        paths=revision.paths,
        generation=0,
        sequence=revision.sequence,
        excused=0,
    )


def rollback_number(release: Release, numbers: Iterable[int], to: int | None) -> int:
    """The revision whose content a rollback brings back. WrongState if there is no such revision.

    `numbers`: the revisions of the release, newest first. `to`: the revision that the caller wants. If `to` is None, it
    is the stable revision, or else the newest earlier one that was not withdrawn."""
    if to is None and release.stable and release.stable != release.desired:
        return release.stable
    for number in numbers:
        if number == to or (to is None and number < release.desired and number not in release.withdrawn):
            return number
    if to is not None:
        raise WrongState(f"the release {release.name} has no revision {to}: GET …/revisions lists them")
    raise WrongState(f"the release {release.name} has no earlier revision to go back to")


def next_look(release: Release, revision: Revision, now: float) -> int:
    """Seconds until the next look at the hosts. Short after a change, then longer and longer.

    The next look is not later than the end of the soak time, and not later than the planned activation."""
    since = now - release.wave_at
    wait = min(60, since / 10) if since < 4 * 3600 else min(SLOWEST_LOOK, since / 240)
    ends = []
    if release.held_since:
        wave = revision.waves[release.wave] if release.wave < len(revision.waves) else None
        ends.append(release.held_since + revision.soak_s + (wave.wait_s if wave else 0) - now)
    if release.opened < release.desired and revision.activate not in (NOW, MANUAL):
        ends.append(datetime.fromisoformat(revision.activate).timestamp() - now)
    return max(2, math.ceil(min(wait, *(end for end in ends if end > 0), math.inf)))


def goals_digest(goals: Iterable[tuple[str, int, bool]]) -> str:
    """A digest of a host's goals: (release, revision, whether it is on hold).

    With each poll, a host sends the digest of the goals that it knows. If its goals are still the same, it need not ask
    for them."""
    return digest(*(f"{name}={number}{' hold' if hold else ''}" for name, number, hold in sorted(goals)), length=16)
