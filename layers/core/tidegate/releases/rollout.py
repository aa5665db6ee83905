"""How a revision gets to its hosts: they are told, ask for their goal, get what they miss, and report.

A push says nothing but "ask": the host's question is answered from a consistent read, so that a withdrawn revision
does not come back. The steps may run twice, late, or die anywhere: the release record is the state."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from aws_lambda_powertools import Logger
from botocore.exceptions import BotoCoreError, ClientError

from tidegate.aws.clients import alarm_state
from tidegate.common.ids import digest, iso
from tidegate.distribution.fleet import spread_seconds, wake_soon
from tidegate.distribution.model import FleetAgent, Target, TransferSpec
from tidegate.distribution.submit import submit
from tidegate.errors import Conflict, DomainError, PathTaken
from tidegate.notifications.notices import Notice, notice_id_for
from tidegate.projects.audit import SYSTEM, act
from tidegate.releases import Releases
from tidegate.releases.model import (
    ALARM,
    CONVERGED,
    DRIFTED,
    FAILED,
    HOST_FAILED,
    OK,
    QUIET,
    STAGED,
    UNREADABLE,
    WATCHED_SECONDS,
    AlarmSays,
    Host,
    HostReport,
    Release,
    Revision,
    alarm_name,
    counted,
    decide,
    goals_digest,
    host_of,
    next_look,
    overlap,
    withdrawn,
)

logger = Logger(service="tidegate", child=True)
_REMEMBERED_SECONDS = 10.0
_REMEMBERED_PROJECTS = 500
# An execution may have 25,000 events; one look takes about nine.
_LOOKS_AN_EXECUTION = 2000
# Compensation looks after a roll-out whose execution has not looked for this long.
_MISSED_SECONDS = 120
_FROZEN_SECONDS = 60
# More hosts than this are found by a look at the whole fleet.
_READ_ALONE = 1000


# --- telling hosts


def hosts_of(r: Releases, release: Release) -> list[Host]:
    """Every host that the release is for, as its own last report shows it."""
    now = r.clock()
    reports = {one.agent_id: one for one in r.store.reports(release.project_id, release.name)}
    return [
        host_of(release, agent, reports.get(agent.agent_id), now)
        for agent in r.distribution.fleet_store.memberships(release.project_id, states=True)
        if release.targets.has(agent)
    ]


def tell(r: Releases, release: Release, hosts: Sequence[Host] | None = None) -> int:
    """Tells connected hosts that have not reached their goal to ask for it. Never raises: later looks repeat it."""
    if release.paused:
        return 0
    found = hosts_of(r, release) if hosts is None else hosts
    behind = [
        host.agent_id
        for host in found
        if host.online
        and (host.revision < release.goal(host.agent_id) or (host.state == STAGED and not release.holds(host.revision)))
    ]
    if behind:
        d = r.distribution
        spread = spread_seconds(len(behind), d.settings.fleet_rate)
        wake_soon(d, release.project_id, behind, spread, directly=True, releases=True)
    return len(behind)


# --- what hosts ask and report


@dataclass(frozen=True, slots=True)
class Goal:
    """What a host should have. `hold`: it stages the files and does not put them in place yet.

    `sending`: the contents that are on their way to it now, by signature."""

    revision: Revision
    hold: bool
    sending: tuple[str, ...] = ()


def differs(r: Releases, project_id: str, agent: FleetAgent | None, told: str | None) -> bool:
    """Whether a host's goals are others than those that it was given last. From a list that may be some seconds old."""
    if agent is None or told is None:
        return False
    return goals_digest(_goals(_recent(r, project_id), agent)) != told


def _recent(r: Releases, project_id: str) -> list[Release]:
    """The project's releases of some seconds ago."""
    now = r.clock().timestamp()
    until, releases = r.remembered.get(project_id, (0.0, []))
    if until <= now:
        if len(r.remembered) > _REMEMBERED_PROJECTS:
            r.remembered.clear()
        releases = r.store.all(project_id)
        r.remembered[project_id] = (now + _REMEMBERED_SECONDS, releases)
    return releases


