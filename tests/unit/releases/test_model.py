"""The rules of releases, played at random: hosts go down, are born or replaced, and messages come late or twice.

The decisions are the product's own: `goal`, `decide`, `withdrawn`, `after_put` and `is_news`. The host's step is a
sketch of the agent's. Each rule that is broken on purpose is noticed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest

from tidegate.distribution.model import FleetAgent, Wave
from tidegate.releases import model
from tidegate.releases.model import (
    CONVERGED,
    FAILED,
    ROLLED_BACK,
    ROLLING,
    Host,
    HostReport,
    Release,
    ReleaseFile,
    Revision,
    Selector,
    after_put,
    decide,
    goals_digest,
    next_look,
    rank,
    rollback_number,
    withdrawn,
)
from tidegate_client.agent.releases import goes_first

WAVES = (Wave(10, 0, 20), Wave(40, 0, 20))
EVERYBODY = Selector(groups=("all",))


def revision(number: int, content: int, *, on_failure: str = "rollback", waves: tuple[Wave, ...] = WAVES) -> Revision:
    file = ReleaseFile(1, 1, "/a", "a", f"{content:064x}", 1, "/srv", "root")
    return Revision(name="app", number=number, files=(file,), waves=waves, on_failure=on_failure)


def content_of(one: Revision) -> int:
    return int(one.files[0].signature, 16)


@dataclass
class HostSketch:
    name: str
    life: int = 1
    up: bool = True
    member: bool = True
    content: int = 0
    active: int = 0
    begun: int = 0
    former: int = 0
    refused: set[int] = field(default_factory=set)
    highest: int = 0
    down_at: float = 0.0
    # A revision has killed it: it is started again only in the end.
    dead: bool = False

    def stop(self, now: float) -> None:
        self.up, self.down_at = False, now


class World:
    """`broken` drops one rule. A content is good, fails on most hosts or on one in a hundred, or kills its host."""

    def __init__(self, seed: int, broken: str = "", hosts: int = 40) -> None:
        self.random, self.broken, self.many = random.Random(seed), broken, hosts
        self.release = Release(project_id="p", name="app", targets=EVERYBODY)
        self.revisions: dict[int, Revision] = {}
        # By content: how probable it is that it fails on a host.
        self.bad: dict[int, float] = {}
        self.deadly: set[int] = set()
        self.past: list[Release] = []
        self.hosts = {f"h{number}": HostSketch(f"h{number}") for number in range(hosts)}
        self.known: dict[str, HostReport] = {}
        self.told: list[tuple[float, str]] = []
        self.reports: list[tuple[float, HostReport]] = []
        self.faults: list[str] = []
        self.now, self.calm = 1.0, False

    # --- the server

    def save(self, after: Release) -> None:
        before, self.release = self.release, replace(after, version=self.release.version + 1)
        self.past.append(before)
        for host in self.hosts.values():
            if host.member and before.goal(host.name) != self.release.goal(host.name):
                self.tell(host)

    def put(self, content: int, kind: str) -> None:
        made = revision(self.release.latest + 1, content)
        self.revisions[made.number] = made
        if kind in ("bad", "rarely bad"):
            self.bad[content] = 0.9 if kind == "bad" else 0.01
        if kind == "deadly":
            self.deadly.add(content)
        self.save(after_put(self.release, made, self.now))

    def look(self) -> None:
        shown = [self.seen(host) for host in self.hosts.values() if host.member]
        wanted = self.revisions[self.release.desired]
        inside = [host for host in shown if host.online and self.release.goal(host.agent_id) == wanted.number]
        if self.broken == "silence":
            shown = [host._replace(online=host.revision >= wanted.number) for host in shown]
        if self.broken == "lost":
            shown = [host._replace(lost=False) for host in shown]
        after = decide(self.release, wanted, shown, self.now)
        if after.wave > self.release.wave and inside and all(host.revision < wanted.number for host in inside):
            self.faults.append(f"a wave of {wanted.number} opened, and none of its {len(inside)} hosts has reported")
        if after.latest != self.release.latest:
            back = replace(self.revisions[self.release.stable], number=after.latest)
            self.revisions[back.number] = back
        if after != self.release:
            self.save(after)

    def seen(self, host: HostSketch) -> Host:
        now = datetime.fromtimestamp(self.now + 1000, UTC)
        seen = now if host.up else datetime.fromtimestamp(host.down_at, UTC)
        agent = FleetAgent("p", host.name, groups=("all",), life=host.life, last_seen=seen.isoformat())
        return model.host_of(self.release, agent, self.known.get(host.name), now)

    def tell(self, host: HostSketch) -> None:
        if self.calm or self.random.random() > 0.1:
            self.told.append((self.now + self.random.uniform(0, 3), host.name))
        if not self.calm and self.random.random() < 0.1:
            self.told.append((self.now + self.random.uniform(0, 20), host.name))

    def take(self, report: HostReport) -> None:
        known = self.known.get(report.agent_id)
        if self.broken == "life" or report.is_news(known):
            if known and (report.life, report.revision) < (known.life, known.revision):
                self.faults.append(f"{report.agent_id} is shown as {report.revision} after {known.revision}")
            self.known[report.agent_id] = report

    # --- a host

    def connect(self, host: HostSketch) -> None:
        if host.up and host.member and self.revisions:
            self.report(host, failed=host.active in host.refused)
            self.act(host)

    def report(self, host: HostSketch, *, failed: bool) -> None:
        if not host.active:
            return
        state = "failed" if failed else "current"
        report = HostReport(
            project_id="p", agent_id=host.name, name="app", life=host.life, revision=host.active, state=state
        )
        self.reports.append((self.now + self.random.uniform(0, 3), report))

    def act(self, host: HostSketch) -> None:
        stale = self.broken == "consistent" and self.past and self.random.random() < 0.3
        asked = self.random.choice(self.past[-3:]) if stale else self.release
        goal = asked.goal(host.name)
        if goal in self.release.withdrawn and goal > host.active:
            self.faults.append(f"{host.name} takes {goal}, which was withdrawn")
        if not goal or goal in host.refused or (goal <= host.active and self.broken != "numbers"):
            return
        if self.killed(host):
            return
        host.begun = goal
        if not self.killed(host):
            self.switch(host)

    def switch(self, host: HostSketch) -> None:
        wanted = self.revisions[host.begun]
        if host.content != content_of(wanted):
            host.former, host.content = host.content, content_of(wanted)
        if content_of(wanted) in self.deadly and not self.calm:
            host.dead = True
            host.stop(self.now)
        if self.killed(host):
            return
        failed = self.random.random() < self.bad.get(content_of(wanted), 0)
        if failed:
            host.refused.add(host.begun)
            host.content = host.former
        host.active, host.begun = host.begun, 0
        if host.active < host.highest:
            self.faults.append(f"{host.name} went from {host.highest} to {host.active}")
        host.highest = max(host.highest, host.active)
        self.report(host, failed=failed)

    def killed(self, host: HostSketch) -> bool:
        if not self.calm and self.random.random() < 0.05:
            host.stop(self.now)
        return not host.up

    def start(self, host: HostSketch) -> None:
        host.up = True
        if host.begun:
            self.switch(host)
        self.connect(host)

    # --- time

    def step(self) -> None:
        self.now += 1
        for due in sorted(one for one in self.told if one[0] <= self.now):
            self.told.remove(due)
            host = self.hosts[due[1]]
            if host.up and host.member:
                self.act(host)
        for at, report in [one for one in self.reports if one[0] <= self.now]:
            self.reports.remove((at, report))
            self.take(report)

    def trouble(self) -> None:
        host = self.random.choice(list(self.hosts.values()))
        kind = self.random.randrange(7)
        if kind == 0:
            host.stop(self.now)
        elif kind in (1, 2) and not host.up and not host.dead:
            self.start(host)
        elif kind == 6:
            host.member = not host.member
            self.connect(host)
        elif kind == 3 and len(self.hosts) < 1.5 * self.many:
            born = self.hosts[f"h{len(self.hosts)}"] = HostSketch(f"h{len(self.hosts)}")
            self.connect(born)
        elif kind == 4:
            replaced = self.hosts[host.name] = HostSketch(host.name, host.life + 1)
            self.connect(replaced)
        elif host.up:
            self.connect(host)

    def run(self) -> list[str]:
        content = 0
        for _ in range(250):
            # Sometimes two in quick succession.
            while self.random.random() < 0.03:
                content += 1
                self.put(content, self.random.choices(KINDS, (60, 20, 10, 10))[0])
            if self.revisions and self.random.random() < 0.1:
                self.look()
            for _ in range(max(1, self.many // 40)):
                self.trouble()
            self.step()
        self.check_dead()
        self.calm = True
        for host in self.hosts.values():
            host.member, host.dead = True, False
            self.start(host)
        for _ in range(80):
            if self.revisions:
                self.look()
            for host in self.hosts.values():
                self.connect(host)
            self.step()
        if self.revisions:
            self.check()
        return self.faults

    def check(self) -> None:
        for host in self.hosts.values():
            goal = self.release.goal(host.name)
            wanted = self.revisions.get(goal)
            if wanted and host.active < goal:
                self.faults.append(f"{host.name} is at {host.active}, goal {goal}")
            if wanted and host.active == goal and goal not in host.refused and host.content != content_of(wanted):
                self.faults.append(f"{host.name} has content {host.content}, goal {goal}")
            known = self.known.get(host.name)
            if host.active and (known is None or (known.life, known.revision) != (host.life, host.active)):
                self.faults.append(f"{host.name} has {host.active}, shown as {known}")
            if host.active in self.release.withdrawn and self.release.status != FAILED:
                self.faults.append(f"{host.name} has {host.active}, which was withdrawn")
        for number, made in self.revisions.items():
            hit = sum(number in host.refused for host in self.hosts.values())
            if self.bad.get(content_of(made), 0) > 0.5 and hit > len(self.hosts) / 2:
                self.faults.append(f"the bad revision {number} reached {hit} of {len(self.hosts)} hosts")

    def check_dead(self) -> None:
        for number in self.revisions:
            dead = sum(host.dead and host.begun == number for host in self.hosts.values())
            if dead > len(self.hosts) / 4:
                self.faults.append(f"revision {number} killed {dead} of {len(self.hosts)} hosts")


NOW = datetime(2026, 11, 18, tzinfo=UTC)
KINDS = ("good", "bad", "rarely bad", "deadly")


def test_five_hundred_hosts_end_with_their_goal() -> None:
    assert [(seed, faults[:2]) for seed in range(2) if (faults := World(seed, hosts=500).run())] == []


def test_every_host_ends_with_its_goal_and_no_bad_revision_spreads() -> None:
    assert [(seed, faults[:2]) for seed in range(30) if (faults := World(seed).run())] == []


# Without the rule of lost hosts, a wave only grows by one host at a time: few worlds have enough of these.
@pytest.mark.parametrize(
    ("rule", "first"), [("numbers", 0), ("consistent", 0), ("life", 0), ("silence", 0), ("lost", 370)]
)
def test_world_notices_a_rule_that_is_dropped(rule: str, first: int) -> None:
    assert any(World(seed, rule).run() for seed in range(first, first + 120))


def test_ranks_are_even_and_fixed() -> None:
    ranks = [rank("app", f"host-{number}") for number in range(10_000)]
    assert all(abs(sum(one < share for one in ranks) - 10_000 * share) < 200 for share in (0.01, 0.1, 0.5, 0.9))
    assert rank("app", "host-1") == rank("app", "host-1") != rank("web", "host-1")


def rolling(**fields: object) -> Release:
    made = after_put(Release(project_id="p", name="app", targets=EVERYBODY, stable=1, latest=1), revision(2, 2), 0)
    return replace(made, **fields)  # type: ignore[arg-type]


def inside(release: Release, count: int, of: Callable[[str], Host]) -> list[Host]:
    names = [f"h{number}" for number in range(5000)]
    return [of(name) for name in names if release.goal(name) == release.desired][:count]


def test_hosts_are_in_the_wave_that_opens_for_them() -> None:
    for name in (f"h{number}" for number in range(300)):
        release, wave = rolling(), model.wave_of(replace(revision(2, 2), name="app"), name)
        goals = [replace(release, share=share).goal(name) for share in (10, 40, 100)]
        assert goals == [1] * (wave - 1) + [2] * (4 - wave)


def test_wave_opens_when_its_hosts_have_reported() -> None:
    release = rolling()
    hosts = inside(release, 10, lambda name: Host(name, "current", 2, True))
    after = decide(release, revision(2, 2), hosts, 5)
    assert (after.wave, after.share, after.status) == (1, 40, ROLLING)


def test_wave_from_which_nothing_was_heard_does_not_pass() -> None:
    release = rolling()
    hosts = inside(release, 10, lambda name: Host(name, "behind", 1, True))
    assert decide(release, revision(2, 2), hosts, 500) == release


def test_offline_hosts_neither_fail_nor_hold_a_wave() -> None:
    release = rolling()
    hosts = inside(release, 10, lambda name: Host(name, "offline", 1, False))
    hosts[0] = hosts[0]._replace(state="current", revision=2, online=True)
    assert decide(release, revision(2, 2), hosts, 5).wave == 1


def test_wave_without_a_connected_host_grows_until_it_has_one() -> None:
    """Else the next wave, perhaps the whole fleet, would get a revision that no host has tried."""
    release = rolling()
    hosts = [
        Host(host.agent_id, "offline", 1, False) for host in inside(release, 10, lambda name: Host(name, "", 1, True))
    ]
    assert decide(release, revision(2, 2), hosts, 500) == release
    # Those of the wave after the next are not brought forward: this wave passes, as if it were not there.
    far = [
        Host(name, "behind", 1, True) for name in ("h1", "h5", "h6", "h9") if model.rank(release.name, name) * 100 > 60
    ]
    assert far
    assert decide(release, revision(2, 2), hosts + far, 500).share == 40
    there = [name for name in (f"h{number}" for number in range(300)) if 20 < model.rank(release.name, name) * 100 < 60]
    hosts += [Host(name, "behind", 1, True) for name in there]

    grown = decide(release, revision(2, 2), hosts, 500)
    found = [name for name in there if grown.goal(name) == 2]
    assert (grown.wave, grown.held_since) == (0, None)
    assert 1 <= len(found) < 20
    assert min(there, key=lambda name: model.rank(release.name, name)) in found
    # It waits for this host, and then opens the next wave.
    assert decide(grown, revision(2, 2), hosts, 600) == grown
    hosts = [host._replace(state="current", revision=2) if host.agent_id in found else host for host in hosts]
    assert decide(grown, revision(2, 2), hosts, 700).wave == 1


def test_hosts_that_vanish_in_a_wave_hold_it_for_an_hour() -> None:
    release = rolling(wave_at=1000.0)
    hosts = inside(release, 10, lambda name: Host(name, "current", 2, True))
    hosts[:2] = [host._replace(state="offline", revision=1, online=False, lost=True) for host in hosts[:2]]
    assert decide(release, revision(2, 2), hosts, 1000 + 3599).wave == 0
    assert decide(release, revision(2, 2), hosts, 1000 + 3600).wave == 1


def test_wave_whose_hosts_all_vanish_never_passes() -> None:
    release = rolling(wave_at=1000.0)
    hosts = inside(release, 10, lambda name: Host(name, "offline", 1, False, lost=True))
    assert decide(release, revision(2, 2), hosts, 1000 + 7 * 86400).wave == 0


def test_host_is_lost_if_it_was_seen_since_the_wave_opened() -> None:
    release = rolling(wave_at=NOW.timestamp() - 3600, share=100)
    for seen, lost in ((3700, False), (3500, True)):
        then = (NOW - timedelta(seconds=seen)).isoformat()
        agent = FleetAgent("p", "h1", groups=("all",), last_seen=then)
        assert model.host_of(release, agent, None, NOW) == Host("h1", "offline", 0, False, lost)


@pytest.mark.parametrize(("days", "state", "counts"), [(29, "offline", 1), (30, "gone", 0)])
def test_host_that_was_not_seen_for_thirty_days_no_longer_counts(days: int, state: str, counts: int) -> None:
    agent = FleetAgent("p", "h1", groups=("all",), last_seen=(NOW - timedelta(days=days)).isoformat())
    host = model.host_of(rolling(share=100), agent, None, NOW)
    assert (host.state, model.counted([host])["desired"]) == (state, counts)


def test_wave_waits_for_its_soak_time() -> None:
    checked = replace(revision(2, 2), health=model.HealthCheck(url="http://127.0.0.1/", soak_s=60))
    release = rolling()
    hosts = inside(release, 10, lambda name: Host(name, "current", 2, True))
    held = decide(release, checked, hosts, 100)
    assert (held.wave, held.held_since) == (0, 100)
    assert decide(held, checked, hosts, 159).wave == 0
    assert decide(held, checked, hosts, 160).wave == 1


def test_host_that_fails_while_the_wave_soaks_takes_it_back() -> None:
    checked = replace(revision(2, 2), health=model.HealthCheck(url="http://127.0.0.1/", soak_s=60))
    release = rolling(held_since=100.0)
    hosts = inside(release, 2, lambda name: Host(name, "current", 2, True))
    hosts[0] = hosts[0]._replace(state="failed")
    after = decide(release, checked, hosts, 159)
    assert (after.status, after.desired, after.stable, after.share) == (ROLLED_BACK, 3, 3, 100)
    assert after.withdrawn == (2,)


def test_failures_that_a_wave_allows_are_allowed_after_it() -> None:
    """The last hosts follow the last wave: one of a hundred may fail in both."""
    waves = (Wave(10, 0, 5),)
    release = rolling()
    hosts = inside(release, 20, lambda name: Host(name, "current", 2, True))
    hosts[0] = hosts[0]._replace(state="failed")
    opened = decide(release, revision(2, 2, waves=waves), hosts, 5)
    assert (opened.share, opened.status) == (100, ROLLING)
    assert decide(opened, revision(2, 2, waves=waves), hosts, 10).status == CONVERGED
    hosts[1] = hosts[1]._replace(state="failed")
    assert decide(opened, revision(2, 2, waves=waves), hosts, 10).status == ROLLED_BACK


def test_failed_wave_stops_if_the_caller_wants_that() -> None:
    stops = revision(2, 2, on_failure="stop")
    release = rolling()
    hosts = inside(release, 2, lambda name: Host(name, "failed", 2, True))
    after = decide(release, stops, hosts, 5)
    assert (after.status, after.desired) == (FAILED, 2)
    assert {after.goal(f"h{number}") for number in range(500)} == {1}


def test_first_revision_that_fails_has_nothing_to_go_back_to() -> None:
    release = replace(rolling(), stable=0)
    hosts = inside(release, 2, lambda name: Host(name, "failed", 2, True))
    after = decide(release, revision(2, 2), hosts, 5)
    assert (after.status, {after.goal(f"h{number}") for number in range(500)}) == (FAILED, {0})


def test_last_wave_makes_the_revision_stable() -> None:
    release = rolling(wave=2, share=100)
    hosts = [Host(f"h{number}", "current", 2, True) for number in range(10)]
    after = decide(release, revision(2, 2), hosts, 5)
    assert (after.status, after.stable) == (CONVERGED, 2)


def test_rollback_goes_to_the_stable_revision_else_to_the_one_before() -> None:
    numbers = [3, 2, 1]
    half = replace(rolling(), desired=3, latest=3, stable=2)
    assert rollback_number(half, numbers, None) == 2
    assert rollback_number(replace(half, stable=3), numbers, None) == 2
    assert rollback_number(replace(half, stable=3, withdrawn=(2,)), numbers, None) == 1
    assert rollback_number(half, numbers, 1) == 1


def test_withdrawn_release_gives_everybody_a_higher_number() -> None:
    back = withdrawn(rolling(), "bad")
    assert {back.goal(f"h{number}") for number in range(100)} == {3}


def test_report_of_an_older_life_or_revision_is_no_news() -> None:
    known = HostReport(project_id="p", agent_id="h", name="app", life=2, revision=5, state="current")
    assert not replace(known, life=1, revision=9).is_news(known)
    assert not replace(known, revision=4).is_news(known)
    assert replace(known, life=3, revision=1).is_news(known)
    assert replace(known, state="drifted").is_news(known)
    assert not replace(known, reported_at="later").is_news(known)


def test_revision_that_failed_on_a_host_stays_failed_there() -> None:
    known = HostReport(project_id="p", agent_id="h", name="app", life=2, revision=5, state="failed")
    assert not replace(known, state="current").is_news(known)
    assert replace(known, state="current", revision=6).is_news(known)


def test_digest_of_goals_does_not_depend_on_their_order() -> None:
    goals = [("a", 1, False), ("b", 2, True)]
    assert goals_digest(goals) == goals_digest(reversed(goals)) != goals_digest([("a", 1, True), ("b", 2, True)])


# --- hosts that GSE sends to


class GseWorld:
    """Transfers of a release by GSE, played at random: they come late, fail, are lost, or their host is unreachable.

    `broken` drops a rule. A host has what the transfer with the highest sequence that began has brought, as the Job's
    order on a path makes sure; the look that sends may be an old one."""

    def __init__(self, seed: int, broken: str = "") -> None:
        self.random, self.broken, self.now = random.Random(seed), broken, NOW
        names = tuple(f"h{number}" for number in range(30))
        self.release = Release(project_id="p", name="app", targets=Selector(agents=names))
        self.revisions: dict[int, Revision] = {}
        self.reports: dict[str, HostReport] = {}
        self.disk = dict.fromkeys(names, 0)
        self.running: dict[str, tuple[str, int, float]] = {}
        self.ended: dict[str, dict[str, object]] = {}
        self.unreachable: set[str] = set()
        self.bad: set[int] = set()
        # What looks saw before they sent: one of them may go on much later.
        self.past: list[tuple[Release, dict[str, HostReport]]] = []
        self.faults: list[str] = []

    def put(self, content: int, *, bad: bool) -> None:
        made = revision(self.release.latest + 1, content)
        self.revisions[made.number] = made
        if bad:
            self.bad.add(content)
        self.release = after_put(self.release, made, self.now.timestamp())

    def transfer(self) -> None:
        for task, (host, number, due) in list(self.running.items()):
            if due <= self.now.timestamp():
                del self.running[task]
                self.ended[task] = self.result(host, number)

    def result(self, host: str, number: int) -> dict[str, object]:
        if host in self.unreachable:
            return {"status": "Failed", "error_code": 117}
        if content_of(self.revisions[number]) in self.bad or self.random.random() < 0.05:
            return {"status": "Failed", "error_code": 7, "error_msg": "disk full"}
        if number < self.disk[host]:
            if self.broken != "order":
                return {"status": "Superseded", "error_code": 409}
            self.faults.append(f"{host} got {number} over {self.disk[host]}")
        self.disk[host] = number
        # Sometimes nobody learns that it has arrived.
        is_known = self.random.random() > 0.05
        return {"status": "Success", "error_code": 0} if is_known else {"status": "Timeout", "error_code": 9001}

    def store(self, report: HostReport) -> bool:
        known = self.reports.get(report.agent_id)
        if known and (report.revision < known.revision or report.sent < known.sent):
            return False
        self.reports[report.agent_id] = report
        return True

    def look(self) -> None:
        for report in list(self.reports.values()):
            if report.task:
                result = self.ended.get(report.task, {"status": "Running"})
                self.store(model.after_sent(report, result, self.now))
        wanted = self.revisions[self.release.desired]
        names = self.release.targets.agents
        shown = [model.sent_host(self.release, name, self.reports.get(name), self.now) for name in names]
        after = decide(self.release, wanted, shown, self.now.timestamp())
        if after.latest != self.release.latest:
            back = replace(self.revisions[self.release.stable], number=after.latest)
            self.revisions[back.number] = back
        self.release = after
        self.past.append((after, dict(self.reports)))
        self.send(*(self.random.choice(self.past) if self.random.random() < 0.1 else self.past[-1]))

    def send(self, release: Release, reports: dict[str, HostReport]) -> None:
        for name in release.targets.agents:
            known, goal = reports.get(name), release.goal(name)
            if not model.is_due(known, goal, self.now.timestamp()) or self.random.random() < 0.05:
                continue
            task = f"t{len(self.running) + len(self.ended)}"
            self.running[task] = (name, goal, self.now.timestamp() + self.random.uniform(5, 90))
            fresh = HostReport(project_id="p", agent_id=name, name="app", life=0, revision=0, state="behind")
            last = known or fresh
            tries = last.tries if last.sent == goal else 0
            self.store(replace(last, sent=goal, task=task, tries=tries, try_at=0))

    def run(self) -> list[str]:
        self.put(1, bad=False)
        for content in range(2, 400):
            self.now += timedelta(seconds=self.random.uniform(2, 30))
            if self.random.random() < 0.02:
                self.put(content, bad=self.random.random() < 0.4)
            name = self.random.choice(self.release.targets.agents)
            self.unreachable ^= {name} if self.random.random() < 0.05 else set()
            self.transfer()
            self.look()
        self.unreachable.clear()
        for _ in range(60):
            self.now += timedelta(seconds=300)
            self.transfer()
            self.look()
        self.check()
        return self.faults

    def check(self) -> None:
        wanted = self.revisions[self.release.desired]
        is_bad = content_of(wanted) in self.bad
        for name in self.release.targets.agents:
            goal, known = self.release.goal(name), self.reports.get(name)
            if goal and not is_bad and (known is None or known.revision < goal):
                self.faults.append(f"{name} is at {known}, goal {goal}")
            if known and known.state == "current" and self.disk[name] != known.revision:
                self.faults.append(f"{name} has {self.disk[name]}, shown as {known.revision}")
        if any(content_of(self.revisions[number]) in self.bad for number in self.disk.values() if number):
            self.faults.append("a bad revision is on a host")


def test_hosts_of_gse_end_with_their_goal() -> None:
    assert [(seed, faults[:2]) for seed in range(30) if (faults := GseWorld(seed).run())] == []


def test_world_of_gse_notices_transfers_without_order() -> None:
    assert any(GseWorld(seed, "order").run() for seed in range(60))


def sent(**fields: object) -> HostReport:
    made = HostReport(project_id="p", agent_id="h", name="app", life=0, revision=1, state="current", sent=2, task="t")
    return replace(made, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("result", "tries", "state", "number"),
    [
        ({"status": "Running"}, 0, "current", 1),
        ({"status": "Success", "error_code": 0}, 2, "current", 2),
        ({"status": "Failed", "error_code": 7}, 1, "current", 1),
        ({"status": "Failed", "error_code": 7}, 2, "failed", 2),
        ({"status": "Failed", "error_code": 117}, 2, "offline", 1),
        ({"status": "Failed", "error_code": 9002}, 9, "current", 1),
        ({"status": "Timeout", "error_code": 9001}, 9, "current", 1),
        ({"status": "Cancelled", "error_code": 9003}, 9, "current", 1),
        ({"status": "Superseded", "error_code": 409}, 9, "current", 1),
        ({}, 9, "current", 1),
    ],
)
def test_result_of_a_transfer_is_the_hosts_report(
    result: dict[str, object], tries: int, state: str, number: int
) -> None:
    after = model.after_sent(sent(tries=tries), result, NOW)
    assert (after.state, after.revision, after.task) == (
        state,
        number,
        "t" if result.get("status") == "Running" else None,
    )


def test_pace_of_repeated_transfers_slows_down_to_an_hour() -> None:
    failed = {"status": "Failed", "error_code": 7}
    waits = [model.after_sent(sent(tries=n), failed, NOW).try_at - NOW.timestamp() for n in (0, 1, 2, 20)]
    assert waits == [30, 60, 120, 3600]


def test_host_that_had_failed_stays_failed_while_it_is_tried_again() -> None:
    for code in (7, 117, 9001):
        before = sent(revision=2, state="failed", tries=3)
        assert model.after_sent(before, {"status": "Failed", "error_code": code}, NOW).state == "failed"
    assert model.after_sent(sent(revision=2, state="failed"), {"status": "Success"}, NOW).state == "current"


@pytest.mark.parametrize(
    ("since", "wait"), [(0, 2), (100, 10), (3600, 60), (4 * 3600, 60), (86400, 360), (10 * 86400, 900)]
)
def test_looks_become_rarer_while_nothing_changes(since: float, wait: int) -> None:
    release = after_put(Release(project_id="p", name="app", targets=EVERYBODY), revision(1, 1), 1000)
    assert next_look(release, revision(1, 1), 1000 + since) == wait


def test_look_comes_in_time_for_soak_end_and_activation() -> None:
    put, day = Release(project_id="p", name="app", targets=EVERYBODY), 86400
    slow = revision(1, 1, waves=(Wave(10, 2 * day, 0),))
    soaking = replace(after_put(put, slow, 1000), held_since=1000.0)
    assert next_look(soaking, slow, 1000 + 2 * day - 100) == 100
    later = replace(slow, activate=datetime.fromtimestamp(1000 + 3 * day, UTC).isoformat())
    assert next_look(after_put(put, later, 1000), later, 1000 + 3 * day - 42) == 42
    # The time has come: the revision is opened by the next look in turn.
    assert next_look(after_put(put, later, 1000), later, 1000 + 3 * day + 2400) == 900


def test_host_that_has_a_revision_never_loses_its_goal_by_a_put() -> None:
    rng = random.Random(7)
    for _ in range(50):
        release = Release(project_id="p", name="app", targets=EVERYBODY)
        had = dict.fromkeys((f"host-{number}" for number in range(40)), 0)
        for number in range(1, 8):
            waves = () if rng.random() < 0.3 else (Wave(rng.choice((5, 20, 50)), 0, 0), Wave(70, 0, 0))
            made = revision(number, number, waves=waves)
            release = after_put(release, made, 1000.0 * number)
            if rng.random() < 0.5:
                release = replace(release, share=max(release.share, 70 if waves else 100), wave=1)
            for host, before in had.items():
                goal = release.goal(host)
                assert goal > 0 or not before
                had[host] = max(before, goal)
        assert max(had.values()) == 7


# --- releases that take each other's paths


class Paths:
    """Releases whose revisions want paths that others had, and one host that is down most of the time.

    The caller's rule is that of `put`: a path is free if it is in no other release's desired or stable revision; every
    roll-out is converged elsewhere at once. The host's rule is the agent's `goes_first`."""

    def __init__(self, seed: int, *, takes_turns: bool = True) -> None:
        self.random, self.takes_turns = random.Random(seed), takes_turns
        self.wanted = {name: (1, frozenset({name})) for name in "abcd"}
        self.placed = dict(self.wanted)
        self.staged: set[str] = set()
        # By path, whose file is there.
        self.disk = {name: (name, 1) for name in "abcd"}
        self.faults: list[str] = []

    def put(self) -> None:
        name = self.random.choice("abcd")
        taken = frozenset().union(*(paths for other, (_, paths) in self.wanted.items() if other != name))
        free = sorted(set("abcdefg") - taken)
        paths = frozenset(self.random.sample(free, min(len(free), self.random.randint(1, 2))))
        self.wanted[name] = (self.wanted[name][0] + 1, paths)
        self.staged.discard(name)

    def owners(self, name: str) -> set[str]:
        paths = self.wanted[name][1]
        held = {path: owner for path, (owner, revision) in self.disk.items() if self.placed[owner][0] == revision}
        return {held[path] for path in paths if held.get(path, name) != name}

    def is_ready(self, name: str) -> bool:
        return name in self.staged and self.placed[name] != self.wanted[name]

    def converge(self) -> None:
        for name in self.random.sample("abcd", 4):
            waits = not goes_first(name, self.owners, self.is_ready) if self.takes_turns else bool(self.owners(name))
            if waits or not self.is_ready(name):
                continue
            for owner in self.owners(name):
                if self.placed[owner] == self.wanted[owner] or owner not in self.staged:
                    self.faults.append(f"{name} takes a path of {owner}, which is not to leave it")
            self.placed[name] = self.wanted[name]
            self.disk |= dict.fromkeys(self.wanted[name][1], (name, self.wanted[name][0]))

    def run(self) -> list[str]:
        for _ in range(30):
            for _ in range(self.random.randrange(12)):
                self.put()
            for name in "abcd":
                if self.random.random() < 0.5:
                    self.staged.add(name)
            self.converge()
        self.staged |= set("abcd")
        for _ in range(6):
            self.converge()
        for name, (number, paths) in self.wanted.items():
            if self.placed[name] != (number, paths) or any(self.disk[path] != (name, number) for path in paths):
                self.faults.append(f"{name} is at {self.placed[name]}, goal {number}: {self.disk}")
        return self.faults


def test_releases_that_take_each_others_paths_all_end_with_their_goal() -> None:
    assert [(seed, faults[:2]) for seed in range(500) if (faults := Paths(seed).run())] == []


def test_world_notices_that_releases_wait_for_each_other() -> None:
    assert any(Paths(seed, takes_turns=False).run() for seed in range(20))
