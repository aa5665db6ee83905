"""Enrolment: a token gives hosts their keys, for a number of uses and a limited time."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fleet import Fleet
from tests.support.moto.cloud import Answer
from tidegate.distribution.fleet import EnrolmentStore

CLAIM = "a-secret-of-this-host"


def token(fleet: Fleet, **body: Any) -> str:
    answer = fleet.cloud.http(
        "POST", "/v1/enrolments", json=body, key=fleet.cloud.admin_key, query={"project_id": fleet.project.id}
    )
    assert answer.status == 201, answer.body
    return str(answer.json()["token"])


def enrol(fleet: Fleet, token: str, agent_id: str = "new-1", **more: Any) -> Answer:
    return fleet.cloud.http("POST", "/v1/agents/enrol", json={"token": token, "agent_id": agent_id, **more}, key=None)


def test_enrolled_host_has_a_working_key_and_its_groups(fleet: Fleet) -> None:
    answer = enrol(fleet, token(fleet, groups=["web"], labels={"os": "debian"}), version="1.0", zone="z1")

    assert answer.status == 201, answer.body
    key = answer.json()["key"]
    assert fleet.cloud.http("GET", "/v1/agents/new-1/transfers", key=key).status == 200
    assert fleet.cloud.http("GET", "/v1/agents/other/transfers", key=key).status == 403
    assert fleet.cloud.http("GET", "/v1/files", key=key).status == 403
    shown = fleet.get("/v1/agents/new-1")
    assert (shown["groups"], shown["labels"], shown["zone"]) == (["web"], {"os": "debian"}, "z1")


def test_token_has_a_limited_number_of_uses(fleet: Fleet) -> None:
    new_token = token(fleet, uses=2)

    assert [enrol(fleet, new_token, f"h-{n}").status for n in range(3)] == [201, 201, 401]
    assert enrol(fleet, new_token, "h-9").json()["code"] == "token_refused"


def test_expired_token_is_refused(fleet: Fleet) -> None:
    new_token = token(fleet, expires_in=60)
    fleet.cloud.clock.advance(61)

    assert enrol(fleet, new_token).status == 401


@pytest.mark.parametrize("odd", ["x", "tge_a_b", "tge_enr01k0000000000_" + "0" * 40])
def test_unknown_token_is_refused(fleet: Fleet, odd: str) -> None:
    assert enrol(fleet, odd).status == 401


def test_known_agent_is_not_taken_over(fleet: Fleet) -> None:
    fleet.inbox("new-1")

    answer = enrol(fleet, token(fleet))

    assert (answer.status, answer.json()["code"]) == (409, "agent_exists")


def test_host_enrols_again_after_a_lost_answer_with_a_new_key(fleet: Fleet) -> None:
    new_token = token(fleet)
    lost_key = enrol(fleet, new_token, claim=CLAIM).json()["key"]
    second = enrol(fleet, new_token, claim=CLAIM)

    assert second.status == 201
    path = "/v1/agents/new-1/transfers"
    assert fleet.cloud.http("GET", path, key=lost_key).status == 401
    assert fleet.cloud.http("GET", path, key=second.json()["key"]).status == 200
    # The agent has been online: from now on the token gives no other key for it.
    assert enrol(fleet, new_token, claim=CLAIM).status == 409


def test_deleted_agents_key_is_revoked(fleet: Fleet) -> None:
    key = enrol(fleet, token(fleet)).json()["key"]

    assert fleet.cloud.http("DELETE", "/v1/agents/new-1", key=fleet.project.key).status == 204

    assert fleet.cloud.http("GET", "/v1/agents/new-1/transfers", key=key).status == 401


def test_neither_token_nor_key_is_stored(fleet: Fleet) -> None:
    new_token = token(fleet)
    key = enrol(fleet, new_token).json()["key"]

    stored = str(fleet.cloud.client("dynamodb").scan(TableName=fleet.cloud.names.refs["Table"])["Items"])
    assert new_token not in stored
    assert key not in stored


def test_repeated_enrolment_request_does_not_show_its_token_again(fleet: Fleet) -> None:
    options: dict[str, Any] = {"json": {}, "key": fleet.cloud.admin_key, "query": {"project_id": fleet.project.id}}
    headers = {"idempotency-key": "once"}
    first = fleet.cloud.http("POST", "/v1/enrolments", headers=headers, **options)
    again = fleet.cloud.http("POST", "/v1/enrolments", headers=headers, **options)

    assert (first.status, again.status) == (201, 409)
    assert "token" not in again.json()


def test_enrolment_is_audited_without_its_secret(fleet: Fleet) -> None:
    new_token = token(fleet, uses=3)
    enrol(fleet, new_token)

    lines = fleet.get("/v1/audit")["items"]

    assert {"enrolment.create", "agent.enrol"} <= {line["action"] for line in lines}
    assert new_token not in str(lines)


@pytest.mark.parametrize("call", ["revoke", "replace"])
def test_repeated_enrolment_that_crashes_can_be_repeated_again(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The first answer was lost and the second try crashes. The token has one use, which this host has taken."""
    new_token = token(fleet)
    lost_key = enrol(fleet, new_token, claim=CLAIM).json()["key"]
    app = fleet.cloud.app
    owner: Any = app.projects.api_keys if call == "revoke" else EnrolmentStore

    def die(*_: object, **__: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as dying:
        dying.setattr(owner, call, die)
        assert enrol(fleet, new_token, claim=CLAIM).status == 500

    third = enrol(fleet, new_token, claim=CLAIM)

    assert third.status == 201, third.body
    path = "/v1/agents/new-1/transfers"
    assert fleet.cloud.http("GET", path, key=third.json()["key"]).status == 200
    assert fleet.cloud.http("GET", path, key=lost_key).status == 401


@pytest.mark.parametrize("claim", [{}, {"claim": "another-hosts-secret"}])
def test_token_does_not_take_over_an_id_before_its_first_poll(fleet: Fleet, claim: dict[str, str]) -> None:
    """Every host of a roll-out knows the token."""
    shared = token(fleet, uses=5)
    key = enrol(fleet, shared, claim=CLAIM).json()["key"]

    answer = enrol(fleet, shared, **claim)

    assert (answer.status, answer.json()["code"]) == (409, "agent_exists")
    assert fleet.cloud.http("GET", "/v1/agents/new-1/transfers", key=key).status == 200


def test_token_does_not_take_an_id_that_has_a_key(fleet: Fleet) -> None:
    """An admin made the key; its host has not called yet."""
    key = fleet.key_of("new-1")

    assert enrol(fleet, token(fleet)).status == 409
    assert fleet.cloud.http("GET", "/v1/agents/new-1/transfers", key=key).status == 200


def test_id_whose_only_key_was_revoked_can_be_enrolled(fleet: Fleet) -> None:
    key_id = fleet.key_of("new-1").split("_")[1]
    fleet.cloud.http("DELETE", f"/v1/keys/{key_id}", key=fleet.cloud.admin_key)

    assert enrol(fleet, token(fleet)).status == 201


@pytest.mark.parametrize("has_called", [True, False])
def test_token_made_to_replace_locks_out_the_former_host(fleet: Fleet, has_called: bool) -> None:
    former = fleet.key_of("new-1")
    if has_called:
        fleet.inbox("new-1")

    answer = enrol(fleet, token(fleet, replace=True))

    assert answer.status == 201, answer.body
    path = "/v1/agents/new-1/transfers"
    assert fleet.cloud.http("GET", path, key=former).status == 401
    assert fleet.cloud.http("GET", path, key=answer.json()["key"]).status == 200


def test_used_up_token_that_replaces_locks_out_nobody(fleet: Fleet) -> None:
    spent = token(fleet, replace=True)
    assert enrol(fleet, spent, "other").status == 201
    fleet.inbox("new-1")

    assert enrol(fleet, spent).json()["code"] == "token_refused"

    assert fleet.inbox("new-1") == []


def test_host_enrols_under_the_id_of_a_deleted_one(fleet: Fleet) -> None:
    fleet.inbox("new-1")
    fleet.cloud.http("DELETE", "/v1/agents/new-1", key=fleet.project.key)

    answer = enrol(fleet, token(fleet))

    assert answer.status == 201, answer.body
    assert fleet.cloud.http("GET", "/v1/agents/new-1/transfers", key=answer.json()["key"]).status == 200
    assert fleet.get("/v1/agents/new-1")["state"] == "online"
