"""How a revision gets to its hosts.

Hosts are told to ask. They get their goals and the files that they lack, and they report. The message to a host says
only "ask". The answer comes from a consistent read, so that a withdrawn revision does not come back. Each step may run
twice, run late, or die, because all state is in the release record."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from aws_lambda_powertools import Logger
from botocore.exceptions import BotoCoreError, ClientError

from tidegate.aws.clients import alarm_state
from tidegate.common.ids import digest, iso
from tidegate.common.token_bucket import TokenBucket
from tidegate.distribution.fleet import is_time_to_repeat, spread_seconds, wake_soon
from tidegate.distribution.model import FleetAgent, Target, TransferSpec
from tidegate.distribution.submit import submit
from tidegate.errors import Conflict, DomainError, PathTaken, RecordNotFound
from tidegate.files.model import READY
from tidegate.notifications.notices import Notice, notice_id_for
from tidegate.projects.audit import SYSTEM, act
from tidegate.projects.model import READ_UNITS
from tidegate.records import item_of
from tidegate.releases import Releases
from tidegate.releases.model import (
    ALARM,
    BEHIND,
    CONVERGED,
    CURRENT,
    DRIFTED,
    FAILED,
    GONE,
    GONE_DAYS,
    HOST_FAILED,
    OK,
    QUIET,
    SLOWEST_LOOK,
    STAGED,
    UNREADABLE,
    WATCHED_SECONDS,
    AlarmSays,
    Host,
    HostReport,
    Release,
    ReleaseFile,
    Revision,
    after_sent,
    alarm_name,
    beyond_gse,
    counted,
    decide,
    goals_digest,
    host_of,
    is_due,
    next_look,
    overlap,
    sent_host,
    withdrawn,
)

logger = Logger(service="tidegate", child=True)
_REMEMBERED_SECONDS, _SEEN_SECONDS = 10.0, 1.0
_REMEMBERED_PROJECTS = 500
_REMEMBERED_HOSTS = 50_000
# So many times a host is sent what it says it lacks of a revision, and then once in so many seconds: it counts towards
# the project's targets of the day, which a single host must not use up.
_SENT_AT_ONCE, _SENT_EVERY = 30, 300
# An execution may have 25,000 events; one look takes about nine.
_LOOKS_AN_EXECUTION = 2000
# Compensation looks after a roll-out whose execution has not looked for this long.
_MISSED_SECONDS = 120
_FROZEN_SECONDS = 60
# Hosts that are behind are told again after this time, since what they were told may be lost; then after twice as long,
# and so on. They ask again by themselves, and each time costs a call of every host.
_TOLD_AGAIN_SECONDS = 60.0
# Added to the wait between two looks. Too long tells hosts twice, too short would skip a time.
_LOOK_TAKES = 2.0
# With no host online, the time to the next look is so many times as long, and at most this.
_NOBODY, _NOBODY_SECONDS = 10, 300
# More hosts than this are found by a look at the whole fleet.
_READ_ALONE = 1000
# A look that is farther away than this counts as several, because executions end.
_LOOK_SECONDS = 300
# What a look counts as, of the project's runner-hours: three transitions and a function; so many bytes of a release,
# which each look stores, and its reads cost as much as another second.
RUNNER_SECONDS, RUNNER_BYTES = 4, 8000
# When these hours are used up, the next look is so many times as far away as this one counts for.
SELDOM = 600
Reports = Mapping[str, HostReport]


# --- telling hosts


def hosts_of(r: Releases, release: Release, sent: Reports | None = None) -> list[Host]:
    """All hosts of the release with their states, from their last reports.

    `sent`: the reports on GSE's hosts, if they were read already; None: they are read."""
    now = r.clock()
    if not r.distribution.uses_agents:
        known = sent if sent is not None else _sent_reports(r, release)
        return [sent_host(release, host, known.get(host), now) for host in dict.fromkeys(release.targets.agents)]
    reports = {one.agent_id: one for one in r.store.reports(release.project_id, release.name)}
    return [
        host_of(release, agent, reports.get(agent.agent_id), now)
        for agent in r.distribution.fleet_store.memberships(release.project_id, states=True)
        if release.targets.has(agent)
    ]


