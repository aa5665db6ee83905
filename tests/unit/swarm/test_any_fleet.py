"""Random fleets with random failures: every live host gets the whole file, and no rule waits for ever."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from tests.support.fuzz.any_values import examples
from tests.support.swarm.world import MIB, HostPlan, World
from tidegate_client.swarm.chooser import ALONE_SECONDS, ORIGIN, Chooser, Failure, Link, Mode, Neighbour, Ranks, Rules
from tidegate_client.swarm.wire import Layout

seconds = st.floats(0, 10, allow_nan=False)
behaviours = st.one_of(
    st.builds(HostPlan, starts=seconds),
    st.builds(HostPlan, starts=seconds, restarts=st.lists(st.floats(0.5, 8), max_size=10)),
    st.builds(HostPlan, starts=seconds, listens=st.just(False)),
    st.builds(HostPlan, starts=seconds, blocked=st.just(True)),
    st.builds(HostPlan, starts=seconds, slow=st.floats(1, 20)),
    st.builds(HostPlan, starts=seconds, zone=st.sampled_from("ab")),
    st.builds(HostPlan, starts=seconds, kept=st.floats(0.1, 1), restarts=st.lists(st.floats(0.5, 8), max_size=2)),
    st.just(HostPlan(dead=True)),
    st.just(HostPlan(absent=True)),
    st.builds(HostPlan, starts=seconds, pretends=st.just(True)),
    st.builds(HostPlan, starts=seconds, garbage=st.just(True)),
    st.builds(HostPlan, starts=seconds, stalls=st.just(True)),
    st.builds(HostPlan, starts=seconds, resets=st.just(True)),
)
outages = st.lists(st.tuples(st.floats(0, 20), st.floats(0, 15)).map(lambda t: (t[0], sum(t))), max_size=2)


@examples(60)
@given(
    st.lists(behaviours, min_size=4, max_size=30),
    st.integers(1, 40),
    st.integers(0, 1 << 32),
    outages,
    st.sampled_from([20.0, 60.0, 600.0]),
)
def test_every_live_host_gets_the_whole_file(
    fleet: list[HostPlan], pieces: int, seed: int, down: list[tuple[float, float]], lasts: float
) -> None:
    world = World(pieces, fleet, seed, store_down=down, lasts=lasts)
    world.run(limit=1200.0)
    assert not world.unfinished
    for host in world.hosts.values():
        if host.plan.honest:
            assert host.chooser.complete
            # A bad neighbour can spoil at most the pieces that were in flight when it was banned.
            liars = sum(world.hosts[peer].plan.garbage for peer in host.peers)
            assert host.bad <= 2 * liars * (1 + len(host.plan.restarts))


@examples(15)
@given(st.integers(20, 60), st.integers(32, 64), st.integers(0, 1 << 32), st.booleans())
def test_healthy_fleet_takes_at_most_two_file_sizes_from_s3(hosts: int, pieces: int, seed: int, together: bool) -> None:
    spread = 0.5 if together else 10.0
    world = World(pieces, [HostPlan(starts=spread * n / hosts) for n in range(hosts)], seed)
    world.run(limit=300.0)
    assert not world.unfinished
    assert world.origin_pieces / pieces <= 2.0


def test_fleet_with_most_of_the_file_fetches_the_rest_about_once() -> None:
    """Each host has other 90 of 100 pieces; together they have all."""
    world = World(100, [HostPlan(starts=n / 8, kept=0.9) for n in range(40)], seed=3)
    world.run(limit=100.0)
    assert not world.unfinished
    assert world.origin_pieces <= 10


def test_host_whose_neighbours_have_not_started_uses_the_ladder() -> None:
    world = World(16, [HostPlan(), *(HostPlan(absent=True) for _ in range(59))], seed=5)
    world.run(limit=100.0)
    (host,) = [host for host in world.hosts.values() if host.plan.honest]
    assert host.chooser.mode is Mode.LADDER
    assert host.finished is not None
    # 5 s of patience, then 4^s ranks of 60 members, and two pieces at a time.
    assert 5.0 < host.finished < 5.0 + 3.0 + 16 * 0.2 * 1.5


def test_false_announcements_delay_a_host_for_patience_only() -> None:
    world = World(16, [HostPlan(), HostPlan(), *(HostPlan(pretends=True) for _ in range(8))], seed=5)
    world.run(limit=100.0)
    for host in world.hosts.values():
        if host.plan.honest:
            assert host.finished is not None
            assert host.finished < 20.0


def test_trickling_neighbours_do_not_block_requests_to_others() -> None:
    """Each occupies two of eight places, and never stalls for long enough to time out."""
    rules = Rules(ranks=0, hold=0.5, patience=5.0, line=None, lasts=600.0)
    neighbours = [Neighbour() for _ in range(5)]
    chooser = Chooser(Layout(64 * MIB, MIB), Ranks(0, 100, 7, 64), rules, neighbours, 0.0, rng=random.Random(1))
    for place in range(4):
        chooser.linked(place, Link.UP)
        chooser.announced(place, (1 << 64) - 1, 0)
    assert {step.source for step in chooser.next(0.0)} == {0, 1, 2, 3}
    chooser.linked(4, Link.UP)
    chooser.announced(4, (1 << 64) - 1, 0)
    asked_at, now = None, 0.0
    while asked_at is None and now < 30.0:
        now += 0.1
        chooser.received(1, now, from_peer=True)
        if any(step.source == 4 for step in chooser.next(now)):
            asked_at = now
    assert asked_at is not None
    assert asked_at <= rules.patience + 0.2


def test_host_on_a_slow_line_asks_for_few_pieces_at_once() -> None:
    """Eight at once over 1 Mbit/s would take a minute each, and senders give up on such receivers."""
    for line, expected in ((125_000.0, 2), (1_000_000.0, 4), (2_500_000.0, 8), (None, 8)):
        rules = Rules(ranks=0, hold=0.5, patience=5.0, line=line, lasts=600.0)
        neighbours = [Neighbour() for _ in range(16)]
        chooser = Chooser(Layout(16 * MIB, MIB), Ranks(0, 100, 7, 16), rules, neighbours, 0.0, rng=random.Random(1))
        for place in range(16):
            chooser.linked(place, Link.UP)
            chooser.announced(place, (1 << 16) - 1, 0)
        assert len(chooser.next(0.0)) == expected
        if line is not None:
            # None is overdue before the line could have received them all: no other peer is asked, nor S3.
            needed = max(5.0, expected * MIB / line)
            chooser.received(int(5 * line), needed - 0.1, from_peer=True)
            assert chooser.next(needed) == []


def test_host_that_would_be_late_fetches_everything_from_s3() -> None:
    """A neighbour sends a piece now and then, so the host is never stuck but would miss the deadline."""
    rules = Rules(ranks=0, hold=0.5, patience=5.0, line=1_000_000.0, lasts=60.0)
    chooser = Chooser(Layout(64 * MIB, MIB), Ranks(0, 100, 7, 64), rules, [Neighbour()], 0.0, rng=random.Random(1))
    chooser.linked(0, Link.UP)
    chooser.announced(0, (1 << 64) - 1, 0)
    now, last_piece, asked_s3_at = 0.0, 0.0, None
    while asked_s3_at is None and now < 60.0:
        for step in chooser.next(now):
            if step.source == ORIGIN:
                asked_s3_at = now
                break
            if now - last_piece >= 3.0:
                last_piece = now
                chooser.received(MIB, now, from_peer=True)
                chooser.arrived(step.source, step.piece, now)
            else:
                chooser.failed(step.source, step.piece, Failure.BUSY, now)
        now += 0.1
    assert chooser.mode is Mode.DEADLINE
    assert asked_s3_at is not None
    assert asked_s3_at < 16.0


def test_host_with_silent_neighbours_uses_s3_after_three_seconds() -> None:
    world = World(16, [HostPlan(), *(HostPlan(dead=True) for _ in range(19))], seed=5)
    world.run(limit=100.0)
    (host,) = [host for host in world.hosts.values() if host.plan.honest]
    assert host.chooser.mode is Mode.ALONE
    assert host.finished is not None
    assert ALONE_SECONDS <= host.finished < ALONE_SECONDS + 16 * 0.2 * 1.5
