"""Releases on moto: hosts get the desired revision in waves, when they return, when they enrol; and the way back."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.support.fleet import Fleet
from tests.support.moto.cloud import Answer, MotoCloud
from tests.support.releases import Host, ReleaseWorld
from tidegate.aws import keys
from tidegate.aws.table import Table, put
from tidegate.releases import rollout


@pytest.fixture
def world(cloud: MotoCloud) -> ReleaseWorld:
    return ReleaseWorld(Fleet(cloud))


def names(count: int) -> list[str]:
    return [f"host-{number:02d}" for number in range(count)]


def judge(world: ReleaseWorld, *, passes: bool, **more: Any) -> Answer:
    body: dict[str, Any] = {"pass": passes, **more}
    return world.act("gate", **body)


def test_revision_reaches_all_hosts_of_its_groups(world: ReleaseWorld) -> None:
    hosts = world.add_hosts(*names(6))
    (other,) = world.add_hosts("db-1", groups=("db",))
    made = world.put()
    assert (made.status, made.json()["revision"]) == (201, 1)

    world.round(*hosts, other)

    shown = world.show()
    assert (shown["status"], shown["stable"], shown["counts"]["current"]) == ("converged", 1, 6)
    assert {host.content["app"] for host in hosts} == {world.fleet.signature}
    assert other.content == {}
    assert len(world.fleet.get("/v1/jobs")["items"]) == 1


def test_what_is_being_sent_to_a_host_is_not_sent_again(world: ReleaseWorld) -> None:
    (host,) = world.add_hosts("host-1")
    world.put()
    (goal,) = world.ask(host)
    assert goal["sending"] == [world.fleet.signature]
    world.window()
    # The file is on its way; the host asks for another reason.
    host.kept.add(world.fleet.signature)
    assert world.ask(host)[0]["sending"] == []
    world.window()
    assert len(world.fleet.get("/v1/jobs")["items"]) == 1


def test_paused_release_says_that_it_sends_nothing(world: ReleaseWorld) -> None:
    (host,) = world.add_hosts("host-1")
    world.put()
    assert world.act("pause").status == 202
    assert [goal["sending"] for goal in world.ask(host)] == [[]]


def test_host_that_was_down_gets_it_when_it_returns(world: ReleaseWorld) -> None:
    up, down = world.add_hosts("host-1", "host-2")
    world.put()
    world.cloud.clock.advance(600)
    world.poll(up)
    world.round(up)
    assert world.show()["status"] == "converged"
    assert world.shown_hosts()["host-2"]["state"] == "offline"

    assert world.poll(down)
    world.round(down)
    assert world.shown_hosts()["host-2"]["state"] == "current"
    assert not world.poll(down)


def test_host_that_gets_the_group_later_gets_the_revision(world: ReleaseWorld) -> None:
    first = world.add_hosts("host-1")
    world.put()
    world.round(*first)
    (late,) = world.add_hosts("host-2")
    assert world.poll(late)
    world.round(late)
    assert late.content == {"app": world.fleet.signature}


def test_poll_after_a_host_has_asked_does_not_let_it_ask_again(world: ReleaseWorld) -> None:
    """The function that answers the poll has read the releases before the put."""
    (host,) = world.add_hosts("host-1")
    world.put()
    world.round(host)
    world.cloud.clock.advance(20)
    assert not world.poll(host)
    world.put(signature=world.fleet.store(b"two"))
    world.ask(host)
    world.cloud.clock.advance(5)
    assert not world.poll(host)
    world.put(signature=world.fleet.store(b"three"))
    world.cloud.clock.advance(10)
    assert world.poll(host)


def test_host_that_gets_the_label_later_gets_the_revision(world: ReleaseWorld) -> None:
    host, other = world.add_hosts("host-1", "host-2")
    (stranger,) = world.add_hosts("host-3", groups=("db",))
    world.put(targets={"groups": ["web"], "labels": {"zone": "a"}})
    world.round(host, other, stranger)
    assert world.show()["counts"]["desired"] == 0
    for name, zone in ((host.name, "a"), (other.name, "b"), (stranger.name, "a")):
        change = {"labels": {"zone": zone}}
        path = f"/v1/agents/{name}"
        assert world.cloud.http("PATCH", path, key=world.fleet.project.key, json=change).status == 200
    world.round(host, other, stranger)
    assert host.content == {"app": world.fleet.signature}
    assert other.content == stranger.content == {}
    assert world.show()["counts"]["desired"] == 1


def test_host_that_leaves_the_group_no_longer_counts_and_keeps_its_file(world: ReleaseWorld) -> None:
    hosts = world.add_hosts("host-1", "host-2")
    world.put()
    world.round(*hosts)
    change = {"groups": ["db"]}
    assert world.cloud.http("PATCH", "/v1/agents/host-2", key=world.fleet.project.key, json=change).status == 200
    assert world.ask(hosts[1]) == []
    assert world.show()["counts"]["desired"] == 1
    assert hosts[1].content


def test_same_content_again_is_the_same_revision(world: ReleaseWorld) -> None:
    assert world.put().status == 201
    again = world.put()
    assert (again.status, again.json()["revision"]) == (200, 1)


def test_other_targets_for_the_same_content_keep_the_revision(world: ReleaseWorld) -> None:
    (host,) = world.add_hosts("host-1", groups=("db",))
    world.put()
    again = world.put(targets={"groups": ["db"]})
    assert (again.status, again.json()["revision"]) == (200, 1)
    world.round(host)
    assert host.active == {"app": 1}


def test_waves_widen_only_after_reports(world: ReleaseWorld) -> None:
    hosts = world.add_hosts(*names(20))
    world.put()
    world.round(*hosts)
    second = world.fleet.store(b"second")
    world.put(signature=second, waves=[{"percent": 20}, {"percent": 60}])

    world.look()
    assert world.show()["share"] == 20
    world.round(*hosts)
    first_wave = sum(host.active["app"] == 2 for host in hosts)
    assert 0 < first_wave < 20
    assert (world.show()["share"], world.show()["wave"]) == (60, 2)
    world.round(*hosts)
    assert world.show()["share"] == 100
    world.round(*hosts)
    assert (world.show()["status"], world.show()["stable"]) == ("converged", 2)
    assert {host.content["app"] for host in hosts} == {second}


def test_host_outside_the_first_wave_keeps_a_revision_that_has_not_passed(world: ReleaseWorld) -> None:
    """A host without a goal forgets the release: a file that the next revision no longer has would stay on it."""
    hosts = world.add_hosts(*names(10))
    world.put(files=[file_of(world, target_file_dir="/opt/old")])
    for host in hosts:
        world.act_as(host)
    world.window()
    for host in hosts:
        world.poll(host)
        world.act_as(host)
    assert world.show()["stable"] == 0
    world.put(signature=world.fleet.store(b"second"), waves=[{"percent": 50}])

    goals = {host.name: [goal["revision"] for goal in world.ask(host)] for host in hosts}

    assert {number for (number,) in goals.values()} == {1, 2}
    assert not any(world.poll(host) for host in hosts if goals[host.name] == [1])
    taken = world.put("other", files=[file_of(world, target_file_dir="/opt/old")])
    assert (taken.status, taken.json()["code"]) == (409, "path_taken")


def test_bad_revision_takes_itself_back_from_the_first_wave(world: ReleaseWorld) -> None:
    hosts = world.add_hosts(*names(20))
    world.put()
    world.round(*hosts)
    bad = world.fleet.store(b"bad")
    for host in hosts:
        host.bad.add(bad)
    world.put(signature=bad, waves=[{"percent": 20}])

    world.round(*hosts)
    world.round(*hosts)

    shown = world.show()
    assert (shown["status"], shown["revision"], shown["stable"], shown["withdrawn"]) == ("rolled_back", 3, 3, [2])
    assert shown["reason"].endswith("among them: health: 500")
    assert {host.content["app"] for host in hosts} == {world.fleet.signature}
    assert {host.active["app"] for host in hosts} == {3}
    assert shown["counts"]["current"] == 20
    assert sum(host.fetched for host in hosts) == 20 + sum(bad in host.kept for host in hosts)


def test_failed_wave_with_on_failure_stop_stays_and_converges_nowhere(world: ReleaseWorld) -> None:
    hosts = world.add_hosts(*names(20))
    world.put()
    world.round(*hosts)
    bad = world.fleet.store(b"bad")
    for host in hosts:
        host.bad.add(bad)
    world.put(signature=bad, waves=[{"percent": 20}], on_failure="stop")
    world.round(*hosts)
    tried = sum(host.active["app"] == 2 for host in hosts)
    (late,) = world.add_hosts("late-1")
    world.round(*hosts, late)
    assert world.show()["status"] == "failed"
    assert sum(host.active["app"] == 2 for host in hosts) == tried
    assert late.active == {"app": 1}


def test_rollback_moves_no_byte_if_hosts_kept_the_content(world: ReleaseWorld) -> None:
    hosts = world.add_hosts(*names(3))
    world.put()
    world.round(*hosts)
    world.put(signature=world.fleet.store(b"second"))
    world.round(*hosts)
    before = [host.fetched for host in hosts]

    back = world.act("rollback")
    assert (back.status, back.json()["revision"], back.json()["status"]) == (202, 3, "rolled_back")
    for host in hosts:
        world.act_as(host)
    assert {host.content["app"] for host in hosts} == {world.fleet.signature}
    assert [host.fetched for host in hosts] == before
    revisions = world.fleet.get("/v1/releases/app/revisions")["items"]
    assert [(one["number"], one.get("rollback_to")) for one in revisions] == [(3, 1), (2, None), (1, None)]


def test_rollback_to_a_named_revision(world: ReleaseWorld) -> None:
    (host,) = world.add_hosts("host-1")
    for content in (b"one", b"two", b"three"):
        world.put(signature=world.fleet.store(content))
        world.round(host)
    assert world.act("rollback", to=1).status == 202
    world.round(host)
    assert host.content["app"] == world.fleet.store(b"one")
    assert world.act("rollback", to=9).status == 409


def test_rollback_to_a_revision_on_a_later_page(world: ReleaseWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    (host,) = world.add_hosts("host-1")
    for content in (b"one", b"two", b"three"):
        world.put(signature=world.fleet.store(content))
        world.round(host)
    query = Table.query
    monkeypatch.setattr(Table, "query", lambda table, pk, **options: query(table, pk, **{**options, "limit": 1}))
    assert world.act("rollback", to=1).status == 202


def test_rollback_without_an_earlier_revision_is_refused(world: ReleaseWorld) -> None:
    world.put()
    refused = world.act("rollback")
    assert (refused.status, refused.json()["code"]) == (409, "wrong_state")


def test_paused_release_changes_nothing_on_hosts(world: ReleaseWorld) -> None:
    (host,) = world.add_hosts("host-1")
    world.put()
    assert world.act("pause").json()["status"] == "paused"
    world.round(host)
    assert host.content == {}
    assert world.act("resume").json()["status"] == "rolling"
    world.round(host)
    assert host.active == {"app": 1}
    assert world.act("resume").status == 409


def test_frozen_stack_opens_no_wave_and_activates_nothing(world: ReleaseWorld) -> None:
    (host,) = world.add_hosts("host-1")
    admin = world.cloud.admin_key
    assert world.cloud.http("POST", "/v1/ops/freeze", json={"reason": "restore"}, key=admin).status == 200
    world.put()
    assert world.ask(host)[0]["hold"]
    assert world.fleet.get("/v1/jobs")["items"] == []
    assert world.look()["state"] == "wait"
    assert world.cloud.http("POST", "/v1/ops/thaw", key=admin).status == 200
    world.round(host)
    assert host.active == {"app": 1}


def test_manual_activation_stages_first(world: ReleaseWorld) -> None:
    (host,) = world.add_hosts("host-1")
    world.put(activate="manual")
    world.round(host)
    shown = world.show()
    assert (shown["status"], shown["counts"]["staged"], host.content) == ("waiting", 1, {})
    assert not world.poll(host)
    assert world.act("activate").status == 202
    world.cloud.clock.advance(11)
    # A host without a connection learns of it by its poll.
    assert world.poll(host)
    world.round(host)
    assert host.content == {"app": world.fleet.signature}
    assert world.show()["status"] == "converged"


def test_activation_at_a_time_waits_for_it(world: ReleaseWorld) -> None:
    (host,) = world.add_hosts("host-1")
    at = world.cloud.clock().timestamp() + 300
    moment = datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")
    world.put(activate=moment)
    world.round(host)
    assert host.content == {}
    world.cloud.clock.advance(300)
    world.poll(host)
    world.look()
    world.round(host)
    assert host.content == {"app": world.fleet.signature}


def test_callers_gate_stops_or_hastens_a_wave(world: ReleaseWorld) -> None:
    hosts = world.add_hosts(*names(10))
    world.put()
    world.round(*hosts)
    soaks = {"url": "http://127.0.0.1:8080/healthz", "soak_s": 3600}
    world.put(signature=world.fleet.store(b"two"), waves=[{"percent": 50}], health=soaks)
    world.round(*hosts)
    assert world.show()["share"] == 50
    assert judge(world, passes=True).status == 202
    world.look()
    assert world.show()["share"] == 100
    failed = judge(world, passes=False, reason="error budget is used up")
    assert (failed.json()["status"], failed.json()["reason"]) == ("rolled_back", "error budget is used up")


def test_failed_gate_with_on_failure_stop_withdraws_the_revision(world: ReleaseWorld) -> None:
    hosts = world.add_hosts(*names(10))
    world.put()
    world.round(*hosts)
    world.put(signature=world.fleet.store(b"two"), waves=[{"percent": 50}], on_failure="stop")
    failed = judge(world, passes=False, reason="error budget is used up").json()
    assert (failed["status"], failed["revision"], failed["withdrawn"]) == ("failed", 2, [2])
    world.round(*hosts)
    assert {host.active["app"] for host in hosts} == {1}


def test_two_releases_cannot_have_one_path_on_a_host(world: ReleaseWorld) -> None:
    world.add_hosts("host-1")
    world.put()
    taken = world.put("other")
    assert (taken.status, taken.json()["code"]) == (409, "path_taken")
    assert "app" in taken.json()["detail"]
    world.add_hosts("host-2", groups=("db",))
    assert world.put("other", targets={"groups": ["db"]}).status == 201


@pytest.mark.parametrize("directory", ["/opt//app", "/opt/./app", "//opt/app/.", "/opt\\app"])
def test_path_is_taken_however_it_is_written(world: ReleaseWorld, directory: str) -> None:
    world.add_hosts("host-1")
    world.put()
    again = file_of(world, target_file_dir=directory)
    submitted = world.fleet.body(target_agent_id="host-1", target_file_dir=directory)
    for refused in (world.put("other", files=[again]), world.fleet.post("/v1/downloads", submitted)):
        assert (refused.status, refused.json()["code"]) == (409, "path_taken")
    assert world.put(files=[file_of(world), again]).status == 422


def test_path_of_hosts_that_still_have_the_stable_revision_is_taken(world: ReleaseWorld) -> None:
    """While a roll-out goes on, hosts outside its waves have the files of the revision before."""
    hosts = world.add_hosts(*names(10))
    world.put()
    world.round(*hosts)
    world.put(files=[file_of(world, target_file_dir="/opt/new")], waves=[{"percent": 50}])
    taken = world.put("other")
    assert (taken.status, taken.json()["code"]) == (409, "path_taken")
    body = world.fleet.body(target_agent_id=hosts[0].name, target_file_dir="/opt/app", file_path="/data/app.bin")
    plain = world.fleet.post("/v1/downloads", body)
    assert (plain.status, plain.json()["code"]) == (409, "path_taken")
    world.round(*hosts)
    world.round(*hosts)
    assert world.show()["status"] == "converged"
    assert world.put("other").status == 201


def test_path_of_a_release_that_was_deleted_a_moment_ago_is_free(world: ReleaseWorld) -> None:
    """Functions remember the releases for some seconds."""
    (host,) = world.add_hosts("host-1")
    world.put()
    world.round(host)
    world.put(files=[file_of(world, target_file_dir="/opt/new")])
    world.cloud.clock.advance(11)
    body = world.fleet.body(target_agent_id=host.name, target_file_dir="/opt/app", file_path="/data/app.bin")
    assert world.fleet.post("/v1/downloads", body).status == 409
    assert world.cloud.http("DELETE", "/v1/releases/app", key=world.fleet.project.key).status == 204
    world.cloud.app.releases.store._revisions.clear()
    assert world.fleet.post("/v1/downloads", body).status == 202


def test_rollback_to_a_path_that_another_release_has_taken_is_refused(world: ReleaseWorld) -> None:
    (host,) = world.add_hosts("host-1")
    world.put()
    world.round(host)
    world.put(files=[file_of(world, target_file_dir="/opt/new")])
    world.round(host)
    assert world.put("other").status == 201
    taken = world.act("rollback")
    assert (taken.status, taken.json()["code"]) == (409, "path_taken")
    assert "other" in taken.json()["detail"]


def test_staged_content_that_a_host_lost_is_sent_again(world: ReleaseWorld) -> None:
    (host,) = world.add_hosts("host-1")
    world.put(activate="manual")
    world.round(host)
    assert world.shown_hosts()[host.name]["state"] == "staged"
    host.kept.clear()
    assert world.act("activate").status == 202
    world.round(host)
    assert host.content == {"app": world.fleet.signature}
    assert world.show()["status"] == "converged"


@pytest.mark.parametrize("heal", [True, False])
def test_changed_file_is_sent_again_only_if_the_release_heals(world: ReleaseWorld, heal: bool) -> None:
    (host,) = world.add_hosts("host-1")
    world.put(heal=heal)
    world.round(host)
    host.kept.clear()
    host.reports["app"] |= {"state": "drifted", "drift": ["/opt/app/app.bin: its content was changed"]}
    (goal,) = world.ask(host)
    assert goal["sending"] == [world.fleet.signature] * heal
    world.window()
    world.poll(host)
    assert (host.kept == {world.fleet.signature}) is heal


def test_verdict_that_comes_before_all_reports_counts(world: ReleaseWorld) -> None:
    """It skips the soak time, and not the reports."""
    hosts = world.add_hosts(*names(10))
    world.put()
    world.round(*hosts)
    soaks = {"url": "http://127.0.0.1:8080/healthz", "soak_s": 3600}
    world.put(signature=world.fleet.store(b"two"), waves=[{"percent": 50}], health=soaks)
    assert judge(world, passes=True).status == 202
    world.look()
    assert world.show()["share"] == 50
    world.round(*hosts)
    assert world.show()["share"] == 100


def test_report_of_a_revision_that_was_deleted_lists_no_files(world: ReleaseWorld) -> None:
    """A release was deleted while the host was away, and made again under its name."""
    (host,) = world.add_hosts("host-1")
    world.put()
    world.round(host)
    key = world.fleet.project.key
    assert world.cloud.http("DELETE", "/v1/releases/app", key=key).status == 204
    world.put(signature=world.fleet.store(b"two"))
    world.ask(host)
    # A function that has not seen the deleted revision.
    world.cloud.app.releases.store._revisions.clear()
    listed = world.cloud.http("GET", f"/v1/agents/{host.name}/files", key=key)
    assert (listed.status, listed.json()["items"]) == (200, [])


def file_of(world: ReleaseWorld, **more: Any) -> dict[str, Any]:
    place = {"target_file_dir": "/opt/app", "target_user": "root"}
    return {"file_path": "/data/app.bin", "signature": world.fleet.signature, **place, **more}


def test_archive_takes_its_tree_on_hosts(world: ReleaseWorld) -> None:
    (host,) = world.add_hosts("host-1")
    assert world.put(files=[file_of(world, unpack="tar")]).status == 201
    (goal,) = world.ask(host)
    assert goal["files"][0]["unpack"] == "tar"
    assert world.show()["files"][0]["unpack"] == "tar"
    for inside in ("/opt/app/current", "/opt/app/releases/7"):
        taken = world.put("other", files=[file_of(world, target_file_dir=inside)])
        assert (taken.status, taken.json()["code"]) == (409, "path_taken")
    assert world.put("other", files=[file_of(world)]).status == 201


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ([{"unpack": "rar"}], "tar"),
        ([{"unpack": "tar", "mode": "0640"}], "mode does not apply"),
        ([{"unpack": "tar"}, {"unpack": "zip"}], "takes /opt/app/current"),
        ([{"unpack": "tar"}, {"target_file_dir": "/opt/app/releases/1"}], "takes /opt/app/releases/1/app.bin"),
        ([{}, {}], "takes /opt/app/app.bin"),
    ],
)
def test_files_that_collide_are_refused_and_named(world: ReleaseWorld, changes: list[dict[str, Any]], why: str) -> None:
    refused = world.put(files=[file_of(world, **change) for change in changes])
    assert refused.status == 422
    assert why in str(refused.json()["errors"])


def test_archive_that_is_too_large_is_refused(world: ReleaseWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.releases.releases.MOST_TREE_BYTES", 3)
    refused = world.put(files=[file_of(world, unpack="zip")])
    assert (refused.status, "too large" in refused.json()["detail"]) == (422, True)


def test_report_of_a_revision_that_was_never_put_does_not_count(world: ReleaseWorld) -> None:
    (host,) = world.add_hosts("host-1")
    world.put()
    for report in ({"revision": 999, "state": "current"}, {"revision": 1, "state": "staged", "placed": 999}):
        host.reports["app"] = {"name": "app"} | report
        world.ask(host)
        world.look()
        assert (world.show()["status"], world.shown_hosts()["host-1"]["revision"]) == ("rolling", 0)
    host.reports.clear()
    world.round(host)
    assert world.show()["counts"]["current"] == 1


def test_check_without_changes_is_stored_once_an_hour(world: ReleaseWorld) -> None:
    (host,) = world.add_hosts("host-1")
    world.put()
    world.round(host)
    for moment, stored in (("10:00", "10:00"), ("10:30", "10:00"), ("11:00", "11:00")):
        host.reports["app"] |= {"checked_at": f"2026-01-31T{moment}:00Z"}
        world.ask(host)
        assert world.shown_hosts()["host-1"]["checked_at"] == f"2026-01-31T{stored}:00Z"


def test_only_an_admin_puts_a_release_into_the_agents_directory(world: ReleaseWorld) -> None:
    for place in ({}, {"unpack": "tar"}):
        refused = world.put(files=[file_of(world, target_file_dir="/.tidegate/new", **place)])
        assert (refused.status, refused.json()["code"]) == (403, "scope_missing")


def inventory(world: ReleaseWorld, name: str = "host-1") -> list[dict[str, Any]]:
    return list(world.fleet.get(f"/v1/agents/{name}/files")["items"])


def test_files_of_a_host_are_those_of_the_revision_in_place(world: ReleaseWorld) -> None:
    (host,) = world.add_hosts("host-1")
    assert inventory(world) == []
    world.put()
    world.round(host)
    has = {"path": "/opt/app/app.bin", "release": "app", "revision": 1, "sha256": world.fleet.signature}
    assert inventory(world) == [has | {"checked_at": None, "drift": None}]
    bad = world.fleet.store(b"bad")
    host.bad.add(bad)
    world.put(signature=bad, on_failure="stop")
    world.round(host)
    assert inventory(world) == []
    world.put(signature=world.fleet.store(b"worse"), on_failure="stop")
    host.reports["app"] = {"name": "app", "revision": 3, "state": "failed", "placed": 1}
    world.ask(host)
    assert inventory(world) == [has | {"checked_at": None, "drift": None}]


def test_drift_is_shown_beside_the_file_it_belongs_to(world: ReleaseWorld) -> None:
    (host,) = world.add_hosts("host-1")
    tree = file_of(world, target_file_dir="/srv/tree", unpack="tar")
    world.put(files=[file_of(world), tree, file_of(world, target_file_dir="/opt/app.d")])
    drift = ["/opt/app/app.bin: its content was changed", "/srv/tree/current/bin/x: removed"]
    host.reports["app"] = {"name": "app", "revision": 1, "state": "drifted", "drift": drift}
    world.ask(host)
    shown = {file["path"]: file["drift"] for file in inventory(world)}
    assert shown == {
        "/opt/app/app.bin": "its content was changed",
        "/opt/app.d/app.bin": None,
        "/srv/tree/current": "bin/x: removed",
    }


def test_files_of_unknown_and_replaced_hosts_are_not_listed(world: ReleaseWorld) -> None:
    assert world.cloud.http("GET", "/v1/agents/host-9/files", key=world.fleet.project.key).status == 404
    (host,) = world.add_hosts("host-1")
    world.put()
    world.round(host)
    assert world.cloud.http("DELETE", "/v1/agents/host-1", key=world.fleet.project.key).status == 204
    world.fleet._keys.clear()
    world.add_hosts("host-1")
    assert inventory(world) == []


def test_deleted_release_leaves_files_and_its_numbers_go_on(world: ReleaseWorld) -> None:
    (host,) = world.add_hosts("host-1")
    world.put()
    world.round(host)
    assert world.cloud.http("DELETE", "/v1/releases/app", key=world.fleet.project.key).status == 204
    assert world.ask(host) == []
    assert host.content
    assert world.put(signature=world.fleet.store(b"two")).json()["revision"] == 2
    world.round(host)
    assert host.active == {"app": 2}


def test_report_of_a_replaced_host_does_not_count(world: ReleaseWorld) -> None:
    (host,) = world.add_hosts("host-1")
    world.put()
    world.round(host)
    project = world.fleet.project
    assert world.cloud.http("DELETE", "/v1/agents/host-1", key=project.key).status == 204
    body = {"releases": [{"name": "app", "revision": 9, "state": "current"}]}
    refused = world.cloud.http("PUT", "/v1/agents/host-1/releases", key=host.key, json=body)
    assert refused.status in (401, 403)
    world.fleet._keys.clear()
    (new,) = world.add_hosts("host-1")
    assert world.shown_hosts()["host-1"]["revision"] == 0
    world.round(new)
    assert world.shown_hosts()["host-1"]["state"] == "current"


def test_agent_that_knows_no_releases_is_not_offered_their_files(world: ReleaseWorld) -> None:
    (host,) = world.add_hosts("host-1")
    world.put()
    world.ask(host)
    world.window()
    assert world.fleet.inbox("host-1", can="stage") == []
    assert len(world.fleet.inbox("host-1", can="stage,release")) == 1


def test_calls_of_a_host_for_a_revision_are_at_most_five(world: ReleaseWorld) -> None:
    (host,) = world.add_hosts("host-1")
    world.put()
    before = host.calls
    world.round(host)
    assert host.active == {"app": 1}
    assert host.calls - before <= 5


def test_lost_watcher_is_started_again(world: ReleaseWorld) -> None:
    (host,) = world.add_hosts("host-1")
    world.put()
    r = world.cloud.app.releases
    item = {"project_id": world.fleet.project.id, "name": "app"}
    sfn = world.cloud.client("stepfunctions")

    def running() -> list[str]:
        found = sfn.list_executions(stateMachineArn=r.machine_arn, statusFilter="RUNNING")["executions"]
        return [one["executionArn"] for one in found]

    (first,) = running()
    world.cloud.app.due_handlers["release"](item)
    assert running() == [first]
    sfn.stop_execution(executionArn=first)
    world.cloud.app.due_handlers["release"](item)
    (second,) = running()
    assert second != first
    world.poll(host)
    world.round(host)
    assert host.active == {"app": 1}


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"files": []}, "files"),
        ({"hook": "/bin/sh -c x"}, "hook"),
        ({"health": {"url": "http://169.254.169.254/"}}, "url"),
        ({"health": {"url": "http://127.0.0.1:65536/"}}, "url"),
        ({"activate": "tomorrow"}, "activate"),
        ({"waves": [{"percent": 50}, {"percent": 10}]}, "waves"),
        ({"keep": 0}, "keep"),
    ],
)
def test_bad_release_is_refused_and_named(world: ReleaseWorld, change: dict[str, Any], place: str) -> None:
    refused = world.put(**change)
    assert refused.status == 422, refused.body
    assert place in str(refused.json()["errors"])


def test_file_that_a_release_needs_is_not_deleted(world: ReleaseWorld) -> None:
    project = world.fleet.project
    announced = {"biz_id": 1, "app_id": 1, "file_path": "/kept"}
    file_id = world.cloud.http("POST", "/v1/files", json=announced, key=project.key).json()["file_id"]
    item = world.cloud.app.table.get(keys.file(project.id, file_id))
    assert item is not None
    world.cloud.app.table.write(put(item | {"signature": world.fleet.signature, "state": "ready"}))
    world.put()
    refused = world.cloud.http("DELETE", f"/v1/files/{file_id}", key=project.key)
    assert (refused.status, refused.json()["code"]) == (409, "in_use")
    assert world.cloud.http("DELETE", "/v1/releases/app", key=project.key).status == 204
    assert world.cloud.http("DELETE", f"/v1/files/{file_id}", key=project.key).status == 204


def test_unknown_file_is_404(world: ReleaseWorld) -> None:
    assert world.put(signature="0" * 64).status == 404


def test_other_projects_release_is_404(world: ReleaseWorld) -> None:
    world.put()
    stranger = world.cloud.project()
    assert world.cloud.http("GET", "/v1/releases/app", key=stranger.key).status == 404
    assert world.cloud.http("GET", "/v1/releases", key=stranger.key).json()["items"] == []


# --- what is refused at once, where it is known


def test_plain_submit_to_a_path_of_a_release_is_refused_and_named(world: ReleaseWorld) -> None:
    world.add_hosts("host-1")
    world.add_hosts("host-2", groups=("db",))
    world.put()
    targets = [{"agent_id": "host-2"}, {"agent_id": "host-1"}]
    one = world.fleet.body(target_agent_id="host-1")
    many, selected = world.fleet.body(targets=targets), world.fleet.body(groups=["web"])
    for path, body in (("downloads", one), ("downloads/batch", many), ("downloads/batch", selected)):
        refused = world.fleet.post(f"/v1/{path}", body)
        assert (refused.status, refused.json()["code"]) == (409, "path_taken")
        assert "release app has /opt/app/app.bin on the host host-1" in refused.json()["detail"]
        assert world.fleet.post(f"/v1/{path}", body | {"force": True}).status == 202
    for other in ({"target_agent_id": "host-2"}, {"file_name": "b"}, {"target_container_id": "c-1"}):
        assert world.fleet.post("/v1/downloads", one | other).status == 202


def test_forced_transfer_tells_the_host_that_it_is_forced(world: ReleaseWorld) -> None:
    world.add_hosts("host-1")
    world.put()
    job = world.fleet.submit("host-1", force=True)["job_id"]
    world.fleet.run_until_dispatched(job)
    assert [item["force"] for item in world.fleet.inbox("host-1")] == [True]


def connect(world: ReleaseWorld, name: str, allows: str | None) -> None:
    about = {"version": "1.1.0"} | ({"allows": allows} if allows else {})
    fleet = world.cloud.app.distribution.fleet
    fleet.connected(world.fleet.project.id, name, f"connection-{name}", about, 0)


@pytest.mark.parametrize(
    ("allows", "lacks"),
    [("reload,:8080", None), (None, None), ("-", "(reload, :8080)"), ("reload", "(:8080)"), (":8080", "(reload)")],
)
def test_hook_that_a_connected_host_does_not_allow_is_refused(
    world: ReleaseWorld, allows: str | None, lacks: str | None
) -> None:
    world.add_hosts("host-1")
    connect(world, "host-1", allows)
    world.add_hosts("host-2", groups=("db",))
    connect(world, "host-2", "-")
    answer = world.put(hook="reload", health={"url": "http://127.0.0.1:8080/healthz"})
    if lacks is None:
        assert answer.status == 201, answer.body
    else:
        assert (answer.status, answer.json()["code"]) == (409, "hook_not_allowed")
        assert f"host-1 {lacks}" in answer.json()["detail"]
        assert "host-2" not in answer.json()["detail"]


def test_release_for_a_group_without_hosts_waits_for_them(world: ReleaseWorld) -> None:
    made = world.put(targets={"groups": ["nobody-has-it"]})
    assert (made.status, made.json()["status"]) == (201, "rolling")
    world.look()
    assert (world.show()["status"], world.show()["counts"]["desired"]) == ("rolling", 0)
    (host,) = world.add_hosts("host-1", groups=("nobody-has-it",))
    world.round(host)
    assert (world.show()["status"], host.active) == ("converged", {"app": 1})


def test_host_that_lies_changes_its_own_line_only(world: ReleaseWorld) -> None:
    liar, *others = world.add_hosts(*names(10))
    world.put()
    world.round(liar, *others)
    second = world.fleet.store(b"second")
    world.put(signature=second)
    for claim in ({"state": "current", "revision": 2}, {"state": "failed", "revision": 2, "placed": 1}):
        liar.reports["app"] = {"name": "app", **claim}
        world.ask(liar)
    # It has said that it has the revision, and is shown so; a wave needs the others' word.
    world.look()
    shown = world.shown_hosts()
    assert [shown[host.name]["revision"] for host in others] == [1] * 9
    assert world.show()["share"] == 100
    foreign = {"releases": [{"name": "other", "revision": 1, "state": "current"}], "has": ["0" * 64]}
    path = f"/v1/agents/{liar.name}/releases"
    assert world.cloud.http("PUT", path, key=liar.key, json=foreign).status == 200
    assert world.cloud.http("PUT", f"/v1/agents/{others[0].name}/releases", key=liar.key, json=foreign).status == 403


def test_host_that_was_not_seen_for_thirty_days_is_gone(world: ReleaseWorld) -> None:
    up, lost = world.add_hosts("host-1", "host-2")
    world.put()
    world.cloud.clock.advance(30 * 86400)
    world.poll(up)
    world.round(up)
    counts = world.show()["counts"]
    assert (counts["desired"], counts["gone"], counts["current"]) == (1, 1, 1)
    assert world.shown_hosts(state="gone").keys() == {lost.name}


# --- the alarm as a gate


def set_alarm(world: ReleaseWorld, state: str, name: str = "shop-5xx") -> str:
    """Returns the alarm's ARN."""
    cloudwatch = world.cloud.client("cloudwatch")
    cloudwatch.put_metric_alarm(
        AlarmName=name,
        Namespace="Shop",
        MetricName="5xx",
        Statistic="Sum",
        Period=60,
        EvaluationPeriods=1,
        Threshold=5,
        ComparisonOperator="GreaterThanThreshold",
    )
    cloudwatch.set_alarm_state(AlarmName=name, StateValue=state, StateReason="7 errors in a minute")
    return str(cloudwatch.describe_alarms(AlarmNames=[name])["MetricAlarms"][0]["AlarmArn"])


