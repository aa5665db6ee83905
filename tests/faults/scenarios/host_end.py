"""A host with a rotated key and an open WebSocket is deleted: all its keys stop working, also for its replacement."""

from __future__ import annotations

from unittest.mock import patch

from tests.faults.scenarios.key_end import _due
from tests.faults.sweep import Scenario
from tests.faults.world import World
from tests.integration.distribution.fleet.test_push import Hosts
from tests.support.fleet import Fleet
from tidegate.notifications.websocket import WebSocketSender

PATH = "/v1/agents/h-1/transfers"


def run(world: World) -> None:
    project, cloud = world.new_project(), world.cloud
    with world.calls.without_faults():
        fleet = Fleet(cloud, project)
        hosts = Hosts(fleet)
        connection = hosts.connect("h-1")
        old = fleet.key_of("h-1")
        rotate = cloud.http(
            "POST", f"/v1/keys/{old.split('_')[1]}/rotate", key=cloud.admin_key, json={"overlap_s": 600}
        )
        held = [old, str(rotate.json()["key"])]
    closed = hosts.line.outgoing.close
    with patch.object(WebSocketSender, "close", lambda _, connection_ids: closed(connection_ids)):
        answer = world.ask("DELETE", "/v1/agents/h-1", key=project.key)

        # 404: the answer to the deletion was lost, and it was repeated.
        assert answer.status in (204, 404), answer.body
        world.settle(lambda: connection in hosts.line.outgoing.closed and not _due(world))
        query = f"/v1/enrolments?project_id={project.id}"
        made = world.ask("POST", query, key=cloud.admin_key, json={"uses": 1, "replace": True})
        body = {"token": made.json().get("token"), "agent_id": "h-1", "claim": "a-secret-of-this-host"}
        enrolled = world.ask("POST", "/v1/agents/enrol", key="", json=body)

    assert enrolled.status == 201, enrolled.body
    with world.calls.without_faults():
        assert [cloud.http("GET", PATH, key=key).status for key in held] == [401, 401]
        assert cloud.http("GET", PATH, key=enrolled.json()["key"]).status == 200
        assert [agent["agent_id"] for agent in fleet.get("/v1/agents")["items"]] == ["h-1"]


SCENARIO = Scenario("host_end", run, works_alone=False)
