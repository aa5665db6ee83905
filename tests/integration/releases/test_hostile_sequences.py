"""What goes wrong in a large fleet at the worst moment: deletes, rollbacks and hosts that cross each other, or lie."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fleet import Fleet
from tests.support.moto.cloud import Answer, MotoCloud
from tests.support.releases import Host, ReleaseWorld
from tidegate.aws import keys
from tidegate.aws.table import update
from tidegate.releases.store import ReleaseStore


@pytest.fixture
def world(cloud: MotoCloud) -> ReleaseWorld:
    return ReleaseWorld(Fleet(cloud))


def delete(world: ReleaseWorld, name: str = "app") -> Answer:
    return world.cloud.http("DELETE", f"/v1/releases/{name}", key=world.fleet.project.key)


def tell(world: ReleaseWorld, host: Host, *reports: dict[str, Any]) -> Answer:
    body = {"releases": [*reports], "has": []}
    return world.cloud.http("PUT", f"/v1/agents/{host.name}/releases", key=host.key, json=body)


def put_path(world: ReleaseWorld, release: str, directory: str, **file: Any) -> Answer:
    stored = {"file_path": "/data/app.bin", "signature": world.fleet.signature, "target_user": "root"}
    body = {"files": [stored | {"target_file_dir": directory} | file], "targets": {"groups": ["web"]}}
    return world.cloud.http("PUT", f"/v1/releases/{release}", key=world.fleet.project.key, json=body)


# --- deletes


def test_release_deleted_while_a_host_asks_does_not_hide_the_others(
    world: ReleaseWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agent would take 404 for an API without releases, and ask nothing for an hour."""
    (host,) = world.add_hosts("host-1")
    assert put_path(world, "app", "/opt/a").status == put_path(world, "web", "/opt/b").status == 201
    listed = ReleaseStore.all

    def deleted_after(store: ReleaseStore, project_id: str) -> Any:
        found = listed(store, project_id)
        with monkeypatch.context() as once:
            once.setattr(ReleaseStore, "all", listed)
            delete(world, "app")
        return found

    world.cloud.app.releases.store._revisions.clear()
    monkeypatch.setattr(ReleaseStore, "all", deleted_after)
    answer = tell(world, host)
    assert (answer.status, [goal["name"] for goal in answer.json()["items"]]) == (200, ["web"])


