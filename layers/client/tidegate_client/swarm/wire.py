"""The receive buffer of a connection to a peer. TLS decrypts into it; chunks go from it to disk without a copy."""

from __future__ import annotations

import asyncio

BUFFER_BYTES = 512 * 1024


class Ended(Exception):
    """The peer closed the connection, or it broke."""


class Wire(asyncio.BufferedProtocol):
    """A chunk returned by `take` must be given back before the next `take`: its part of the buffer is reused."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._start = self._end = 0
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None

    # --- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's name
        return self._buffer[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        if self._end == BUFFER_BYTES and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        self._ended = True
        self._wake()
        return False

    def connection_lost(self, _error: Exception | None) -> None:
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- called by the reader

    @property
    def waiting(self) -> int:
        """The number of bytes that have arrived and were not taken."""
        return self._end - self._start

    @property
    def is_open(self) -> bool:
        return not self._ended

    def send(self, content: bytes) -> None:
        if self._transport is None or self._ended:
            raise Ended
        self._transport.write(content)

    def close(self) -> None:
        self._ended = True
        if self._transport is not None:
            self._transport.abort()

    @property
    def certificate(self) -> bytes | None:
        """The peer's certificate, DER."""
        if self._transport is None:
            return None
        found: bytes | None = self._transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return found

    async def more(self) -> None:
        """Waits until more bytes arrive. Raises Ended if none will."""
        if self._ended:
            raise Ended
        self._make_room()
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    async def until(self, mark: bytes, most: int) -> bytes:
        """Everything up to and including `mark`. Raises Ended if it is not within the next `most` bytes."""
        while True:
            found = bytes(self._buffer[self._start : min(self._end, self._start + most)])
            at = found.find(mark)
            if at >= 0:
                self.give_back(at + len(mark))
                return found[: at + len(mark)]
            if len(found) >= most:
                raise Ended
            await self.more()

    async def exactly(self, length: int) -> bytes:
        while self.waiting < length:
            await self.more()
        found = bytes(self._buffer[self._start : self._start + length])
        self.give_back(length)
        return found

    def take(self, most: int) -> memoryview:
        """At most this many of the bytes that have arrived. They stay in the buffer until they are given back."""
        return self._buffer[self._start : min(self._end, self._start + most)]

    def give_back(self, length: int) -> None:
        self._start += length
        self._make_room()

    def _make_room(self) -> None:
        """May move the bytes in the buffer, so call it only while no chunk is taken."""
        if self._start == self._end:
            self._start = self._end = 0
        elif self._paused and self._start:
            left = self._end - self._start
            self._buffer[:left] = bytes(self._buffer[self._start : self._end])
            self._start, self._end = 0, left
        if self._paused and self._end < BUFFER_BYTES and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
