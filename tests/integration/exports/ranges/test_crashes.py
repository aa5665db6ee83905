"""Workers and joiner that fail, run out of time, run twice or die lose and duplicate no row."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from tests.integration.exports.test_fill import template
from tests.support import sample
from tests.support.exports.fill import sheet_of
from tests.support.exports.killing import Killed, killed_after_write
from tests.support.exports.paged_source import honest, numbered
from tests.support.exports.ranges import by_cursor
from tests.support.exports.running import ExportWorld, read_csv, read_sheet
from tidegate.aws import s3 as part_plan
from tidegate.exports import pull as export_range_plan
from tidegate.exports import ranges as export_ranges
from tidegate.exports import ranges as pages_ahead
from tidegate.exports import steps
from tidegate.exports.ranges import RangeContext
from tidegate.exports.store import output_prefix
from tidegate.sheets import files as fragments

ROWS = 2050


def test_failing_page_repeats_its_own_range_only(world: ExportWorld) -> None:
    world.source.rows, world.source.failures = numbered(ROWS), {16: [500] * 3}
    task_id = world.submit(step=100, parallel=28)
    assert world.attempt(task_id)["status"] == "pending"
    shown = world.attempt(task_id)

    assert (shown["status"], shown["attempts"]) == ("completed", 2)
    assert [int(row["id"]) for row in read_csv(world.file(task_id))] == list(range(ROWS))
    again = sorted(page for page, count in world.source.pages.items() if count > 1)
    assert again == [16, 17, 18]


def advance_80_seconds_at_each_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives all code that checks the worker's deadline one clock, independent of the machine's uptime."""
    ticks = count()
    clock = SimpleNamespace(monotonic=lambda: next(ticks) * 80.0)
    for module in (export_ranges, pages_ahead):
        monkeypatch.setattr(module, "time", clock)


def test_worker_out_of_time_continues_in_another_invocation(
    world: ExportWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance_80_seconds_at_each_reading(monkeypatch)
    world.source.rows = numbered(ROWS)
    task_id = world.submit(step=100)
    state = world.cloud.invoke("pull_pages", world.admit(task_id))
    invocations = 1
    lane = world.cloud.invoke("render_ranges", state["lanes"][0])
    while lane["next"] == "ranges":
        lane, invocations = world.cloud.invoke("render_ranges", lane), invocations + 1
    while state["next"] in ("ranges", "publish"):
        state = world.cloud.invoke({"ranges": "render_export", "publish": "publish_export"}[state["next"]], state)

    assert [int(row["id"]) for row in read_csv(world.file(task_id))] == list(range(ROWS))
    assert invocations > 2
    assert max(world.source.pages.values()) == 1


def test_cursor_continues_in_another_invocation(world: ExportWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    advance_80_seconds_at_each_reading(monkeypatch)
    world.source.rows, world.source.answer = numbered(ROWS), by_cursor
    _, data = world.export(step=100)
    assert [int(row["id"]) for row in read_csv(data)] == list(range(ROWS))


def test_second_worker_of_the_same_range_adds_nothing(world: ExportWorld) -> None:
    world.source.rows = numbered(ROWS)
    task_id = world.submit(step=100)
    state = world.cloud.invoke("pull_pages", world.admit(task_id))
    stored_keys = RangeContext.stored_keys
    RangeContext.stored_keys = lambda self: set()  # type: ignore[method-assign]
    try:
        for _ in range(2):
            steps.render_ranges(world.cloud.app.exports, state["lanes"][0], 900)
    finally:
        RangeContext.stored_keys = stored_keys  # type: ignore[method-assign]
    while state["next"] in ("ranges", "publish"):
        state = world.cloud.invoke({"ranges": "render_export", "publish": "publish_export"}[state["next"]], state)
    assert [int(row["id"]) for row in read_csv(world.file(task_id))] == list(range(ROWS))
    assert world.objects() == [f"exports/{world.project.id}/{task_id}/1"]


@pytest.mark.parametrize("kind", ["csv", "excel", "cursor", "tables", "fill"])
def test_crash_after_any_write_loses_and_duplicates_no_row(
    world: ExportWorld, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from moto.s3 import models

    for module, name in ((models, "S3_UPLOAD_PART_MIN_SIZE"), (part_plan, "SMALLEST_PART")):
        monkeypatch.setattr(module, name, 600)
    monkeypatch.setattr(fragments, "CLOSED_BYTES", 1000)
    monkeypatch.setattr(fragments, "BEHIND_BYTES", 600)
    monkeypatch.setattr(export_range_plan, "MIN_PAGES", 2)
    rows = 350
    world.source.rows = numbered(rows)
    world.source.answer = by_cursor if kind == "cursor" else honest
    fields: dict[str, Any] = {
        "step": 100,
        "type": "excel" if kind in ("excel", "tables", "fill") else "csv",
        "parallel": 8,
    }
    if kind == "tables":
        fields |= {"path": "/v1/task/multiple", "multi_type": "tab", "source_url": [world.source.url] * 2}
    if kind == "fill":
        fields["fill"] = {"file_id": template(world, sheet_of({"A1": "number", "A2": "{.id}", "B2": "=A2*2"}))}
    # Every write for both ways of pulling; a sample for workbooks and several tables, which make the same writes.
    for write in range(1, 200, sample.step(1 if kind in ("csv", "cursor") else 4)):
        world.source.requests.clear()
        task_id = world.submit(**fields)
        state = world.cloud.invoke("pull_pages", world.admit(task_id))
        with killed_after_write(write) as died:
            try:
                for lane in state["lanes"]:
                    steps.render_ranges(world.cloud.app.exports, lane, 900)
                ended = steps.render(world.cloud.app.exports, state)
            except Killed:
                ended = None
        if ended is None:
            # The state machine continues with GiveUp, and the queue retries.
            failure = {"Error": "Lambda.Unknown", "Cause": "the sandbox is gone"}
            assert world.cloud.invoke("publish_export", {**state, "failure": failure})["status"] == "pending"
            assert world.attempt(task_id)["status"] == "completed"
        else:
            world.cloud.invoke("publish_export", ended)
        data = world.file(task_id)
        if fields["type"] == "csv":
            assert [int(row["id"]) for row in read_csv(data)] == list(range(rows)), write
        for sheet in range(0 if kind in ("csv", "cursor") else 2 if kind == "tables" else 1):
            assert [row[0] for row in read_sheet(data, sheet)[1:]] == list(range(rows)), write
        assert world.uploads() == [], write
        assert world.objects(f"staging/{world.project.id}/{task_id}") == [], write
        assert max(world.source.pages.values()) <= (4 if kind == "tables" else 2), write
        if not died():
            assert write > 12
            return
    raise AssertionError("every run was killed: the loop needs a higher limit")


def test_upload_of_a_killed_attempt_is_aborted_before_joining(world: ExportWorld) -> None:
    world.source.rows = numbered(1650)
    task_id = world.submit(step=100, type="csv", parallel=8)
    state = world.cloud.invoke("pull_pages", world.admit(task_id))
    for lane in state["lanes"]:
        steps.render_ranges(world.cloud.app.exports, lane, 900)
    left = f"{output_prefix(world.project.id, task_id)}left"
    world.cloud.client("s3").create_multipart_upload(Bucket=world.cloud.names.refs["FilesBucket"], Key=left)

    steps.render(world.cloud.app.exports, state)

    assert world.uploads() == []
