"""A deleted or replaced host is locked out at once, with every key that it had."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.distribution.fleet.test_push import Hosts
from tests.support.fleet import Fleet
from tests.support.moto.cloud import Answer
from tidegate.aws import keys
from tidegate.aws.table import update
from tidegate.distribution.fleet import FleetStore
from tidegate.projects.keys import ApiKeyStore


@pytest.fixture
def hosts(fleet: Fleet) -> Hosts:
    return Hosts(fleet)


def delete(fleet: Fleet, agent_id: str = "h-1") -> Answer:
    return fleet.cloud.http("DELETE", f"/v1/agents/{agent_id}", key=fleet.project.key)


def poll(fleet: Fleet, key: str, agent_id: str = "h-1", **headers: str) -> Answer:
    return fleet.cloud.http("GET", f"/v1/agents/{agent_id}/transfers", key=key, headers=headers)


def rotated(fleet: Fleet, key: str) -> str:
    path = f"/v1/keys/{key.split('_')[1]}/rotate"
    answer = fleet.cloud.http("POST", path, key=fleet.cloud.admin_key, json={"overlap_s": 3600})
    assert answer.status == 201, answer.body
    return str(answer.json()["key"])


def enrolled(fleet: Fleet, **token: Any) -> str:
    query = {"project_id": fleet.project.id}
    made = fleet.cloud.http("POST", "/v1/enrolments", json=token, key=fleet.cloud.admin_key, query=query)
    body = {"token": made.json()["token"], "agent_id": "h-1"}
    answer = fleet.cloud.http("POST", "/v1/agents/enrol", json=body, key=None)
    assert answer.status == 201, answer.body
    return str(answer.json()["key"])


def without_place(fleet: Fleet, key: str) -> None:
    """Makes the key one that an older version created."""
    key_id, table = key.split("_")[1], fleet.cloud.app.table
    table.batch_delete([keys.agent_key(fleet.project.id, "h-1", key_id), keys.agent_keys_named(fleet.project.id)])
    table.write(update(keys.api_key(key_id), removes=("life",)))


def states(fleet: Fleet) -> set[str]:
    path = f"/v1/projects/{fleet.project.id}/keys"
    listed = fleet.cloud.http("GET", path, key=fleet.cloud.admin_key, query={"limit": 100}).json()["items"]
    return {item["state"] for item in listed if item["agent_id"]}


def test_deletion_revokes_enrolled_rotated_and_admin_made_keys(fleet: Fleet) -> None:
    first = enrolled(fleet)
    held = [first, rotated(fleet, first), fleet.project.agent_key("h-1"), fleet.project.agent_key("h-1")]
    other = fleet.project.agent_key("h-2")
    assert {poll(fleet, key).status for key in held} == {200}

    assert delete(fleet).status == 204

    assert [poll(fleet, key).status for key in held] == [401] * 4
    assert poll(fleet, other, "h-2").status == 200


def test_deletion_revokes_keys_that_older_versions_made(fleet: Fleet) -> None:
    old = fleet.key_of("h-1")
    fleet.inbox("h-1")
    without_place(fleet, old)

    assert delete(fleet).status == 204

    assert poll(fleet, old).status == 401


def test_keys_of_older_versions_are_listed_only_once(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.inbox("h-1")
    fleet.inbox("h-2")
    delete(fleet)
    listed: list[object] = []
    monkeypatch.setattr(ApiKeyStore, "list", lambda *given: listed.append(given))

    assert delete(fleet, "h-2").status == 204

    assert listed == []


def test_deletion_closes_the_connections_of_all_keys(fleet: Fleet, hosts: Hosts) -> None:
    first = hosts.connect("h-1", "c-1")
    fleet._keys["h-1"] = rotated(fleet, fleet.key_of("h-1"))
    second = hosts.connect("h-1", "c-2")
    fleet.cloud.app.notifications.outgoing.close = hosts.line.outgoing.close  # type: ignore[method-assign]

    delete(fleet)

    assert sorted(hosts.line.outgoing.closed) == [first, second]


def test_host_that_never_called_is_deleted_with_its_key(fleet: Fleet) -> None:
    key = fleet.key_of("h-1")

    assert delete(fleet).status == 204

    assert poll(fleet, key).status == 401
    assert delete(fleet).status == 404


def test_enrolling_a_known_id_again_revokes_all_its_keys(fleet: Fleet) -> None:
    first = enrolled(fleet)
    held = [first, rotated(fleet, first), fleet.project.agent_key("h-1")]

    new = enrolled(fleet, replace=True)

    assert [poll(fleet, key).status for key in held] == [401] * 3
    assert poll(fleet, new).status == 200


@pytest.mark.parametrize("step", ["revoke", "forget_of_agent", "remove"])
def test_deletion_that_dies_locks_out_and_can_be_repeated(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    key = fleet.key_of("h-1")
    fleet.inbox("h-1")

    def die(*_: object, **__: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as dying:
        dying.setattr(FleetStore if step == "remove" else ApiKeyStore, step, die)
        assert delete(fleet).status == 500

    assert poll(fleet, key).status in (401, 403)
    assert delete(fleet).status == 204
    assert poll(fleet, key).status == 401
    assert states(fleet) == {"revoked"}
    assert fleet.cloud.http("GET", "/v1/agents/h-1", key=fleet.project.key).status == 404


def test_late_deletion_leaves_the_host_that_replaced_the_old_one(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function pauses after its first write. The caller deletes again and enrols a new host meanwhile."""
    fleet.inbox("h-1")
    new: list[str] = []
    end_life = ApiKeyStore.end_life

    def pausing(store: ApiKeyStore, project_id: str, agent_id: str) -> int:
        life = end_life(store, project_id, agent_id)
        monkeypatch.setattr(ApiKeyStore, "end_life", end_life)
        assert delete(fleet).status == 204
        new.append(enrolled(fleet))
        return life

    monkeypatch.setattr(ApiKeyStore, "end_life", pausing)

    delete(fleet)

    assert poll(fleet, new[0]).status == 200
    assert fleet.get("/v1/agents/h-1")["state"] == "online"


