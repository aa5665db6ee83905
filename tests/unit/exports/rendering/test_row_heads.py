from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.exports.samples import leaf, mixed_rows
from tidegate.errors import BadTable
from tidegate.sheets import rows as row_heads
from tidegate.sheets.rows import gather
from tidegate.sheets.table import parse_template
from tidegate.sheets.values import read_exact

NODES = parse_template({"row": [leaf("甲", "a", row_count=3), leaf("乙", "b"), leaf("丙", "c")]}).rows


def rows(count: int) -> Iterator[dict[str, Any]]:
    for number, row in enumerate(mixed_rows(count)):
        yield {**row, "_row_head_": "ba"[number % 2]}


@pytest.mark.parametrize("held", [7, 100_000])
def test_rows_are_grouped_by_leaf_in_memory_and_on_disk(monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    monkeypatch.setattr(row_heads, "HELD_ROWS", held)
    exact = read_exact('[{"_row_head_": "c", "x": 100.00, "y": 123456789012345678901234567890, "z": null}]')
    gathered = gather(NODES, [*rows(101), *exact], top=1)
    grouped = [row for block in gathered.rows for row in block]

    assert [row["id"] for row in grouped if row["_row_head_"] == "a"] == list(range(1, 101, 2))
    assert [row["_row_head_"] for row in grouped] == ["a"] * 50 + ["b"] * 51 + ["c"]
    last = grouped[-1]
    assert (bytes(last["x"]), last["y"], last["z"]) == (b"100.00", 123456789012345678901234567890, None)
    assert (gathered.count, [cell.height for cell in gathered.heads]) == (102, [50, 51, 1])


def test_memory_does_not_grow_with_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_heads, "HELD_ROWS", 2000)

    def peak(count: int) -> float:
        tracemalloc.start()
        gathered = gather(NODES, rows(count), top=1)
        count_read = sum(len(block) for block in gathered.rows)
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert count_read >= count
        return top

    assert peak(18_000) < 1.3 * peak(9_000)


def test_too_many_rows_are_refused_before_all_are_read() -> None:
    def endless() -> Iterator[dict[str, Any]]:
        while True:
            yield {"_row_head_": "a"}

    with pytest.raises(BadTable, match="more than 50 rows"):
        gather(NODES, endless(), top=1, most=50)