def tell(r: Releases, release: Release, hosts: Sequence[Host] | None = None, waited: float | None = None) -> None:
    """Tells connected hosts to ask for their goal, if they have not reached it. Never raises.

    Later looks tell the hosts again. `hosts`: the hosts as they were just read; None: they are read. `waited`: seconds
    since the look before; None if hosts have not been told of this change yet."""
    if release.paused or not r.distribution.uses_agents:
        return
    found = hosts_of(r, release) if hosts is None else hosts
    behind = [
        host.agent_id
        for host in found
        if host.online
        and (host.revision < release.goal(host.agent_id) or (host.state == STAGED and not release.holds(host.revision)))
    ]
    d = r.distribution
    spread, age = spread_seconds(len(behind), d.settings.fleet_rate), r.clock().timestamp() - release.wave_at
    if waited is None or is_time_to_repeat(age, waited + _LOOK_TAKES, spread, _TOLD_AGAIN_SECONDS):
        wake_soon(d, release.project_id, behind, spread, directly=True, releases=True)


def tell_host(r: Releases, project_id: str, agent_id: str) -> None:
    """Tells a host whose groups or labels have changed to ask for its goals. Its releases may be others now."""
    if r.distribution.uses_agents and r.store.all(project_id):
        wake_soon(r.distribution, project_id, [agent_id], 0, releases=True)


# --- what hosts ask and report


@dataclass(frozen=True, slots=True)
class Goal:
    """The revision that a host should have. `hold`: whether the host only stages the files for now.

    `sending`: the signatures of contents that are being sent to the host."""

    revision: Revision
    hold: bool
    sending: tuple[str, ...] = ()


def differs(r: Releases, project_id: str, agent: FleetAgent | None, told: str | None) -> bool:
    """Whether the host's goals have changed. `told`: the digest of the goals that the host knows.

    Compares with a list of releases that may be some seconds old. False if `told` is None, because the host sent no
    digest."""
    if agent is None or told is None or not r.distribution.uses_agents:
        return False
    # A list from before a put would let each host ask once more that has asked since: it is read again.
    lists = (_recent(r, project_id, seconds) for seconds in (_REMEMBERED_SECONDS, _SEEN_SECONDS))
    return all(goals_digest(_goals(releases, agent)) != told for releases in lists)


def _recent(r: Releases, project_id: str, seconds: float = _REMEMBERED_SECONDS) -> list[Release]:
    """The project's releases, from a list that is at most `seconds` old."""
    now = r.clock().timestamp()
    read_at, releases = r.remembered.get(project_id, (0.0, []))
    if now - read_at >= seconds:
        if len(r.remembered) > _REMEMBERED_PROJECTS:
            r.remembered.clear()
        releases = r.store.all(project_id)
        r.remembered[project_id] = (now, releases)
    return releases


def require_free_path(r: Releases, project_id: str, path: str, agent_ids: Collection[str]) -> None:
    """PathTaken if a release owns this path on one of the hosts.

    Checks a list of releases that may be some seconds old. If a newer release owns the path, the host itself refuses
    it."""
    rivals = [release for release in _recent(r, project_id) if overlap([path], paths_of(r, release))]
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


def paths_of(r: Releases, release: Release) -> tuple[str, ...]:
    """The paths that the release may have on hosts. During a roll-out, these include those of the former revision."""
    if release.former in (0, release.desired):
        return release.paths
    try:
        return (*release.paths, *r.store.revision(release.project_id, release.name, release.former).paths)
    except RecordNotFound:
        # The release was deleted a moment ago.
        return release.paths


def _goals(releases: Sequence[Release], agent: FleetAgent) -> Iterator[tuple[str, int, bool]]:
    for release in releases:
        if release.targets.has(agent) and (number := release.goal(agent.agent_id)):
            yield release.name, number, release.holds(number)


def ask(
    r: Releases, project_id: str, agent: FleetAgent, reports: Sequence[HostReport], has: Collection[str]
) -> list[Goal]:
    """Stores the host's reports and returns the host's goals. Starts sending the files that the host lacks.

    `has`: signatures of contents that the host has, or that were sent to it a moment ago."""
    if not r.distribution.uses_agents:
        return []
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
        try:
            revision = r.store.revision(project_id, release.name, number)
        except RecordNotFound:
            # The release was deleted a moment ago: the host's other releases go on.
            continue
        goal = Goal(revision, frozen or release.holds(number))
        last = known.get(release.name)
        # A host with staged files is sent those that it lost since.
        reached = last is not None and last.life == agent.life and last.revision >= number and last.state != STAGED
        if last is not None and last.state == DRIFTED and goal.revision.heal:
            reached = False
        if not (reached or release.paused or frozen):
            goal = replace(goal, sending=_send_missing(r, project_id, agent, goal.revision, has))
        goals.append(goal)
    return goals