class TestWithinTheCacheOfKeys:
    """For ten seconds, a function may still accept a revoked key."""

    @pytest.fixture(autouse=True)
    def cached(self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fleet.cloud.app.projects.authentication, "_kept_seconds", 10)

    def offered(self, fleet: Fleet) -> tuple[str, dict[str, Any]]:
        """A replacement of h-1, and a Job with its transfer. The former host's key is still cached."""
        fleet.inbox("h-1")
        assert delete(fleet).status == 204
        new = enrolled(fleet)
        job_id = fleet.submit("h-1")["job_id"]
        former = fleet.key_of("h-1")
        fleet.run_until_dispatched(job_id)
        # The window takes longer than the cache lasts.
        known, until = fleet.cloud.app.projects.authentication, fleet.cloud.clock().timestamp() + 10
        for name, (_, key) in known._kept.items():
            known._kept[name] = until, key
        fleet._keys["h-1"] = new
        (item,) = fleet.inbox("h-1")
        fleet._keys["h-1"] = former
        return job_id, item

    def test_removed_host_reads_no_transfer_of_its_replacement(self, fleet: Fleet) -> None:
        self.offered(fleet)

        answer = poll(fleet, fleet.key_of("h-1"))

        assert (answer.status, answer.json()["code"]) == (403, "agent_removed")

    def test_report_of_a_removed_host_changes_nothing(self, fleet: Fleet) -> None:
        job_id, item = self.offered(fleet)

        answer = fleet.report("h-1", 0, items=[item])

        assert (answer.status, answer.json()["code"]) == (403, "agent_removed")
        fleet.step("poll_transfer", job_id)
        assert fleet.states(job_id) == {"h-1": "Running"}

    def test_removed_host_gets_no_record_and_no_presence_again(self, fleet: Fleet) -> None:
        fleet.inbox("h-1")
        delete(fleet)

        key = fleet.key_of("h-1")
        assert poll(fleet, key).status == 403
        body: dict[str, Any] = {"site": "s", "listen": []}
        assert fleet.cloud.http("PUT", "/v1/agents/h-1/presence", key=key, json=body).status == 403

        assert fleet.get("/v1/agents")["items"] == []

    def test_removed_host_cannot_connect_with_a_ticket(self, fleet: Fleet) -> None:
        hosts = Hosts(fleet)
        ticket = hosts.ticket("h-1")
        delete(fleet)

        for given in (ticket, hosts.ticket("h-1")):
            event = {
                "requestContext": {"connectionId": "c-9", "eventType": "CONNECT", "routeKey": "$connect"},
                "queryStringParameters": {"ticket": given},
            }
            assert fleet.cloud.invoke("websocket", event)["statusCode"] == 401


def test_replacement_cannot_report_what_was_offered_to_its_predecessor(fleet: Fleet) -> None:
    """As from a copied journal: the file is on the former host, and not on this one."""
    job_id = fleet.submit("h-1")["job_id"]
    fleet.run_until_dispatched(job_id)
    (before,) = fleet.inbox("h-1")
    delete(fleet)
    fleet._keys["h-1"] = enrolled(fleet)

    answer = fleet.report("h-1", 0, items=[before])

    assert (answer.status, answer.json()["code"]) == (404, "not_found")
    fleet.step("poll_transfer", job_id)
    assert fleet.states(job_id) == {"h-1": "Running"}
    (now,) = fleet.inbox("h-1")
    assert now["transfer_id"] != before["transfer_id"]
    assert fleet.report("h-1", 0, items=[now]).status == 200
    fleet.step("poll_transfer", job_id)
    assert fleet.states(job_id) == {"h-1": "Success"}


def test_long_poll_of_a_deleted_host_ends_without_transfers(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.inbox("h-1")
    agents = fleet.cloud.app.distribution.agents

    def deleted_meanwhile(_: float) -> None:
        monkeypatch.setattr(agents, "_sleep", lambda _: None)
        delete(fleet)
        fleet.run_until_dispatched(fleet.submit("h-1")["job_id"])

    monkeypatch.setattr(agents, "_sleep", deleted_meanwhile)
    path, query = "/v1/agents/h-1/transfers", {"wait": 5}

    answer = fleet.cloud.http("GET", path, key=fleet.key_of("h-1"), query=query)

    assert (answer.status, answer.json().get("code")) == (403, "agent_removed")
