"""The writer gives the same bytes as its predecessor, and is faster (`tests/bench/bench_cells.py`)."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.exports import former_cells
from tests.support.exports.samples import mixed_rows, with_nulls
from tidegate.sheets.rows import typed_answers
from tidegate.sheets.values import read_exact
from tidegate.sheets.xlsx_cells import Column, RowWriter

KEYS = list(next(mixed_rows(1)))


def page(rows: list[dict[str, Any]]) -> bytes:
    return json.dumps({"status": 200, "data": {"data": rows}}, ensure_ascii=False).encode()


def former(rows: list[dict[str, Any]], kind: str | None = None) -> bytes:
    return former_cells.RowWriter([former_cells.Column(key, 1, kind) for key in KEYS]).xml(rows).encode()


def without_numbers(xml: bytes) -> bytes:
    """The predecessor wrote no references; text has no `<`, so only those of rows and cells match."""
    return re.sub(rb'<(row|c) r="[A-Z]*\d+"', rb"<\1", xml)


def test_typed_and_plain_rows_give_the_same_bytes() -> None:
    for rows in (list(mixed_rows(1000)), list(with_nulls(mixed_rows(1000)))):
        body = page(rows)
        read = typed_answers(KEYS)
        assert read is not None
        typed = read(body).data.data
        for kind in (None, "string", "number"):
            writer = RowWriter([Column(key, 1, kind) for key in KEYS])
            expected = former(json.loads(body)["data"]["data"], kind)
            assert without_numbers(writer.xml(typed, 1)) == expected
            assert without_numbers(writer.xml(read_exact(body)["data"]["data"], 1)) == expected


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**18), 10**18),
    st.decimals(-(10**9), 10**9, allow_nan=False, places=2).map(float),
    st.text(max_size=6),
    st.sampled_from([" a", "a ", "_x0041_", "a`b", "<&>", "两\n行", "", "-", "x" * 20_000]),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.fixed_dictionaries({"a": values, "b": values}), min_size=1, max_size=8))
def test_any_rows_give_the_same_bytes(rows: list[dict[str, Any]]) -> None:
    new = RowWriter([Column("a", 1), Column("b", 2)], 20)
    old = former_cells.RowWriter([former_cells.Column("a", 1), former_cells.Column("b", 2)], 20)
    assert without_numbers(new.xml(rows, 1)) == old.xml(rows).encode()
    assert without_numbers(new.xml(rows, 1)) == old.xml(rows).encode()


def test_page_with_new_key_or_shape_is_not_read_as_typed_rows() -> None:
    read = typed_answers(["a"])
    assert read is not None
    assert read(page([{"a": 1}, {"b": 2}])) is None
    assert read(b'{"data": {"data": {"group": []}}}') is None
    assert read(b"<html>") is None
    assert typed_answers(['say "a"']) is None
