"""Running due schedules: one that fails or is slow does not keep the others from running."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tidegate.queue import schedules as due_schedules
from tidegate.queue.schedules import due_items, fire_all

ITEMS: list[dict[str, Any]] = [{"pk": f"record-{number}", "number": number} for number in range(200)]


@pytest.mark.parametrize("error", [KeyError("name"), TypeError("unknown field"), ValueError("not JSON")])
def test_malformed_record_does_not_stop_the_others(error: Exception) -> None:
    def fire(item: dict[str, Any]) -> bool:
        if item["number"] in (0, 70):
            raise error
        return True

    assert fire_all(ITEMS, fire) == 198
    assert fire_all(ITEMS[:1], fire) == 0


def test_schedules_that_did_not_fire_are_not_counted() -> None:
    assert fire_all(ITEMS, lambda item: item["number"] % 2 == 0) == 100
    assert fire_all([], lambda _: True) == 0


def test_nothing_is_started_after_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest stays due, and the function ends instead of being killed."""
    now, fired = [0.0], list[int]()
    monkeypatch.setattr("tidegate.queue.schedules.time.monotonic", lambda: now[0])

    def fire(item: dict[str, Any]) -> bool:
        fired.append(item["number"])
        now[0] += 1
        return True

    assert fire_all(ITEMS, fire, seconds=70) == len(fired)
    assert 70 <= len(fired) < 80, "other threads finish what they had started"


def test_records_are_read_as_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of large records at once do not fit into the function's memory."""
    read, most = [0], [0]

    def reading() -> Iterator[dict[str, Any]]:
        for item in ITEMS:
            read[0] += 1
            yield item

    ended = [0]

    def fire(_: dict[str, Any]) -> bool:
        most[0] = max(most[0], read[0] - ended[0])
        ended[0] += 1
        return True

    monkeypatch.setattr(due_schedules, "_THREADS", 1)
    assert fire_all(reading(), fire) == 200
    assert most[0] <= 64


class DueTable:
    """The `due` index and the records of a table."""

    def __init__(self, *records: dict[str, Any]) -> None:
        self.index = list(records)
        self.records = {record["pk"]: record for record in records}
        self.asked: list[tuple[str, str, tuple[int, int]]] = []

    def query_all(
        self, partition: str, *, index: str, sk_between: tuple[int, int], project: tuple[str, ...]
    ) -> Iterator[dict[str, Any]]:
        self.asked.append((partition, index, sk_between))
        first, last = sk_between
        for record in self.index:
            if first <= record["due_at"] <= last:
                yield {name: record[name] for name in project if name in record}

    def batch_get(self, keys: list[dict[str, str]], *, consistent: bool) -> list[dict[str, Any]]:
        assert consistent
        return [self.records[key["pk"]] for key in reversed(keys) if key["pk"] in self.records]


def due_record(pk: str, due_at: int, project_id: str = "prj-1") -> dict[str, Any]:
    return {"pk": pk, "sk": "A", "due_pk": "P", "due_at": due_at, "project_id": project_id}


def found_in(table: DueTable, now: float = 1000.7) -> list[str]:
    return [item["pk"] for item in due_items(table, ["P"], now)]  # type: ignore[arg-type]


def test_recently_due_schedules_come_before_retried_ones() -> None:
    table = DueTable(due_record("old", 500), due_record("new", 990))
    assert found_in(table) == ["new", "old"]
    assert table.asked == [("P", "due", (910, 1000)), ("P", "due", (0, 909))]


def test_project_with_many_due_schedules_does_not_delay_the_others() -> None:
    many = [due_record(f"many-{number}", 950, "prj-many") for number in range(500)]
    few = [due_record("few-1", 999, "prj-few"), due_record("few-2", 600, "prj-few")]
    found = found_in(DueTable(*many, *few))
    assert found[:4] == ["many-0", "few-1", "many-1", "few-2"]
    assert len(found) == 502


@pytest.mark.parametrize(("projects", "fired"), [(2, 1), (7, 1), (50, 5), (50, 1)])
def test_each_project_comes_first_in_its_turn(projects: int, fired: int) -> None:
    """Even if all projects are due every minute, and one run can fire the schedules of a few only."""
    table = DueTable(*(due_record(f"due-{number}", 990, f"prj-{number}") for number in range(projects)))
    minutes = range(2 * projects // fired)
    runs = [found_in(table, 29_000_000 * 60 + minute * 60)[:fired] for minute in minutes]
    assert {pk for run in runs for pk in run} == set(table.records)


def test_order_is_the_same_within_a_minute() -> None:
    table = DueTable(*(due_record(f"due-{number}", 990, f"prj-{number}") for number in range(9)))
    orders = [found_in(table, 6_000_000 + second) for second in (0, 59, 60)]
    assert orders[0] == orders[1] != orders[2]


def test_records_that_are_no_longer_due_are_left_out() -> None:
    table = DueTable(*(due_record(name, 990) for name in ("gone", "paused", "run", "due")))
    del table.records["gone"]
    table.records["paused"] = {"pk": "paused", "sk": "A"}
    table.records["run"] = due_record("run", 1050)
    assert found_in(table) == ["due"]