def allow_alarms(world: ReleaseWorld, *patterns: str) -> Answer:
    path = f"/v1/projects/{world.fleet.project.id}"
    return world.cloud.http("PATCH", path, key=world.cloud.admin_key, json={"alarms": list(patterns)})


def soaking(world: ReleaseWorld, **more: Any) -> list[Host]:
    """Ten hosts with a first revision, half of them with a second one that has an alarm."""
    assert allow_alarms(world, "shop-*").status == 200
    hosts = world.add_hosts(*names(10))
    world.put()
    world.round(*hosts)
    waves = [{"percent": 50, "wait_s": 60}]
    body = {"signature": world.fleet.store(b"two"), "waves": waves, "alarm": "shop-5xx", **more}
    assert world.put(**body).status == 201
    world.round(*hosts)
    return hosts


def test_alarm_takes_a_revision_back_from_healthy_hosts(world: ReleaseWorld) -> None:
    set_alarm(world, "OK")
    hosts = soaking(world)
    assert world.show()["share"] == 50
    set_alarm(world, "ALARM")
    world.look()
    shown = world.show()
    assert (shown["status"], shown["withdrawn"]) == ("rolled_back", [2])
    assert shown["reason"] == "the alarm shop-5xx is in ALARM: 7 errors in a minute"
    world.round(*hosts)
    assert {host.content["app"] for host in hosts} == {world.fleet.signature}


