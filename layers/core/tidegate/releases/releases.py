"""What callers do with releases: put a revision, read, roll back, pause, resume, activate, delete."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from tidegate.aws.table import decode_cursor, encode_cursor, unknown_cursor
from tidegate.common.ids import iso
from tidegate.common.sequences import Listed
from tidegate.distribution.model import ONLINE, FleetAgent, Target, absolute_path, four_digits
from tidegate.distribution.submit import require_admin, require_grant
from tidegate.errors import (
    Conflict,
    FieldError,
    FileNotFound,
    HookNotAllowed,
    Invalid,
    PathTaken,
    QuotaExceeded,
    RecordNotFound,
    WrongState,
)
from tidegate.files.model import READY, FilePath, Signature
from tidegate.files.model import name_of as name_of_path
from tidegate.projects.audit import AuditLine, act
from tidegate.records import F, Text, item_of
from tidegate.releases import Releases
from tidegate.releases.model import (
    DRIFTED,
    FAILED,
    HOST_FAILED,
    MOST_BYTES,
    MOST_RELEASES,
    MOST_TREE_BYTES,
    ROLLED_BACK,
    ROLLING,
    Host,
    HostFile,
    HostReport,
    Release,
    ReleaseFile,
    Revision,
    Selector,
    after_put,
    alarm_name,
    beyond_gse,
    counted,
    files_in_place,
    overlap,
    refused,
    rollback_number,
)
from tidegate.releases.rollout import hosts_of, next_sequence, paths_of, spec_of, start_watch, take_back

_QUOTA_RETRY_SECONDS = 3600
# A host of a release, its whole report, and its goal.
HostLine = tuple[Host, HostReport | None, int]
_NAMED = 5


@dataclass(frozen=True, slots=True)
class FileOrder:
    """A file of the library, by `file_id` or by `file_path` and `signature`, and where it belongs on a host."""

    target_file_dir: Annotated[FilePath, F("absolute path of the directory on the host", check=absolute_path)]
    target_user: Annotated[Text, F("owner of the file on the host")]
    file_id: Annotated[Text | None, F("id of the file")] = None
    file_path: Annotated[FilePath | None, F("path of the file in the library")] = None
    signature: Annotated[Signature | None, F("SHA-256 of the content, 64 hexadecimal digits")] = None
    mode: Annotated[
        str | None,
        F("permissions of the file on the host in octal, such as `0640`", pattern=r"^0?[0-7]{3}$", check=four_digits),
    ] = None
    unpack: Annotated[
        Literal["tar", "zip"] | None,
        F("the file is an archive, which hosts unpack below `target_file_dir`; those in it have their own modes"),
    ] = None


def put(
    r: Releases,
    project_id: str,
    order: Revision,
    files: Sequence[FileOrder],
    targets: Selector,
    who: str,
    *,
    is_admin: bool = False,
    keeps: bool = False,
) -> tuple[Release, bool]:
    """Makes `order` the desired revision of its release. Returns the release, and whether the revision is new.

    If the present revision has the same content, only the targets change. The number and the files in `order` are
    ignored: `files` names the files. `keeps`: whether the caller said how many revisions hosts keep."""
    for file in files:
        require_admin(file.target_file_dir, is_admin)
    if order.alarm:
        _require_alarm(r, project_id, alarm_name(order.alarm))
    before = r.store.get(project_id, order.name)
    now = r.clock()
    wanted = replace(
        order,
        files=tuple(_file(r, project_id, file, at) for at, file in enumerate(files)),
        created_at=iso(now),
        created_by=who,
    )
    _require_distinct(wanted.files)
    _require_small(wanted, targets)
    if not r.distribution.uses_agents:
        _require_gse(r, project_id, wanted, targets, keeps)
    if before is None:
        if len(r.store.all(project_id)) >= MOST_RELEASES:
            raise QuotaExceeded.for_limit("releases", MOST_RELEASES, _QUOTA_RETRY_SECONDS)
        latest = r.store.last_number(project_id, order.name)
        before = Release(
            project_id=project_id, name=order.name, targets=targets, latest=latest, opened=latest, created_at=iso(now)
        )
    changed = replace(before, targets=targets, updated_at=iso(now))
    _require_free_paths(r, changed, wanted)
    _require_allowed(r, changed, wanted)
    if before.version and _is_same(r, before, wanted):
        if targets == before.targets:
            return before, False
        line = act(project_id, order.name, now, who, "release.targets", f"revision {before.desired}")
        return _watched(r, before, changed, line), False
    wanted = replace(wanted, number=before.latest + 1, sequence=next_sequence(before, now))
    after = after_put(changed, wanted, now.timestamp())
    line = act(project_id, order.name, now, who, "release.put", f"revision {wanted.number}")
    saved = r.store.save(before, after, revision=wanted, line=line, due_at=now.timestamp())
    start_watch(r, saved)
    return saved, True


def _require_alarm(r: Releases, project_id: str, name: str) -> None:
    project = r.distribution.project_store.get(project_id)
    if project is None or not project.has_alarm(name):
        why = f"this project may not use the alarm {name}: an admin allows it with alarms of PATCH /v1/projects/{{id}}"
        raise Invalid(why, errors=[FieldError(loc=["body", "alarm"], msg=why)])


def _require_gse(r: Releases, project_id: str, revision: Revision, targets: Selector, keeps: bool) -> None:
    """Checks that GSE can fulfil this revision, and that the project may send it to these targets.

    Invalid or TargetNotGranted names what is wrong."""
    if lacks := beyond_gse(revision, targets) + ["keep"] * keeps:
        why = "is not possible with GSE, which only sends a file to named hosts and says how that ended"
        errors = [FieldError(loc=["body", *name.split(".")], msg=why) for name in lacks]
        raise Invalid(f"{', '.join(lacks)}: {why}. Leave it out", errors=errors)
    for file in revision.files:
        require_grant(r.distribution, project_id, spec_of(file, revision.name), [Target(one) for one in targets.agents])


def _require_agents(r: Releases, what: str) -> None:
    if not r.distribution.uses_agents:
        raise Invalid(f"{what} is not known with GSE: its hosts do not report what they have")


def _watched(r: Releases, before: Release, after: Release, line: AuditLine) -> Release:
    """Stores a change of the release. Unless the release is paused, starts an execution that tells the hosts.

    The former execution ends by itself."""
    after = replace(after, generation=before.generation + 1, updated_at=iso(r.clock()))
    due_at = None if after.paused else r.clock().timestamp()
    saved = r.store.save(before, after, line=line, due_at=due_at)
    if not saved.paused:
        start_watch(r, saved)
    return saved


def _is_same(r: Releases, release: Release, wanted: Revision) -> bool:
    if release.desired in release.withdrawn or release.status == ROLLED_BACK:
        return False
    return r.store.revision(release.project_id, release.name, release.desired).content == wanted.content


def _file(r: Releases, project_id: str, order: FileOrder, at: int) -> ReleaseFile:
    """The file that the caller ordered. FileNotFound if the library does not have its content."""
    if order.file_id:
        file = r.files.require(project_id, order.file_id)
        if file.state != READY or not file.signature:
            raise FileNotFound(f"the file {order.file_id} is not ready: it is {file.state}")
        place = (file.biz_id, file.app_id, file.file_path, file.file_name)
        signature, size = file.signature, file.size or 0
    elif order.file_path and order.signature:
        content = r.distribution.contents.get(project_id, order.signature)
        if content is None or content.state != READY:
            raise FileNotFound(f"no stored file has the signature {order.signature}: upload it first (POST /v1/files)")
        place = (0, 0, order.file_path, name_of_path(order.file_path))
        signature, size = order.signature, content.size
    else:
        raise _wrong_file(at, "needs file_id, or file_path and signature")
    if order.unpack and order.mode:
        raise _wrong_file(at, "mode does not apply to an archive: the files in it have their own")
    if order.unpack and size > MOST_TREE_BYTES:
        raise _wrong_file(at, f"is too large to be unpacked: {size} bytes, at most {MOST_TREE_BYTES}")
    return ReleaseFile(*place, signature, size, order.target_file_dir, order.target_user, order.mode, order.unpack)


def _wrong_file(at: int, why: str) -> Invalid:
    return Invalid(f"files[{at}] {why}", errors=[FieldError(loc=["body", "files", at], msg=why)])


def _require_distinct(files: Sequence[ReleaseFile]) -> None:
    for at, file in enumerate(files):
        before = [path for other in files[:at] for path in other.paths]
        if path := overlap(file.paths, before):
            raise _wrong_file(at, f"takes {path}, which another file of the release takes")


def _require_small(revision: Revision, targets: Selector) -> None:
    size = len(json.dumps([item_of(revision), targets.as_data()], ensure_ascii=False).encode())
    if size > MOST_BYTES:
        why = f"the files and targets of a release may have {MOST_BYTES:,} bytes, not {size:,}"
        raise Invalid(f"{why}: put many files into an archive (unpack), or name groups or labels instead of hosts")


def _require_free_paths(r: Releases, release: Release, revision: Revision) -> None:
    """PathTaken if another release has one of the revision's paths, and a host belongs to both releases."""
    others = [other for other in r.store.all(release.project_id) if other.name != release.name]
    rivals = [(other, path) for other in others if (path := overlap(revision.paths, paths_of(r, other)))]
    if not rivals:
        return
    # Hosts that are named need not be in the fleet yet; those of GSE never are.
    named = (FleetAgent(release.project_id, agent_id) for agent_id in release.targets.agents)
    for agent in (*r.distribution.fleet_store.memberships(release.project_id), *named):
        for other, path in rivals:
            if release.targets.has(agent) and other.targets.has(agent):
                raise PathTaken(f"the release {other.name} has {path} on the host {agent.agent_id}")


