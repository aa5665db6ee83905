from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fuzz import odd_values
from tidegate.errors import (
    FetchError,
    Forbidden,
    RequestRefused,
    ServiceUnavailable,
    SourceBroken,
    TooManyRequests,
    UpstreamError,
)
from tidegate.exports.pull import RangeRecord
from tidegate.exports.source import PagePlace, SourcePage, TablePages, page_url, read_page, total_of
from tidegate.sheets.table import keys_of


def body(rows: Any, **more: Any) -> bytes:
    return json.dumps({"status": 200, "data": {"data": rows, **more}}).encode()


def test_page_in_the_documented_format_is_read() -> None:
    page = read_page(body([{"a": 1}], total="12", header={"油站": "x"}, force_continue=0), 0)
    assert (page.rows, page.total, page.force_continue) == ([{"a": 1}], 12, False)
    assert page.answered == {"header": {"油站": "x"}}
    assert read_page(body({"front": [{"a": 1}]}), 3).rows == [{"a": 1, "_row_head_": "front"}]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"id;name", "page 7: the response is not JSON"),
        (b"[" * 100_000, "the response is not JSON"),
        (b"[1]", "the response is not a JSON object"),
        (b'{"status": 1, "msg": "out of stock"}', "answered status 1: out of stock"),
        (b'{"data": {"data": []}}', "answered status None"),
        (b'{"status": 200, "data": []}', "no rows at data.data"),
        (body([{"a": 1}, [1, 2]]), "data.data[1] is not an object"),
        (body("rows"), "data.data is not a list of rows"),
        (body([], total="many"), "total is 'many'"),
        (body([], total=-1.5), "total is '-1.5'"),
        (body([], force_continue="x"), "it must be 1 or 0"),
    ],
)
def test_unusable_response_is_refused_with_the_reason(answer: bytes, reason: str) -> None:
    with pytest.raises(SourceBroken) as caught:
        read_page(answer, 7)
    assert reason in caught.value.detail


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"<html>", UpstreamError),
        (b" ", UpstreamError),
        (b'{"status": 500, "msg": "out of stock"}', UpstreamError),
        (b'{"status": "503"}', ServiceUnavailable),
        (b'{"status": 503.0}', ServiceUnavailable),
        (b'{"status": 200, "data": {"data": [{"id": 1}', UpstreamError),
        (b'{"status": 200, "data": {"data": []}}<br />Fatal error', UpstreamError),
        (b'{"status": 429}', TooManyRequests),
        (b'{"status": 403}', Forbidden),
        (b'{"status": 418}', RequestRefused),
    ],
)
def test_failure_in_the_body_is_the_error_of_its_http_status(answer: bytes, kind: type[FetchError]) -> None:
    with pytest.raises(FetchError) as caught:
        read_page(answer, 7)
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://s/rows", "http://s/rows?page=2&page_size=100&_task_id=exp-1"),
        ("http://s/rows?a=1", "http://s/rows?a=1&page=2&page_size=100&_task_id=exp-1"),
        ("http://s/rows?", "http://s/rows?page=2&page_size=100&_task_id=exp-1"),
        ("http://s/rows#top", "http://s/rows?page=2&page_size=100&_task_id=exp-1#top"),
    ],
)
def test_paging_parameters_are_added_to_the_query_of_the_url(url: str, expected: str) -> None:
    assert page_url(url, PagePlace(2), 100, "exp-1") == expected


def rows(count: int, key: str = "a") -> list[dict[str, Any]]:
    return [{key: number} for number in range(count)]