def test_alarm_with_on_failure_stop_stops_the_roll_out(world: ReleaseWorld) -> None:
    set_alarm(world, "ALARM")
    soaking(world, on_failure="stop")
    assert (world.show()["status"], world.show()["withdrawn"]) == ("failed", [2])


def test_alarm_that_stays_quiet_lets_the_wave_pass(world: ReleaseWorld) -> None:
    arn = set_alarm(world, "OK")
    hosts = soaking(world, alarm=arn)
    world.cloud.clock.advance(60)
    world.look()
    assert world.show()["share"] == 100
    world.round(*hosts)
    assert world.show()["status"] == "converged"


@pytest.mark.parametrize("trouble", ["INSUFFICIENT_DATA", "absent", "of another account", "no longer allowed"])
def test_alarm_without_a_verdict_holds_the_wave_and_says_so(world: ReleaseWorld, trouble: str) -> None:
    arn = set_alarm(world, "INSUFFICIENT_DATA" if trouble == "INSUFFICIENT_DATA" else "OK")
    more = {"alarm": arn.replace("123456789012", "210987654321")} if trouble == "of another account" else {}
    hosts = soaking(world, **more)
    if trouble == "absent":
        world.cloud.client("cloudwatch").delete_alarms(AlarmNames=["shop-5xx"])
    if trouble == "no longer allowed":
        allow_alarms(world)
    for _ in range(3):
        world.cloud.clock.advance(120)
        for host in hosts:
            world.poll(host)
        world.look()
    shown = world.show()
    assert (shown["status"], shown["share"], shown["withdrawn"]) == ("waiting", 50, [])
    assert "the roll-out waits" in shown["reason"]
    assert shown["counts"]["failed"] == 0
    if trouble == "INSUFFICIENT_DATA":
        set_alarm(world, "OK")
        world.look()
        assert (world.show()["status"], world.show()["reason"]) == ("rolling", None)


