"""What arrives on a connection, in one buffer: TLS decrypts into it, and a chunk goes from it to the disk uncopied."""

from __future__ import annotations

import asyncio

BUFFER_BYTES = 512 * 1024


class Ended(Exception):
    """The other side closed, or the connection broke."""


class Wire(asyncio.BufferedProtocol):
    """A chunk that was taken must be given back before the next one is: its place in the buffer is used again."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._start = self._end = 0
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None

    # --- asyncio's side

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

    # --- the reader's side

    @property
    def waiting(self) -> int:
        """Bytes that have arrived and were not taken."""
        return self._end - self._start

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
        if self._transport is None:
            return None
        found: bytes | None = self._transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return found

    async def more(self) -> None:
        """Returns when something has arrived."""
        if self._ended:
            raise Ended
        self._make_room()
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    async def until(self, mark: bytes, most: int) -> bytes:
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
        """What has arrived, not more than asked for; it stays where it is until it is given back."""
        return self._buffer[self._start : min(self._end, self._start + most)]

    def give_back(self, length: int) -> None:
        self._start += length
        self._make_room()

    def _make_room(self) -> None:
        """Only while nothing is taken: what has arrived may move."""
        if self._start == self._end:
            self._start = self._end = 0
        elif self._paused and self._start:
            left = self._end - self._start
            self._buffer[:left] = bytes(self._buffer[self._start : self._end])
            self._start, self._end = 0, left
        if self._paused and self._end < BUFFER_BYTES and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
