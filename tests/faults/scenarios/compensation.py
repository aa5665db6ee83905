"""Work that is overdue for each reason that compensation handles, while compensation itself fails."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from tests.faults.scenarios.distribution import SHA, Agents, stored_file
from tests.faults.sweep import Scenario
from tests.faults.world import World
from tests.support.http_servers import serve
from tests.support.moto.cloud import Project
from tidegate.aws import keys
from tidegate.aws.clients import Machines
from tidegate.aws.table import put_new, update
from tidegate.notifications.notices import Notice, notice_id_for, notice_write

CONTENT = b"brought in late"
NARROW = "narrow"


def run(world: World) -> None:
    project = world.new_project()
    with serve(lambda request: request.answer(200, CONTENT)) as port:
        source = f"http://127.0.0.1:{port}/f"
        with world.calls.without_faults():
            stored_file(world, project)
            agents = Agents(world, project, ("a1",))
            # The function that should have started an execution died before.
            with patch.object(Machines, "start", lambda *_: ""):
                task = _closed_window(world, project)
                admitted = _file(world, project, source, path="/admitted")
                world.deliver_all()
            behind_a_leak = _behind_a_leaked_slot(world, project, source)
            record = _unsent_notice(world, project)
        world.cloud.while_waiting.append(agents.work)
        assert not _executions(world)

        world.settle(lambda: _over(world, project, task, (admitted, behind_a_leak)) and record in world.notified())

    job = world.shown(f"/v1/downloads/{task}", project)
    assert job["status"] == "Success", job
    assert [len(transfers) for transfers in agents.got.values()].count(1) == 1, agents.got
    for request in (admitted, behind_a_leak):
        ended = world.shown(f"/v1/requests/{request}", project)
        assert (ended["status"], ended["attempts"]) == ("completed", 1), ended
    assert len(_executions(world)) == len(("the Job", "the admitted", "behind the leak"))
    world.settle(world.idle_channels)
    _status_is_right(world)


def _closed_window(world: World, project: Project) -> str:
    body: dict[str, Any] = {"biz_id": 1, "app_id": 1, "file_path": "/f", "file_name": "f", "file_signature": SHA}
    body |= {"target_agent_id": "a1", "target_user": "root", "target_file_dir": "/data"}
    made = world.cloud.http("POST", "/v1/downloads", key=project.key, json=body)
    assert made.status == 202, made.body
    return str(made.json()["task_id"]).rsplit(":", 1)[-1]


def _file(world: World, project: Project, source: str, path: str, **more: str) -> str:
    body = {"biz_id": 1, "app_id": 1, "file_path": path, "source_url": source, **more}
    made = world.cloud.http("POST", "/v1/files", key=project.key, json=body)
    assert made.status == 202, made.body
    return str(made.json()["request_id"])


def _behind_a_leaked_slot(world: World, project: Project, source: str) -> str:
    """Submits a request to a channel whose only slot is held by a request that does not exist any more."""
    cloud = world.cloud
    made = cloud.http("POST", "/v1/queue/capacity", json={NARROW: 1}, key=cloud.admin_key)
    assert made.status == 200, made.body
    gone = {"project_id": project.id, "request_id": "req-gone", "attempt": 1}
    held = update(keys.channel(NARROW), adds={"running": 1, "slot_changes": 1})
    cloud.app.table.transact([put_new(keys.slot(NARROW, "req-gone") | gone), held])
    waiting = _file(world, project, source, path="/behind", channel=NARROW)
    world.deliver_all()
    return waiting


def _unsent_notice(world: World, project: Project) -> str:
    kind, record = "task.completed", "req-notified"
    notice = Notice(notice_id_for(kind, record), project.id, kind, record, "completed", {}, None, world.cloud.clock())
    world.cloud.app.table.transact([notice_write(notice)])
    return record


def _over(world: World, project: Project, task: str, requests: tuple[str, ...]) -> bool:
    shown = [world.shown(f"/v1/downloads/{task}", project)]
    shown += [world.shown(f"/v1/requests/{request}", project) for request in requests]
    return all(one["status"] in ("Success", "Failed", "Timeout", "completed", "failed") for one in shown)


def _executions(world: World) -> list[str]:
    client = world.cloud.client("stepfunctions")
    machines = world.cloud.names.machines.values()
    found = [client.list_executions(stateMachineArn=machine)["executions"] for machine in machines]
    return [execution["name"] for executions in found for execution in executions]


def _status_is_right(world: World) -> None:
    """There is one tick, however often the poll was restarted, and only real starts are counted."""
    with world.calls.without_faults():
        for _ in range(4):
            world.cloud.clock.advance(400)
            world.compensate()
        shown = world.cloud.http("GET", "/v1/compensation", key=world.cloud.admin_key).json()
    started = len(("the Job", "the admitted", "the notice"))
    if world.calls.injected is None:
        assert shown["compensated_total"] == started, shown
    assert shown["compensated_total"] <= started, shown
    assert shown["next_poll"] > shown["last_poll"], shown
    ticks = world.cloud.client("sqs").get_queue_attributes(
        QueueUrl=world.cloud.names.queues["CompensationQueue"], AttributeNames=["All"]
    )["Attributes"]
    names = ("", "Delayed", "NotVisible")
    assert sum(int(ticks[f"ApproximateNumberOfMessages{name}"]) for name in names) == 1, ticks


SCENARIO = Scenario("compensation", run, only=("compensate",))