def require_free_path(r: Releases, project_id: str, path: str, agent_ids: Collection[str]) -> None:
    """PathTaken if a release has this path on one of the hosts, as far as it is known here: hosts refuse it too."""
    rivals = [release for release in _recent(r, project_id) if overlap([path], release.paths)]
    if not rivals:
        return
    store = r.distribution.fleet_store
    if len(agent_ids) <= _READ_ALONE:
        known = store.get_many(project_id, agent_ids)
    else:
        known = {agent.agent_id: agent for agent in store.memberships(project_id)}
    for agent_id in agent_ids:
        agent = known.get(agent_id) or FleetAgent(project_id, agent_id)
        for release in rivals:
            if release.targets.has(agent):
                raise PathTaken(
                    f"the release {release.name} has {path} on the host {agent_id}: change that release, or use force"
                )


def _goals(releases: Sequence[Release], agent: FleetAgent) -> Iterator[tuple[str, int, bool]]:
    for release in releases:
        if release.targets.has(agent) and (number := release.goal(agent.agent_id)):
            yield release.name, number, release.holds(number)


def ask(
    r: Releases,
    project_id: str,
    agent: FleetAgent,
    reports: Sequence[HostReport],
    has: Collection[str],
) -> list[Goal]:
    """Stores the host's reports and returns its goals. What it misses of them is sent to it by the window's Jobs.

    `has`: the contents that the host has, or that were sent to it a moment ago, by signature."""
    known = r.store.reports_of_host(project_id, agent.agent_id)
    releases = {release.name: release for release in r.store.all(project_id) if release.targets.has(agent)}
    for report in reports:
        release = releases.get(report.name)
        # Nobody has a revision that was never put: the host's word would count for every later one.
        if release is None or max(report.revision, report.placed or 0) > release.latest:
            continue
        if report.is_news(known.get(report.name)) and r.store.report(report):
            known[report.name] = report
    if left := [name for name in known if name not in releases]:
        # The release was deleted, or the host is no longer one of its targets. Its files stay.
        r.store.forget_host(project_id, agent.agent_id, left)
    frozen = r.distribution.freeze.is_on
    goals = []
    for release in releases.values():
        number = release.goal(agent.agent_id)
        if not number:
            continue
        goal = Goal(r.store.revision(project_id, release.name, number), frozen or release.holds(number))
        last = known.get(release.name)
        reached = last is not None and last.life == agent.life and last.revision >= number
        if last is not None and last.state == DRIFTED and goal.revision.heal:
            reached = False
        if not (reached or release.paused or frozen):
            goal = replace(goal, sending=_send_missing(r, project_id, agent, goal.revision, has))
        goals.append(goal)
    return goals


def _send_missing(
    r: Releases, project_id: str, agent: FleetAgent, revision: Revision, has: Collection[str]
) -> tuple[str, ...]:
    """Hosts that ask in the same seconds share a window's Job, and so a swarm. Returns what was sent."""
    sent: list[str] = []
    for file in revision.files:
        if file.signature in has:
            continue
        spec = TransferSpec(
            file.biz_id,
            file.app_id,
            file.file_path,
            file.file_name,
            file.signature,
            file.target_user,
            file.target_file_dir,
            mode=file.mode,
            release=revision.name,
        )
        try:
            # Nobody asked for the single host: no line in the audit trail. Directories were checked at the put.
            submit(r.distribution, project_id, spec, [Target(agent.agent_id)], action="", is_admin=True)
        except DomainError as error:
            # The host asks again; meanwhile the others of the release go on.
            logger.warning("a file of a release was not sent", release=revision.name, reason=error.detail)
        else:
            sent.append(file.signature)
    return tuple(sent)


# --- watching a roll-out


