from __future__ import annotations

import time
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.distribution.swarm import DEGREE, FEWEST_MEMBERS, Member, Seat, accept_key, plan, token

KEY = b"k" * 32


def listening(number: int, site: str = "dc1", zone: str = "") -> Member:
    return Member(f"host-{number:05d}", site, zone, (f"10.0.{number >> 8}.{number & 255}:7471",), "pin")


def fetching(number: int, site: str = "dc1", zone: str = "") -> Member:
    return Member(f"leech-{number:05d}", site, zone)


def reached_from(start: str, seats: dict[str, Seat]) -> set[str]:
    found, left = {start}, [start]
    while left:
        for neighbour in seats[left.pop()].neighbours:
            if neighbour.agent_id not in found:
                found.add(neighbour.agent_id)
                left.append(neighbour.agent_id)
    return found


members = st.lists(
    st.tuples(st.sampled_from(["dc1", "dc2"]), st.sampled_from(["", "a", "b", "c"]), st.booleans()), max_size=150
).map(lambda rows: [(listening if row[2] else fetching)(n, row[0], row[1]) for n, row in enumerate(rows)])


@settings(deadline=None, max_examples=150)
@given(members, st.binary(min_size=32, max_size=32))
def test_any_plan_is_a_connected_graph_of_bounded_degree(fleet: list[Member], key: bytes) -> None:
    seats = plan(fleet, "job", key)
    by_id = {member.agent_id: member for member in fleet}
    for agent_id, seat in seats.items():
        known = [neighbour.agent_id for neighbour in seat.neighbours]
        assert len(known) == len(set(known)) <= DEGREE
        assert known
        assert agent_id not in known
        assert {neighbour.site for neighbour in seat.neighbours} == {by_id[agent_id].site}
        assert all(neighbour.listen for neighbour in seat.neighbours)
        assert 0 <= seat.number < seat.members
        if by_id[agent_id].listen:
            assert all(agent_id in {n.agent_id for n in seats[other].neighbours} for other in known)
        else:
            assert seat.ranks == 0
    for site in ("dc1", "dc2"):
        ring = {m.agent_id for m in fleet if m.site == site and m.listen and m.agent_id in seats}
        assert sorted(seats[agent].number for agent in ring) == list(range(len(ring)))
        if ring:
            assert reached_from(min(ring), seats) == ring


def test_site_with_too_few_hosts_has_no_swarm() -> None:
    few = [listening(n, "small") for n in range(FEWEST_MEMBERS - 1)]
    deaf = [fetching(n, "deaf") for n in range(20)]
    enough = [listening(n + 100, "dc1") for n in range(FEWEST_MEMBERS)]
    assert set(plan([*few, *deaf, *enough], "job", KEY)) == {member.agent_id for member in enough}


def test_half_of_the_neighbours_are_in_the_same_zone() -> None:
    fleet = [listening(n, zone=f"rack{n % 10}") for n in range(400)]
    seats = plan(fleet, "job", KEY)
    zone_of = {member.agent_id: member.zone for member in fleet}
    for agent_id, seat in seats.items():
        near = sum(neighbour.zone == zone_of[agent_id] for neighbour in seat.neighbours)
        assert near >= len(seat.neighbours) / 2


def test_same_fleet_and_key_give_the_same_plan_in_any_order() -> None:
    fleet = [listening(n, zone=f"rack{n % 3}") for n in range(60)]
    first, second = plan(fleet, "job", KEY), plan(fleet[::-1], "job", KEY)
    assert first == second
    assert plan(fleet, "job", b"z" * 32) != first


def test_hosts_that_only_fetch_are_spread_over_the_ring() -> None:
    seats = plan([*(listening(n) for n in range(100)), *(fetching(n) for n in range(100))], "job", KEY)
    neighbour_counts = Counter(
        neighbour.agent_id
        for agent_id, seat in seats.items()
        if agent_id.startswith("leech")
        for neighbour in seat.neighbours
    )
    assert len(neighbour_counts) > 90
    assert max(neighbour_counts.values()) < 40


def test_token_is_valid_for_one_pair_in_one_swarm() -> None:
    of_a, of_b = accept_key(KEY, "a"), accept_key(KEY, "b")
    made = {
        token(of_a, "0" * 32, "c"),
        token(of_b, "0" * 32, "c"),
        token(of_a, "1" * 32, "c"),
        token(of_a, "0" * 32, "d"),
        token(accept_key(b"y" * 32, "a"), "0" * 32, "c"),
    }
    assert len(made) == 5
    assert {len(one) for one in made} == {16}


def test_hundred_thousand_members_are_planned_in_seconds() -> None:
    fleet = [listening(n, zone=f"rack{n % 500}") for n in range(100_000)]
    began = time.process_time()
    seats = plan(fleet, "job", KEY)
    assert time.process_time() - began < 10
    assert len(seats) == 100_000
