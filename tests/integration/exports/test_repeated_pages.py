"""Sources that return the same rows to every request are refused; valid data with equal pages is not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.exports.paged_source import PagedSource, honest, numbered
from tests.support.exports.running import ExportWorld, read_csv
from tidegate.exports import pull as plan


@pytest.fixture(params=["ranges", "staged"], autouse=True)
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MIN_PAGES", 2 if request.param == "ranges" else 10**9)


def same_page(source: PagedSource, _page: int, size: int) -> Any:
    return {"status": 200, "data": {"data": source.rows[:size], **source.more}}


def moving_cursor(source: PagedSource, page: int, size: int) -> Any:
    """The cursor advances, the rows stay the same."""
    return {"status": 200, "data": {"data": source.rows[:size], "next": f"after-{page}"}}


def clamped(source: PagedSource, page: int, size: int) -> Any:
    """Returns the last page for every later one, like some frameworks."""
    return honest(source, min(page, (len(source.rows) - 1) // size), size)


@pytest.mark.parametrize(
    ("answer", "more"),
    [
        pytest.param(same_page, {}, id="no total"),
        pytest.param(same_page, {"total": 400}, id="total of whole pages"),
        pytest.param(same_page, {"total": 450}, id="total of a part of a page"),
        pytest.param(moving_cursor, {}, id="cursor"),
    ],
)
def test_source_that_ignores_page_ends_the_export(world: ExportWorld, answer: Any, more: dict[str, Any]) -> None:
    world.source.rows, world.source.answer, world.source.more = numbered(1000), answer, more
    task_id = world.submit(step=100, parallel=4)

    shown = world.attempt(task_id)

    assert (shown["status"], shown["attempts"]) == ("failed", 1)
    assert "have the same 100 rows" in shown["failed_reason"]
    assert "has to return different rows for every page" in shown["failed_reason"]
    assert len(world.source.requests) <= 14
    request = world.get(f"/v1/requests/{task_id}").json()
    assert request["error"]["code"] == "source_broken"


@pytest.mark.parametrize("total", [True, False])
def test_table_of_one_value_is_exported_completely(world: ExportWorld, total: bool) -> None:
    def answer(source: PagedSource, page: int, size: int) -> Any:
        page_of_rows = honest(source, page, size)
        if not total:
            del page_of_rows["data"]["total"]
        return page_of_rows

    world.source.rows, world.source.answer = [{"state": "paid"}] * 1250, answer
    _, data = world.export(step=100, parallel=8)
    assert len(read_csv(data)) == 1250


def test_equal_pages_within_the_total_are_exported(world: ExportWorld) -> None:
    world.source.rows = numbered(100) * 12
    _, data = world.export(step=100, parallel=8)
    assert [int(row["id"]) for row in read_csv(data)] == [*range(100)] * 12


@pytest.mark.parametrize("count", [800, 850])
def test_last_page_repeated_past_the_total_is_written_once(world: ExportWorld, count: int) -> None:
    world.source.rows, world.source.answer = numbered(count), clamped
    shown, data = world.export(step=100, parallel=8)
    assert [int(row["id"]) for row in read_csv(data)] == list(range(count))
    assert not shown["warnings"]
