from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tidegate_client.swarm.peers import Connection
from tidegate_client.swarm.wire import BUFFER_BYTES, Ended, Wire


class Source(asyncio.Transport):
    """Feeds a wire as TLS does: as much as fits into its buffer, and nothing while it is paused."""

    def __init__(self, wire: Wire, content: bytes, drawn: random.Random) -> None:
        super().__init__()
        self._wire, self._content, self._drawn = wire, content, drawn
        self._paused = False

    def pause_reading(self) -> None:
        assert not self._paused
        self._paused = True

    def resume_reading(self) -> None:
        assert self._paused
        self._paused = False

    def write(self, data: Any) -> None:
        pass

    def abort(self) -> None:
        pass

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    async def feed(self) -> None:
        while self._content:
            if not self._paused:
                room = self._wire.get_buffer(-1)
                count = min(len(room), self._drawn.randrange(1, BUFFER_BYTES), len(self._content))
                room[:count] = self._content[:count]
                self._content = self._content[count:]
                self._wire.buffer_updated(count)
            await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(20))
def test_bodies_of_any_length_arrive_complete_at_any_pace(seed: int) -> None:
    drawn = random.Random(seed)
    lengths = [drawn.randrange(1, 3 * BUFFER_BYTES) for _ in range(6)]
    content = drawn.randbytes(sum(lengths))

    async def read() -> bytes:
        wire = Wire()
        source = Source(wire, content, drawn)
        wire.connection_made(source)
        feeding = asyncio.create_task(source.feed())
        found = b""
        for length in lengths:
            async for chunk in Connection(wire).body(length):
                await asyncio.sleep(0)
                found += bytes(chunk)
        await feeding
        return found

    assert asyncio.run(asyncio.wait_for(read(), 20)) == content


def test_answer_head_without_end_is_given_up_at_the_limit() -> None:
    async def read() -> None:
        wire = Wire()
        source = Source(wire, b"x" * 5000, random.Random(1))
        wire.connection_made(source)
        feeding = asyncio.create_task(source.feed())
        with pytest.raises(Ended):
            await wire.until(b"\r\n\r\n", 4096)
        await feeding

    asyncio.run(asyncio.wait_for(read(), 5))
