"""A key with an open WebSocket is revoked: the key stops working and the connection is closed."""

from __future__ import annotations

from unittest.mock import patch

from tests.faults.sweep import Scenario
from tests.faults.world import World
from tests.integration.notifications.watching import Line
from tidegate.notifications.websocket import WebSocketSender


def run(world: World) -> None:
    project, cloud = world.new_project(), world.cloud
    with world.calls.without_faults():
        line = Line(cloud)
        line.joined(project)
    # A killed function gets a new App, so the sender is patched for all of them.
    sent, closed = line.outgoing.send, line.outgoing.close
    with (
        patch.object(WebSocketSender, "send", lambda _, messages: sent(messages)),
        patch.object(WebSocketSender, "close", lambda _, connection_ids: closed(connection_ids)),
    ):
        answer = world.ask("DELETE", f"/v1/keys/{project.key.split('_')[1]}", key=cloud.admin_key)

        assert answer.status == 204, answer.body
        world.settle(lambda: "c1" in line.outgoing.closed and not _due(world))
        with world.calls.without_faults():
            assert cloud.http("GET", "/v1/files", key=project.key).status == 401
            assert line.say("c1", action="ping")[-1]["type"] == "error"


def _due(world: World) -> bool:
    """Whether the end of any key is still due."""
    items = world.cloud.client("dynamodb").scan(TableName=world.cloud.names.refs["Table"])["Items"]
    return any(item.get("due_kind", {}).get("S") == "key" for item in items)


SCENARIO = Scenario("key_end", run, works_alone=False)
