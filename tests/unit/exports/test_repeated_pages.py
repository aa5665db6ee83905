from __future__ import annotations

import json
from typing import Any

import pytest

from tidegate.errors import SourceBroken
from tidegate.exports.source import SourcePage, TablePages, page_reader, read_page


def rows(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"id": number} for number in range(start, start + count)]


def first_refused(pages: list[list[Any]]) -> int | None:
    table = TablePages()
    return next((number for number, page in enumerate(pages) if is_refused(table, number, page)), None)


def is_refused(table: TablePages, number: int, page: list[Any]) -> bool:
    try:
        table.refuse_repeats(number, SourcePage(page))
    except SourceBroken:
        return True
    return False


def test_same_page_four_times_is_refused() -> None:
    assert first_refused([rows(100)] * 4) == 3
    assert first_refused([rows(100, 500), *[rows(100)] * 4]) == 4


@pytest.mark.parametrize(
    "page",
    [
        pytest.param([{"state": "paid"}] * 100, id="one value"),
        pytest.param([{"digit": number % 10} for number in range(100)], id="a few values in turn"),
        pytest.param(rows(5), id="too few rows to tell"),
        pytest.param([], id="no rows"),
    ],
)
def test_pages_whose_rows_repeat_are_never_refused(page: list[Any]) -> None:
    assert first_refused([page] * 50) is None


def test_pages_that_differ_in_one_row_are_not_the_same() -> None:
    pages = [rows(100) for _ in range(50)]
    for number, page in enumerate(pages):
        page[50] = {"id": -number}
    assert first_refused(pages) is None


def test_different_page_resets_the_count() -> None:
    same = rows(100)
    assert first_refused([same, same, same, rows(100, 7), same, same, same]) is None


def test_pages_that_are_not_consecutive_are_not_compared() -> None:
    table = TablePages()
    assert not any(is_refused(table, number, rows(100)) for number in range(0, 40, 2))


def test_long_numbers_of_typed_rows_are_compared_exactly() -> None:
    texts = [f'{{"id": {number}, "n": {10**30 + number}, "d": 1.50}}' for number in range(100)]
    body = f'{{"status": 200, "data": {{"data": [{", ".join(texts)}]}}}}'.encode()
    read = page_reader(["id", "n", "d"])
    assert first_refused([read(body, number).rows for number in range(4)]) == 3


def test_error_names_the_pages_and_the_remedy() -> None:
    table = TablePages(step=100)
    for number in range(3):
        table.record(number, SourcePage(rows(100)))
    with pytest.raises(SourceBroken) as caught:
        table.record(3, SourcePage(rows(100)))
    assert "pages 2 and 3 have the same 100 rows" in caught.value.detail
    assert "ignore `page`" in caught.value.detail
    assert "a short or an empty page" in caught.value.detail


def body(start: int, total: int) -> bytes:
    return json.dumps({"status": 200, "data": {"data": rows(100, start), "total": total}}).encode()


@pytest.mark.parametrize("total", [300, 250])
def test_repeated_last_page_past_the_total_is_the_end(total: int) -> None:
    table = TablePages(step=100)
    for number in range(3):
        table.record(number, read_page(body(number * 100, total), number))
    table.continue_after_plan()
    upcoming = [table.upcoming]

    table.record(3, read_page(body(200, total), 3))

    assert [*upcoming, table.upcoming] == [3, None]
    assert table.rows == 300


def test_source_that_ignores_page_is_refused_past_its_total() -> None:
    table = TablePages(step=100)
    for number in range(3):
        table.record(number, read_page(body(0, 300), number))
    table.continue_after_plan()
    for number in range(3, 6):
        assert table.upcoming == number
        table.record(number, read_page(body(0, 300), number))
    with pytest.raises(SourceBroken, match="pages 5 and 6 have the same 100 rows"):
        table.record(6, read_page(body(0, 300), 6))
