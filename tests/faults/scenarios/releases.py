"""Releases: a revision in waves, a host that returns, a bad revision that takes itself back, and a rollback."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from tests.faults.sweep import Scenario
from tests.faults.world import World
from tests.support.fleet import Fleet
from tests.support.moto.cloud import Answer, Project
from tidegate.releases.model import goals_digest

NAMES = ("r1", "r2", "r3", "r4")
PATH = "/v1/releases/app"


@dataclass
class Host:
    """What survives on a host's disk. `bad`: the contents on which its health check fails."""

    key: str
    up: bool = True
    active: int = 0
    content: str = ""
    kept: set[str] = field(default_factory=set)
    report: dict[str, Any] = field(default_factory=dict)
    goals: list[tuple[str, int, bool]] = field(default_factory=list)
    fetched: int = 0
    # What the API has been told.
    told: dict[str, Any] | None = None


class Hosts:
    """The agents of a release's hosts, as the API sees them: they ask, fetch, switch and report, and retry later."""

    def __init__(self, world: World, project: Project, fleet: Fleet) -> None:
        self.world, self.project, self.bad = world, project, set[str]()
        self.hosts = {name: Host(project.agent_key(name)) for name in NAMES}
        self.wrong: list[str] = []
        self._turn, self._working = 0, threading.Lock()
        for name, host in self.hosts.items():
            self._poll(name, host)
            change = {"groups": ["web"]}
            assert fleet.cloud.http("PATCH", f"/v1/agents/{name}", key=project.key, json=change).status == 200
        world.cloud.while_waiting.append(self.work)

    def work(self) -> None:
        """Works at every second call, because more polls would only add calls."""
        self._turn += 1
        if self._turn % 2 or not self._working.acquire(blocking=False):
            return
        try:
            for name, host in self.hosts.items():
                if host.up and (self._poll(name, host) or self._is_behind(host)):
                    self._converge(name, host)
        finally:
            self._working.release()

    def _is_behind(self, host: Host) -> bool:
        """As the real agent: without an answer to its report, or with a goal that it has not reached, it asks again."""
        return host.told != host.report or any(number > host.active for _, number, _ in host.goals)

    def _poll(self, name: str, host: Host) -> bool:
        headers = {"X-Tidegate-Can": "stage,release", "X-Tidegate-Goals": goals_digest(host.goals)}
        path = f"/v1/agents/{name}/transfers"
        answer = self.world.try_ask("GET", path, key=host.key, headers=headers)
        if answer is None or answer.status != 200:
            return False
        results = []
        for item in answer.json()["items"]:
            host.fetched += item["signature"] not in host.kept
            host.kept.add(item["signature"])
            results.append({"transfer_id": item["transfer_id"], "container_id": "", "error_code": 0})
        if results:
            self.world.try_ask("POST", f"/v1/agents/{name}/results", key=host.key, json={"items": results})
        return bool(answer.json().get("releases")) or bool(results)

    def _converge(self, name: str, host: Host) -> None:
        for _ in range(3):
            gone = set(self._release().get("withdrawn", ()))
            body = {"releases": [host.report] if host.report else [], "has": sorted(host.kept)}
            answer = self.world.try_ask("PUT", f"/v1/agents/{name}/releases", key=host.key, json=body)
            if answer is None or answer.status != 200:
                return
            host.told = dict(host.report)
            items = answer.json()["items"]
            host.goals = [(goal["name"], goal["revision"], goal["hold"]) for goal in items]
            if not any(self._switch(name, host, goal, gone) for goal in items):
                return

    def _switch(self, name: str, host: Host, goal: dict[str, Any], gone: set[int]) -> bool:
        """Whether there is something new to report."""
        number, signature = goal["revision"], goal["files"][0]["signature"]
        if number <= host.active:
            return False
        if number in gone:
            self.wrong.append(f"{name} is to take {number}, which was withdrawn")
        if goal["hold"] or signature not in host.kept:
            return False
        failed = signature in self.bad
        host.active, host.content = number, host.content if failed else signature
        host.report = {"name": "app", "revision": number, "state": "failed" if failed else "current"}
        if failed:
            host.report["reason"] = "health: 500"
        return True

    def _release(self) -> dict[str, Any]:
        with self.world.calls.without_faults():
            return dict(self.world.cloud.http("GET", PATH, key=self.project.key).json())

    def all_have(self, signature: str) -> bool:
        """Whether every host that is up has this content, and the API shows it as current."""
        shown = self._release()
        up = [host for host in self.hosts.values() if host.up]
        return shown["counts"]["current"] >= len(up) and all(host.content == signature for host in up)