def start_watch(r: Releases, release: Release) -> None:
    """Starts the execution that looks at the hosts until the revision is converged or taken back."""
    data = {"project_id": release.project_id, "name": release.name, "step": _step("wait", 0, 0, release)}
    try:
        r.distribution.machines.start(r.machine_arn, _execution(r, release), data)
    except Exception:
        # The release is due: compensation starts it.
        logger.exception("the roll-out is not watched yet; compensation will start it", release=release.name)


def _execution(r: Releases, release: Release) -> str:
    ids = digest(release.project_id, release.name, length=40)
    return f"{ids}-{release.desired}-{release.generation}{r.distribution.freeze.timeline}"


def _step(state: str, wait: int, looks: int, release: Release) -> dict[str, Any]:
    step = {"state": state, "wait": wait, "looks": looks}
    return step | {"revision": release.desired, "generation": release.generation}


def look(r: Releases, project_id: str, name: str, number: int, generation: int, looks: int) -> dict[str, Any]:
    """One look at the hosts of a roll-out. `state`: wait, or done, if the release needs no more looks of this
    execution. It goes on with the revision that takes this one back."""
    release = r.store.get(project_id, name)
    if release is None or (release.desired, release.generation) != (number, generation):
        return {"state": "done", "wait": 0, "looks": 0, "revision": number, "generation": generation}
    if r.distribution.freeze.is_on:
        # Not counted: a freeze may last for hours.
        return _step("wait", _FROZEN_SECONDS, looks, release)
    now = r.clock()
    revision = r.store.revision(project_id, name, number)
    release = _opened_in_time(release, revision, now)
    hosts = hosts_of(r, release)
    after = decide(release, revision, hosts, now.timestamp(), _alarm(r, release, revision))
    if after.withdrawn != release.withdrawn:
        after = replace(after, reason=f"{after.reason}{_words_of_a_host(r, release, hosts)}"[:500])
    if after.desired != number:
        return _step("wait", 1, 0, _take_back(r, release, after.reason or ""))
    counts = counted(hosts)
    over = _is_over(after, hosts, now)
    wait = next_look(after, now.timestamp())
    try:
        after = r.store.save(
            release,
            replace(after, counts=counts, updated_at=iso(now) if after != release else after.updated_at),
            due_at=None if over else now.timestamp() + wait + _MISSED_SECONDS,
            line=_line(release, after, now),
            notice=_notice(release, after, now),
        )
    except Conflict:
        # Somebody changed the release meanwhile: the next look sees what it is now.
        return _step("wait", 2, looks + 1, release)
    tell(r, after, hosts if after.share == release.share and after.opened == release.opened else None)
    # Compensation starts the next execution.
    is_last = over or looks + 1 >= _LOOKS_AN_EXECUTION
    return _step("done" if is_last else "wait", wait, looks + 1, after)


def _alarm(r: Releases, release: Release, revision: Revision) -> AlarmSays:
    """What the revision's alarm says, if it has one and a wave waits for it."""
    if revision.alarm is None or release.paused or not release.is_rolling:
        return QUIET
    name = alarm_name(revision.alarm)
    project = r.distribution.project_store.get(release.project_id, consistent=True)
    if project is None or not project.has_alarm(name):
        return AlarmSays(UNREADABLE, f"the roll-out waits: this project may no longer use the alarm {name}")
    try:
        found = alarm_state(r.cloudwatch, name, revision.alarm if revision.alarm != name else None)
    except (BotoCoreError, ClientError) as error:
        return AlarmSays(UNREADABLE, f"the roll-out waits: the alarm {name} cannot be read: {error}"[:500])
    if found is None:
        return AlarmSays(UNREADABLE, f"the roll-out waits: there is no alarm {revision.alarm}")
    state, why = found
    if state in (ALARM, OK):
        return AlarmSays(state, f"the alarm {name} is in ALARM: {why}"[:500])
    return AlarmSays(state, f"the roll-out waits: the alarm {name} is in {state}")