@given(st.integers(0, 3000), st.integers(100, 700))
def test_known_total_plans_every_page_once(total: int, step: int) -> None:
    pages = TablePages(step=step)
    pages.record(0, SourcePage(rows(min(step, total)), total))
    planned = list(pages.planned())
    for number in reversed(planned):
        pages.record(number, SourcePage(rows(min(step, total - number * step)), total))
    pages.continue_after_plan()

    assert [0, *planned] == list(range(max(1, -(-total // step))))
    # After a full last page more may follow.
    assert pages.upcoming == (len(planned) + 1 if total and total % step == 0 else None)
    pages.done = True
    assert (pages.rows, list(pages.planned()), total_of([pages])) == (total, [], total)
    assert pages.warnings() == []
    assert TablePages.from_data(json.loads(json.dumps(pages.as_data()))) == pages


def test_huge_total_is_planned_lazily_and_ends_at_empty_page() -> None:
    pages = TablePages(step=100)
    pages.record(0, SourcePage(rows(100), 10**17))
    planned = pages.planned()
    assert [next(planned), next(planned)] == [1, 2]

    pages.record(1, SourcePage(rows(7), 10**17))
    pages.record(2, SourcePage([], 10**17))
    assert list(planned) == []
    pages.continue_after_plan()
    assert pages.upcoming is None
    assert pages.warnings() == [f"the source announced a total of {10**17} rows, but its 3 pages have 107"]


def test_all_pages_of_a_source_with_smaller_pages_are_planned() -> None:
    pages = TablePages(step=1000)
    pages.record(0, SourcePage(rows(100), 350))
    assert list(pages.planned()) == [1, 2, 3]


def test_source_without_pages_is_read_once() -> None:
    pages = TablePages(step=100)
    pages.record(0, SourcePage(rows(100), 100, crc=7))
    pages.continue_after_plan()
    assert list(pages.planned()) == []
    pages.record(1, SourcePage(rows(100), 100, crc=7))
    assert pages.upcoming is None
    assert (pages.rows, pages.warnings()) == (100, [])

    more = TablePages(step=100)
    more.record(0, SourcePage(rows(300), 300))
    more.continue_after_plan()
    assert (list(more.planned()), more.upcoming) == ([], None)


def test_changed_total_is_a_warning() -> None:
    pages = TablePages(step=100)
    pages.record(0, SourcePage(rows(100), 150))
    pages.record(1, SourcePage(rows(51), 151))
    warnings = pages.warnings()
    assert warnings[0] == "the source announced a total of 150 rows, but its 2 pages have 151"
    assert warnings[1].startswith("the source's total changed from 150 to 151")


def test_cursor_and_snapshot_are_sent_with_the_next_page() -> None:
    pages = TablePages(step=100)
    pages.record(0, read_page(body(rows(3), next="c1", snapshot="s9", total=5), 0))
    assert (pages.upcoming, pages.page_place(1)) == (1, PagePlace(1, "c1", "s9"))
    pages.record(1, read_page(body([], next="c2"), 1))
    assert pages.page_place(2) == PagePlace(2, "c2", "s9")
    with pytest.raises(SourceBroken, match="returned the cursor of this page as `next`"):
        TablePages.from_data(pages.as_data()).record(2, read_page(body(rows(1), next="c2"), 2))
    pages.record(2, read_page(body(rows(2), next=None), 2))
    assert (pages.upcoming, pages.rows, pages.warnings()) == (None, 5, [])


def test_footer_of_the_last_page_is_used() -> None:
    pages = TablePages(step=100)
    pages.record(0, read_page(body(rows(100), total=200, footer={"a": "so far"}, header={"h": 1}), 0))
    pages.record(2, read_page(body([], footer={"sum": 12.50}), 2))
    pages.record(1, read_page(body(rows(100), footer={"a": "page 1"}), 1))
    assert pages.answered == {"footer": {"sum": "12.5"}, "header": {"h": 1}}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"header": [1, 2]}, "data.header must be text, or an object of texts"),
        ({"footer": {"a": [1]}}, "data.footer.a is not text"),
        ({"template": 7}, "data.template is not a list of nodes"),
        ({"template": [{"title": "t", "style": {"align": "up"}}]}, "data.template[0].style.align"),
        ({"next": True}, "next is 'True'"),
        ({"snapshot": {"a": 1}}, "snapshot is"),
    ],
)
def test_bad_table_settings_of_a_source_name_the_field(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(SourceBroken) as caught:
        read_page(body([], **fields), 0)
    assert reason in caught.value.detail
    assert caught.value.detail.startswith("page 0: ")


@pytest.mark.parametrize("total", ["9" * 19, "9" * 5000, "²", "-0", 10**40, 1.5, True])
def test_total_that_is_not_a_row_count_is_refused(total: Any) -> None:
    with pytest.raises(SourceBroken, match="it must be a number of rows") as caught:
        read_page(body([], total=total), 0)
    assert len(caught.value.detail) < 200


@given(odd_values.values)
def test_any_total_is_read_or_refused(total: Any) -> None:
    try:
        page = read_page(body([], total=total), 0)
    except SourceBroken:
        return
    assert page.total is None or 0 <= page.total < 10**18


@given(st.lists(st.lists(st.dictionaries(st.sampled_from("abcdef"), st.just(1)), max_size=4), min_size=1), st.randoms())
def test_column_order_does_not_depend_on_arrival_of_pages(pages: list[Any], random: Any) -> None:
    table = TablePages()
    order = list(range(len(pages)))
    random.shuffle(order)
    for number in order:
        table.record(number, SourcePage(pages[number]))

    assert table.all_keys() == keys_of(row for page in pages for row in page)


@pytest.mark.parametrize(
    ("page", "more"),
    [
        (SourcePage(rows(100)), True),
        (SourcePage(rows(99)), False),
        (SourcePage([]), False),
        (SourcePage([], force_continue=True), True),
        (SourcePage(rows(100), force_continue=False), False),
    ],
)
def test_short_or_empty_page_is_the_last_unless_forced(page: SourcePage, more: bool) -> None:
    table = TablePages(step=100)
    table.record(0, page)
    assert (table.upcoming == 1) is more


def test_too_many_pages_or_keys_are_refused() -> None:
    with pytest.raises(SourceBroken, match="more than 100000 pages"):
        TablePages(step=100).next_after(99_999, SourcePage(rows(100)))
    with pytest.raises(SourceBroken, match="16384 different keys"):
        TablePages().record(0, SourcePage([{f"k{number}": 1} for number in range(16_385)]))


# What a worker of 1.1.0 reads.
_OF_1_1 = {"table", "first", "past", "before", "rows", "ended", "cursor", "other_total", "footer", "cut", "sums"} | {
    "fragments",
    "widths",
    "equal",
    "groups",
    "refused",
}


def test_result_of_a_range_is_read_by_the_version_before_and_after() -> None:
    """During a deployment, workers of two versions share an export."""
    record = RangeRecord(0, 0, 5, rows=500, sums=[None], fragments=[{"key": "k"}], footer={})
    stored = json.loads(json.dumps(record.as_data()))
    assert stored.keys() <= _OF_1_1
    assert RangeRecord.from_data(stored | {"of_a_later_version": [1]}) == record