@dataclass
class Stage:
    """A project with hosts and two stored contents."""

    world: World
    project: Project
    first: str
    second: str
    hosts: Hosts

    @classmethod
    def of(cls, world: World) -> Stage:
        project = world.new_project()
        with world.calls.without_faults():
            # A caller who reads all the time reads each host, too.
            path, limit = f"/v1/projects/{project.id}", {"quotas": {"requests_per_s": 1000}}
            assert world.cloud.http("PATCH", path, key=world.cloud.admin_key, json=limit).status == 200
            fleet = Fleet(world.cloud, project)
            first, second = fleet.store(b"first"), fleet.store(b"second")
            return cls(world, project, first, second, Hosts(world, project, fleet))

    def put(self, signature: str, **more: Any) -> Answer:
        file = {"file_path": "/app", "signature": signature, "target_file_dir": "/opt", "target_user": "root"}
        body = {"files": [file], "targets": {"groups": ["web"]}, **more}
        answer = self.world.ask("PUT", PATH, key=self.project.key, json=body)
        assert answer.status in (200, 201), answer.body
        return answer

    def have_first(self) -> None:
        """All hosts have the first revision. No fault is injected before that."""
        with self.world.calls.without_faults():
            self.put(self.first)
            self.reaches("converged", self.first)

    def reaches(self, status: str, signature: str) -> None:
        """Hosts also poll when no machine waits, which would let them."""

        def reached() -> bool:
            self.hosts.work()
            self.hosts.work()
            return self.shown["status"] == status and self.hosts.all_have(signature)

        self.world.settle(reached)

    @property
    def shown(self) -> dict[str, Any]:
        return self.world.shown(PATH, self.project)

    def over(self) -> None:
        """The watcher has ended, every host is where it should be, and the caller was notified."""
        self.world.settle(lambda: "release:app" in self.world.notified())
        shown = self.shown
        assert not self.hosts.wrong, self.hosts.wrong
        active = {name: host.active for name, host in self.hosts.hosts.items()}
        assert set(active.values()) == {shown["revision"]}, (active, shown)
        assert shown["counts"]["current"] == shown["counts"]["desired"] == len(NAMES), shown


def in_waves(world: World) -> None:
    """One host is down when the revision comes in two waves, and gets it when it returns."""
    stage = Stage.of(world)
    stage.have_first()
    away = stage.hosts.hosts["r2"]
    away.up = False
    with world.calls.without_faults():
        world.cloud.clock.advance(600)
        stage.hosts.work()
        stage.hosts.work()
    stage.put(stage.second, waves=[{"percent": 50}])
    stage.reaches("converged", stage.second)
    assert (away.active, away.content) == (1, stage.first)

    away.up = True
    stage.reaches("converged", stage.second)
    assert stage.shown["stable"] == stage.shown["revision"] == 2, stage.shown
    stage.over()


def bad_revision(world: World) -> None:
    """The second revision fails on every host of the first wave: all end with the first content."""
    stage = Stage.of(world)
    stage.have_first()
    stage.hosts.bad.add(stage.second)
    stage.put(stage.second, waves=[{"percent": 50}])
    tried = stage.shown["revision"]
    stage.reaches("rolled_back", stage.first)
    shown = stage.shown
    # A caller without an answer puts it again, perhaps after it was taken back.
    assert shown["revision"] <= 3 + 2 * world.repeated, shown
    assert {2, tried} - {shown["revision"]} <= set(shown["withdrawn"]), shown
    refused = [name for name, host in stage.hosts.hosts.items() if host.fetched > 1]
    assert len(refused) < len(NAMES), "the bad revision reached every host"
    stage.over()


def rollback(world: World) -> None:
    """A caller goes back from the second revision; hosts kept the content, and fetch nothing."""
    stage = Stage.of(world)
    stage.have_first()
    with world.calls.without_faults():
        stage.put(stage.second)
        stage.reaches("converged", stage.second)
    before = [host.fetched for host in stage.hosts.hosts.values()]
    answer = world.ask("POST", f"{PATH}/rollback", key=stage.project.key, json={})
    assert answer.status == 202, answer.body
    stage.reaches("rolled_back", stage.first)
    shown = stage.shown
    assert 3 <= shown["revision"] <= 3 + world.repeated, shown
    assert 2 in shown["withdrawn"], shown
    assert [host.fetched for host in stage.hosts.hosts.values()] == before, "a rollback moved bytes"
    stage.over()


WAVES = Scenario("release", in_waves)
BAD = Scenario("bad release", bad_revision)
ROLLBACK = Scenario("release rollback", rollback)
