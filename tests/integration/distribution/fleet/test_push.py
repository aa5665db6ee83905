"""Hosts with a WebSocket connection: they are woken for transfers, and are shown as online."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.integration.notifications.watching import Line
from tests.support.calls import count_calls
from tests.support.fleet import Fleet
from tests.support.moto.cloud import _sqs_record
from tidegate.distribution import fleet as fleet_module


class Hosts:
    """Connects agents and shows their records."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.line = Line(fleet.cloud)

    def ticket(self, agent_id: str) -> str:
        answer = self.fleet.cloud.http("POST", "/v1/ws-tickets", key=self.fleet.key_of(agent_id))
        assert answer.status == 201, answer.body
        return str(answer.json()["ticket"])

    def connect(self, agent_id: str, connection_id: str | None = None, **about: str) -> str:
        connection_id = connection_id or f"c-{self.fleet.project.id}-{agent_id}"
        event = {
            "requestContext": {"connectionId": connection_id, "eventType": "CONNECT", "routeKey": "$connect"},
            "queryStringParameters": {"ticket": self.ticket(agent_id), **about},
        }
        assert self.fleet.cloud.invoke("websocket", event)["statusCode"] == 200
        return connection_id

    def show(self, agent_id: str) -> dict[str, Any]:
        return dict(self.fleet.get(f"/v1/agents/{agent_id}"))


@pytest.fixture
def hosts(fleet: Fleet) -> Hosts:
    return Hosts(fleet)


def test_dispatch_wakes_a_connected_host(fleet: Fleet, hosts: Hosts) -> None:
    connection = hosts.connect("a-1")
    job_id = fleet.submit("a-1")["job_id"]

    fleet.run_until_dispatched(job_id)
    fleet.cloud.deliver("AgentWakeupsQueue")

    assert hosts.line.heard(connection) == [{"type": "transfers"}]
    assert len(fleet.inbox("a-1")) == 1


def test_dispatch_wakes_the_first_hundred_hosts_directly(fleet: Fleet, hosts: Hosts) -> None:
    connections = [hosts.connect(f"a-{number}") for number in range(100)]
    job_id = fleet.submit_many([f"a-{number}" for number in range(100)])["job_id"]

    fleet.run_until_dispatched(job_id)

    assert all(hosts.line.heard(connection) == [{"type": "transfers"}] for connection in connections)
    assert fleet.cloud._receive("AgentWakeupsQueue", 10) == []


