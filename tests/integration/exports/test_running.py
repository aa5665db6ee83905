"""A running export: its attempts, its end, and what is left behind."""

from __future__ import annotations

import io
import json
from typing import Any

import openpyxl
import pytest

from tests.support.export_samples import SEED_TABLE, SEED_TEMPLATE, seed_rows
from tests.support.exports import ExportWorld, read_csv, read_sheet
from tests.support.paged_source import PagedSource, honest, numbered
from tidegate.adapters import s3_sink
from tidegate.domain.exports import ledger_object, output_object, page_object, spec_object


class Killed(BaseException):
    """What a worker meets when its sandbox is taken away: nothing of it runs on."""


def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    # moto checks that all parts but the last have S3's least size, so the rows are as many as make two.
    monkeypatch.setattr(s3_sink, "PART_BYTES", 5 * 1024 * 1024)


def test_worker_killed_in_render_the_next_attempt_succeeds_and_no_stale_upload_stays(
    world: ExportWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_parts(monkeypatch)
    rows = [{"n": n, "text": f"{n:06d}" * 40} for n in range(30_000)]
    world.source.rows = rows
    task_id = world.submit(step=5000)
    state = world.cloud.invoke("pull_pages", world.admit(task_id))
    with monkeypatch.context() as dying:
        sent = s3_sink.S3Sink._send

        def die(self: s3_sink.S3Sink, data: bytes) -> None:
            sent(self, data)
            raise Killed

        dying.setattr(s3_sink.S3Sink, "_send", die)
        dying.setattr(s3_sink.S3Sink, "abort", lambda self: None)
        with pytest.raises(Killed):
            world.cloud.invoke("render_export", state)
    assert len(world.uploads()) == 1

    # What the machine does then: GiveUp.
    failure = {"Error": "Lambda.Unknown", "Cause": "the sandbox is gone"}
    assert world.cloud.invoke("publish_export", {**state, "failure": failure})["status"] == "pending"
    shown = world.attempt(task_id)

    assert (shown["status"], shown["attempts"]) == ("completed", 2)
    assert world.uploads() == []
    assert sum(world.source.pages.values()) == 6
    assert len(read_csv(world.file(task_id))) == 30_000
    assert shown["size"] == len(world.file(task_id))
    assert world.objects("staging") == []


@pytest.mark.parametrize("dies_in", ["abort_uploads", "remove"])
def test_a_step_that_died_while_it_tidied_leaves_no_staged_page(
    world: ExportWorld, monkeypatch: pytest.MonkeyPatch, dies_in: str
) -> None:
    world.source.rows = numbered(250)
    task_id = world.submit(step=100)
    state = world.cloud.invoke("render_export", world.cloud.invoke("pull_pages", world.admit(task_id)))

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as dying:
        dying.setattr(f"tidegate.adapters.export_objects.ExportBucket.{dies_in}", die)
        with pytest.raises(Killed):
            world.cloud.invoke("publish_export", state)
    assert world.shown(task_id)["status"] == "completed"
    assert world.objects("staging")

    # The machine runs the step again, and it finds the export ended.
    assert world.cloud.invoke("publish_export", state)["next"] == "over"

    assert world.objects("staging") == []
    assert len(read_csv(world.file(task_id))) == 250


def test_a_worker_that_lost_its_attempt_changes_nothing(world: ExportWorld) -> None:
    world.source.rows = numbered(3)
    task_id = world.submit()
    first = world.admit(task_id)
    rendered = world.cloud.invoke("render_export", world.cloud.invoke("pull_pages", first))
    world.cloud.invoke("publish_export", {**first, "failure": {"Error": "States.Timeout"}})
    world.attempt(task_id)
    published = world.cloud.app.queue.get(world.project.id, task_id).result

    assert world.cloud.invoke("publish_export", rendered)["next"] == "over"
    assert world.cloud.invoke("render_export", first)["next"] == "over"
    assert world.cloud.app.queue.get(world.project.id, task_id).result == published


def test_a_worker_that_lost_its_attempt_hides_no_page_from_the_next_and_changes_none(world: ExportWorld) -> None:
    world.source.rows = numbered(250)
    task_id = world.submit(step=100)
    first, second = world.admit(task_id), dict[str, Any]()

    def overtaken(source: PagedSource, page: int, size: int) -> dict[str, Any]:
        """While attempt 1 waits for this answer it is given up, and attempt 2 pulls everything."""
        if page != 1 or second:
            return honest(source, page, size)
        world.cloud.invoke("publish_export", {**first, "failure": {"Error": "States.Timeout"}})
        second.update(world.admit(task_id))
        second.update(world.cloud.invoke("pull_pages", second))
        late = honest(source, page, size)
        late["data"]["data"] = [{"id": "late"}] * size
        return late

    world.source.answer = overtaken
    assert world.cloud.invoke("pull_pages", first)["next"] == "over"
    assert second["next"] == "render"
    world.cloud.invoke("publish_export", world.cloud.invoke("render_export", second))

    assert world.shown(task_id)["status"] == "completed"
    assert [row["id"] for row in read_csv(world.file(task_id))] == [str(number) for number in range(250)]
    assert world.objects("staging") == []


def test_a_file_is_not_made_of_pages_that_are_not_all_known(world: ExportWorld) -> None:
    world.source.rows = numbered(250)
    task_id = world.submit(step=100)
    state = world.cloud.invoke("pull_pages", world.admit(task_id))
    # A second run of the same pull was slower, and wrote last what it knew when its time was up.
    key = ledger_object(world.project.id, task_id, 1)
    (known,) = json.loads(world.s3.get_object(Bucket=world.bucket, Key=key)["Body"].read())
    lesser = known | {"counts": known["counts"][:2], "done": False}
    world.s3.put_object(Bucket=world.bucket, Key=key, Body=json.dumps([lesser]))

    assert world.cloud.invoke("render_export", state)["status"] == "pending"
    shown = world.attempt(task_id)

    assert (shown["status"], shown["attempts"]) == ("completed", 2)
    assert len(read_csv(world.file(task_id))) == 250
    assert world.source.pages == {0: 1, 1: 1, 2: 1}


def test_what_a_late_worker_left_of_an_export_that_is_over_is_swept_a_day_later(world: ExportWorld) -> None:
    world.source.rows = numbered(3)
    done = world.submit()
    world.run(done)
    world.source.failures = {0: [403]}
    failed = world.submit()
    world.run(failed)
    kept = world.objects()
    project_id = world.project.id
    for task_id in (done, failed):
        for key in (output_object(project_id, task_id, 9), page_object(project_id, task_id, 0, 0)):
            world.s3.put_object(Bucket=world.bucket, Key=key, Body=b"late")
    world.s3.put_object(Bucket=world.bucket, Key=spec_object(project_id, done), Body=b"late")

    world.cloud.app.sweep.sweep()
    assert len(world.objects()) == len(kept) + 5, "what is young may be in the making"
    world.cloud.clock.advance(2 * 24 * 3600)
    world.cloud.app.sweep.sweep()

    assert world.objects() == kept == [output_object(project_id, done, 1), spec_object(project_id, failed)]


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


def test_past_max_exec_time_it_is_queued_again_at_most_three_attempts(world: ExportWorld) -> None:
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


def test_progress_is_visible_while_it_runs(world: ExportWorld) -> None:
    world.source.rows = numbered(250)
    seen: list[dict[str, Any]] = []
    task_id = world.submit(step=100)

    def watch(source: Any, page: int, size: int) -> Any:
        world.cloud.clock.advance(3)
        seen.append(world.shown(task_id))
        return honest(source, page, size)

    world.source.answer = watch
    world.cloud.app.export_work._puller._parallel = 1
    world.run(task_id)

    assert [each["status"] for each in seen] == ["running"] * 3
    assert [each["progress"] for each in seen] == [
        {"rows": 0, "total": None, "percent": 0},
        {"rows": 100, "total": 250, "percent": 28},
        {"rows": 200, "total": 250, "percent": 56},
    ]


def test_time_that_runs_out_hands_over_to_another_invocation(world: ExportWorld) -> None:
    world.source.rows = numbered(350)
    task_id = world.submit(step=100)
    state = world.admit(task_id)
    work = world.cloud.app.export_work
    assert work.pull(state, seconds_left=0)["next"] == "pull"
    assert world.source.pages == {0: 1}
    assert work.pull(state, seconds_left=900)["next"] == "render"
    assert world.source.pages == {0: 1, 1: 1, 2: 1, 3: 1}


def test_a_cancelled_export_stops(world: ExportWorld) -> None:
    world.source.rows = numbered(1)
    task_id = world.submit()
    state = world.admit(task_id)
    world.cloud.invoke("pull_pages", state)
    world.source.asked.clear()
    assert world.cloud.http("POST", f"/v1/requests/{task_id}/cancel", key=world.project.key).status == 200

    assert world.cloud.invoke("render_export", state)["next"] == "over"
    assert world.shown(task_id)["status"] == "cancelled"
    assert world.source.asked == []
    assert [key.rsplit("/", 1)[1] for key in world.objects("staging")] == ["spec.json"]


def test_a_paused_export_goes_on_with_what_it_had_pulled(world: ExportWorld) -> None:
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


def test_the_seeds_table_end_to_end(world: ExportWorld) -> None:
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


def test_an_unknown_row_head_fails_and_is_named(world: ExportWorld) -> None:
    world.source.rows = [{"_row_head_": "sales", "name": "x"}]
    shown = world.run(world.submit(type="excel", template=SEED_TEMPLATE))
    assert shown["status"] == "failed"
    assert "'sales'" in shown["failed_reason"]


def test_several_tables_from_data_and_from_urls(world: ExportWorld) -> None:
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
