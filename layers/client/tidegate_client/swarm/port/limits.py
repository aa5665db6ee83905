"""Limits the number of uploads at a time."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

UPLOADS, WAITING = 4, 8
UPLOADS_A_PEER = 2
SLOT_SECONDS = 0.5


class NoSlot(Exception):
    """All upload slots are taken, and the queue is full or the wait was too long."""


class Slots:
    """The upload slots of a host, for all its swarms. Near peers come first; otherwise first come, first served."""

    def __init__(self, uploads: int = UPLOADS, waiting: int = WAITING, seconds: float = SLOT_SECONDS) -> None:
        self._free = uploads
        self._most_waiting = waiting
        self._seconds = seconds
        self._held: Counter[str] = Counter()
        self._near: deque[asyncio.Future[None]] = deque()
        self._far: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def hold(self, caller: str, *, near: bool) -> AsyncIterator[None]:
        """Holds a slot. Raises NoSlot if none is free soon, or if the caller holds its share already."""
        if self._held[caller] >= UPLOADS_A_PEER:
            raise NoSlot
        self._held[caller] += 1
        try:
            await self._take(near=near)
            try:
                yield
            finally:
                self._release()
        finally:
            self._held[caller] -= 1
            if not self._held[caller]:
                del self._held[caller]

    async def _take(self, *, near: bool) -> None:
        if self._free:
            self._free -= 1
            return
        if len(self._near) + len(self._far) >= self._most_waiting:
            raise NoSlot
        queue = self._near if near else self._far
        turn = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            async with asyncio.timeout(self._seconds):
                await turn
        except TimeoutError:
            # If the slot was assigned at the moment of the time-out, it is held all the same.
            if turn.cancelled() or not turn.done():
                raise NoSlot from None
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release()
            raise
        finally:
            if turn in queue:
                queue.remove(turn)

    def _release(self) -> None:
        for queue in (self._near, self._far):
            while queue:
                turn = queue.popleft()
                if not turn.done():
                    turn.set_result(None)
                    return
        self._free += 1
