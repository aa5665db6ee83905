"""Creates, shows and runs schedules of batches in tests."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tests.support.batches.world import BatchWorld


def new_schedule(world: BatchWorld, *hooks: str, schedule: str = "cron(0 2 * * ? *)", **more: Any) -> dict[str, Any]:
    batch = {"biz_id": world.register(*hooks), "name": "nightly", "total": 5, "rate": 10} | more
    made = world.http("POST", "/v1/batch-schedules", {"schedule": schedule, "batch": batch})
    assert made.status == 201, made.body
    return dict(made.json())


def now(world: BatchWorld, made: dict[str, Any]) -> dict[str, Any]:
    shown = world.http("GET", f"/v1/batch-schedules/{made['schedule_id']}")
    assert shown.status == 200, shown.body
    return dict(shown.json())


def to_next_run(world: BatchWorld, made: dict[str, Any]) -> None:
    moment = datetime.fromisoformat(now(world, made)["next_run"])
    world.cloud.clock.advance((moment - world.cloud.clock()).total_seconds())


def fire(world: BatchWorld) -> None:
    world.cloud.invoke("start_scheduled_batches", {})


def batches(world: BatchWorld) -> list[dict[str, Any]]:
    return list(world.http("GET", "/v1/batches").json()["items"])