def _send_missing(
    r: Releases, project_id: str, agent: FleetAgent, revision: Revision, has: Collection[str]
) -> tuple[str, ...]:
    """Submits the files that the host lacks, and returns their signatures.

    Hosts that ask within one window share a Job, and so one swarm."""
    sent: list[str] = []
    missing = [file for file in revision.files if file.signature not in has]
    if not missing or not _may_be_sent(r, project_id, agent.agent_id, revision):
        return ()
    for file in missing:
        spec = spec_of(file, revision.name)
        try:
            # Nobody asked for the single host: no line in the audit trail. Directories were checked at the put.
            submit(r.distribution, project_id, spec, [Target(agent.agent_id)], action="", is_admin=True)
        except DomainError as error:
            # The host asks again; meanwhile the others of the release go on.
            logger.warning("a file of a release was not sent", release=revision.name, reason=error.detail)
        else:
            sent.append(file.signature)
    return tuple(sent)


def _may_be_sent(r: Releases, project_id: str, agent_id: str, revision: Revision) -> bool:
    """Whether the host may be sent files of this revision again. False if it has asked too often.

    Each process counts only the requests that it has seen itself."""
    now, place = r.clock().timestamp(), (project_id, agent_id, revision.name, revision.number)
    if place not in r.asked:
        if len(r.asked) >= _REMEMBERED_HOSTS:
            r.asked.clear()
        r.asked[place] = TokenBucket(1 / _SENT_EVERY, now, burst_seconds=_SENT_AT_ONCE * _SENT_EVERY)
    return r.asked[place].take(now) == 0


def spec_of(file: ReleaseFile, release: str) -> TransferSpec:
    place = (file.biz_id, file.app_id, file.file_path, file.file_name, file.signature)
    return TransferSpec(*place, file.target_user, file.target_file_dir, mode=file.mode, release=release)


# --- hosts that GSE sends to


def _sent_reports(r: Releases, release: Release) -> dict[str, HostReport]:
    return r.store.whole_reports(release.project_id, release.name, dict.fromkeys(release.targets.agents))


def _take_results(r: Releases, release: Release) -> dict[str, HostReport]:
    """Stores the results of ended transfers in the hosts' reports. Returns the reports by host."""
    known = _sent_reports(r, release)
    tasks = {report.task: report for report in known.values() if report.task}
    results = r.distribution.lookup.tasks_by_id(release.project_id, list(tasks)) if tasks else {}
    for task, report in tasks.items():
        after = after_sent(report, results.get(task, {}), r.clock())
        if after is not report and r.store.report(after):
            known[report.agent_id] = after
    return known


def _send_by_gse(r: Releases, release: Release, known: Reports) -> None:
    """Has GSE send each host its goal, if the host needs it. Hosts that need the same revision share a Job.

    After a crash before the reports are stored, the same content is sent again, which is harmless. If a late look sends
    an older revision, the sequence of that revision stops the transfer before it begins."""
    if release.paused:
        return
    now = r.clock()
    due: dict[int, list[str]] = defaultdict(list)
    for host in dict.fromkeys(release.targets.agents):
        if is_due(known.get(host), goal := release.goal(host), now.timestamp()):
            due[goal].append(host)
    for number, hosts in due.items():
        revision = r.store.revision(release.project_id, release.name, number)
        missing = [host for host in hosts if not _adopts(r, known.get(host), revision)]
        if lacks := beyond_gse(revision, release.targets):
            # The engine of the installation was another one at the put.
            logger.warning("GSE cannot do what a release asks for", release=release.name, lacks=lacks)
        elif missing:
            _send_file(r, release, revision, {host: known.get(host) for host in missing})