def _require_allowed(r: Releases, release: Release, revision: Revision) -> None:
    """Checks that connected hosts allow the revision's hooks and ports. HookNotAllowed names those that do not.

    Hosts that are offline are not checked. They report what they do not allow when they get the revision."""
    now, wanted = r.clock(), revision.needs
    if not wanted:
        return
    found = [
        f"{agent.agent_id} ({', '.join(missing)})"
        for agent in r.distribution.fleet_store.memberships(release.project_id, states=True)
        if release.targets.has(agent) and agent.state(now) == ONLINE and (missing := agent.forbids(wanted))
    ]
    if found:
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        raise HookNotAllowed(
            f"these hosts do not allow it: {', '.join(found[:_NAMED])}{more}; their operators do with --allow-hook or "
            "--allow-check of the agent"
        )


# --- looking


def show(r: Releases, project_id: str, name: str) -> tuple[Release, Revision, dict[str, int]]:
    """The release, its desired revision, and how many hosts are in each state. Counts the hosts' own reports."""
    release = r.store.require(project_id, name)
    revision = r.store.revision(project_id, name, release.desired)
    return release, revision, counted(hosts_of(r, release))


def hosts(
    r: Releases, project_id: str, name: str, state: str | None, limit: int, cursor: str | None
) -> Listed[HostLine]:
    """A page of the release's hosts with their reports and goals, sorted by host id.

    `state`: only hosts in this state; None: all hosts."""
    release = r.store.require(project_id, name)
    after = str(decode_cursor(cursor).get("after", {}).get("S", "")) if cursor else ""
    if cursor and not after:
        raise unknown_cursor()
    found = sorted(one for one in hosts_of(r, release) if one.agent_id > after and state in (None, one.state))
    page = found[:limit]
    # The index has no texts, because a look at all hosts reads it.
    whole = r.store.whole_reports(project_id, name, [host.agent_id for host in page])
    items = [(host, whole.get(host.agent_id), release.goal(host.agent_id)) for host in page]
    return Listed(items, encode_cursor({"after": {"S": page[-1].agent_id}}) if len(found) > limit else None)


