from __future__ import annotations

import asyncio
import random
from asyncio.protocols import _feed_data_to_buffered_proto  # type: ignore[attr-defined]
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


class TlsOfPython310(asyncio.Transport):
    """Hands over all that one read of the socket gave, also after reading was paused, and forgets a lost socket."""

    def __init__(self) -> None:
        super().__init__()
        self.socket: Any = self
        self.paused = False

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.socket.resumed()

    def resumed(self) -> None:
        self.paused = False


def test_rest_of_a_read_is_kept_after_a_pause() -> None:
    wire, transport = Wire(), TlsOfPython310()
    content = random.Random(1).randbytes(5 * BUFFER_BYTES)
    wire.connection_made(transport)

    async def read() -> bytes:
        found, left = b"", content
        while left:
            while left and not transport.paused:
                # Decrypted from one read of 256 KiB, in any portions.
                read, left = left[: 256 * 1024], left[256 * 1024 :]
                for at in range(0, len(read), 100_000):
                    _feed_data_to_buffered_proto(wire, read[at : at + 100_000])
            async for chunk in Connection(wire).body(min(wire.waiting, 300_000)):
                found += bytes(chunk)
        async for chunk in Connection(wire).body(wire.waiting):
            found += bytes(chunk)
        return found

    assert asyncio.run(asyncio.wait_for(read(), 20)) == content


def test_read_that_completes_a_record_fits_into_a_nearly_full_buffer() -> None:
    """TLS keeps the beginning of a record, of 16 KiB at most, until the next read of 256 KiB brings its end."""
    wire, transport = Wire(), TlsOfPython310()
    content = random.Random(2).randbytes(BUFFER_BYTES - 1 + (256 + 16) * 1024)
    wire.connection_made(transport)
    _feed_data_to_buffered_proto(wire, content[: BUFFER_BYTES - 1])
    assert not transport.paused
    for at in range(BUFFER_BYTES - 1, len(content), 16 * 1024):
        _feed_data_to_buffered_proto(wire, content[at : at + 16 * 1024])

    async def read() -> bytes:
        return b"".join([bytes(chunk) async for chunk in Connection(wire).body(len(content))])

    assert asyncio.run(asyncio.wait_for(read(), 5)) == content


def test_what_arrived_before_a_connection_was_lost_can_be_read() -> None:
    wire, transport = Wire(), TlsOfPython310()
    wire.connection_made(transport)
    wire.get_buffer(-1)[:BUFFER_BYTES] = bytes(BUFFER_BYTES)
    wire.buffer_updated(BUFFER_BYTES)
    assert transport.paused
    transport.socket = None

    async def read() -> int:
        async for chunk in Connection(wire).body(BUFFER_BYTES):
            assert bytes(chunk) == bytes(BUFFER_BYTES)
        return wire.waiting

    assert asyncio.run(asyncio.wait_for(read(), 5)) == 0


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