def _adopts(r: Releases, report: HostReport | None, revision: Revision) -> bool:
    """Stores that the host has this revision, if the host already has its content. Returns whether it was stored.

    The host has that content if this revision is a rollback to the one that the host has, and if the host was sent
    nothing since."""
    if report is None or report.state != CURRENT or not report.sent == report.revision == revision.rollback_to:
        return False
    return r.store.report(
        replace(report, revision=revision.number, sent=revision.number, reported_at=iso(r.clock()), tries=0)
    )


def _send_file(r: Releases, release: Release, revision: Revision, known: Mapping[str, HostReport | None]) -> None:
    targets = [Target(host) for host in known]
    sequences = dict.fromkeys(targets, revision.sequence)
    # The number, so that each revision has its own Job: one of an older revision was opened before this one was put.
    spec = spec_of(revision.files[0], f"{revision.name}@{revision.number}")
    try:
        made = submit(r.distribution, release.project_id, spec, targets, action="", is_admin=True, sequences=sequences)
    except DomainError as error:
        logger.warning("a file of a release was not sent", release=release.name, reason=error.detail)
        return
    for task in made.tasks:
        host = task.target.agent_id
        new = HostReport(
            project_id=release.project_id, agent_id=host, name=release.name, life=0, revision=0, state=BEHIND
        )
        last = known[host] or new
        tries = last.tries if last.sent == revision.number else 0
        r.store.report(replace(last, sent=revision.number, task=task.uuid, tries=tries, try_at=0))


def _next_try(release: Release, known: Reports, now: float) -> int:
    """Seconds until a host may be sent its goal again. 0 if a host may be sent it now, or if no host still needs it."""
    left = [
        report.try_at - now
        for host, report in known.items()
        if is_due(report, release.goal(host), math.inf) or report.task
    ]
    return max(0, min(SLOWEST_LOOK, math.ceil(min(left, default=0))))


# --- watching a roll-out


def start_watch(r: Releases, release: Release) -> None:
    """Starts the execution that watches the hosts until the revision has converged or is taken back."""
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


