"""Large exports: workers pull and render ranges of pages, what they made is joined on S3."""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import openpyxl
import pyarrow.parquet
import pytest

from tests.support import sample
from tests.support.exports.killing import Killed, killed_at
from tests.support.exports.paged_source import PagedSource, honest, numbered
from tests.support.exports.running import ExportWorld, read_csv, read_sheet
from tests.support.exports.samples import mixed_rows
from tidegate.aws import part_plan
from tidegate.exports.model import output_prefix
from tidegate.exports.ranges import context as export_range_context
from tidegate.exports.ranges import plan as export_range_plan
from tidegate.exports.ranges import worker as export_ranges
from tidegate.exports.ranges.context import RangeContext
from tidegate.exports.rendering import fragments, parquet_writer

ROWS = 2050


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fragments of some kilobytes, which are copied as large ones would be."""
    from moto.s3 import models

    monkeypatch.setattr(models, "S3_UPLOAD_PART_MIN_SIZE", 4000)
    monkeypatch.setattr(part_plan, "SMALLEST_PART", 4000)
    monkeypatch.setattr(fragments, "CLOSED_BYTES", 7000)
    monkeypatch.setattr(fragments, "BEHIND_BYTES", 4000)


@contextmanager
def staged_only(world: ExportWorld) -> Iterator[None]:
    puller = world.cloud.app.exports.steps._puller
    most, puller._most_lanes = puller._most_lanes, 0
    yield
    puller._most_lanes = most


def both_ways(world: ExportWorld, **fields: Any) -> tuple[bytes, bytes]:
    _, joined = world.export(step=100, **fields)
    with staged_only(world):
        _, staged = world.export(step=100, **fields)
    return joined, staged


def ranges_of(world: ExportWorld, task_id: str) -> list[str]:
    return [key for key in world.objects(f"staging/{world.project.id}/{task_id}/pages/ranges/") if key[-5:] == ".json"]


@pytest.mark.parametrize("parallel", [4, 12, 32])
@pytest.mark.parametrize("more", [{}, {"type": "jsonl"}, {"compression": "gzip", "template": {"id": "编号"}}])
def test_a_text_file_is_the_same_as_from_staged_pages(world: ExportWorld, more: Any, parallel: int) -> None:
    world.source.rows = list(mixed_rows(ROWS))
    joined, staged = both_ways(world, parallel=parallel, **more)
    if "compression" in more:
        joined, staged = gzip.decompress(joined), gzip.decompress(staged)
    assert joined == staged
    assert max(world.source.pages.values()) == 2, "once each way"


@pytest.mark.parametrize("parallel", [4, 28])
def test_a_sheet_is_the_same_as_from_staged_pages(world: ExportWorld, parallel: int) -> None:
    world.source.rows = list(mixed_rows(ROWS))
    template = [{"name": key, "title": key, "style": {"total": key == "amount"}} for key in next(mixed_rows(1))]
    for more in ({}, {"title": "订单", "summary": "x<br>y", "footer": {"a": "b"}, "template": template}):
        joined, staged = both_ways(world, type="excel", parallel=parallel, **more)
        one, other = (zipfile.ZipFile(io.BytesIO(data)) for data in (joined, staged))
        assert one.testzip() is None
        assert one.namelist() == other.namelist()
        for name in one.namelist():
            assert name == "docProps/core.xml" or one.read(name) == other.read(name), name
        assert len(read_sheet(joined)) >= ROWS


def test_several_sheets_are_filled_as_by_one_writer(world: ExportWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegate.exports.rendering import files
    from tidegate.exports.rendering.xlsx.writer import xlsx_chunks

    monkeypatch.setattr(export_range_context, "SHEET_ROWS", 730)
    monkeypatch.setattr(files, "xlsx_chunks", lambda tables, **more: xlsx_chunks(tables, sheet_rows=730, **more))
    world.source.rows = numbered(ROWS)
    joined, staged = both_ways(world, type="excel", title="T", footer="end", parallel=20)
    one, other = (zipfile.ZipFile(io.BytesIO(data)) for data in (joined, staged))
    sheets = [name for name in one.namelist() if name.startswith("xl/worksheets/")]
    assert len(sheets) == 3
    assert [one.read(name) for name in sheets] == [other.read(name) for name in sheets]
    assert [sheet.title for sheet in openpyxl.load_workbook(io.BytesIO(joined))] == ["T", "T 2", "T 3"]


def test_what_is_left_behind_is_the_file(world: ExportWorld) -> None:
    world.source.rows = numbered(ROWS)
    shown, _ = world.export(step=100, parallel=8)
    assert world.objects() == [f"exports/{world.project.id}/{shown['task_id']}/1"]
    assert world.uploads() == []
    assert shown["progress"] == {"rows": ROWS, "total": ROWS, "percent": 100}


@pytest.mark.parametrize("extra", [0, 50, 100, 350])
def test_rows_past_the_total_are_not_lost(world: ExportWorld, extra: int) -> None:
    def cached_total(source: PagedSource, page: int, size: int) -> Any:
        answer = honest(source, page, size)
        answer["data"]["total"] = 2000
        return answer

    world.source.rows, world.source.answer = numbered(2000 + extra), cached_total
    shown, data = world.export(step=100, parallel=8)
    assert [int(row["id"]) for row in read_csv(data)] == list(range(2000 + extra))
    assert bool(shown["warnings"]) is bool(extra)


def test_a_total_that_is_too_large_ends_at_an_empty_page(world: ExportWorld) -> None:
    def boasting(source: PagedSource, page: int, size: int) -> Any:
        answer = honest(source, page, size)
        answer["data"]["total"] = 9000
        return answer

    world.source.rows, world.source.answer = numbered(1234), boasting
    shown, data = world.export(step=100, parallel=8)
    assert len(read_csv(data)) == 1234
    assert "told a total of 9000 rows" in shown["warnings"][0]


def test_a_footer_with_the_last_page_stands_below(world: ExportWorld) -> None:
    def summed(source: PagedSource, page: int, size: int) -> Any:
        answer = honest(source, page, size)
        if page == 20:
            answer["data"]["footer"] = {"sum": 7}
        return answer

    world.source.rows, world.source.answer = numbered(ROWS), summed
    _, data = world.export(type="excel", step=100, parallel=8)
    assert read_sheet(data)[-1][0] == "sum：7"


def late_key(source: PagedSource, page: int, size: int) -> Any:
    answer = honest(source, page, size)
    if page == 13:
        answer["data"]["data"][7]["late"] = "x"
    return answer


def other_header(source: PagedSource, page: int, size: int) -> Any:
    answer = honest(source, page, size)
    if page == 13:
        answer["data"]["header"] = {"other": "1"}
    return answer


@pytest.mark.parametrize("answer", [late_key, other_header])
@pytest.mark.parametrize("kind", ["csv", "excel"])
def test_what_cannot_be_in_ranges_is_staged_after_all(world: ExportWorld, answer: Any, kind: str) -> None:
    world.source.rows, world.source.answer = numbered(ROWS), answer
    shown, data = world.export(step=100, type=kind, parallel=8)
    assert shown["attempts"] == 1
    if kind == "csv":
        assert [int(row["id"]) for row in read_csv(data)] == list(range(ROWS))
        assert (b"late" in data) is (answer is late_key)
    else:
        assert sum(isinstance(row[0], int) for row in read_sheet(data)) == ROWS


def test_a_late_key_does_not_matter_where_a_template_names_the_columns(world: ExportWorld) -> None:
    world.source.rows, world.source.answer = numbered(ROWS), late_key
    _, data = world.export(step=100, type="excel", template={"id": "No"}, parallel=8)
    assert [row[0] for row in read_sheet(data)] == ["No", *range(ROWS)]
    assert max(world.source.pages.values()) == 1


def test_a_failing_page_repeats_its_own_range_only(world: ExportWorld) -> None:
    world.source.rows, world.source.failures = numbered(ROWS), {16: [500] * 3}
    task_id = world.submit(step=100, parallel=28)
    assert world.attempt(task_id)["status"] == "pending"
    shown = world.attempt(task_id)

    assert (shown["status"], shown["attempts"]) == ("completed", 2)
    assert [int(row["id"]) for row in read_csv(world.file(task_id))] == list(range(ROWS))
    again = sorted(page for page, count in world.source.pages.items() if count > 1)
    assert again == [16, 17, 18]


def test_a_worker_whose_time_is_up_goes_on_in_another_invocation(
    world: ExportWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(10**9))
    monkeypatch.setattr(export_ranges, "time", SimpleNamespace(monotonic=lambda: next(clock) * 80.0))
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


def test_a_late_twin_adds_nothing(world: ExportWorld) -> None:
    world.source.rows = numbered(ROWS)
    task_id = world.submit(step=100)
    state = world.cloud.invoke("pull_pages", world.admit(task_id))
    worker = world.cloud.app.exports.steps
    looked = RangeContext.done
    RangeContext.done = lambda self: set()  # type: ignore[method-assign]
    try:
        for _ in range(2):
            worker.render_ranges(state["lanes"][0], 900)
    finally:
        RangeContext.done = looked  # type: ignore[method-assign]
    while state["next"] in ("ranges", "publish"):
        state = world.cloud.invoke({"ranges": "render_export", "publish": "publish_export"}[state["next"]], state)
    assert [int(row["id"]) for row in read_csv(world.file(task_id))] == list(range(ROWS))
    assert world.objects() == [f"exports/{world.project.id}/{task_id}/1"]


def by_cursor(source: PagedSource, page: int, size: int) -> Any:
    """Asked with the cursor that it gave, and with no other."""
    asked = source.asked[-1].args.get("cursor")
    start = int(asked or 0)
    assert start == page * size, (asked, page)
    rows = source.rows[start : start + size]
    following = str(start + size) if start + size < len(source.rows) else None
    return {"status": 200, "data": {"data": rows, "next": following, "snapshot": "s1"}}


def in_turn(source: PagedSource, page: int, size: int) -> Any:
    answer = honest(source, page, size)
    del answer["data"]["total"]
    return answer


@pytest.mark.parametrize("answer", [by_cursor, in_turn])
@pytest.mark.parametrize("more", [{}, {"type": "excel"}, {"type": "jsonl", "compression": "gzip"}])
def test_pages_that_come_one_by_one_are_rendered_as_they_come(world: ExportWorld, answer: Any, more: Any) -> None:
    world.source.rows, world.source.answer = numbered(ROWS), answer
    joined, staged = both_ways(world, **more)
    assert max(world.source.pages.values()) == 2, "once each way"
    if more.get("type") == "excel":
        assert read_sheet(joined) == read_sheet(staged)
    else:
        assert read_text(joined) == read_text(staged)
    assert not world.objects("staging")


def read_text(data: bytes) -> bytes:
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


@pytest.mark.parametrize("answer", [honest, by_cursor])
def test_parquet_is_made_of_the_workers_row_groups(
    world: ExportWorld, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_writer, "GROUP_BYTES", 5000)
    world.source.rows, world.source.answer = numbered(ROWS), answer
    template = [{"name": "id", "style": {"type": "number"}}, {"name": "name"}, {"name": "amount"}]
    joined, staged = both_ways(world, type="parquet", template=template, parallel=12)
    found = pyarrow.parquet.read_table(io.BytesIO(joined)).to_pylist()
    assert found == pyarrow.parquet.read_table(io.BytesIO(staged)).to_pylist()
    assert [row["id"] for row in found] == [float(number) for number in range(ROWS)]
    assert found[1] == {"id": 1.0, "name": "名字1", "amount": "0.25"}


def test_value_that_is_not_of_its_columns_type_is_warned_about(world: ExportWorld) -> None:
    world.source.rows = numbered(ROWS)
    shown, _ = world.export(
        step=100, type="parquet", template=[{"name": "name", "style": {"type": "date"}}], parallel=8
    )
    assert f"{ROWS} values were not of the type" in shown["warnings"][-1]


def test_a_cursor_fills_several_sheets_exactly(world: ExportWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegate.exports.rendering import files
    from tidegate.exports.rendering.xlsx.writer import xlsx_chunks

    monkeypatch.setattr(export_range_context, "SHEET_ROWS", 730)
    monkeypatch.setattr(files, "xlsx_chunks", lambda tables, **more: xlsx_chunks(tables, sheet_rows=730, **more))
    world.source.rows, world.source.answer = numbered(ROWS), by_cursor
    joined, staged = both_ways(world, type="excel", title="T", footer="end")
    one, other = (zipfile.ZipFile(io.BytesIO(data)) for data in (joined, staged))
    sheets = [name for name in one.namelist() if name.startswith("xl/worksheets/")]
    assert len(sheets) == 3
    assert [one.read(name) for name in sheets] == [other.read(name) for name in sheets]


def test_a_cursor_goes_on_in_another_invocation(world: ExportWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**9))
    monkeypatch.setattr(export_ranges, "time", SimpleNamespace(monotonic=lambda: next(clock) * 80.0))
    world.source.rows, world.source.answer = numbered(ROWS), by_cursor
    _, data = world.export(step=100)
    assert [int(row["id"]) for row in read_csv(data)] == list(range(ROWS))


@pytest.mark.parametrize("multi_type", ["page", "tab"])
@pytest.mark.parametrize("more", [{}, {"type": "excel"}, {"type": "jsonl"}, {"compression": "gzip"}, {"bom": True}])
def test_several_tables_are_the_same_as_from_staged_pages(world: ExportWorld, multi_type: str, more: Any) -> None:
    """Two that are pulled and one that was given; every table has its texts."""
    world.source.rows = list(mixed_rows(1650))
    fields: dict[str, Any] = {
        "path": "/v1/task/multiple",
        "multi_type": multi_type,
        "source_url": [world.source.url, None, world.source.url],
        "source_data": [None, [{"a": 1, "b": "x"}, {"a": 2}], None],
        "title": ["一", "二", None],
        "footer": ["end", None, {"sum": "1"}],
        **more,
    }
    joined, staged = both_ways(world, parallel=12, **fields)
    if joined[:2] == b"PK":
        one, other = (zipfile.ZipFile(io.BytesIO(data)) for data in (joined, staged))
        assert one.testzip() is None
        assert one.namelist() == other.namelist()
        for name in one.namelist():
            assert name == "docProps/core.xml" or one.read(name) == other.read(name), name
    else:
        assert read_text(joined) == read_text(staged)
    assert max(world.source.pages.values()) == 4, "two tables, two ways, none twice"


@pytest.mark.parametrize("kind", ["csv", "excel", "cursor", "tables"])
def test_a_crash_at_any_call_of_worker_and_joiner_loses_and_doubles_no_row(
    world: ExportWorld, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from moto.s3 import models

    for place, name in ((models, "S3_UPLOAD_PART_MIN_SIZE"), (part_plan, "SMALLEST_PART")):
        monkeypatch.setattr(place, name, 600)
    monkeypatch.setattr(fragments, "CLOSED_BYTES", 1000)
    monkeypatch.setattr(fragments, "BEHIND_BYTES", 600)
    monkeypatch.setattr(export_range_plan, "MIN_PAGES", 2)
    rows = 350
    world.source.rows = numbered(rows)
    world.source.answer = by_cursor if kind == "cursor" else honest
    fields: dict[str, Any] = {"step": 100, "type": "excel" if kind in ("excel", "tables") else "csv", "parallel": 8}
    if kind == "tables":
        fields |= {"path": "/v1/task/multiple", "multi_type": "tab", "source_url": [world.source.url] * 2}
    # Every call for the two ways of pulling; workbooks and several tables make the same calls, so some of theirs do.
    for call in range(1, 200, sample.step(1 if kind in ("csv", "cursor") else 4)):
        world.source.asked.clear()
        task_id = world.submit(**fields)
        state = world.cloud.invoke("pull_pages", world.admit(task_id))
        with killed_at(call) as died:
            try:
                for lane in state["lanes"]:
                    world.cloud.app.exports.steps.render_ranges(lane, 900)
                ended = world.cloud.app.exports.steps.render(state)
            except Killed:
                ended = None
        if ended is None:
            # What the machine does then: GiveUp, and the queue tries again.
            failure = {"Error": "Lambda.Unknown", "Cause": "the sandbox is gone"}
            assert world.cloud.invoke("publish_export", {**state, "failure": failure})["status"] == "pending"
            assert world.attempt(task_id)["status"] == "completed"
        else:
            world.cloud.invoke("publish_export", ended)
        data = world.file(task_id)
        if fields["type"] == "csv":
            assert [int(row["id"]) for row in read_csv(data)] == list(range(rows)), call
        for sheet in range(0 if kind in ("csv", "cursor") else 2 if kind == "tables" else 1):
            assert [row[0] for row in read_sheet(data, sheet)[1:]] == list(range(rows)), call
        assert world.uploads() == [], call
        assert world.objects(f"staging/{world.project.id}/{task_id}") == [], call
        assert max(world.source.pages.values()) <= (4 if kind == "tables" else 2), call
        if not died():
            assert call > 12
            return
    raise AssertionError("so many calls")


def test_upload_that_a_killed_attempt_began_is_ended_before_the_file_is_joined(world: ExportWorld) -> None:
    world.source.rows = numbered(1650)
    task_id = world.submit(step=100, type="csv", parallel=8)
    state = world.cloud.invoke("pull_pages", world.admit(task_id))
    for lane in state["lanes"]:
        world.cloud.app.exports.steps.render_ranges(lane, 900)
    left = f"{output_prefix(world.project.id, task_id)}left"
    world.cloud.client("s3").create_multipart_upload(Bucket=world.cloud.names.refs["FilesBucket"], Key=left)

    world.cloud.app.exports.steps.render(state)

    assert world.uploads() == []