def _words_of_a_host(r: Releases, release: Release, hosts: Sequence[Host]) -> str:
    """What one of the hosts said that failed: it reports on the next revision soon, which replaces its words."""
    failed = [one.agent_id for one in hosts if (one.revision, one.state) == (release.desired, HOST_FAILED)][:1]
    for report in r.store.whole_reports(release.project_id, release.name, failed).values():
        output = str((report.health or report.hook or {}).get("output", "")).strip().splitlines()
        return ": " + "; ".join(filter(None, (report.reason, *output[-1:])))
    return ""


def _opened_in_time(release: Release, revision: Revision, now: datetime) -> Release:
    """The release with its revision opened, if the time of its activation has come."""
    if release.opened >= release.desired or revision.activate in ("now", "manual"):
        return release
    if datetime.fromisoformat(revision.activate) > now:
        return release
    return replace(release, opened=release.desired, wave_at=now.timestamp(), held_since=None)


def _is_over(release: Release, hosts: Sequence[Host], now: datetime) -> bool:
    """Whether nobody needs to be told any more: connected hosts have reached their goal, or were told for an hour."""
    if release.paused:
        return True
    if release.is_rolling:
        return False
    behind = any(host.online and host.revision < release.goal(host.agent_id) for host in hosts)
    return not behind or now.timestamp() - release.wave_at > WATCHED_SECONDS


def _take_back(r: Releases, release: Release, reason: str) -> Release:
    """The release with a revision of the stable content; as it is, if somebody changed it meanwhile."""
    try:
        return take_back(r, release, release.stable, reason, SYSTEM)
    except Conflict:
        return release


def take_back(r: Releases, before: Release, number: int, why: str, who: str) -> Release:
    """Stores a new revision with the content of revision `number`, for all hosts at once."""
    now = r.clock()
    source = r.store.revision(before.project_id, before.name, number)
    after = withdrawn(before, why)
    copy = replace(
        source, number=after.desired, rollback_to=number, waves=(), created_at=iso(now), created_by=who, note=why[:500]
    )
    after = replace(after, paths=copy.paths, updated_at=iso(now), wave_at=now.timestamp(), paused=False)
    line = act(before.project_id, before.name, now, who, "release.rollback", why)
    notice = notice_of(after, "release.rolled_back", now)
    return r.store.save(before, after, revision=copy, line=line, due_at=now.timestamp(), notice=notice)


def _line(before: Release, after: Release, now: datetime) -> Any:
    if (before.status, before.wave) == (after.status, after.wave):
        return None
    why = after.reason or f"revision {after.desired}, wave {after.wave + 1}"
    states = (before.shown_status, after.shown_status)
    return act(after.project_id, after.name, now, SYSTEM, "release.wave", why, states=states)


def _notice(before: Release, after: Release, now: datetime) -> Notice | None:
    if before.status == after.status or after.status not in (CONVERGED, FAILED):
        return None
    return notice_of(after, f"release.{after.status}", now)


def notice_of(release: Release, kind: str, now: datetime) -> Notice:
    record = f"release:{release.name}"
    data = {
        "name": release.name,
        "revision": release.desired,
        "status": release.shown_status,
        "reason": release.reason,
        "counts": dict(release.counts),
    }
    notice_id = notice_id_for(kind, record, str(release.desired))
    return Notice(notice_id, release.project_id, kind, record, release.status, data, None, now)


def restart_if_dead(r: Releases, project_id: str, name: str) -> bool:
    """Starts another execution if the one that watches the roll-out has died. Returns whether it did."""
    release = r.store.get(project_id, name)
    if release is None:
        return False
    now = r.clock().timestamp()
    status = r.distribution.machines.status(r.machine_arn, _execution(r, release))
    if status == "RUNNING":
        r.store.save(release, release, due_at=now + _MISSED_SECONDS)
        return False
    if status is not None:
        release = replace(release, generation=release.generation + 1)
    saved = r.store.save(release, release, due_at=now + _MISSED_SECONDS)
    start_watch(r, saved)
    return True
