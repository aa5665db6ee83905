from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import BadTable
from tidegate.sheets.table import flat_rows, keys_of, merge_keys
from tidegate.sheets.values import guard


def test_later_keys_are_appended() -> None:
    assert keys_of([{"a": 1, "b": 2}, {"b": 1, "a": 2}, {"c": 3, "a": 1}]) == ["a", "b", "c"]
    assert merge_keys([["a", "b"], ["c", "a"], ["d"]]) == ["a", "b", "c", "d"]


def test_grouped_rows_get_the_name_of_their_group() -> None:
    assert flat_rows({"x": [{"a": 1}], "y": [{"a": 2, "_row_head_": "os"}]}) == [
        {"a": 1, "_row_head_": "x"},
        {"a": 2, "_row_head_": "y"},
    ]


def test_groups_named_by_years_with_lists_of_php_are_groups() -> None:
    """PHP writes a list that lacks an index as an object; a row of numbered cells is still a row."""
    years = {"2025": {"0": {"a": 1}, "2": {"a": 2}}, "2026": {"0": {"a": 3}}}
    assert [(row["_row_head_"], row["a"]) for row in flat_rows(years)] == [("2025", 1), ("2025", 2), ("2026", 3)]
    assert flat_rows({"0": {"0": "x", "1": "y"}, "2": {"0": "z"}}) == [{"0": "x", "1": "y"}, {"0": "z"}]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("rows", "data is not a list of rows"),
        ([{"a": 1}, [1]], r"data\[1\] is not an object"),
        ({"x": {"a": 1}, "y": 5}, "data.x is not a list"),
        (None, "data is not a list"),
    ],
)
def test_rows_of_another_shape_are_refused_with_their_place(data: object, message: str) -> None:
    with pytest.raises(BadTable, match=message):
        flat_rows(data)


@pytest.mark.parametrize("text", ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\tx", "\rx", "--", "+a", "-1,5,"])
def test_text_that_starts_a_formula_is_guarded(text: str) -> None:
    assert guard(text) == f"'{text}"


@pytest.mark.parametrize("text", ["-12", "+3.5", "-.5", "-1e-7", "1=1", "a@b.c", "", "2026-11-16"])
def test_numbers_and_plain_text_are_not_changed(text: str) -> None:
    assert guard(text) == text


@given(st.text())
def test_guarded_text_is_safe_and_gains_only_apostrophes(text: str) -> None:
    safe = guard(text)
    assert safe.replace("'", "") == text.replace("'", ""), "nothing but apostrophes is added"
    if safe[:1] in "=@\t\r" and safe:
        pytest.fail(f"{safe!r} starts a formula")
