"""Each limit of the peer port is reached: its upload slots, and its connections with known and unknown callers."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from types import SimpleNamespace

import pytest

from tidegate_client.swarm import port
from tidegate_client.swarm.port import Caller, Callers, NoSlot, Refused, Slots


async def holding(slots: Slots, stack: AsyncExitStack, count: int) -> None:
    """Holds so many slots, each for another caller."""
    for number in range(count):
        await stack.enter_async_context(slots.hold(f"holder-{number}", near=False))


async def waiting(slots: Slots, caller: str, served: list[str], *, near: bool) -> None:
    async with slots.hold(caller, near=near):
        served.append(caller)


def test_peer_holds_its_share_of_the_slots_only() -> None:
    async def run() -> None:
        slots = Slots()
        async with AsyncExitStack() as stack:
            for _ in range(port.UPLOADS_A_PEER):
                await stack.enter_async_context(slots.hold("greedy", near=True))
            with pytest.raises(NoSlot):
                await stack.enter_async_context(slots.hold("greedy", near=True))
            await stack.enter_async_context(slots.hold("other", near=False))
        async with slots.hold("greedy", near=True):
            pass

    asyncio.run(run())


def test_caller_beyond_slots_and_queue_is_refused_at_once() -> None:
    async def run() -> None:
        slots, served = Slots(seconds=30), list[str]()
        async with AsyncExitStack() as stack:
            await holding(slots, stack, port.UPLOADS)
            tasks = [
                asyncio.create_task(waiting(slots, f"w-{number}", served, near=number % 2 == 0))
                for number in range(port.WAITING)
            ]
            await asyncio.sleep(0)
            with pytest.raises(NoSlot):
                await waiting(slots, "late", served, near=True)
            assert served == []
        await asyncio.gather(*tasks)
        assert len(served) == port.WAITING

    asyncio.run(run())


def test_near_peers_are_served_before_far_ones_and_in_order() -> None:
    async def run() -> None:
        slots, served = Slots(uploads=1, seconds=30), list[str]()
        async with AsyncExitStack() as stack:
            await holding(slots, stack, 1)
            order = (("far-1", False), ("near-1", True), ("far-2", False), ("near-2", True))
            tasks = [asyncio.create_task(waiting(slots, name, served, near=near)) for name, near in order]
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        assert served == ["near-1", "near-2", "far-1", "far-2"]

    asyncio.run(run())


def test_wait_for_a_slot_ends_and_leaves_the_queue() -> None:
    async def run() -> None:
        slots, served = Slots(uploads=1, waiting=1, seconds=0.05), list[str]()
        async with AsyncExitStack() as stack:
            await holding(slots, stack, 1)
            for _ in range(3):
                with pytest.raises(NoSlot):
                    await waiting(slots, "patient", served, near=False)
        await waiting(slots, "after", served, near=False)
        assert served == ["after"]

    asyncio.run(run())


def test_cancelled_wait_takes_no_slot() -> None:
    async def run() -> None:
        slots, served = Slots(uploads=1, seconds=30), list[str]()
        async with AsyncExitStack() as stack:
            await holding(slots, stack, 1)
            given_up = asyncio.create_task(waiting(slots, "given-up", served, near=True))
            await asyncio.sleep(0)
            given_up.cancel()
            await asyncio.gather(given_up, return_exceptions=True)
        for number in range(3):
            await waiting(slots, f"after-{number}", served, near=False)
        assert served == ["after-0", "after-1", "after-2"]

    asyncio.run(run())


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    moment = [1000.0]
    monkeypatch.setattr(port, "time", SimpleNamespace(monotonic=lambda: moment[0]))
    return moment


def known(callers: Callers, number: int) -> Caller | None:
    """A connection of a neighbour, which has presented its token."""
    caller = callers.enter(f"10.0.{number // 250}.{number % 250}")
    if caller:
        caller.identify(f"host-{number}")
    return caller


def test_new_connections_of_a_second_are_limited(now: list[float]) -> None:
    callers = Callers()
    admitted = []
    for number in range(port.NEW_A_SECOND + 10):
        if caller := known(callers, number):
            admitted.append(caller)
            caller.leave()
    assert len(admitted) == port.NEW_A_SECOND
    now[0] += 0.99
    assert known(callers, 1) is None
    now[0] += 0.01
    assert known(callers, 1)


def test_connections_of_a_port_are_limited(now: list[float]) -> None:
    callers, admitted = Callers(), list[Caller]()
    for number in range(port.CONNECTIONS + 10):
        now[0] += 1
        if caller := known(callers, number):
            admitted.append(caller)
    assert len(admitted) == port.CONNECTIONS
    admitted[0].leave()
    assert known(callers, 900)
    assert known(callers, 901) is None


def test_strangers_of_many_addresses_leave_places_for_neighbours(now: list[float]) -> None:
    callers = Callers()
    strangers = [callers.enter(f"10.1.0.{number}") for number in range(port.UNKNOWN + 10)]
    admitted = [caller for caller in strangers if caller]
    assert len(admitted) == port.UNKNOWN
    # One of them presents its token: the next can come in.
    admitted[0].identify("host-1")
    assert callers.enter("10.2.0.1")


def test_strangers_of_one_address_leave_places_for_others(now: list[float]) -> None:
    callers = Callers()
    admitted = [caller for _ in range(port.UNKNOWN) if (caller := callers.enter("10.1.0.1"))]
    assert len(admitted) == port.UNKNOWN_AN_ADDRESS
    assert known(callers, 1)
    admitted[0].leave()
    assert callers.enter("10.1.0.1")
    assert callers.enter("10.1.0.1") is None


def test_connections_of_one_neighbour_are_limited_until_one_ends(now: list[float]) -> None:
    callers = Callers()
    admitted = [known(callers, 1) for _ in range(port.CONNECTIONS_A_PEER)]
    with pytest.raises(Refused):
        known(callers, 1)
    assert admitted[0]
    admitted[0].leave()
    assert known(callers, 1)
