from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tidegate.batches.items import DataItems, Outcomes, RedrivenItems, SharedItems
from tidegate.batches.model import RUNNING, STOPPED, Batch, ItemOutcome, ItemResult, Share
from tidegate.errors import NotReady, WrongState

BATCH = Batch(
    batch_id="bat-1",
    project_id="prj-1",
    biz_id="biz-1",
    name="n",
    total=10,
    rate=1.0,
    status=STOPPED,
    created_at="2026-01-01T00:00:00.000Z",
)
PLAIN = DataItems(lambda: None)


class Memory:
    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.reads = 0

    def put(self, key: str, data: bytes) -> None:
        self.objects[key] = data

    def get(self, key: str) -> bytes | None:
        self.reads += 1
        return self.objects.get(key)

    def size(self, key: str) -> int | None:
        return len(self.objects[key]) if key in self.objects else None

    def sized(self, prefix: str, after: str = "") -> Iterator[tuple[str, int]]:
        found = sorted(key for key in self.objects if key.startswith(prefix) and key > after)
        return ((key, len(self.objects[key])) for key in found)

    def keys(self, prefix: str) -> Iterator[str]:
        return (key for key, _ in self.sized(prefix))

    def lines(self, key: str) -> Iterator[bytes]:
        return iter(self.objects[key].splitlines())

    def stream(self, key: str, portions: Iterable[bytes], content_type: str) -> None:
        self.objects[key] = b"".join(portions)


def failed(index: int, state: str = "failed") -> ItemOutcome:
    return ItemOutcome(index, state, 5, ItemResult("error", "no stock"))


def states_in(outcomes: Outcomes, *parts: int) -> dict[int, str]:
    found, _ = outcomes.page(BATCH, parts, None, 100, None)
    return {item["index"]: item["state"] for item in found}


def outcomes_in(memory: Any) -> Outcomes:
    return Outcomes(memory)


def test_part_that_no_progress_counts_is_not_shown() -> None:
    outcomes = outcomes_in(Memory())
    outcomes.write_part(BATCH, 0, 1, 1, [failed(1)], PLAIN)
    outcomes.write_part(BATCH, 0, 2, 1, [failed(2)], PLAIN)
    assert states_in(outcomes, 1) == {1: "failed"}


def test_part_with_higher_fencing_token_is_valid() -> None:
    outcomes = outcomes_in(Memory())
    outcomes.write_part(BATCH, 0, 1, 7, [failed(3, "abandoned")], PLAIN)
    outcomes.write_part(BATCH, 0, 1, 6, [failed(1), failed(2)], PLAIN)
    assert states_in(outcomes, 1) == {3: "abandoned"}


def test_item_that_succeeds_in_later_run_is_recovered() -> None:
    outcomes = outcomes_in(Memory())
    outcomes.write_part(BATCH, 0, 1, 1, [failed(4), failed(2)], PLAIN)
    outcomes.write_part(BATCH, 0, 2, 2, [ItemOutcome(4, "recovered", 1, ItemResult("ok"))], PLAIN)
    assert states_in(outcomes, 2) == {2: "failed", 4: "recovered"}


def test_next_page_continues_after_last_index() -> None:
    outcomes = outcomes_in(Memory())
    outcomes.write_part(BATCH, 0, 1, 1, [failed(index) for index in range(5)], PLAIN)
    first, after = outcomes.page(BATCH, [1], "failed", 2, None)
    second, last = outcomes.page(BATCH, [1], "failed", 3, after)
    assert ([item["index"] for item in first + second], last) == ([0, 1, 2, 3, 4], None)


def test_redriven_item_is_found_by_its_original_index() -> None:
    rows = [{"index": index, "job_data": f"row {index}"} for index in (3, 7, 11)]
    items = RedrivenItems(rows.__getitem__, lambda: (len(rows), True), "bat-1")
    assert [items.position(index) for index in (3, 7, 11, 4, 12)] == [0, 1, 2, -1, -1]
    assert items.index(1) == 7
    assert items.fields(1) == {"job_data": "row 7", "redrive_of": "bat-1"}
    assert json.dumps(items.fields(2))


def test_parts_are_counted_for_each_runner() -> None:
    outcomes = outcomes_in(Memory())
    outcomes.write_part(BATCH, 0, 1, 1, [failed(1)], PLAIN)
    outcomes.write_part(BATCH, 1, 1, 1, [failed(5)], PLAIN)
    outcomes.write_part(BATCH, 1, 2, 1, [failed(6)], PLAIN)
    assert states_in(outcomes, 1, 1) == {1: "failed", 5: "failed"}
    assert states_in(outcomes, 0, 2) == {5: "failed", 6: "failed"}


