"""A callback whose receiver fails once: it arrives, whenever the publisher or the deliverer dies."""

from __future__ import annotations

from contextlib import suppress

from botocore.exceptions import BotoCoreError, ClientError

from tests.faults.dying import Died
from tests.faults.sweep import Scenario
from tests.faults.world import World
from tests.integration.notifications.receiving import receiver
from tidegate.notifications.notice import Notice, notice_id_for
from tidegate.notifications.outbox import notice_write


def run(world: World) -> None:
    project = world.new_project()
    app, kind = world.cloud.app, "task.completed"
    with receiver(500, 200) as at:
        data = {"task_id": "req-1", "status": "completed"}
        made = world.cloud.clock()
        told = Notice(notice_id_for(kind, "req-1"), project.id, kind, "req-1", "completed", data, at.url, made)
        with world.calls.uncounted():
            app.table.transact([notice_write(told)])
        with suppress(Died, ClientError, BotoCoreError):
            app.notifications.notifier.publish([told])
        world.settle(lambda: _state(world, told.message_id, project.key) == "delivered")

        assert set(at.ids) == {told.message_id}
        # A deliverer that dies after the receiver answered has to ask again: at least once, under one id.
        assert 2 <= len(at.ids) <= 3, at.ids
    assert "req-1" in world.told()


def _state(world: World, delivery_id: str, key: str) -> object:
    with world.calls.uncounted():
        answer = world.cloud.http("GET", f"/v1/callbacks/{delivery_id}", key=key)
    return answer.json().get("callback_state")


SCENARIO = Scenario("callback", run)
