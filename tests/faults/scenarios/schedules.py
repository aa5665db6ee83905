"""Schedules of exports and batches: each due time creates one export or batch, which ends."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from tests.faults.injection import Died
from tests.faults.sweep import Scenario
from tests.faults.world import World
from tests.support.http_servers import Handler, serve
from tests.support.moto.cloud import Project
from tidegate.common.ids import iso

TOTAL = 3
# Longer than the scenario takes, so that there is only one due time.
WEEKLY = "rate(7 days)"
ROWS = [{"id": number} for number in range(TOTAL)]


def run_export(world: World) -> None:
    project = world.new_project()
    body = {"name": "weekly", "source_data": ROWS, "schedule": WEEKLY}
    schedule = made(world, project, "/v1/export-schedules", body)
    come_due(world, "start_scheduled_exports")

    def runs() -> list[dict[str, Any]]:
        return list(world.shown(f"/v1/export-schedules/{schedule}/runs", project)["items"])

    world.settle(lambda: [run.get("task", {}).get("status") for run in runs()] == ["completed"])
    (run,) = runs()
    tasks = world.shown("/v1/tasks?limit=100", project)["items"]
    # One schedule, although a caller without an answer sent its request again.
    assert len(tasks) == 1, tasks
    check_next_run(world, project, f"/v1/export-schedules/{schedule}", "last_task_id", run["task_id"])
    world.settle(lambda: run["task_id"] in world.notified())
    world.settle(world.idle_channels)


def run_batch(world: World) -> None:
    project = world.new_project()
    called: Counter[tuple[str, int]] = Counter()

    def business(request: Handler) -> None:
        call = json.loads(request.body())
        if "index" in call:
            called[call["batch_id"], call["index"]] += 1
        request.answer(200, b'{"result": "ok"}', Content_Type="application/json")

    with serve(business) as port:
        url = f"http://127.0.0.1:{port}"
        biz = world.ask(
            "POST",
            "/v1/biz",
            key=project.key,
            json={"name": "biz", "process_url": f"{url}/", "before_create_url": f"{url}/create"},
        )
        assert biz.status == 201, biz.body
        batch = {"biz_id": biz.json()["biz_id"], "name": "weekly", "total": TOTAL, "rate": 200, "retries": 1}
        schedule = made(world, project, "/v1/batch-schedules", {"schedule": WEEKLY, "batch": batch})
        come_due(world, "start_scheduled_batches")

        def batches() -> list[dict[str, Any]]:
            return list(world.shown("/v1/batches?limit=100", project)["items"])

        world.settle(lambda: bool(batches()) and all(one["status"] == "finished" for one in batches()))
        assert len(batches()) == 1, batches()
        last = str(world.shown(f"/v1/batch-schedules/{schedule}", project).get("last_batch_id"))
        assert last in [one["batch_id"] for one in batches()], last
        check_next_run(world, project, f"/v1/batch-schedules/{schedule}", "last_batch_id", last)
        with world.calls.without_faults():
            stored = world.cloud.app.batches.store.get(project.id, last)
        assert stored is not None
        assert stored.run == 1, "it was started more than once"
        world.settle(lambda: last in world.notified())
        world.settle(world.idle_channels)
    assert {index for batch_id, index in called if batch_id == last} == set(range(TOTAL)), called
    assert max(called.values()) <= 2, called


def made(world: World, project: Project, path: str, body: dict[str, Any]) -> str:
    answer = world.ask("POST", path, key=project.key, json=body)
    assert answer.status == 201, answer.body
    return str(answer.json()["schedule_id"])


def come_due(world: World, function: str) -> None:
    """Moves the clock to the due time, then runs the function of the schedule every minute."""
    world.cloud.clock.advance(7 * 24 * 3600 + 1)
    for _ in range(4):
        with suppress(Died, ClientError, BotoCoreError):
            world.cloud.invoke(function, {"source": "aws.events"})
        world.cloud.clock.advance(60)


def check_next_run(world: World, project: Project, path: str, name: str, last: str) -> None:
    shown = world.shown(path, project)
    assert shown[name] == last, shown
    assert shown["next_run"] > iso(world.cloud.clock()), shown
    assert not shown.get("last_error"), shown


EXPORT = Scenario("export schedule", run_export)
BATCH = Scenario("batch schedule", run_batch)
