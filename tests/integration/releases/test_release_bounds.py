"""What releases can cost and store at most: size, revisions, the pace of looks, and what a change counts as."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fleet import Fleet
from tests.support.moto.cloud import MotoCloud
from tests.support.releases import ReleaseWorld
from tidegate.aws import keys
from tidegate.projects.limits import RUNNER_SECONDS
from tidegate.projects.model import AGENT_RATE, AGENT_WRITE_UNITS
from tidegate.releases import model, store


@pytest.fixture
def world(cloud: MotoCloud) -> ReleaseWorld:
    return ReleaseWorld(Fleet(cloud))


def large_files(world: ReleaseWorld, count: int, length: int) -> list[dict[str, Any]]:
    return [
        {
            "file_path": f"/data/{number}.bin",
            "signature": world.fleet.signature,
            "target_file_dir": f"/opt/{number}/" + "/".join("x" * 80 for _ in range(length // 81)),
            "target_user": "root",
        }
        for number in range(count)
    ]


def used_seconds(world: ReleaseWorld) -> int:
    cloud = world.cloud
    return cloud.app.projects.usage.today(world.fleet.project.id, cloud.clock())[RUNNER_SECONDS]


def test_release_that_is_too_large_is_refused_and_says_so(world: ReleaseWorld) -> None:
    hosts = [f"host-{number:0100d}" for number in range(900)]
    refused = world.put(files=large_files(world, 50, 972), targets={"agents": hosts})
    assert (refused.status, refused.json()["code"]) == (422, "invalid")
    assert "100,000 bytes" in refused.json()["detail"]


def test_release_for_a_thousand_named_hosts_is_small_enough(world: ReleaseWorld) -> None:
    hosts = [f"i-{number:017d}.eu-central-1.example.com" for number in range(1000)]
    assert world.put(targets={"agents": hosts}).status == 201


def test_only_the_newest_revisions_are_kept_beside_the_stable_one(
    world: ReleaseWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "LISTED_REVISIONS", 3)
    (host,) = world.add_hosts("host-1")
    world.put()
    world.round(host)
    for number in range(6):
        world.put(signature=world.fleet.store(b"%d" % number))
    items = world.fleet.get("/v1/releases/app/revisions")["items"]
    assert [one["number"] for one in items] == [7, 6, 5, 1]
    assert world.act("rollback").json()["revision"] == 8


def test_list_of_withdrawn_revisions_does_not_grow_without_end(
    world: ReleaseWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "LISTED_REVISIONS", 2)
    world.put()
    for number in range(4):
        assert world.put(signature=world.fleet.store(b"%d" % number)).status == 201
        assert world.act("rollback").status == 202
    assert world.show()["withdrawn"] == [6, 8]


def test_number_of_a_deleted_release_is_forgotten_one_day(world: ReleaseWorld) -> None:
    world.put()
    key = world.fleet.project.key
    assert world.cloud.http("DELETE", "/v1/releases/app", key=key).status == 204
    table = world.cloud.app.table
    item = table.get(keys.last_revision(world.fleet.project.id, "app"))
    assert item is not None
    assert item["expires_at"] > world.cloud.clock().timestamp() + 365 * 86400


def test_looks_count_as_runner_time(world: ReleaseWorld) -> None:
    world.add_hosts("host-1")
    world.put()
    before = used_seconds(world)
    world.look()
    assert used_seconds(world) - before >= 4


def test_used_up_runner_hours_slow_looks_and_end_no_roll_out(world: ReleaseWorld) -> None:
    world.add_hosts("host-1", "host-2")
    world.put()
    cloud = world.cloud
    assert world.look()["wait"] == 2
    quotas = {"quotas": {"runner_hours_per_day": 0}}
    path = f"/v1/projects/{world.fleet.project.id}"
    assert cloud.http("PATCH", path, key=cloud.admin_key, json=quotas).status == 200
    cloud.clock.advance(60)
    looked = world.look()
    assert looked["state"] == "wait"
    assert 2400 <= looked["wait"] <= 4200


def test_loop_of_changes_uses_up_the_rate_of_requests(world: ReleaseWorld) -> None:
    world.put()
    statuses = [world.act("pause" if number % 2 == 0 else "resume").status for number in range(60)]
    assert statuses[:5] == [202] * 5
    assert 429 in statuses


def test_hosts_long_reports_count_as_several_requests(world: ReleaseWorld) -> None:
    (host,) = world.add_hosts("host-1")
    world.put()
    table, before, path = world.cloud.app.table, world.cloud.app.table.units_written, "/v1/agents/host-1/releases"
    report = {"name": "app", "revision": 1, "state": "drifted", "drift": ["界" * 1200] * 20, "reason": "x" * 1000}
    said = [{"code": 0, "output": str(number) + "x" * 4000} for number in range(250)]
    answers = (
        world.cloud.http("PUT", path, key=host.key, json={"releases": [report | {"hook": one}], "has": []})
        for one in said
    )
    assert 429 in (answer.status for answer in answers)
    # A burst of ten seconds.
    assert table.units_written - before <= 10 * AGENT_RATE * AGENT_WRITE_UNITS * 2


def test_host_that_asks_without_end_is_sent_little(world: ReleaseWorld) -> None:
    (host,) = world.add_hosts("host-1")

    def sent(asks: int) -> int:
        """How many contents these asks have sent, of a host that says it has nothing."""
        found = 0
        for _ in range(asks):
            world.cloud.clock.advance(1)
            found += sum(len(goal["sending"]) for goal in world.ask(host))
        return found

    world.put()
    assert sent(70) == 30
    world.cloud.clock.advance(300)
    assert sent(10) == 1
    world.put(signature=world.fleet.store(b"two"))
    assert sent(1) == 1


def test_deleted_host_leaves_no_reports(world: ReleaseWorld) -> None:
    gone, stays = world.add_hosts("host-1", "host-2")
    world.put()
    world.round(gone, stays)
    deleted = world.cloud.http("DELETE", "/v1/agents/host-1", key=world.fleet.project.key)
    assert deleted.status == 204
    reports = world.cloud.app.releases.store.reports(world.fleet.project.id, "app")
    assert [report.agent_id for report in reports] == ["host-2"]