def test_alarm_that_cannot_be_read_holds_the_wave(world: ReleaseWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    set_alarm(world, "OK")
    soaking(world)

    def refuse(**_: Any) -> None:
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "DescribeAlarms")

    monkeypatch.setattr(world.cloud.app.releases.cloudwatch, "describe_alarms", refuse, raising=False)
    world.cloud.clock.advance(120)
    world.look()
    shown = world.show()
    assert (shown["status"], shown["share"]) == ("waiting", 50)
    assert "cannot be read" in shown["reason"]


def test_alarm_that_no_admin_allowed_is_refused_at_the_put(world: ReleaseWorld) -> None:
    set_alarm(world, "OK")
    for patterns, alarm in (((), "shop-5xx"), (("shop-*",), "bank-5xx"), (("shop-*",), "Shop-5xx")):
        allow_alarms(world, *patterns)
        refused = world.put(alarm=alarm)
        assert (refused.status, refused.json()["errors"][0]["loc"]) == (422, ["body", "alarm"])
    assert allow_alarms(world, *["x"] * 21).status == 422
    path, key = f"/v1/projects/{world.fleet.project.id}", world.fleet.project.key
    assert world.cloud.http("PATCH", path, key=key, json={"alarms": ["*"]}).status == 403


# --- two callers at once


