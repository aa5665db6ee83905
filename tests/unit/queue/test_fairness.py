"""The rules of fair admission: shares, turns and ageing, with random arrivals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.common.ids import iso
from tidegate.queue.model import (
    AGE_STEP_SECONDS,
    Channel,
    Standing,
    Turns,
    WaitingPlace,
    aged_priority,
    ceiling,
    fair_share,
    rank,
)

START = datetime(2026, 1, 1, tzinfo=UTC)


def test_priority_rises_by_one_for_each_step_up_to_the_highest() -> None:
    since, at = iso(START), START.timestamp()
    aged = [aged_priority(4, since, at + steps * AGE_STEP_SECONDS) for steps in range(6)]

    assert aged == [4, 3, 2, 1, 1, 1]
    assert aged_priority(4, since, at + AGE_STEP_SECONDS - 1) == 4


def test_rank_orders_by_priority_then_age() -> None:
    later = iso(START + timedelta(seconds=1))

    assert rank(1, later) < rank(2, iso(START)) < rank(2, later) < rank(10, iso(START))


@pytest.mark.parametrize(("capacity", "active", "share"), [(1, 2, 1), (2, 2, 1), (4, 2, 2), (4, 3, 2), (4, 9, 1)])
def test_shares_are_even_and_leave_no_slot_unused(capacity: int, active: int, share: int) -> None:
    assert fair_share(capacity, [Standing(str(number), running=1) for number in range(active)]) == share


@pytest.mark.parametrize("capacity", [0, 1, 2, 4])
def test_project_may_fill_the_capacity_unless_it_has_a_fixed_share(capacity: int) -> None:
    assert ceiling(capacity, None) == capacity
    assert ceiling(capacity, 10) == capacity
    assert ceiling(capacity, 1) == min(1, capacity)


class SmallChannel:
    """A channel in memory with the same rules of admission as the real one."""

    def __init__(self, capacity: int) -> None:
        self.channel = Channel("c", capacity)
        self.standings: dict[str, Standing] = {}
        self.lanes: dict[str, list[WaitingPlace]] = {}
        self.running: list[WaitingPlace] = []
        self.now = START

    def arrive(self, project_id: str, priority: int) -> WaitingPlace:
        self.now += timedelta(milliseconds=2)
        place = WaitingPlace("c", project_id, f"{self.now.timestamp():.3f}", priority, iso(self.now), "queued")
        lane = self.lanes.setdefault(project_id, [])
        lane.append(place)
        lane.sort(key=lambda each: rank(each.priority, each.since))
        known = self.standings.get(project_id, Standing(project_id))
        self.standings[project_id] = replace(known, waiting=known.waiting + 1)
        return place

    def admit(self) -> list[WaitingPlace]:
        turns = Turns(self.channel, dict(self.standings), {}, self._lane, self.now.timestamp(), 60)
        admitted = []
        while (place := turns.next()) is not None:
            turns.mark_admitted(place)
            self.lanes[place.project_id].remove(place)
            self.running.append(place)
            admitted.append(place)
        self.channel, self.standings = turns.channel, turns.standings
        return admitted

    def _lane(self, project_id: str) -> Iterator[WaitingPlace]:
        return iter(list(self.lanes[project_id]))

    def end(self, index: int) -> None:
        place = self.running.pop(index % len(self.running))
        known = self.standings[place.project_id]
        self.channel = replace(self.channel, running=self.channel.running - 1)
        self.standings[place.project_id] = replace(known, running=known.running - 1)


ARRIVALS = st.lists(st.tuples(st.sampled_from("ABCDE"), st.integers(1, 10)), max_size=6)


@settings(max_examples=200, deadline=None)
@given(capacity=st.integers(1, 5), rounds=st.lists(st.tuples(ARRIVALS, st.integers(0, 9)), min_size=5, max_size=60))
def test_project_without_a_slot_waits_at_most_one_turn_of_each_other(
    capacity: int, rounds: list[tuple[list[tuple[str, int]], int]]
) -> None:
    """A project with nothing running is admitted before any other project has had two more turns."""
    channel = SmallChannel(capacity)
    since: dict[str, list[str]] = {}
    for arrivals, ending in rounds:
        for project_id, _ in arrivals:
            channel.arrive(project_id, 5)
            if channel.standings[project_id].running == 0:
                since.setdefault(project_id, [])
        for place in channel.admit():
            since.pop(place.project_id, None)
            for waits, others in since.items():
                others.append(place.project_id)
                assert others.count(place.project_id) <= 1, (waits, others)
        if channel.running:
            channel.end(ending)


@settings(max_examples=200, deadline=None)
@given(capacity=st.integers(2, 5), rounds=st.lists(st.tuples(ARRIVALS, st.integers(0, 9)), min_size=5, max_size=60))
def test_no_project_exceeds_its_share_while_another_waits(
    capacity: int, rounds: list[tuple[list[tuple[str, int]], int]]
) -> None:
    channel = SmallChannel(capacity)
    for arrivals, ending in rounds:
        for project_id, priority in arrivals:
            channel.arrive(project_id, priority)
        before = {project_id: standing.running for project_id, standing in channel.standings.items()}
        share = fair_share(capacity, channel.standings.values())
        channel.admit()
        waiting = {project_id for project_id, standing in channel.standings.items() if standing.waiting > 0}
        for project_id, standing in channel.standings.items():
            below = {other for other in waiting - {project_id} if channel.standings[other].running < share}
            took_more = standing.running > max(share, before.get(project_id, 0))
            assert not (took_more and below)
        assert sum(standing.running for standing in channel.standings.values()) <= capacity + 1
        if channel.running:
            channel.end(ending)


@settings(max_examples=100, deadline=None)
@given(capacity=st.integers(1, 4), stream=st.lists(st.integers(0, 9), min_size=150, max_size=150))
def test_urgent_requests_delay_the_lowest_priority_only_until_it_has_aged(capacity: int, stream: list[int]) -> None:
    channel = SmallChannel(capacity)
    for _ in range(capacity):
        channel.arrive("A", 1)
    channel.admit()
    late = channel.arrive("B", 10)
    for ending in stream:
        channel.admit()
        if late in channel.running:
            break
        channel.now += timedelta(seconds=60)
        channel.arrive("A", 1)
        channel.end(ending)

    waited = channel.now - datetime.fromisoformat(late.since)
    assert late in channel.running
    assert waited <= timedelta(seconds=9 * AGE_STEP_SECONDS + 120)
