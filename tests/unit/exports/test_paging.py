from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import odd_values
from tidegate.errors import SourceBroken
from tidegate.exports.paging import MAX_PAGES, SourcePage, TablePages, page_url, read_page, total_of
from tidegate.exports.rendering.columns import keys_of


def body(rows: Any, **more: Any) -> bytes:
    return json.dumps({"status": 200, "data": {"data": rows, **more}}).encode()


def test_a_page_as_the_seed_describes_it() -> None:
    page = read_page(body([{"a": 1}], total="12", header={"油站": "x"}, force_continue=0), 0)
    assert page == SourcePage([{"a": 1}], 12, force_continue=False, answered={"header": {"油站": "x"}})
    assert read_page(body({"front": [{"a": 1}]}), 3).rows == [{"a": 1, "_row_head_": "front"}]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"<html>", "page 7: the source did not answer JSON"),
        (b"[" * 100_000, "did not answer JSON"),
        (b"[1]", "did not answer an object"),
        (b'{"status": 500, "msg": "out of stock"}', "answered status 500: out of stock"),
        (b'{"data": {"data": []}}', "answered status None"),
        (b'{"status": 200, "data": []}', "no rows at data.data"),
        (body([{"a": 1}, [1, 2]]), "data.data[1] is not an object"),
        (body("rows"), "data.data is not a list of rows"),
        (body([], total="many"), "total is 'many'"),
        (body([], total=-1), "total is -1"),
        (body([], force_continue="x"), "not 1 or 0"),
    ],
)
def test_what_cannot_be_used_is_said_in_words(answer: bytes, reason: str) -> None:
    with pytest.raises(SourceBroken) as caught:
        read_page(answer, 7)
    assert reason in caught.value.detail


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("http://s/rows", "http://s/rows?page=2&page_size=100&_task_id=exp-1"),
        ("http://s/rows?a=1", "http://s/rows?a=1&page=2&page_size=100&_task_id=exp-1"),
        ("http://s/rows?", "http://s/rows?page=2&page_size=100&_task_id=exp-1"),
        ("http://s/rows#top", "http://s/rows?page=2&page_size=100&_task_id=exp-1#top"),
    ],
)
def test_the_query_is_added_to_what_the_url_has(url: str, asked: str) -> None:
    assert page_url(url, 2, 100, "exp-1") == asked


def rows(count: int, key: str = "a") -> list[dict[str, Any]]:
    return [{key: number} for number in range(count)]


@given(st.integers(0, 3000), st.integers(100, 700))
def test_a_known_total_names_every_page_once(total: int, step: int) -> None:
    pages = TablePages()
    pages.record(0, SourcePage(rows(min(step, total)), total))
    rest = pages.rest(step)
    assert rest is not None
    for number in reversed(rest):
        pages.record(number, SourcePage(rows(min(step, total - number * step)), total))
    pages.finish()

    assert [0, *rest] == list(range(max(1, -(-total // step))))
    assert (pages.rows, list(pages.missing(rest)), total_of([pages])) == (total, [], total)
    assert TablePages.from_data(json.loads(json.dumps(pages.as_data()))) == pages


def test_a_huge_total_is_refused_before_any_page_is_planned() -> None:
    pages = TablePages()
    pages.record(0, SourcePage(rows(100), 10**13))
    with pytest.raises(SourceBroken, match="10000000000000 rows: 100000000000 pages of 100"):
        pages.rest(100)


def test_the_largest_plan_takes_no_memory() -> None:
    pages = TablePages()
    pages.record(0, SourcePage(rows(100), 100 * MAX_PAGES))
    tracemalloc.start()
    plan = pages.rest(100)
    assert plan is not None
    assert next(pages.missing(plan)) == 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(plan), peak < 10_000) == (MAX_PAGES - 1, True)


@pytest.mark.parametrize("total", ["9" * 16, "9" * 5000, "²", "-0", 10**40, 1.5, True])
def test_a_total_that_no_table_has_is_said_in_words(total: Any) -> None:
    with pytest.raises(SourceBroken, match="which is not a number of rows") as caught:
        read_page(body([], total=total), 0)
    assert len(caught.value.detail) < 200


@given(odd_values.values)
def test_any_total_is_read_or_refused(total: Any) -> None:
    try:
        page = read_page(body([], total=total), 0)
    except SourceBroken:
        return
    assert page.total is None or 0 <= page.total < 10**15


@given(st.lists(st.lists(st.dictionaries(st.sampled_from("abcdef"), st.just(1)), max_size=4), min_size=1), st.randoms())
def test_columns_are_in_order_of_first_sight_whichever_page_ends_first(pages: list[Any], random: Any) -> None:
    table = TablePages()
    order = list(range(len(pages)))
    random.shuffle(order)
    for number in order:
        table.record(number, SourcePage(pages[number]))

    assert table.all_keys() == keys_of(row for page in pages for row in page)


@pytest.mark.parametrize(
    ("page", "total", "more"),
    [
        (SourcePage(rows(100)), None, True),
        (SourcePage(rows(99)), None, False),
        (SourcePage([]), None, False),
        (SourcePage([], force_continue=True), None, True),
        (SourcePage(rows(100), force_continue=False), None, False),
        (SourcePage(rows(100)), 100, False),
        (SourcePage(rows(50)), 100, True),
        (SourcePage([]), 100, False),
    ],
)
def test_stop_rules(page: SourcePage, total: int | None, more: bool) -> None:
    table = TablePages(total=total)
    table.counts[0] = len(page.rows)
    assert (table.next_after(0, page, 100) == 1) is more


def test_a_source_without_end_and_one_with_too_many_keys_are_stopped() -> None:
    with pytest.raises(SourceBroken, match="after 100000"):
        TablePages().next_after(99_999, SourcePage(rows(100)), 100)
    with pytest.raises(SourceBroken, match="16384 different keys"):
        TablePages().record(0, SourcePage([{f"k{number}": 1} for number in range(16_385)]))
