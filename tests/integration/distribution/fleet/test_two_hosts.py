"""Two hosts with one agent id, such as a cloned image: the second is refused, and people can see it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.distribution.fleet.test_push import Hosts
from tests.support.calls import count_calls
from tests.support.fleet import Fleet
from tests.support.moto.cloud import Answer

FIRST, SECOND, THIRD = "aaaaaaaa01", "bbbbbbbb01", "cccccccc01"


@pytest.fixture
def hosts(fleet: Fleet) -> Hosts:
    return Hosts(fleet)


def poll(fleet: Fleet, instance: str | None) -> Answer:
    headers = {"X-Tidegate-Instance": instance} if instance else {}
    return fleet.cloud.http("GET", "/v1/agents/h-1/transfers", key=fleet.key_of("h-1"), headers=headers)


def shown(fleet: Fleet) -> dict[str, Any]:
    (agent,) = fleet.get("/v1/agents")["items"]
    return dict(agent)


def two_hosts(fleet: Fleet) -> None:
    """The first host has called, then the second, then the first again."""
    for instance in (FIRST, SECOND):
        assert poll(fleet, instance).status == 200
        fleet.cloud.clock.advance(60)
    assert poll(fleet, FIRST).status == 200


def test_second_host_is_refused_and_shown(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    two_hosts(fleet)
    said = capsys.readouterr().out

    answer = poll(fleet, SECOND)

    assert (answer.status, answer.json()["code"]) == (409, "agent_duplicate")
    assert "cloned" in answer.json()["detail"]
    assert shown(fleet)["duplicate_at"] is not None
    assert '"AgentDuplicates"' in said
    assert poll(fleet, FIRST).status == 200


def test_refused_host_reports_nothing(fleet: Fleet) -> None:
    job_id = fleet.submit("h-1")["job_id"]
    fleet.run_until_dispatched(job_id)
    (item,) = fleet.inbox("h-1")
    two_hosts(fleet)
    result = {"transfer_id": item["transfer_id"], "container_id": "", "error_code": 0}

    def report(instance: str) -> Answer:
        path, headers = "/v1/agents/h-1/results", {"X-Tidegate-Instance": instance}
        body = {"items": [result]}
        return fleet.cloud.http("POST", path, json=body, key=fleet.key_of("h-1"), headers=headers)

    assert report(SECOND).status == 409
    fleet.step("poll_transfer", job_id)
    assert fleet.states(job_id) == {"h-1": "Running"}
    assert report(FIRST).status == 200
    fleet.step("poll_transfer", job_id)
    assert fleet.states(job_id) == {"h-1": "Success"}


@pytest.mark.parametrize("after", ["", f" {FIRST}"])
def test_restarted_agent_takes_over_at_once(fleet: Fleet, after: str) -> None:
    """Also without its state directory."""
    poll(fleet, FIRST)

    restarted = [poll(fleet, f"{SECOND}{after}").status, poll(fleet, f"{THIRD} {SECOND}").status]
    fleet.cloud.clock.advance(3600)

    assert restarted == [200, 200]
    assert poll(fleet, f"{THIRD} {SECOND}").status == 200
    assert shown(fleet)["duplicate_at"] is None


def test_last_request_of_a_stopped_agent_does_not_stop_the_next_one(fleet: Fleet) -> None:
    poll(fleet, FIRST)
    poll(fleet, f"{SECOND} {FIRST}")
    fleet.cloud.clock.advance(5)

    late = poll(fleet, FIRST)

    assert (late.status, late.json()["code"]) == (503, "busy")
    fleet.cloud.clock.advance(60)
    assert poll(fleet, f"{SECOND} {FIRST}").status == 200
    assert shown(fleet)["duplicate_at"] is None


def test_second_host_stays_refused_after_a_restart(fleet: Fleet) -> None:
    two_hosts(fleet)
    poll(fleet, SECOND)
    fleet.cloud.clock.advance(300)
    poll(fleet, FIRST)

    assert poll(fleet, f"{THIRD} {SECOND}").status == 409
    fleet.cloud.clock.advance(300)
    poll(fleet, FIRST)
    assert poll(fleet, f"dddddddd01 {THIRD}").status == 409


def test_first_host_may_restart_during_the_conflict(fleet: Fleet) -> None:
    two_hosts(fleet)

    assert poll(fleet, f"{THIRD} {FIRST}").status == 200
    assert poll(fleet, SECOND).status == 409
    assert poll(fleet, "dddddddd01").status == 409


def test_second_host_takes_over_when_the_first_is_offline(fleet: Fleet) -> None:
    two_hosts(fleet)
    fleet.cloud.clock.advance(600)

    assert poll(fleet, SECOND).status == 200
    assert shown(fleet)["duplicate_at"] is None


def test_conflict_is_shown_for_fifteen_minutes(fleet: Fleet) -> None:
    two_hosts(fleet)
    fleet.cloud.clock.advance(901)

    assert shown(fleet)["duplicate_at"] is None


def test_connected_host_is_asked_to_show_that_it_runs(fleet: Fleet, hosts: Hosts) -> None:
    """It would otherwise not call for two hours. A host that was restarted does not connect again."""
    outgoing = fleet.cloud.app.notifications.outgoing
    outgoing.close = hosts.line.outgoing.close  # type: ignore[method-assign]
    first = hosts.connect("h-1", "c-1", instance=FIRST)

    poll(fleet, SECOND)
    assert hosts.line.outgoing.closed == [first]
    second = hosts.connect("h-1", "c-2", instance=SECOND)
    fleet.cloud.clock.advance(31)
    hosts.connect("h-1", "c-3", instance=FIRST)

    assert hosts.line.outgoing.closed == [first, second]
    assert shown(fleet)["duplicate_at"] is not None
    event = {
        "requestContext": {"connectionId": "c-4", "eventType": "CONNECT", "routeKey": "$connect"},
        "queryStringParameters": {"ticket": hosts.ticket("h-1"), "instance": SECOND},
    }
    assert fleet.cloud.invoke("websocket", event)["statusCode"] == 401


def test_same_process_connects_again_without_a_conflict(fleet: Fleet, hosts: Hosts) -> None:
    for number in range(3):
        hosts.line.leave(hosts.connect("h-1", f"c-{number}", instance=FIRST))
        fleet.cloud.clock.advance(7200)
        assert poll(fleet, FIRST).status == 200

    assert shown(fleet)["duplicate_at"] is None


@pytest.mark.parametrize("odd", [None, "", "short", "x" * 65, "two many words01 aaaaaaaa01", "ab\ncdefgh"])
def test_agents_without_a_valid_instance_keep_working(fleet: Fleet, odd: str | None) -> None:
    for instance in (odd, odd, FIRST, FIRST):
        assert poll(fleet, instance).status == 200
        fleet.cloud.clock.advance(60)

    assert shown(fleet)["duplicate_at"] is None


def test_copied_key_cannot_leave_the_instance_out(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    poll(fleet, FIRST)
    capsys.readouterr()

    answer = poll(fleet, None)

    assert (answer.status, answer.json()["code"]) == (409, "agent_duplicate")
    assert "X-Tidegate-Instance" in answer.json()["detail"]
    assert '"AgentDuplicates"' in capsys.readouterr().out
    assert poll(fleet, FIRST).status == 200


def test_older_agent_takes_over_from_a_newer_one_that_is_offline(fleet: Fleet) -> None:
    poll(fleet, FIRST)
    fleet.cloud.clock.advance(600)

    assert [poll(fleet, None).status, poll(fleet, None).status] == [200, 200]


@pytest.mark.parametrize("named", [True, False])
def test_new_process_ids_cost_a_limited_number_of_transactions(fleet: Fleet, named: bool) -> None:
    """Of a key that sends another id with each call, as one that was restarted or as a second host."""
    if not named:
        two_hosts(fleet)
        poll(fleet, SECOND)
    with count_calls(fleet.cloud.app) as calls:
        for number in range(60):
            poll(fleet, f"eeeeee{number:04d} eeeeee{number - 1:04d}" if named and number else f"eeeeee{number:04d}")

    assert calls["dynamodb.TransactWriteItems"] <= (32 if named else 1)
    fleet.cloud.clock.advance(601)
    assert poll(fleet, FIRST).status == 200
