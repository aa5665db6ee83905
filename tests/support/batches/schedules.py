"""Creates, shows and runs schedules of batches in tests."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tests.support.batches.world import BatchWorld


def new_schedule(world: BatchWorld, *hooks: str, schedule: str = "cron(0 2 * * ? *)", **more: Any) -> dict[str, Any]:
    batch = {"biz_id": world.register(*hooks), "name": "nightly", "total": 5, "rate": 10} | more
    answer = world.http("POST", "/v1/batch-schedules", {"schedule": schedule, "batch": batch})
    assert answer.status == 201, answer.body
    return dict(answer.json())


def now(world: BatchWorld, schedule: dict[str, Any]) -> dict[str, Any]:
    answer = world.http("GET", f"/v1/batch-schedules/{schedule['schedule_id']}")
    assert answer.status == 200, answer.body
    return dict(answer.json())


def to_next_run(world: BatchWorld, schedule: dict[str, Any]) -> None:
    moment = datetime.fromisoformat(now(world, schedule)["next_run"])
    world.cloud.clock.advance((moment - world.cloud.clock()).total_seconds())


def fire(world: BatchWorld) -> None:
    world.cloud.invoke("start_scheduled_batches", {})


def batches(world: BatchWorld) -> list[dict[str, Any]]:
    return list(world.http("GET", "/v1/batches").json()["items"])
