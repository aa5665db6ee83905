"""What the functions of schedules share: nothing that fails or is slow keeps the rest from running."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tidegate.queue import due_schedules
from tidegate.queue.due_schedules import due_items, fire_all

ITEMS: list[dict[str, Any]] = [{"pk": f"record-{number}", "number": number} for number in range(200)]


@pytest.mark.parametrize("error", [KeyError("name"), TypeError("unknown field"), ValueError("not JSON")])
def test_one_that_cannot_be_read_does_not_stop_the_others(error: Exception) -> None:
    def fire(item: dict[str, Any]) -> bool:
        if item["number"] in (0, 70):
            raise error
        return True

    assert fire_all(ITEMS, fire) == 198
    assert fire_all(ITEMS[:1], fire) == 0


def test_those_that_did_not_fire_are_not_counted() -> None:
    assert fire_all(ITEMS, lambda item: item["number"] % 2 == 0) == 100
    assert fire_all([], lambda _: True) == 0


def test_nothing_is_begun_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left stays due: the function ends by itself instead of being killed."""
    now, fired = [0.0], list[int]()
    monkeypatch.setattr("tidegate.queue.due_schedules.time.monotonic", lambda: now[0])

    def fire(item: dict[str, Any]) -> bool:
        fired.append(item["number"])
        now[0] += 1
        return True

    assert fire_all(ITEMS, fire, seconds=70) == len(fired)
    assert 70 <= len(fired) < 80, "those that other threads had begun are ended"


def test_records_are_read_as_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
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

    monkeypatch.setattr(due_schedules, "_TOGETHER", 1)
    assert fire_all(reading(), fire) == 200
    assert most[0] <= 64


def test_what_became_due_lately_comes_before_what_is_tried_again() -> None:
    asked = []

    class Asked:
        def query_all(self, partition: str, *, index: str, sk_between: tuple[int, int]) -> Iterator[dict[str, Any]]:
            asked.append((partition, index, sk_between))
            return iter([{"pk": str(sk_between)}])

    found = list(due_items(Asked(), "P", 1000.7))  # type: ignore[arg-type]
    assert asked == [("P", "due", (910, 1000)), ("P", "due", (0, 909))]
    assert len(found) == 2