def drift(r: Releases, project_id: str, name: str, limit: int, cursor: str | None) -> Listed[HostLine]:
    """The hosts on which a file of the release was changed."""
    _require_agents(r, "drift")
    return hosts(r, project_id, name, DRIFTED, limit, cursor)


def inventory(r: Releases, project_id: str, agent_id: str, limit: int, cursor: str | None) -> Listed[HostFile]:
    """A page of the files that releases have put on a host, as the host reported them. Sorted by release and path."""
    _require_agents(r, "what is on a host")
    agent = r.distribution.fleet.require(project_id, agent_id)
    position = decode_cursor(cursor) if cursor else {}
    after = tuple(str(position.get(name, {}).get("S", "")) for name in ("release", "path"))
    if cursor and not all(after):
        raise unknown_cursor()
    found: list[HostFile] = []
    for name, report in sorted(r.store.reports_of_host(project_id, agent_id).items()):
        is_old = bool(agent.life) and report.life != agent.life
        if name < after[0] or is_old or not report.in_place:
            continue
        try:
            revision = r.store.revision(project_id, name, report.in_place)
        except RecordNotFound:
            # It was deleted with a release of this name before.
            continue
        for file in files_in_place(report, revision):
            if (name, file.path) <= after:
                continue
            if len(found) == limit:
                last = {"release": {"S": found[-1].release}, "path": {"S": found[-1].path}}
                return Listed(found, encode_cursor(last))
            found.append(file)
    return Listed(found, None)


