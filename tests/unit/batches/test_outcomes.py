from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from tidegate.batches.items import DataItems, RedrivenItems
from tidegate.batches.model import STOPPED, Batch
from tidegate.batches.outcomes import Outcomes
from tidegate.batches.run.values import ItemAnswer, Outcome

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

    def put(self, key: str, data: bytes) -> None:
        self.objects[key] = data

    def get(self, key: str) -> bytes | None:
        return self.objects.get(key)

    def size(self, key: str) -> int | None:
        return len(self.objects[key]) if key in self.objects else None

    def keys(self, prefix: str) -> Iterator[str]:
        return iter(sorted(key for key in self.objects if key.startswith(prefix)))

    def lines(self, key: str) -> Iterator[bytes]:
        return iter(self.objects[key].splitlines())

    def stream(self, key: str, portions: Iterable[bytes], content_type: str) -> None:
        self.objects[key] = b"".join(portions)


def failed(index: int, state: str = "failed") -> Outcome:
    return Outcome(index, state, 5, ItemAnswer("error", "no stock"))


def kept(outcomes: Outcomes, *parts: int) -> dict[int, str]:
    found, _ = outcomes.page(BATCH, parts, None, 100, None)
    return {item["index"]: item["state"] for item in found}


def outcomes_in(memory: Any) -> Outcomes:
    return Outcomes(memory)


def test_a_part_that_its_writer_did_not_live_to_count_is_not_shown() -> None:
    outcomes = outcomes_in(Memory())
    outcomes.write_part(BATCH, 0, 1, 1, [failed(1)], PLAIN)
    outcomes.write_part(BATCH, 0, 2, 1, [failed(2)], PLAIN)
    assert kept(outcomes, 1) == {1: "failed"}


def test_of_two_writers_of_a_part_the_higher_fencing_token_counts() -> None:
    outcomes = outcomes_in(Memory())
    outcomes.write_part(BATCH, 0, 1, 7, [failed(3, "abandoned")], PLAIN)
    outcomes.write_part(BATCH, 0, 1, 6, [failed(1), failed(2)], PLAIN)
    assert kept(outcomes, 1) == {3: "abandoned"}


def test_an_item_that_failed_and_succeeded_in_a_later_run_is_shown_as_recovered() -> None:
    outcomes = outcomes_in(Memory())
    outcomes.write_part(BATCH, 0, 1, 1, [failed(4), failed(2)], PLAIN)
    outcomes.write_part(BATCH, 0, 2, 2, [Outcome(4, "recovered", 1, ItemAnswer("ok"))], PLAIN)
    assert kept(outcomes, 2) == {2: "failed", 4: "recovered"}


def test_pages_go_on_after_the_last_index() -> None:
    outcomes = outcomes_in(Memory())
    outcomes.write_part(BATCH, 0, 1, 1, [failed(index) for index in range(5)], PLAIN)
    first, after = outcomes.page(BATCH, [1], "failed", 2, None)
    second, last = outcomes.page(BATCH, [1], "failed", 3, after)
    assert ([item["index"] for item in first + second], last) == ([0, 1, 2, 3, 4], None)


def test_a_redriven_item_is_found_by_the_index_that_it_had() -> None:
    rows = [{"index": index, "job_data": f"row {index}"} for index in (3, 7, 11)]
    items = RedrivenItems(rows.__getitem__, lambda: len(rows), "bat-1")
    assert [items.position(index) for index in (3, 7, 11, 4, 12)] == [0, 1, 2, -1, -1]
    assert items.name(1) == 7
    assert items.fields(1) == {"job_data": "row 7", "redrive_of": "bat-1"}
    assert json.dumps(items.fields(2))


def test_the_parts_of_each_runner_are_counted_by_themselves() -> None:
    outcomes = outcomes_in(Memory())
    outcomes.write_part(BATCH, 0, 1, 1, [failed(1)], PLAIN)
    outcomes.write_part(BATCH, 1, 1, 1, [failed(5)], PLAIN)
    outcomes.write_part(BATCH, 1, 2, 1, [failed(6)], PLAIN)
    assert kept(outcomes, 1, 1) == {1: "failed", 5: "failed"}
    assert kept(outcomes, 0, 2) == {5: "failed", 6: "failed"}
