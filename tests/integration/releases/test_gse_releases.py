"""Releases with the engine GSE: it sends the files, and the results of its transfers are the hosts' reports."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from tests.support.fleet import Fleet, collect, messages
from tests.support.gse_server import GseServer, gse_server
from tests.support.moto.cloud import Answer, MotoCloud
from tests.support.releases import ReleaseWorld
from tidegate import app as composition
from tidegate.distribution import gse as engine
from tidegate.distribution.model import job_key
from tidegate.http.model import Limits
from tidegate.releases import rollout

LIMITS = Limits(connect=30, read=30, total=60, max_bytes=1 << 20)
UNREACHABLE = 117


class GseWorld(ReleaseWorld):
    """What lies on a host is what the last transfer that succeeded has sent to it."""

    def __init__(self, fleet: Fleet, gse: GseServer) -> None:
        super().__init__(fleet)
        self.gse = gse
        # By host: the code with which its transfers end, if it is not 0; 115 for those that never end.
        self.codes: dict[str, int] = {}
        self.disk: dict[str, list[str]] = {}
        self._seen: set[str] = set()

    def put_for(self, *hosts: str, release: str = "app", content: bytes | None = None, **more: Any) -> Answer:
        signature = self.fleet.store(content) if content else None
        body: dict[str, Any] = {"targets": {"agents": list(hosts)}, **more}
        return self.put(release, signature, **body)

    def deliver(self) -> None:
        """Windows close and GSE sends: every open Job runs until its transfers have ended or wait."""
        collect(self.fleet, messages(self.fleet))
        self.fleet.pass_window()
        for job in self._open_jobs():
            self._run(job)

    def _open_jobs(self) -> list[str]:
        jobs = self.fleet.get("/v1/jobs", limit=100)["items"]
        return [job["job_id"] for job in reversed(jobs) if job["status"] in ("Pending", "Running")]

    def _run(self, job_id: str) -> None:
        self.fleet.step("close_window", job_id)
        if self.fleet.step("prepare_file", job_id)["state"] == "waiting":
            self.fleet.report("source", 0)
            assert self.fleet.step("prepare_file", job_id)["state"] == "ready"
        answer = self.fleet.step("dispatch_transfer", job_id)
        self._transfers_end()
        self.fleet.step("poll_transfer", job_id)
        self.fleet.step("finish_job", job_id, **({"error": answer["error"]} if "error" in answer else {}))

    def _transfers_end(self) -> None:
        sent = [body for name, body, _ in self.gse.calls if name == "async_transfer_file"]
        for (task_id, agents), body in zip(self.gse.transfers.items(), sent, strict=True):
            if task_id in self._seen:
                continue
            self._seen.add(task_id)
            for agent, result in agents.items():
                result["error_code"] = self.codes.get(agent[0], 0)
                result["error_msg"] = "as GSE says" if result["error_code"] else ""
                if result["error_code"] == 0:
                    name = body["tasks"][0]["source"]["file_name"]
                    self.disk.setdefault(agent[0], []).append(name)

    def rounds(self, count: int = 1, name: str = "app") -> dict[str, Any]:
        """Looks, transfers, looks. Returns the release."""
        for _ in range(count):
            self.look(name)
            self.deliver()
        self.look(name)
        return self.show(name)

    def has(self, content: bytes) -> set[str]:
        """The hosts with this content on their disk."""
        signature = self.fleet.store(content)
        return {host for host, contents in self.disk.items() if contents[-1] == signature}

    @property
    def sent(self) -> int:
        return sum(len(agents) for agents in self.gse.transfers.values())


@pytest.fixture
def gse(monkeypatch: pytest.MonkeyPatch) -> Iterator[GseServer]:
    monkeypatch.setattr(engine, "_LIMITS", LIMITS)
    with gse_server() as server:
        yield server


@pytest.fixture
def world(cloud: MotoCloud, gse: GseServer) -> GseWorld:
    settings = replace(
        cloud.app.settings,
        transfer_engine="gse",
        gse_base_url=gse.base_url,
        gse_source_agent_id="source",
        gse_store_dir="/store",
    )
    composition.install(composition.App(settings, cloud.clock))
    with suppress(cloud.app.secretsmanager.exceptions.ResourceExistsException):
        secret = {"bk_app_code": "tidegate", "bk_app_secret": "s3cret", "bk_username": "admin"}
        name = cloud.app.settings.gse_credentials_id
        cloud.app.secretsmanager.create_secret(Name=name, SecretString=json.dumps(secret))
    fleet = Fleet(cloud)
    fleet.to_window_start()
    grant = {"gse": {"targets": ["a-*"], "dirs": ["/opt/app"], "users": ["root"]}}
    path = f"/v1/projects/{fleet.project.id}"
    assert cloud.http("PATCH", path, json=grant, key=cloud.admin_key).status == 200
    return GseWorld(fleet, gse)


def names(count: int) -> list[str]:
    return [f"a-{number}" for number in range(count)]


def test_hosts_of_one_look_share_a_job_and_are_current(world: GseWorld) -> None:
    made = world.put_for(*names(6), content=b"one")
    assert (made.status, made.json()["revision"]) == (201, 1)
    shown = world.rounds()
    assert (shown["status"], shown["stable"], shown["counts"]["current"]) == ("converged", 1, 6)
    assert world.has(b"one") == set(names(6))
    assert len(world.gse.transfers) == len(world.fleet.get("/v1/jobs")["items"]) == 1
    assert world.look()["state"] == "done"
    hosts = world.shown_hosts()
    assert {(host["state"], host["revision"], host["desired"]) for host in hosts.values()} == {("current", 1, 1)}


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"hook": "reload"}, "hook"),
        ({"health": {"hook": "check"}}, "health"),
        ({"heal": True}, "heal"),
        ({"activate": "manual"}, "activate"),
        ({"activate": "2099-01-01T00:00:00Z"}, "activate"),
        ({"keep": 2}, "keep"),
        ({"targets": {"groups": ["web"]}}, "targets.groups"),
        ({"targets": {"labels": {"os": "linux"}}}, "targets.labels"),
    ],
)
def test_what_gse_cannot_do_is_refused_by_name(world: GseWorld, more: dict[str, Any], field: str) -> None:
    refused = world.put_for("a-1", **more)
    assert (refused.status, refused.json()["errors"][0]["loc"]) == (422, ["body", *field.split(".")])
    assert refused.json()["detail"].startswith(f"{field}: is not possible with GSE")
    assert world.fleet.get("/v1/releases")["items"] == []


@pytest.mark.parametrize("field", ["files", "files.mode", "files.unpack"])
def test_files_that_gse_cannot_put_in_place_are_refused(world: GseWorld, field: str) -> None:
    place = {"target_file_dir": "/opt/app", "target_user": "root", "signature": world.fleet.signature}
    changes = {"files.mode": {"mode": "0640"}, "files.unpack": {"unpack": "tar"}}.get(field, {})
    files = [{"file_path": "/data/a", **place, **changes}]
    files += [{"file_path": "/data/b", **place}] if field == "files" else []
    refused = world.put_for("a-1", files=files)
    assert (refused.status, refused.json()["errors"][0]["loc"]) == (422, ["body", *field.split(".")])


def test_drift_and_files_of_hosts_are_refused(world: GseWorld) -> None:
    world.put_for("a-1")
    world.rounds()
    key = world.fleet.project.key
    for path in ("/v1/releases/app/drift", "/v1/agents/a-1/files"):
        answer = world.cloud.http("GET", path, key=key)
        assert (answer.status, "not known with GSE" in answer.json()["detail"]) == (422, True)


def test_release_beyond_the_grant_is_refused(world: GseWorld) -> None:
    refused = world.put_for("a-1", "db-1")
    assert (refused.status, refused.json()["code"]) == (403, "target_not_granted")
    assert "db-1" in refused.json()["detail"]


def test_path_of_a_release_is_refused_to_others(world: GseWorld) -> None:
    world.put_for("a-1")
    assert world.put_for("a-1", release="other").json()["code"] == "path_taken"
    assert world.put_for("a-2", release="other").status == 201
    plain = world.fleet.post("/v1/downloads", world.fleet.body(target_agent_id="a-1"))
    assert (plain.status, plain.json()["code"]) == (409, "path_taken")


def test_waves_widen_after_results(world: GseWorld) -> None:
    hosts = names(20)
    world.put_for(*hosts, content=b"one")
    world.rounds()
    world.put_for(*hosts, content=b"two", waves=[{"percent": 20}])
    world.look()
    assert world.show()["share"] == 20
    world.deliver()
    first = world.has(b"two")
    assert 0 < len(first) < 20
    world.look()
    assert world.show()["share"] == 100
    world.deliver()
    world.look()
    assert (world.show()["status"], world.has(b"two")) == ("converged", set(hosts))


def test_third_failure_takes_the_revision_back_from_the_wave_alone(world: GseWorld) -> None:
    hosts = names(20)
    world.put_for(*hosts, content=b"one")
    world.rounds()
    world.put_for(*hosts, content=b"two", waves=[{"percent": 20}])
    world.look()
    world.deliver()
    wave = sorted(world.has(b"two"))
    world.put_for(*hosts, content=b"three", waves=[{"percent": 20}])
    world.codes = dict.fromkeys(wave[:1], 7)
    for tries in range(3):
        assert world.show()["status"] == "rolling", tries
        world.rounds()
        world.cloud.clock.advance(61)
    shown = world.show()
    assert (shown["status"], shown["withdrawn"], shown["revision"]) == ("rolled_back", [3], 4)
    assert shown["reason"].endswith("as GSE says (7)")
    world.codes = {}
    before = world.sent
    shown = world.rounds(2)
    assert (shown["counts"]["current"], world.has(b"one")) == (20, set(hosts))
    # Those outside the wave were sent nothing since, and have it already.
    assert world.sent - before == len(wave)


def test_failure_that_passes_does_not_count(world: GseWorld) -> None:
    world.put_for("a-1", "a-2", content=b"one")
    world.codes = {"a-2": 7}
    shown = world.rounds()
    assert (shown["status"], shown["counts"]["behind"]) == ("rolling", 1)
    assert world.shown_hosts()["a-2"]["reason"] == "as GSE says (7)"
    world.codes = {}
    world.cloud.clock.advance(30)
    shown = world.rounds()
    assert (shown["status"], shown["counts"]["current"]) == ("converged", 2)


def test_failure_with_on_failure_stop_stays_until_it_is_resumed(world: GseWorld) -> None:
    hosts = names(4)
    world.put_for(*hosts, content=b"one")
    world.rounds()
    world.put_for(*hosts, content=b"two", on_failure="stop")
    world.codes = {"a-3": 7}
    for _ in range(3):
        world.rounds()
        world.cloud.clock.advance(61)
    assert (world.show()["status"], world.show()["withdrawn"]) == ("failed", [2])
    assert world.act("resume").status == 202
    shown = world.rounds()
    assert (shown["status"], shown["counts"]["failed"]) == ("converged", 1)
    world.codes = {}
    world.cloud.clock.advance(3600)
    shown = world.rounds()
    assert (shown["counts"]["current"], world.look()["state"]) == (4, "done")


def test_unreachable_host_neither_fails_nor_holds_and_gets_it_later(world: GseWorld) -> None:
    world.put_for("a-1", "a-2", content=b"one", waves=[{"percent": 50}])
    world.codes = {"a-2": UNREACHABLE}
    for _ in range(6):
        shown = world.rounds()
        world.cloud.clock.advance(5)
    assert (shown["status"], shown["counts"]["offline"], shown["counts"]["failed"]) == ("converged", 1, 0)
    assert world.sent == 2
    step = world.look()
    assert (step["state"], 60 < step["wait"] <= 900) == ("wait", True)
    world.codes = {}
    world.cloud.clock.advance(900)
    shown = world.rounds()
    assert (shown["counts"]["current"], world.look()["state"]) == (2, "done")


def test_unreachable_host_is_gone_after_thirty_days(world: GseWorld) -> None:
    world.put_for("a-1", "a-2", content=b"one")
    world.codes = {"a-2": UNREACHABLE}
    world.rounds()
    world.cloud.clock.advance(30 * 86400)
    assert world.look()["state"] == "done"
    counts = world.show()["counts"]
    assert (counts["desired"], counts["gone"]) == (1, 1)


def test_transfer_without_a_result_holds_the_wave_and_is_repeated(world: GseWorld) -> None:
    world.put_for("a-1", "a-2", content=b"one")
    world.codes = {"a-2": 115}
    for _ in range(3):
        world.rounds()
        world.cloud.clock.advance(601)
        for job in world._open_jobs():
            world.fleet.step("poll_transfer", job)
            world.fleet.step("finish_job", job)
        assert world.rounds()["status"] == "rolling"
        world.cloud.clock.advance(120)
    world.codes = {}
    world.cloud.clock.advance(3600)
    assert world.rounds()["status"] == "converged"


def test_rollback_sends_the_former_content_again(world: GseWorld) -> None:
    world.put_for(*names(3), content=b"one")
    world.rounds()
    world.put_for(*names(3), content=b"two")
    world.rounds()
    assert world.has(b"two") == set(names(3))
    assert world.act("rollback").json()["revision"] == 3
    shown = world.rounds()
    assert (shown["counts"]["current"], world.has(b"one")) == (3, set(names(3)))
    assert world.fleet.get("/v1/releases/app/revisions")["items"][0]["rollback_to"] == 1


def test_paused_release_sends_nothing(world: GseWorld) -> None:
    world.put_for("a-1", content=b"one")
    assert world.act("pause").status == 202
    world.rounds()
    assert world.sent == 0
    assert world.act("resume").status == 202
    assert (world.rounds()["status"], world.sent) == ("converged", 1)


def test_host_that_is_added_later_gets_it(world: GseWorld) -> None:
    world.put_for("a-1", content=b"one")
    world.rounds()
    again = world.put_for("a-1", "a-2", content=b"one")
    assert (again.status, again.json()["revision"]) == (200, 1)
    assert world.rounds()["counts"]["current"] == 2
    assert world.sent == 2


def test_two_revisions_in_one_window_end_with_the_second(world: GseWorld) -> None:
    world.put_for("a-1", content=b"one")
    world.look()
    world.put_for("a-1", content=b"two")
    world.look()
    shown = world.rounds()
    assert (shown["status"], shown["stable"], world.has(b"two")) == ("converged", 2, {"a-1"})
    assert world.disk["a-1"][-1] == world.fleet.store(b"two")


def test_rollback_within_the_window_ends_with_the_first_content(world: GseWorld) -> None:
    world.put_for("a-1", content=b"one")
    world.look()
    world.put_for("a-1", content=b"two")
    world.look()
    assert world.act("rollback", to=1).status == 202
    world.look()
    shown = world.rounds(2)
    assert (shown["counts"]["current"], world.has(b"one")) == (1, {"a-1"})


def test_late_look_of_an_older_revision_sends_nothing_over_the_newer(
    world: GseWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.put_for("a-1", content=b"one")
    send: Callable[..., Any] = rollout._send_by_gse
    held: list[tuple[Any, ...]] = []
    monkeypatch.setattr(rollout, "_send_by_gse", lambda *given: held.append(given))
    world.look()
    monkeypatch.setattr(rollout, "_send_by_gse", send)
    world.put_for("a-1", content=b"two")
    assert world.rounds()["status"] == "converged"
    # The function that had stopped before it sent the first revision goes on now.
    send(*held[0])
    for _ in range(2):
        world.rounds()
    assert (world.show()["counts"]["current"], world.disk["a-1"]) == (1, [world.fleet.store(b"two")])


def test_look_that_runs_twice_sends_once(world: GseWorld) -> None:
    world.put_for("a-1", "a-2", content=b"one")
    world.look()
    world.look()
    world.deliver()
    world.look()
    world.look()
    assert (world.sent, world.show()["status"]) == (2, "converged")


@pytest.mark.parametrize("dies_at", ["submit", "report"])
def test_look_that_dies_between_two_calls_is_made_up_for(
    world: GseWorld, monkeypatch: pytest.MonkeyPatch, dies_at: str
) -> None:
    world.put_for("a-1", "a-2", content=b"one")
    store = world.cloud.app.releases.store
    calls = [0]

    def die(*_: Any, **__: Any) -> Any:
        calls[0] += 1
        raise RuntimeError("died")

    with monkeypatch.context() as dying:
        dying.setattr(*((rollout, "submit", die) if dies_at == "submit" else (store, "report", die)))
        with pytest.raises(RuntimeError):
            world.look()
    assert calls == [1]
    shown = world.rounds()
    assert (shown["status"], world.has(b"one"), world.sent) == ("converged", {"a-1", "a-2"}, 2)


def test_grant_removed_later_holds_the_wave_and_says_why(world: GseWorld) -> None:
    world.put_for("a-1", content=b"one")
    world.look()
    path, nobody = f"/v1/projects/{world.fleet.project.id}", dict[str, Any](gse={"users": []})
    assert world.cloud.http("PATCH", path, json=nobody, key=world.cloud.admin_key).status == 200
    shown = world.rounds()
    assert (shown["status"], world.sent) == ("rolling", 0)
    assert "no grant" in world.shown_hosts()["a-1"]["reason"]


def test_job_of_a_release_names_the_revision(world: GseWorld) -> None:
    world.put_for("a-1", content=b"one")
    world.look()
    (job,) = world.fleet.get("/v1/jobs")["items"]
    assert job_key(job["job_id"]) == job["key"]
    assert job["release"] == "app@1"


def test_agent_of_the_source_host_has_no_goals(world: GseWorld) -> None:
    world.fleet.inbox("a-1")
    world.put_for("a-1", content=b"one")
    key = world.fleet.key_of("a-1")
    claim = {"releases": [{"name": "app", "revision": 1, "state": "current"}], "has": []}
    answer = world.cloud.http("PUT", "/v1/agents/a-1/releases", key=key, json=claim)
    assert (answer.status, answer.json()["items"]) == (200, [])
    assert world.shown_hosts()["a-1"]["revision"] == 0


def test_reports_of_agents_count_after_a_change_from_gse(world: GseWorld) -> None:
    world.put_for("a-0", content=b"one")
    assert world.rounds(2)["counts"]["current"] == 1

    cloud = world.cloud
    composition.install(composition.App(replace(cloud.app.settings, transfer_engine="agent"), cloud.clock))
    (host,) = world.add_hosts("a-0")
    world.round(host)
    assert world.show()["counts"]["current"] == 1
    world.put_for("a-0", content=b"two")
    world.round(host)
    assert world.show()["status"] == "converged"
