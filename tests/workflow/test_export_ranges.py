"""The export state machine with several workers on moto."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.exports.paged_source import numbered
from tests.support.exports.running import ExportWorld, read_csv
from tests.workflow.test_export_machine import run_to_end, world
from tidegate.exports import Exports, steps

__all__ = ["world"]


def test_large_export_is_rendered_by_the_map_and_joined(world: ExportWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    render_ranges, lanes = steps.render_ranges, list[Any]()

    def record_lane(exports: Exports, event: Any, seconds_left: float) -> dict[str, Any]:
        lanes.append(event["lane"])
        return render_ranges(exports, event, seconds_left)

    monkeypatch.setattr(steps, "render_ranges", record_lane)
    world.source.rows = numbered(2050)
    task_id = world.submit(step=100, parallel=12)

    assert run_to_end(world, task_id)["progress"]["rows"] == 2050
    assert [int(row["id"]) for row in read_csv(world.file(task_id))] == list(range(2050))
    assert sorted(lanes) == [0, 1, 2]


def test_dead_worker_is_restarted_within_the_attempt(world: ExportWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    render_ranges, started = steps.render_ranges, list[int]()

    def dies_once(exports: Exports, event: Any, seconds_left: float) -> dict[str, Any]:
        started.append(event["lane"])
        if started.count(1) == 1 and event["lane"] == 1:
            render_ranges(exports, event, seconds_left)
            raise MemoryError("the sandbox is full")
        return render_ranges(exports, event, seconds_left)

    monkeypatch.setattr(steps, "render_ranges", dies_once)
    world.source.rows = numbered(2050)
    task_id = world.submit(step=100, parallel=12)
    assert run_to_end(world, task_id, attempts=1)["status"] == "completed"
    assert [int(row["id"]) for row in read_csv(world.file(task_id))] == list(range(2050))
    assert sorted(started) == [0, 1, 1, 2]
    assert max(world.source.pages.values()) == 1, "ranges with a record are not pulled again"


def test_worker_that_always_dies_ends_the_attempt(world: ExportWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    render_ranges, died = steps.render_ranges, list[Any]()

    def dies(exports: Exports, event: Any, seconds_left: float) -> dict[str, Any]:
        if event["lane"] == 1 and event["attempt"] == 1:
            died.append(event)
            raise MemoryError("the sandbox is full")
        return render_ranges(exports, event, seconds_left)

    monkeypatch.setattr(steps, "render_ranges", dies)
    world.source.rows = numbered(2050)
    task_id = world.submit(step=100, parallel=12)
    assert run_to_end(world, task_id, attempts=2)["status"] == "completed"
    assert [int(row["id"]) for row in read_csv(world.file(task_id))] == list(range(2050))
    assert len(died) == 4
