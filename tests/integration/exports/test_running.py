"""Running exports: attempts, end, and clean-up."""

from __future__ import annotations

import io
from typing import Any

import openpyxl
import pytest

from tests.support.exports.paged_source import honest, numbered
from tests.support.exports.running import ExportWorld, read_csv, read_sheet
from tests.support.exports.samples import SEED_TABLE, SEED_TEMPLATE, seed_rows
from tidegate.aws import s3 as s3_sink
from tidegate.exports import steps


class Killed(BaseException):
    """Raised when the sandbox of a worker is killed: not caught by any handler."""


def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    # moto checks the minimum size of parts, so there are enough rows for two parts.
    monkeypatch.setattr(s3_sink, "PART_BYTES", 5 * 1024 * 1024)


def test_attempt_after_a_killed_render_succeeds_and_leaves_no_upload(
    world: ExportWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_parts(monkeypatch)
    rows = [{"n": n, "text": f"{n:06d}" * 40} for n in range(30_000)]
    world.source.rows = rows
    task_id = world.submit(step=5000)
    state = world.cloud.invoke("pull_pages", world.admit(task_id))
    with monkeypatch.context() as dying:
        send = s3_sink.S3Sink._send

        def send_and_die(self: s3_sink.S3Sink, data: bytes, number: int) -> None:
            send(self, data, number)
            raise Killed

        dying.setattr(s3_sink.S3Sink, "_send", send_and_die)
        dying.setattr(s3_sink.S3Sink, "abort", lambda self: None)
        with pytest.raises(Killed):
            world.cloud.invoke("render_export", state)
    assert len(world.uploads()) == 1

    # The state machine continues with GiveUp.
    failure = {"Error": "Lambda.Unknown", "Cause": "the sandbox is gone"}
    assert world.cloud.invoke("publish_export", {**state, "failure": failure})["status"] == "pending"
    shown = world.attempt(task_id)

    assert (shown["status"], shown["attempts"]) == ("completed", 2)
    assert world.uploads() == []
    # Six pages, and one more: after a full last page more may follow.
    assert sum(world.source.pages.values()) == 7
    assert len(read_csv(world.file(task_id))) == 30_000
    assert shown["size"] == len(world.file(task_id))
    assert world.objects("staging") == []


@pytest.mark.parametrize("dies_in", ["abort_uploads", "remove"])
def test_crash_during_clean_up_leaves_no_staged_page(
    world: ExportWorld, monkeypatch: pytest.MonkeyPatch, dies_in: str
) -> None:
    world.source.rows = numbered(250)
    task_id = world.submit(step=100)
    state = world.cloud.invoke("render_export", world.cloud.invoke("pull_pages", world.admit(task_id)))

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as dying:
        dying.setattr(f"tidegate.exports.store.ExportBucket.{dies_in}", die)
        with pytest.raises(Killed):
            world.cloud.invoke("publish_export", state)
    assert world.shown(task_id)["status"] == "completed"
    assert world.objects("staging")

    # The state machine runs the step again, which finds the export ended.
    assert world.cloud.invoke("publish_export", state)["next"] == "over"

    assert world.objects("staging") == []
    assert len(read_csv(world.file(task_id))) == 250


def test_every_step_may_run_twice(world: ExportWorld) -> None:
    world.source.rows = numbered(250)
    task_id = world.submit(step=100)
    state = world.admit(task_id)
    for step in ("pull_pages", "render_export", "publish_export"):
        world.cloud.invoke(step, state)
        state = world.cloud.invoke(step, state) if step != "publish_export" else state

    assert world.shown(task_id)["status"] == "completed"
    assert world.source.pages == {0: 1, 1: 1, 2: 1}
    assert len(read_csv(world.file(task_id))) == 250


def test_export_past_max_exec_time_gets_three_attempts(world: ExportWorld) -> None:
    world.source.rows = numbered(1)
    task_id = world.submit(max_exec_time=60)
    for attempt in (1, 2, 3):
        state = world.admit(task_id)
        world.cloud.clock.advance(61)
        assert world.cloud.invoke("pull_pages", state)["next"] == "over"
        assert world.shown(task_id)["attempts"] == attempt

    shown = world.shown(task_id)
    assert (shown["status"], shown["attempts"]) == ("failed", 3)
    assert "60 s" in shown["failed_reason"]


def test_progress_is_visible_while_the_export_runs(world: ExportWorld) -> None:
    world.source.rows = numbered(250)
    snapshots: list[dict[str, Any]] = []
    task_id = world.submit(step=100)

    def watch(source: Any, page: int, size: int) -> Any:
        world.cloud.clock.advance(3)
        snapshots.append(world.shown(task_id))
        return honest(source, page, size)

    world.source.answer = watch
    world.cloud.app.exports.parallel = 1
    world.run(task_id)

    assert [snapshot["status"] for snapshot in snapshots] == ["running"] * 3
    assert [snapshot["progress"] for snapshot in snapshots] == [
        {"rows": 0, "total": None, "percent": 0},
        {"rows": 100, "total": 250, "percent": 28},
        {"rows": 200, "total": 250, "percent": 56},
    ]


def test_pull_out_of_time_continues_in_another_invocation(world: ExportWorld) -> None:
    world.source.rows = numbered(350)
    task_id = world.submit(step=100)
    state = world.admit(task_id)
    exports = world.cloud.app.exports
    assert steps.pull(exports, state, seconds_left=0)["next"] == "pull"
    assert world.source.pages == {0: 1}
    assert steps.pull(exports, state, seconds_left=900)["next"] == "render"
    assert world.source.pages == {0: 1, 1: 1, 2: 1, 3: 1}


def test_cancelled_export_stops(world: ExportWorld) -> None:
    world.source.rows = numbered(1)
    task_id = world.submit()
    state = world.admit(task_id)
    world.cloud.invoke("pull_pages", state)
    world.source.requests.clear()
    assert world.cloud.http("POST", f"/v1/requests/{task_id}/cancel", key=world.project.key).status == 200

    assert world.cloud.invoke("render_export", state)["next"] == "over"
    assert world.shown(task_id)["status"] == "cancelled"
    assert world.source.requests == []
    assert [key.rsplit("/", 1)[1] for key in world.objects("staging")] == ["spec.json"]


def test_paused_export_continues_with_its_staged_pages(world: ExportWorld) -> None:
    world.source.rows = numbered(250)
    task_id = world.submit(step=100)
    state = world.admit(task_id)
    world.cloud.invoke("pull_pages", state)
    assert world.cloud.http("POST", f"/v1/requests/{task_id}/pause", key=world.project.key).status == 200
    assert world.cloud.invoke("render_export", state)["next"] == "over"
    assert world.shown(task_id)["status"] == "paused"

    assert world.cloud.http("POST", f"/v1/requests/{task_id}/resume", key=world.project.key).status == 200
    assert world.attempt(task_id)["status"] == "completed"
    assert world.source.pages == {0: 1, 1: 1, 2: 1}


def test_documented_table_has_its_merged_cells(world: ExportWorld) -> None:
    world.source.rows = seed_rows()
    shown, data = world.export(
        type="excel",
        file_name="员工信息表.xlsx",
        template=SEED_TEMPLATE,
        title=SEED_TABLE.title,
        summary=SEED_TABLE.summary,
        header=SEED_TABLE.header,
        footer=SEED_TABLE.footer,
    )
    assert shown["file_name"] == "员工信息表.xlsx"
    sheet: Any = openpyxl.load_workbook(io.BytesIO(data)).active
    assert {"A4:C8", "B18:B22", "A23:L23"} <= {str(merged) for merged in sheet.merged_cells.ranges}


def test_unknown_row_head_fails_and_is_named(world: ExportWorld) -> None:
    world.source.rows = [{"_row_head_": "sales", "name": "x"}]
    shown = world.run(world.submit(type="excel", template=SEED_TEMPLATE))
    assert shown["status"] == "failed"
    assert "'sales'" in shown["failed_reason"]


def test_several_tables_come_from_data_or_from_urls(world: ExportWorld) -> None:
    _, data = world.export(
        "/v1/task/multiple",
        type="excel",
        source_data=[[{"a": 1}], '[{"b": 2}]'],
        title=["一", "二"],
        template=[None, {"b": "乙"}],
    )
    assert [row[0] for row in read_sheet(data)] == ["一", "a", 1, None, None, None, "二", "乙", 2]

    world.source.rows = numbered(150)
    shown, data = world.export(
        "/v1/task/multiple",
        type="excel",
        multi_type="tab",
        source_url=[world.source.url, world.source.url],
        title='["一", "二"]',
        step=100,
    )
    assert shown["progress"]["rows"] == 300
    assert [len(read_sheet(data, index)) for index in (0, 1)] == [152, 152]


def test_rows_per_file_makes_a_zip(world: ExportWorld) -> None:
    world.source.rows = numbered(25)
    shown, data = world.export(file_name="大表.csv", rows_per_file=10)
    assert (shown["file_name"], data[:2]) == ("大表.zip", b"PK")


def test_cause_of_a_dead_function_is_not_shown_to_the_caller(world: ExportWorld) -> None:
    world.source.rows = numbered(3)
    task_id = world.submit()
    state = world.cloud.invoke("pull_pages", world.admit(task_id))
    cause = '{"errorMessage": "role/exports may not PutObject", "stackTrace": ["File /opt/python/steps.py"]}'

    world.cloud.invoke("publish_export", {**state, "failure": {"Error": "ClientError", "Cause": cause}})

    error = world.cloud.app.queue.get(world.project.id, task_id).error
    assert error == {"code": "worker_lost", "detail": "the function that ran a step of the export died (ClientError)"}