def look(
    r: Releases, project_id: str, name: str, number: int, generation: int, looks: int, waited: int
) -> dict[str, Any]:
    """Looks once at the hosts of a roll-out. Stores what follows from their states, and acts on it.

    Returns the step's result. Its `state` is "done" if this execution need not look again, else "wait". After a
    rollback, the execution goes on with the new revision. `waited`: seconds since the look before."""
    release = known = r.store.get(project_id, name)
    if release is None or known is None or (release.desired, release.generation) != (number, generation):
        return {"state": "done", "wait": 0, "looks": 0, "revision": number, "generation": generation}
    if r.distribution.freeze.is_on:
        # Not counted: a freeze may last for hours.
        return _step("wait", _FROZEN_SECONDS, looks, release)
    now, units_before = r.clock(), r.table.units_read
    revision = r.store.revision(project_id, name, number)
    release = _opened_in_time(release, revision, now)
    sent = None if r.distribution.uses_agents else _take_results(r, release)
    hosts = hosts_of(r, release, sent)
    after = decide(release, revision, hosts, now.timestamp(), _alarm(r, release, revision))
    if after.withdrawn != release.withdrawn:
        after = replace(after, reason=f"{after.reason}{_words_of_a_host(r, release, hosts)}"[:500])
    if after.desired != number:
        return _step("wait", 1, 0, _take_back(r, release, after.reason or ""))
    counts = counted(hosts)
    over = _is_over(after, hosts, now, sent)
    wait = next_look(after, revision, now.timestamp())
    if not any(host.online for host in hosts):
        wait = max(wait, min(_NOBODY * wait, _NOBODY_SECONDS))
    wait = _paid(r, after, wait, r.table.units_read - units_before)
    if sent is not None and not after.is_rolling:
        wait = max(wait, _next_try(after, sent, now.timestamp()))
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
        return _step("wait", 2, looks, release)
    if sent is not None:
        _send_by_gse(r, after, sent)
    is_first = looks == 0 or (after.share, after.opened) != (known.share, known.opened)
    tell(r, after, hosts if after.share == release.share else None, None if is_first else waited)
    # Compensation starts the next execution.
    looks += max(1, wait // _LOOK_SECONDS)
    is_last = over or looks >= _LOOKS_AN_EXECUTION
    return _step("done" if is_last else "wait", wait, looks, after)


def _paid(r: Releases, release: Release, wait: int, units_read: float) -> int:
    """Charges a look to the project's runner-hours, and returns the seconds until the next look.

    Without runner-hours left, looks at a roll-out are rare. They never stop, because a failed wave must be taken
    back."""
    stored = len(json.dumps(item_of(release)))
    seconds = math.ceil(RUNNER_SECONDS + stored / RUNNER_BYTES + units_read / READ_UNITS)
    left = r.runner_time.spend(release.project_id, seconds)
    return wait if left is None else max(wait, min(SELDOM * seconds, left))


def _alarm(r: Releases, release: Release, revision: Revision) -> AlarmSays:
    """The state of the revision's alarm. QUIET if the revision has no alarm, or if no wave is being rolled out."""
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
    """The reason and the last output line that one failed host reported, as text. Empty if no host has failed.

    The text is taken now, because the host's next report replaces it."""
    failed = [one.agent_id for one in hosts if (one.revision, one.state) == (release.desired, HOST_FAILED)][:1]
    for report in r.store.whole_reports(release.project_id, release.name, failed).values():
        output = str((report.health or report.hook or {}).get("output", "")).strip().splitlines()
        return ": " + "; ".join(filter(None, (report.reason, *output[-1:])))
    return ""


def _opened_in_time(release: Release, revision: Revision, now: datetime) -> Release:
    """The release. Its revision is opened for activation if the time for that has come."""
    if release.opened >= release.desired or revision.activate in ("now", "manual"):
        return release
    if datetime.fromisoformat(revision.activate) > now:
        return release
    return replace(release, opened=release.desired, wave_at=now.timestamp(), held_since=None)


def _is_over(release: Release, hosts: Sequence[Host], now: datetime, sent: Reports | None) -> bool:
    """Whether the roll-out needs no more looks.

    Paused: no more looks. A wave is in progress: more looks. Otherwise, looks go on until all connected hosts have
    their goal, or until an hour after the last change of the share.

    GSE's hosts do not ask when they return. So GSE tries to send to them until they have their goal or count as
    gone."""
    if release.paused:
        return True
    if release.is_rolling:
        return False
    if sent is not None:
        gone = {host.agent_id for host in hosts if host.state == GONE}
        goals = ((host.agent_id, release.goal(host.agent_id)) for host in hosts if host.agent_id not in gone)
        left = any(is_due(sent.get(host), goal, math.inf) or (host in sent and sent[host].task) for host, goal in goals)
        return not left or now.timestamp() - release.wave_at > GONE_DAYS * 86400
    behind = any(host.online and host.revision < release.goal(host.agent_id) for host in hosts)
    return not behind or now.timestamp() - release.wave_at > WATCHED_SECONDS


def _take_back(r: Releases, release: Release, reason: str) -> Release:
    """The release after a rollback to the stable content. Returns it unchanged if another call changed it meanwhile."""
    try:
        return take_back(r, release, release.stable, reason, SYSTEM)
    except Conflict:
        return release


def take_back(r: Releases, before: Release, number: int, why: str, who: str) -> Release:
    """Stores a new revision with the content of revision `number`, for all hosts at once."""
    now = r.clock()
    source = r.store.revision(before.project_id, before.name, number)
    for signature in dict.fromkeys(file.signature for file in source.files):
        content = r.distribution.contents.get(before.project_id, signature)
        if content is None or content.state != READY:
            why = f"{why}; the library no longer has {signature}: hosts that did not keep it cannot go back"
            break
    after = withdrawn(before, why)
    copy = replace(
        source,
        number=after.desired,
        rollback_to=number,
        waves=(),
        created_at=iso(now),
        created_by=who,
        note=why[:500],
        sequence=next_sequence(before, now),
    )
    after = replace(after, paths=copy.paths, sequence=copy.sequence, paused=False)
    after = replace(after, updated_at=iso(now), wave_at=now.timestamp())
    line = act(before.project_id, before.name, now, who, "release.rollback", why)
    notice = notice_of(after, "release.rolled_back", now)
    return r.store.save(before, after, revision=copy, line=line, due_at=now.timestamp(), notice=notice)


def next_sequence(before: Release, now: datetime) -> int:
    """The sequence of the next revision: the time in milliseconds, as for Jobs, but always above the last sequence."""
    return max(int(now.timestamp() * 1000), before.sequence + 1)


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
    """If the execution that watches the roll-out has died, starts another one. Returns whether it did."""
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
