"""A callback whose receiver fails once is delivered, even if the publisher or the deliverer dies."""

from __future__ import annotations

from contextlib import suppress

from botocore.exceptions import BotoCoreError, ClientError

from tests.faults.injection import Died
from tests.faults.sweep import Scenario
from tests.faults.world import World
from tests.integration.notifications.receiving import receiver
from tidegate.notifications.notices import Notice, notice_id_for, notice_write


def run(world: World) -> None:
    project = world.new_project()
    app, kind = world.cloud.app, "task.completed"
    with receiver(500, 200) as at:
        data = {"task_id": "req-1", "status": "completed"}
        made = world.cloud.clock()
        notice = Notice(notice_id_for(kind, "req-1"), project.id, kind, "req-1", "completed", data, at.url, made)
        with world.calls.without_faults():
            app.table.transact([notice_write(notice)])
        with suppress(Died, ClientError, BotoCoreError):
            app.notifications.notifier.publish([notice])
        world.settle(lambda: _state(world, notice.message_id, project.key) == "delivered")

        assert set(at.ids) == {notice.message_id}
        # A deliverer that died after the receiver answered has to call again, with the same id.
        assert 2 <= len(at.ids) <= 3, at.ids
    assert "req-1" in world.notified()


def _state(world: World, delivery_id: str, key: str) -> object:
    with world.calls.without_faults():
        answer = world.cloud.http("GET", f"/v1/callbacks/{delivery_id}", key=key)
    return answer.json().get("callback_state")


SCENARIO = Scenario("callback", run)
