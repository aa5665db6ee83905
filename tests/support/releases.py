"""Hosts of releases for tests on moto: they ask, fetch what they miss, switch and report, as the agent does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.support.fleet import Fleet, collect, messages
from tests.support.moto.cloud import Answer
from tidegate.releases.model import goals_digest


@dataclass
class Host:
    """`bad`: contents on which its health check fails."""

    name: str
    key: str
    bad: set[str] = field(default_factory=set)
    kept: set[str] = field(default_factory=set)
    active: dict[str, int] = field(default_factory=dict)
    content: dict[str, str] = field(default_factory=dict)
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)
    goals: dict[str, tuple[int, bool]] = field(default_factory=dict)
    calls: int = 0
    fetched: int = 0
    highest: int = 0


class ReleaseWorld:
    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.cloud = fleet.cloud
        self.hosts: dict[str, Host] = {}

    def add_hosts(self, *names: str, groups: tuple[str, ...] = ("web",)) -> list[Host]:
        added = []
        for name in names:
            host = self.hosts[name] = Host(name, self.fleet.key_of(name))
            self.poll(host)
            change = {"groups": list(groups)}
            path = f"/v1/agents/{name}"
            assert self.cloud.http("PATCH", path, key=self.fleet.project.key, json=change).status == 200
            added.append(host)
        return added

    # --- callers

    def put(self, release: str = "app", signature: str | None = None, **more: Any) -> Answer:
        file = {
            "file_path": "/data/app.bin",
            "signature": signature or self.fleet.signature,
            "target_file_dir": "/opt/app",
            "target_user": "root",
        }
        body = {"files": [file], "targets": {"groups": ["web"]}, **more}
        return self.cloud.http("PUT", f"/v1/releases/{release}", key=self.fleet.project.key, json=body)

    def act(self, what: str, **body: Any) -> Answer:
        path = f"/v1/releases/app/{what}"
        return self.cloud.http("POST", path, key=self.fleet.project.key, json=body or None)

    def show(self, name: str = "app") -> dict[str, Any]:
        return dict(self.fleet.get(f"/v1/releases/{name}"))

    def shown_hosts(self, name: str = "app", **query: Any) -> dict[str, dict[str, Any]]:
        page = self.fleet.get(f"/v1/releases/{name}/hosts", limit=100, **query)
        return {item["agent_id"]: item for item in page["items"]}

    # --- hosts

    def poll(self, host: Host) -> bool:
        """Polls for transfers. Returns whether the host is to ask for its goals."""
        host.calls += 1
        told = goals_digest((name, *goal) for name, goal in host.goals.items())
        headers = {"X-Tidegate-Can": "stage,release", "X-Tidegate-Goals": told}
        path = f"/v1/agents/{host.name}/transfers"
        answer = self.cloud.http("GET", path, key=host.key, headers=headers)
        assert answer.status == 200, answer.body
        items = answer.json()["items"]
        for item in items:
            assert item["release"]
            host.fetched += item["signature"] not in host.kept
            host.kept.add(item["signature"])
        if items:
            host.calls += 1
            assert self.fleet.report(host.name, 0, items=items).status == 200
        return bool(answer.json().get("releases"))

    def ask(self, host: Host) -> list[dict[str, Any]]:
        host.calls += 1
        body = {"releases": list(host.reports.values()), "has": sorted(host.kept)}
        answer = self.cloud.http("PUT", f"/v1/agents/{host.name}/releases", key=host.key, json=body)
        assert answer.status == 200, answer.body
        goals = answer.json()["items"]
        host.goals = {goal["name"]: (goal["revision"], goal["hold"]) for goal in goals}
        return list(goals)

    def act_as(self, host: Host) -> None:
        """Asks, switches to what can be switched to, and reports."""
        for goal in self.ask(host):
            name, number = goal["name"], goal["revision"]
            (file,) = goal["files"]
            if number <= host.active.get(name, 0) or file["signature"] not in host.kept:
                continue
            state = "staged"
            if not goal["hold"]:
                failed = file["signature"] in host.bad
                state = "failed" if failed else "current"
                host.active[name] = number
                assert number > host.highest or len(host.active) > 1
                host.highest = max(host.highest, number)
                if not failed:
                    host.content[name] = file["signature"]
            reason = {"reason": "health: 500"} if state == "failed" else {}
            host.reports[name] = {"name": name, "revision": number, "state": state, **reason}
            self.ask(host)

    # --- time

    def look(self, name: str = "app") -> dict[str, Any]:
        """One look of the watcher, as its state machine makes it."""
        release = self.cloud.app.releases.store.require(self.fleet.project.id, name)
        step = {"looks": 0, "wait": 0, "revision": release.desired, "generation": release.generation}
        event = {"project_id": self.fleet.project.id, "name": name, "step": step}
        return dict(self.cloud.invoke("watch_release", event))

    def window(self) -> None:
        """The window of what was asked for passes, and its Jobs are sent."""
        jobs = {job["job_id"] for job in self.fleet.get("/v1/jobs", limit=100)["items"] if job["status"] == "Pending"}
        collect(self.fleet, messages(self.fleet))
        self.fleet.pass_window()
        for job_id in jobs:
            self.fleet.step("close_window", job_id)
            assert self.fleet.step("prepare_file", job_id)["state"] == "ready"
            assert self.fleet.step("dispatch_transfer", job_id)["state"] == "dispatched"

    def round(self, *up: Host, name: str = "app") -> None:
        """Hosts that are up ask, get what they miss within one window, switch and report; then a look."""
        for host in up:
            self.act_as(host)
        self.window()
        for host in up:
            self.poll(host)
            self.act_as(host)
        self.look(name)