def test_ended_batch_with_very_many_parts_can_still_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its runner may have been cancelled or lost before it merged them."""
    monkeypatch.setattr("tidegate.batches.items._MOST_PARTS_A_CALL", 1)
    memory = Memory()
    outcomes = outcomes_in(memory)
    for part in (1, 2, 3):
        outcomes.write_part(BATCH, 0, part, 1, [failed(part)], PLAIN)
    assert states_in(outcomes, 3) == {1: "failed", 2: "failed", 3: "failed"}
    assert any("results-" in key for key in memory.objects), "merged once, for the calls that follow"
    with pytest.raises(WrongState, match="merged when it stops"):
        outcomes.page(replace(BATCH, status=RUNNING), [2], None, 100, None)


def test_redriven_item_beyond_the_indexed_rows_is_not_missing() -> None:
    """A result for it must wait until the row is indexed."""
    rows = [{"index": index} for index in (3, 7)]
    complete = False
    items = RedrivenItems(rows.__getitem__, lambda: (len(rows), complete), "bat-1")
    assert [items.position(index) for index in (3, 4, 9)] == [0, -1, None]
    assert [SharedItems(items, Share(runner, 2, 1)).position(9) for runner in (0, 1)] == [None, None]
    complete = True
    assert items.position(9) == -1
    assert [SharedItems(items, Share(runner, 2, 1)).position(9) for runner in (0, 1)] == [-1, None]


def test_very_many_parts_are_merged_over_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long batch has hundreds of thousands: more than a function can read. Another runner wrote parts meanwhile."""
    monkeypatch.setattr("tidegate.batches.items._MOST_PARTS_A_CALL", 10)
    monkeypatch.setattr("tidegate.batches.items._PARTS_A_GROUP", 5, raising=False)
    memory = Memory()
    outcomes = outcomes_in(memory)
    for part in range(1, 24):
        outcomes.write_part(BATCH, 0, part, 1, [failed(part), failed(7)], PLAIN)
    outcomes.write_part(BATCH, 0, 22, 2, [ItemOutcome(7, "recovered", 1, ItemResult("ok"))], PLAIN)
    outcomes.write_part(BATCH, 0, 23, 2, [], PLAIN)
    for part in range(1, 8):
        outcomes.write_part(BATCH, 1, part, 3, [failed(100 + part)], PLAIN)
        outcomes.write_part(BATCH, 1, part, 2, [failed(900 + part)], PLAIN)
    really = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: really() + 10 * memory.reads)
    found, refused = list[dict[str, Any]](), 0
    while not found:
        before = memory.reads
        try:
            found, _ = outcomes.page(BATCH, [22, 7], None, 100, None)
        except NotReady:
            refused += 1
        # One group a call; at the end also the five groups, and what is in none of them: two parts of each runner.
        assert memory.reads - before <= 5 + 5 + 2 + 2
    assert refused >= 3
    recovered = {item["index"] for item in found if item["state"] == "recovered"}
    assert ({item["index"] for item in found}, recovered) == ({*range(1, 22), *range(101, 108)}, {7})
    assert [item["index"] for item in found] == sorted(item["index"] for item in found)


def test_outcomes_are_merged_without_a_copy_of_each_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the items of a long batch may have recovered: their lines filled the memory, and the end never came."""
    memory = Memory()
    outcomes = outcomes_in(memory)
    for part in range(1, 101):
        several = [failed(item * 100 + part, "recovered") for item in range(100)]
        outcomes.write_part(BATCH, 0, part, 1, several, PLAIN)
    stored = sum(map(len, memory.objects.values()))
    indexes = list[int]()
    monkeypatch.setattr(memory, "get", lambda key: bytes(bytearray(memory.objects[key])))
    monkeypatch.setattr(memory, "stream", lambda _, portions, __: indexes.extend(map(index_of, portions)))
    tracemalloc.start()
    outcomes.merge(BATCH, [100])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert indexes == list(range(1, 10_001))
    assert peak < 2.5 * stored


def index_of(line: bytes) -> int:
    assert line.endswith(b"}\n")
    return int(json.loads(line)["index"])


def test_outcomes_that_do_not_fit_into_the_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.batches.items._MOST_MERGED", 200)
    outcomes = outcomes_in(Memory())
    outcomes.write_part(BATCH, 0, 1, 1, [failed(1)], PLAIN)
    assert states_in(outcomes, 1) == {1: "failed"}
    outcomes.write_part(BATCH, 0, 2, 1, [failed(index) for index in range(2, 9)], PLAIN)
    with pytest.raises(WrongState, match=r"report: true.* has a report"):
        outcomes.merge(BATCH, [2])
    with pytest.raises(WrongState, match="200 can be put together"):
        states_in(outcomes, 2)
