"""The export state machine with several workers on moto."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.exports.paged_source import numbered
from tests.support.exports.running import ExportWorld, read_csv
from tests.workflow.test_export_machine import run_to_end, world

__all__ = ["world"]


def test_large_export_is_rendered_by_the_map_and_joined(world: ExportWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    work, lanes = world.cloud.app.exports.steps, list[Any]()
    render_ranges = work.render_ranges

    def record_lane(event: Any, seconds_left: float) -> dict[str, Any]:
        lanes.append(event["lane"])
        return render_ranges(event, seconds_left)

    monkeypatch.setattr(work, "render_ranges", record_lane)
    world.source.rows = numbered(2050)
    task_id = world.submit(step=100, parallel=12)

    assert run_to_end(world, task_id)["progress"]["rows"] == 2050
    assert [int(row["id"]) for row in read_csv(world.file(task_id))] == list(range(2050))
    assert sorted(lanes) == [0, 1, 2]


def test_dead_worker_is_restarted_within_the_attempt(world: ExportWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    work, started = world.cloud.app.exports.steps, list[int]()
    render_ranges = work.render_ranges

    def dies_once(event: Any, seconds_left: float) -> dict[str, Any]:
        started.append(event["lane"])
        if started.count(1) == 1 and event["lane"] == 1:
            render_ranges(event, seconds_left)
            raise MemoryError("the sandbox is full")
        return render_ranges(event, seconds_left)

    monkeypatch.setattr(work, "render_ranges", dies_once)
    world.source.rows = numbered(2050)
    task_id = world.submit(step=100, parallel=12)
    assert run_to_end(world, task_id, attempts=1)["status"] == "completed"
    assert [int(row["id"]) for row in read_csv(world.file(task_id))] == list(range(2050))
    assert sorted(started) == [0, 1, 1, 2]
    assert max(world.source.pages.values()) == 1, "ranges with a record are not pulled again"


def test_worker_that_always_dies_ends_the_attempt(world: ExportWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    work, died = world.cloud.app.exports.steps, list[Any]()
    render_ranges = work.render_ranges

    def dies(event: Any, seconds_left: float) -> dict[str, Any]:
        if event["lane"] == 1 and event["attempt"] == 1:
            died.append(event)
            raise MemoryError("the sandbox is full")
        return render_ranges(event, seconds_left)

    monkeypatch.setattr(work, "render_ranges", dies)
    world.source.rows = numbered(2050)
    task_id = world.submit(step=100, parallel=12)
    assert run_to_end(world, task_id, attempts=2)["status"] == "completed"
    assert [int(row["id"]) for row in read_csv(world.file(task_id))] == list(range(2050))
    assert len(died) == 4