def test_queue_wakes_hosts_that_dispatch_could_not_wake(
    fleet: Fleet, hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = hosts.connect("a-1")
    with monkeypatch.context() as broken:
        broken.setattr(fleet_module, "wake_now", lambda *_: (_ for _ in ()).throw(OSError("no route")))
        fleet.run_until_dispatched(fleet.submit("a-1")["job_id"])
    assert hosts.line.heard(connection) == []

    fleet.cloud.deliver("AgentWakeupsQueue")

    assert hosts.line.heard(connection) == [{"type": "transfers"}]


def poll_for(fleet: Fleet, job_id: str, seconds: int) -> None:
    """Polls for `seconds`, each time after the wait that the last poll returned, as the state machine does."""
    wait, passed = 2, 0
    while passed < seconds:
        fleet.cloud.clock.advance(wait)
        passed += wait
        wait = fleet.step("poll_transfer", job_id, wait=wait)["wait"]
        fleet.cloud.deliver("AgentWakeupsQueue")


def test_lost_wakeup_is_repeated_within_seconds(fleet: Fleet, hosts: Hosts) -> None:
    lost, started = hosts.connect("a-1"), hosts.connect("a-2")
    job_id = fleet.submit_many(["a-1", "a-2"])["job_id"]
    fleet.run_until_dispatched(job_id)
    hosts.line.outgoing.sent.clear()
    fleet.report("a-2", 115, progress=10)

    poll_for(fleet, job_id, 18)

    # Told by the queue: one poll is enough, since the entries have been there for long.
    assert hosts.line.heard(lost) == [{"type": "transfers", "repeat": True}]
    assert hosts.line.heard(started) == []


def test_silent_host_is_woken_at_doubling_intervals(fleet: Fleet, hosts: Hosts) -> None:
    connection = hosts.connect("a-1")
    job_id = fleet.submit("a-1")["job_id"]
    fleet.run_until_dispatched(job_id)
    hosts.line.outgoing.sent.clear()

    poll_for(fleet, job_id, 500)

    # After 15, 30, 60, 120, 240 and 480 seconds, sometimes twice. There were about forty polls.
    assert 6 <= len(hosts.line.heard(connection)) <= 12


def test_hosts_that_are_not_targets_are_not_woken(fleet: Fleet, hosts: Hosts) -> None:
    other = hosts.connect("a-2")

    fleet.run_until_dispatched(fleet.submit("a-1")["job_id"])
    fleet.cloud.deliver("AgentWakeupsQueue")

    assert hosts.line.heard(other) == []


def test_hosts_of_a_large_job_spread_their_requests(fleet: Fleet, hosts: Hosts) -> None:
    connection = hosts.connect("h-0")
    job_id = fleet.submit_many([f"h-{number}" for number in range(1000)])["job_id"]

    fleet.run_until_dispatched(job_id)
    fleet.cloud.deliver("AgentWakeupsQueue")

    assert hosts.line.heard(connection) == [{"type": "transfers", "within_s": 2}]
    assert fleet.inbox("h-0")[0]["spread_s"] == 2


def test_thousand_hosts_cost_ten_messages(fleet: Fleet) -> None:
    fleet_module.wake_soon(fleet.cloud.app.distribution, fleet.project.id, [f"h-{n}" for n in range(1000)], 2)

    received = fleet.cloud._receive("AgentWakeupsQueue", 10_000)
    fleet.cloud._settle("AgentWakeupsQueue", received, failed=set())
    bodies = [json.loads(_sqs_record(message)["body"]) for message in received]

    assert [len(body["agents"]) for body in bodies] == [100] * 10


def test_host_whose_connection_is_gone_is_offline(fleet: Fleet, hosts: Hosts) -> None:
    connection = hosts.connect("a-1")
    fleet.cloud.clock.advance(90)
    hosts.line.outgoing.gone.add(connection)

    fleet.run_until_dispatched(fleet.submit("a-1")["job_id"])
    fleet.cloud.deliver("AgentWakeupsQueue")
    fleet.cloud.clock.advance(600)

    assert hosts.show("a-1")["state"] == "offline"


def test_host_that_is_just_connecting_is_woken_again(fleet: Fleet, hosts: Hosts) -> None:
    """API Gateway says "gone" of a connection until its `$connect` has ended."""
    connection = hosts.connect("a-1")
    hosts.line.outgoing.gone.add(connection)
    job_id = fleet.submit("a-1")["job_id"]
    fleet.run_until_dispatched(job_id)
    fleet.cloud.deliver("AgentWakeupsQueue")
    hosts.line.outgoing.gone.clear()

    poll_for(fleet, job_id, 18)

    assert hosts.line.heard(connection) == [{"type": "transfers", "repeat": True}]


def test_host_is_online_until_it_disconnects(fleet: Fleet, hosts: Hosts) -> None:
    connection = hosts.connect("a-1")
    fleet.cloud.clock.advance(3600)
    assert hosts.show("a-1")["state"] == "online"

    hosts.line.leave(connection)
    left = hosts.show("a-1")["last_seen"]
    fleet.cloud.clock.advance(3600)

    shown = hosts.show("a-1")
    assert (shown["state"], shown["last_seen"]) == ("offline", left)


def test_end_of_an_older_connection_leaves_the_newer_one_online(fleet: Fleet, hosts: Hosts) -> None:
    first, second = hosts.connect("a-1", "first-1"), hosts.connect("a-1", "second-1")

    hosts.line.leave(first)
    fleet.cloud.clock.advance(3600)
    assert hosts.show("a-1")["state"] == "online"

    hosts.line.leave(second)
    fleet.cloud.clock.advance(3600)
    assert hosts.show("a-1")["state"] == "offline"


def test_connection_without_a_disconnect_event_counts_for_two_hours(fleet: Fleet, hosts: Hosts) -> None:
    hosts.connect("a-1")

    fleet.cloud.clock.advance(2 * 3600 + 700)

    assert hosts.show("a-1")["state"] == "offline"


def test_polling_host_is_online_for_minutes(fleet: Fleet, hosts: Hosts) -> None:
    fleet.inbox("a-1")
    assert hosts.show("a-1")["state"] == "online"

    fleet.cloud.clock.advance(3600)
    assert hosts.show("a-1")["state"] == "offline"


def test_agent_shows_its_inventory(hosts: Hosts) -> None:
    hosts.connect("a-1", version="1.2.3", zone="rack-7", free_bytes="1000000000000", allows="reload,:8080")

    shown = hosts.show("a-1")
    assert shown["allows"] == "reload,:8080"
    assert (shown["version"], shown["zone"], shown["free_bytes"]) == ("1.2.3", "rack-7", 10**12)


@pytest.mark.parametrize(
    "odd", [{"version": ""}, {"free_bytes": "-1"}, {"zone": "x" * 500}, {"free_bytes": "9" * 40}, {"allows": "a b"}]
)
def test_malformed_inventory_is_ignored(hosts: Hosts, odd: dict[str, str]) -> None:
    hosts.connect("a-1", **odd)

    assert hosts.show("a-1").get(next(iter(odd))) is None


def test_heartbeat_makes_no_aws_call(fleet: Fleet, hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = hosts.connect("a-1")
    table = fleet.cloud.app.table
    monkeypatch.setattr(table, "_client", None)

    assert hosts.line.say_text(connection, '{"action":"beat"}') == []


def test_idle_host_costs_thirteen_calls_in_two_hours(fleet: Fleet, hosts: Hosts) -> None:
    """A ticket, a connection, a poll and the disconnect. Not counted: the write of a key's first use."""
    hosts.line.leave(hosts.connect("a-1"))
    fleet.cloud.clock.advance(7200)

    with count_calls(fleet.cloud.app) as calls:
        connection = hosts.connect("a-1", "c-2")
        fleet.inbox("a-1")
        hosts.line.leave(connection)

    assert calls == {
        "dynamodb.GetItem": 4,
        # Whether the host was deleted, at its connection and its poll.
        "dynamodb.BatchGetItem": 2,
        "dynamodb.Query": 1,
        "dynamodb.PutItem": 1,
        "dynamodb.UpdateItem": 4,
        "dynamodb.BatchWriteItem": 1,
    }


def test_ping_is_answered_with_pong(hosts: Hosts) -> None:
    connection = hosts.connect("a-1")

    (answer,) = hosts.line.say(connection, action="ping")

    assert answer["type"] == "pong"


def test_agents_connection_cannot_watch_records(fleet: Fleet, hosts: Hosts) -> None:
    connection = hosts.connect("a-1")
    hosts.line.record(fleet.project, "req-1", task_id="req-1", status="completed")

    (answer,) = hosts.line.say(connection, action="watch", task_ids=["req-1"])

    assert (answer["type"], answer["data"]["code"]) == ("error", "scope_missing")


def test_key_of_scope_write_gets_no_ticket(fleet: Fleet) -> None:
    key = fleet.cloud.make_key(fleet.project.id, ["write"])

    assert fleet.cloud.http("POST", "/v1/ws-tickets", key=key).status == 403


def test_revoking_an_agents_key_closes_its_connection(fleet: Fleet, hosts: Hosts) -> None:
    connection = hosts.connect("a-1")
    fleet.cloud.app.notifications.outgoing.close = hosts.line.outgoing.close  # type: ignore[method-assign]

    key_id = fleet.key_of("a-1").split("_")[1]
    fleet.cloud.http("DELETE", f"/v1/keys/{key_id}", key=fleet.cloud.admin_key)

    assert hosts.line.outgoing.closed == [connection]