def user_of(r: Releases, project_id: str, signature: str) -> str | None:
    """The name of a release that still needs this content. None if no release does.

    A release needs the contents of its desired and of its former revision."""
    for release in r.store.all(project_id):
        for number in {release.desired, release.former} - {0}:
            files = r.store.revision(project_id, release.name, number).files
            if any(file.signature == signature for file in files):
                return release.name
    return None


# --- control


def roll_back(r: Releases, project_id: str, name: str, to: int | None, who: str, reason: str = "") -> Release:
    """Stores a new revision for all hosts at once, with the content of the revision that `rollback_number` chooses.

    If a wave opens meanwhile, this still succeeds. Conflict if another revision is put meanwhile."""
    before = r.store.require(project_id, name)
    number = rollback_number(before, r.store.revision_numbers(project_id, name), to)
    why = reason or f"taken back to the content of revision {number}"
    try:
        return _taken_back(r, before, number, why, who)
    except Conflict:
        now = r.store.require(project_id, name)
        if (now.desired, now.stable) != (before.desired, before.stable):
            raise
        return _taken_back(r, now, number, why, who)


def _taken_back(r: Releases, before: Release, number: int, why: str, who: str) -> Release:
    revision = r.store.revision(before.project_id, before.name, number)
    _require_free_paths(r, before, revision)
    saved = take_back(r, before, number, why, who)
    start_watch(r, saved)
    return saved


def pause(r: Releases, project_id: str, name: str, who: str) -> Release:
    """Pauses the roll-out. Until `resume`, hosts are sent nothing and activate nothing."""
    return _change(r, r.store.require(project_id, name), who, "release.pause", paused=True)


def resume(r: Releases, project_id: str, name: str, who: str) -> Release:
    """Continues a paused roll-out, or one that failed.

    If the revision failed, the hosts on which it has failed so far no longer count as failures."""
    before = r.store.require(project_id, name)
    if before.status == FAILED:
        left = tuple(number for number in before.withdrawn if number != before.desired)
        failed = sum((host.revision, host.state) == (before.desired, HOST_FAILED) for host in hosts_of(r, before))
        more: dict[str, Any] = {"withdrawn": left, "status": ROLLING, "reason": None, "excused": failed}
    elif before.paused:
        more = {}
    else:
        raise WrongState(f"the release {name} is {before.shown_status}: there is nothing to resume")
    again = {"wave_at": r.clock().timestamp(), "held_since": None}
    return _change(r, before, who, "release.resume", paused=False, **again, **more)


def activate(r: Releases, project_id: str, name: str, who: str) -> Release:
    """Lets hosts put the staged revision in place."""
    before = r.store.require(project_id, name)
    if before.opened >= before.desired:
        raise WrongState(f"revision {before.desired} of {name} is active already, or becomes so on arrival")
    again = {"wave_at": r.clock().timestamp(), "held_since": None}
    return _change(r, before, who, "release.activate", opened=before.desired, **again)


def judge(r: Releases, project_id: str, name: str, passed: bool, reason: str, who: str) -> Release:
    """Applies the caller's verdict to the present wave. The wave fails, or passes without waiting for its soak time."""
    before = r.store.require(project_id, name)
    if not before.is_rolling:
        raise WrongState(f"the release {name} is {before.shown_status}: no wave waits for a verdict")
    if passed:
        return _change(r, before, who, "release.gate", held_since=0.0)
    why = reason or "the caller's gate did not pass"
    revision = r.store.revision(project_id, name, before.desired)
    failed = refused(before, revision, why)
    if failed.desired != before.desired:
        return _taken_back(r, before, before.stable, why, who)
    verdict = {"status": failed.status, "reason": why, "withdrawn": failed.withdrawn}
    return _change(r, before, who, "release.gate", **verdict)


def remove(r: Releases, project_id: str, name: str, who: str) -> None:
    """Deletes the release. The files stay on the hosts."""
    release, now = r.store.require(project_id, name), r.clock()
    line = act(project_id, name, now, who, "release.delete", f"revision {release.desired}")
    r.store.remove(release, line, now.timestamp())


def _change(r: Releases, before: Release, who: str, action: str, **sets: Any) -> Release:
    """Stores these fields of the release. Conflict if the release has changed since `before` was read."""
    after = replace(before, **sets)
    states = (before.shown_status, after.shown_status)
    line = act(before.project_id, before.name, r.clock(), who, action, f"revision {before.desired}", states=states)
    return _watched(r, before, after, line)