@pytest.mark.parametrize("step", ["gate", "resume", "activate"])
def test_step_decided_on_an_older_revision_does_not_touch_a_newer_one(
    world: ReleaseWorld, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    (host,) = world.add_hosts("host-1")
    world.put()
    world.round(host)
    bad = world.fleet.store(b"bad")
    host.bad.add(bad)
    world.put(signature=bad, on_failure="stop", activate="manual" if step == "activate" else "now")
    if step == "resume":
        world.round(host)
        assert world.show()["status"] == "failed"
    store = type(world.cloud.app.releases.store)
    read = store.require

    def then_another_puts(self: Any, project_id: str, name: str) -> Any:
        found = read(self, project_id, name)
        monkeypatch.setattr(store, "require", read)
        assert world.put(signature=world.fleet.store(b"three"), activate="manual").status == 201
        return found

    monkeypatch.setattr(store, "require", then_another_puts)
    refused = judge(world, passes=False) if step == "gate" else world.act(step)
    assert (refused.status, refused.json()["code"]) == (409, "conflict")
    shown = world.cloud.app.releases.store.require(world.fleet.project.id, "app")
    assert (shown.desired, shown.shown_status, shown.opened < 3) == (3, "rolling", True)


def test_two_first_puts_at_once_make_one_release(world: ReleaseWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    store = type(world.cloud.app.releases.store)
    read = store.get

    def then_another_puts(self: Any, project_id: str, name: str) -> Any:
        found = read(self, project_id, name)
        monkeypatch.setattr(store, "get", read)
        assert world.put(signature=world.fleet.store(b"first")).status == 201
        return found

    second = world.fleet.store(b"second")
    monkeypatch.setattr(store, "get", then_another_puts)
    refused = world.put(signature=second)
    assert (refused.status, refused.json()["code"]) == (409, "conflict")
    assert [file["signature"] for file in world.show()["files"]] == [world.fleet.store(b"first")]


@pytest.mark.parametrize(("late", "newer"), [("current", "failed"), ("staged", "failed"), ("staged", "current")])
def test_late_report_of_a_revision_does_not_undo_a_newer_one(
    world: ReleaseWorld, monkeypatch: pytest.MonkeyPatch, late: str, newer: str
) -> None:
    """Both read what was known before either is stored."""
    (host,) = world.add_hosts("host-1")
    world.put()
    store = type(world.cloud.app.releases.store)
    read = store.reports_of_host

    def says(state: str) -> None:
        host.reports["app"] = {"name": "app", "revision": 1, "state": state}
        world.ask(host)

    def then_another_comes(self: Any, project_id: str, agent_id: str) -> Any:
        found = read(self, project_id, agent_id)
        monkeypatch.setattr(store, "reports_of_host", read)
        says(newer)
        return found

    monkeypatch.setattr(store, "reports_of_host", then_another_comes)
    says(late)
    assert world.shown_hosts()["host-1"]["state"] == newer
    if late == "staged":
        says(late)
        assert world.shown_hosts()["host-1"]["state"] == newer


# --- what hosts are told


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The hosts of each message that lets them ask."""
    found: list[list[str]] = []

    def note(_d: Any, _project: str, agents: Any, _within: int, **also: Any) -> None:
        found.append(sorted(agents) if also["releases"] else [])

    monkeypatch.setattr(rollout, "wake_soon", note)
    return found


def watch(world: ReleaseWorld, seconds: float, step: dict[str, Any] | None = None) -> dict[str, Any]:
    """The looks of so many seconds, as the state machine makes them. Returns the last one, to go on with."""
    release = world.cloud.app.releases.store.require(world.fleet.project.id, "app")
    first = {"looks": 0, "wait": 0, "revision": release.desired, "generation": release.generation}
    step = step or first
    while seconds > 0 and step.get("state") != "done":
        event = {"project_id": world.fleet.project.id, "name": "app", "step": step}
        step = dict(world.cloud.invoke("watch_release", event))
        world.cloud.clock.advance(step["wait"])
        seconds -= step["wait"]
    return step


def test_hosts_that_are_behind_are_told_once_and_rarely_again(world: ReleaseWorld, told: list[list[str]]) -> None:
    """Each time costs a call of every host; within a minute they have asked, and wait for the window."""
    hosts = world.add_hosts("host-1", "host-2")
    world.put()
    step = watch(world, 50)
    assert told == [["host-1", "host-2"]]
    for _ in range(10):
        world.poll(hosts[0])
        step = watch(world, 60, step)
    # After 60, 120, 240 and 480 seconds; the other host is offline by then.
    assert told == [["host-1", "host-2"]] * 4 + [["host-1"]]


def test_hosts_of_a_wave_are_told_when_it_opens(world: ReleaseWorld, told: list[list[str]]) -> None:
    hosts = world.add_hosts(*names(8))
    world.put(waves=[{"percent": 50}])
    watch(world, 5)
    first = list(told[0])
    told.clear()
    world.round(*[host for host in hosts if host.name in first])
    assert sorted(told[-1] + first) == sorted(names(8))


def test_host_whose_groups_change_is_told_to_ask(world: ReleaseWorld, told: list[list[str]]) -> None:
    """A connected host polls every few hours only."""
    path, key = "/v1/agents/host-1", world.fleet.project.key
    world.add_hosts("host-1", groups=("db",))
    assert told == []
    world.put()
    world.cloud.clock.advance(20)
    assert world.cloud.http("PATCH", path, key=key, json={"groups": ["web"]}).status == 200
    assert told[-1] == ["host-1"]


def test_roll_out_without_a_host_online_is_looked_at_rarely(world: ReleaseWorld) -> None:
    world.add_hosts("host-1")
    world.cloud.clock.advance(3600)
    world.put()
    step = watch(world, 86400)
    # A 240th of its age at the last look of the day.
    assert (step["wait"], step["looks"] < 320) == (359, True)


# --- a revision that failed and is resumed


def test_resumed_revision_goes_on_without_the_hosts_that_failed(world: ReleaseWorld) -> None:
    hosts = world.add_hosts(*names(10))
    world.put()
    world.round(*hosts)
    second = world.fleet.store(b"second")
    world.put(signature=second, on_failure="stop", waves=[{"percent": 50}])
    first_wave = [host for host in hosts if [goal["revision"] for goal in world.ask(host)] == [2]]
    first_wave[0].bad.add(second)
    world.round(*hosts)
    assert world.show()["status"] == "failed"
    assert world.act("resume").status == 202
    world.round(*hosts)
    world.round(*hosts)
    shown = world.show()
    assert (shown["status"], shown["counts"]["current"], shown["counts"]["failed"]) == ("converged", 9, 1)


def test_resumed_revision_stops_when_another_host_fails(world: ReleaseWorld) -> None:
    hosts = world.add_hosts(*names(10))
    world.put()
    world.round(*hosts)
    second = world.fleet.store(b"second")
    world.put(signature=second, on_failure="stop", waves=[{"percent": 50}])
    first_wave = [host for host in hosts if [goal["revision"] for goal in world.ask(host)] == [2]]
    first_wave[0].bad.add(second)
    world.round(*hosts)
    for host in hosts:
        if host not in first_wave:
            host.bad.add(second)
    world.act("resume")
    world.round(*hosts)
    world.round(*hosts)
    assert (world.show()["status"], world.show()["withdrawn"]) == ("failed", [2])


def test_named_hosts_that_have_not_enrolled_yet_have_one_release_a_path(world: ReleaseWorld) -> None:
    assert world.put(targets={"agents": ["host-1"]}).status == 201
    taken = world.put("other", targets={"agents": ["host-1"]})
    assert (taken.status, taken.json()["code"]) == (409, "path_taken")


@pytest.mark.parametrize("step", ["put", "rollback", "pause", "delete"])
def test_look_of_the_watcher_does_not_let_a_callers_step_fail(
    world: ReleaseWorld, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    hosts = world.add_hosts("host-1", "host-2")
    for content in (b"one", b"two"):
        world.put(signature=world.fleet.store(content))
        world.round(*hosts)
    world.cloud.clock.advance(600)
    store = type(world.cloud.app.releases.store)
    read, looked = store.get, []

    def then_the_watcher_looks(self: Any, project_id: str, name: str) -> Any:
        found = read(self, project_id, name)
        monkeypatch.setattr(store, "get", read)
        # The hosts have gone offline: it stores other counts.
        looked.append(world.look())
        return found

    monkeypatch.setattr(store, "get", then_the_watcher_looks)
    if step == "put":
        done = world.put(signature=world.fleet.store(b"three"))
    elif step == "delete":
        done = world.cloud.http("DELETE", "/v1/releases/app", key=world.fleet.project.key)
    else:
        done = world.act(step)
    assert (done.status // 100, len(looked)) == (2, 1), done.body


def test_rollback_is_not_stopped_by_a_wave_that_opens(world: ReleaseWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = world.add_hosts(*names(10))
    world.put()
    world.round(*hosts)
    world.put(signature=world.fleet.store(b"two"), waves=[{"percent": 50}])
    for host in hosts:
        world.act_as(host)
    world.window()
    for host in hosts:
        world.poll(host)
        world.act_as(host)
    store = type(world.cloud.app.releases.store)
    read = store.get

    def then_a_wave_opens(self: Any, project_id: str, name: str) -> Any:
        found = read(self, project_id, name)
        monkeypatch.setattr(store, "get", read)
        world.look()
        assert world.show()["share"] == 100
        return found

    monkeypatch.setattr(store, "get", then_a_wave_opens)
    back = world.act("rollback")
    assert (back.status, back.json()["status"], back.json()["withdrawn"]) == (202, "rolled_back", [2])


# --- notifications


def notices(world: ReleaseWorld) -> list[tuple[str, int]]:
    """The kind and the revision of each notice about a release, as the outbox or the topic gets it."""
    items = world.cloud.client("dynamodb").scan(TableName=world.cloud.app.table.name)["Items"]
    found = [item for item in items if item.get("kind", {}).get("S", "").startswith("release.")]
    return sorted((item["kind"]["S"], json.loads(item["data"]["S"])["revision"]) for item in found)


def test_end_of_a_roll_out_is_notified_with_its_revision(world: ReleaseWorld) -> None:
    (host,) = world.add_hosts("host-1")
    world.put()
    world.round(host)
    assert notices(world) == [("release.converged", 1)]
    for content, more in ((b"bad", {}), (b"worse", {"on_failure": "stop"})):
        host.bad.add(world.fleet.store(content))
        world.put(signature=world.fleet.store(content), **more)
        world.round(host)
        world.round(host)
    expected = [("release.converged", 1), ("release.failed", 4), ("release.rolled_back", 3)]
    assert notices(world) == expected
