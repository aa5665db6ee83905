"""Sources that deviate from the plan, and the objects that are left in the bucket."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import pytest

from tests.support.exports.paged_source import PagedSource, honest, numbered
from tests.support.exports.running import ExportWorld, read_csv, read_sheet

ROWS = 2050


def test_only_the_file_is_left_in_the_bucket(world: ExportWorld) -> None:
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


def test_rows_past_the_total_that_need_another_file_are_staged(world: ExportWorld) -> None:
    def cached_total(source: PagedSource, page: int, size: int) -> Any:
        answer = honest(source, page, size)
        answer["data"]["total"] = 2000
        return answer

    world.source.rows, world.source.answer = numbered(2050), cached_total
    shown, data = world.export(step=100, parallel=8, rows_per_file=2000)
    assert shown["attempts"] == 1
    with zipfile.ZipFile(io.BytesIO(data)) as files:
        assert sum(len(read_csv(files.read(name))) for name in files.namelist()) == 2050


def test_total_that_is_too_large_ends_at_an_empty_page(world: ExportWorld) -> None:
    def too_large_total(source: PagedSource, page: int, size: int) -> Any:
        answer = honest(source, page, size)
        answer["data"]["total"] = 9000
        return answer

    world.source.rows, world.source.answer = numbered(1234), too_large_total
    shown, data = world.export(step=100, parallel=8)
    assert len(read_csv(data)) == 1234
    assert "announced a total of 9000 rows" in shown["warnings"][0]


def test_footer_of_the_last_page_is_below_the_rows(world: ExportWorld) -> None:
    def footer_on_last_page(source: PagedSource, page: int, size: int) -> Any:
        answer = honest(source, page, size)
        if page == 20:
            answer["data"]["footer"] = {"sum": 7}
        return answer

    world.source.rows, world.source.answer = numbered(ROWS), footer_on_last_page
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
def test_late_key_or_other_header_falls_back_to_staged_pages(world: ExportWorld, answer: Any, kind: str) -> None:
    world.source.rows, world.source.answer = numbered(ROWS), answer
    shown, data = world.export(step=100, type=kind, parallel=8)
    assert shown["attempts"] == 1
    if kind == "csv":
        assert [int(row["id"]) for row in read_csv(data)] == list(range(ROWS))
        assert (b"late" in data) is (answer is late_key)
    else:
        assert sum(isinstance(row[0], int) for row in read_sheet(data)) == ROWS


def test_late_key_is_ignored_if_a_template_names_the_columns(world: ExportWorld) -> None:
    world.source.rows, world.source.answer = numbered(ROWS), late_key
    _, data = world.export(step=100, type="excel", template={"id": "No"}, parallel=8)
    assert [row[0] for row in read_sheet(data)] == ["No", *range(ROWS)]
    assert max(world.source.pages.values()) == 1


def test_value_of_another_type_is_a_warning(world: ExportWorld) -> None:
    world.source.rows = numbered(ROWS)
    shown, _ = world.export(
        step=100, type="parquet", template=[{"name": "name", "style": {"type": "date"}}], parallel=8
    )
    assert f"{ROWS} values were left out, because the template gives" in shown["warnings"][-1]