def test_revision_put_while_its_former_release_is_cleaned_up_stays(
    world: ReleaseWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    (host,) = world.add_hosts("host-1")
    world.put()
    world.round(host)
    table = world.cloud.app.releases.table
    query, other = table.query_all, world.fleet.store(b"another content")

    def put_before(pk: str, **more: Any) -> Any:
        if "REVISIONS" in pk and more.get("project") == ("pk", "sk"):
            monkeypatch.undo()
            assert world.put(signature=other).status == 201
            world.round(host)
        return query(pk, **more)

    monkeypatch.setattr(table, "query_all", put_before)
    assert delete(world).status == 204
    world.cloud.app.releases.store._revisions.clear()
    assert world.show()["revision"] == 2
    assert world.shown_hosts()["host-1"]["state"] == "current"
    assert host.content == {"app": other}


def test_release_deleted_while_a_host_is_down_and_put_again_reaches_it(world: ReleaseWorld) -> None:
    up, down = world.add_hosts("up", "down")
    world.put()
    world.round(up, down)
    second = world.fleet.store(b"second")
    assert delete(world).status == 204
    assert world.put(signature=second).json()["revision"] == 2
    world.round(up)
    down.goals.clear()
    world.round(down)
    assert (down.content, down.active) == ({"app": second}, {"app": 2})


# --- rollbacks


def test_put_during_a_rollback_wins_or_is_refused(world: ReleaseWorld) -> None:
    hosts = world.add_hosts("host-1", "host-2")
    world.put()
    world.round(*hosts)
    second, third = world.fleet.store(b"second"), world.fleet.store(b"third")
    world.put(signature=second)
    world.round(*hosts)
    assert world.act("rollback").status == 202
    world.act_as(hosts[0])
    assert world.put(signature=third).json()["revision"] == 4
    world.round(*hosts)
    world.round(*hosts)
    assert [host.content["app"] for host in hosts] == [third, third]
    assert [host.active["app"] for host in hosts] == [4, 4]


def test_rollback_to_content_that_is_gone_says_so(world: ReleaseWorld) -> None:
    """Hosts that kept it go back; the others cannot, and the operator is to know why."""
    kept, new = world.add_hosts("kept", "new")
    world.put()
    first = world.fleet.signature
    world.round(kept)
    world.put(signature=world.fleet.store(b"second"))
    world.round(kept, new)
    world.round(kept, new)
    world.cloud.app.releases.table.batch_delete([keys.content(world.fleet.project.id, first)])
    assert world.act("rollback", to=1).status == 202
    assert f"the library no longer has {first}" in world.show()["reason"]
    world.act_as(kept)
    assert kept.content["app"] == first


# --- hosts


@pytest.mark.parametrize("lie", ["2026-99-99T99:99:99Z", "0000-00-00T00:00:00Z", "2026-02-30T10:00:00.5Z"])
def test_time_that_does_not_exist_is_refused(world: ReleaseWorld, lie: str) -> None:
    (host,) = world.add_hosts("host-1")
    world.put()
    report = {"name": "app", "revision": 1, "state": "current", "checked_at": lie}
    assert [tell(world, host, report).status for _ in range(2)] == [422, 422]


def test_time_that_does_not_exist_and_is_stored_is_replaced(world: ReleaseWorld) -> None:
    """An earlier version stored it."""
    (host,) = world.add_hosts("host-1")
    world.put()
    report = {"name": "app", "revision": 1, "state": "current"}
    assert tell(world, host, report | {"checked_at": "2026-11-18T12:00:00Z"}).status == 200
    key = keys.host_release(world.fleet.project.id, "host-1", "app")
    world.cloud.app.releases.table.write(update(key, {"checked_at": "2026-02-30T12:00:00Z"}))
    assert tell(world, host, report | {"checked_at": "2026-11-18T12:10:00Z"}).status == 200
    assert world.shown_hosts()["host-1"]["checked_at"] == "2026-11-18T12:10:00Z"


def test_check_of_a_host_whose_clock_was_set_back_is_stored(world: ReleaseWorld) -> None:
    (host,) = world.add_hosts("host-1")
    world.put()
    report = {"name": "app", "revision": 1, "state": "current"}
    for checked_at in ("2099-01-01T00:00:00Z", "2026-11-18T12:00:00Z"):
        assert tell(world, host, report | {"checked_at": checked_at}).status == 200
    assert world.shown_hosts()["host-1"]["checked_at"] == "2026-11-18T12:00:00Z"


def test_host_enrolled_again_in_the_middle_of_a_switch_starts_from_nothing(world: ReleaseWorld) -> None:
    """The report of the host before it, which was on its way, says nothing of the new one."""
    old, other = world.add_hosts("host-1", "host-2")
    world.put()
    world.round(old, other)
    path, project = "/v1/agents/host-1", world.fleet.project
    assert world.cloud.http("DELETE", path, key=project.key).status == 204
    late = tell(world, old, {"name": "app", "revision": 1, "state": "current"})
    assert late.status in (401, 403)
    world.fleet._keys.clear()
    (new,) = world.add_hosts("host-1")
    assert world.shown_hosts()["host-1"]["state"] == "behind"
    world.round(new, other)
    world.round(new, other)
    assert (new.content, world.shown_hosts()["host-1"]["state"]) == ({"app": world.fleet.signature}, "current")


def test_key_revoked_in_the_middle_counts_nothing_and_holds_the_wave(world: ReleaseWorld) -> None:
    hosts = world.add_hosts("host-1", "host-2")
    world.put()
    for host in hosts:
        world.act_as(host)
    listed = world.cloud.http("GET", f"/v1/projects/{world.fleet.project.id}/keys", key=world.cloud.admin_key).json()
    (key_id,) = [key["key_id"] for key in listed["items"] if key["agent_id"] == "host-1"]
    assert world.cloud.http("DELETE", f"/v1/keys/{key_id}", key=world.cloud.admin_key).status == 204
    world.cloud.clock.advance(120)
    assert tell(world, hosts[0], {"name": "app", "revision": 1, "state": "current"}).status == 401
    assert world.look()["state"] == "wait"
    assert world.show()["counts"]["current"] == 0


# --- selectors and paths


def test_selector_that_loses_all_hosts_converges_on_nobody(world: ReleaseWorld) -> None:
    hosts = world.add_hosts("host-1", "host-2")
    world.put(waves=[{"percent": 50}])
    world.put(signature=world.fleet.store(b"second"), targets={"groups": ["nobody"]}, waves=[{"percent": 50}])
    for _ in range(5):
        world.round(*hosts)
    shown = world.show()
    assert shown["status"] != "converged"
    assert shown["counts"]["desired"] == 0
    assert [host.content for host in hosts] == [{}, {}]


def test_renamed_group_keeps_revision_and_hosts(world: ReleaseWorld) -> None:
    (host,) = world.add_hosts("host-1")
    world.put()
    world.round(host)
    assert world.put(targets={"groups": ["front"]}).status == 200
    world.act_as(host)
    assert world.shown_hosts() == {}
    change = {"groups": ["front"]}
    path = f"/v1/agents/{host.name}"
    assert world.cloud.http("PATCH", path, key=world.fleet.project.key, json=change).status == 200
    world.act_as(host)
    assert world.show()["revision"] == 1
    assert world.shown_hosts()["host-1"]["state"] == "current"


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (("/opt/app", {}), ("/opt/app/app.bin/conf", {})),
        (("/opt/app", {"unpack": "tar"}), ("/opt/app/current", {})),
        (("/opt/app", {"unpack": "tar"}), ("/opt/app/current/deep", {"unpack": "zip"})),
        (("/opt/app/releases/7", {}), ("/opt/app", {"unpack": "tar"})),
    ],
)
def test_path_within_another_releases_path_is_taken(
    world: ReleaseWorld, mine: tuple[str, dict[str, Any]], theirs: tuple[str, dict[str, Any]]
) -> None:
    world.add_hosts("host-1")
    assert put_path(world, "app", mine[0], **mine[1]).status == 201
    answer = put_path(world, "web", theirs[0], **theirs[1])
    assert (answer.status, answer.json()["code"]) == (409, "path_taken")


@pytest.mark.parametrize(("keep", "status"), [(0, 422), (1, 201), (10, 201), (11, 422)])
def test_bounds_of_keep(world: ReleaseWorld, keep: int, status: int) -> None:
    assert world.put(keep=keep).status == status
