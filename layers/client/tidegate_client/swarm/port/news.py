"""Announces this host's pieces to the peers that follow it: a frame after each change, and one every few seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidegate_client.swarm.layout import Layout

# Changes within GATHERED seconds share a frame. Without changes a frame is sent after AT_LEAST seconds.
GATHERED, AT_LEAST = 0.1, 10.0
_VERSION_BYTES = 8
_BACKLOG = 64 * 1024


def frame_bytes(layout: Layout) -> int:
    return _VERSION_BYTES + 2 * layout.bitmap_bytes


def read_frame(frame: bytes, layout: Layout) -> tuple[int, int]:
    """The pieces that the sender has, and those that it is fetching from S3."""
    middle = _VERSION_BYTES + layout.bitmap_bytes
    return int.from_bytes(frame[_VERSION_BYTES:middle], "little"), int.from_bytes(frame[middle:], "little")


class News:
    """`state` returns the two sets of pieces for a frame."""

    def __init__(self, layout: Layout, state: Callable[[], tuple[int, int]]) -> None:
        self._layout = layout
        self._state = state
        self._version = 0
        self._followers: set[asyncio.StreamWriter] = set()
        self._timer: asyncio.TimerHandle | None = None

    def subscribe(self, writer: asyncio.StreamWriter) -> None:
        self._followers.add(writer)
        writer.write(self._frame())
        self._schedule(AT_LEAST)

    def unsubscribe(self, writer: asyncio.StreamWriter) -> None:
        self._followers.discard(writer)

    def changed(self) -> None:
        self._version += 1
        self._schedule(GATHERED)

    def close(self) -> None:
        """Disconnects all followers: a connection that nobody writes to would stay open after its peer has died."""
        if self._timer is not None:
            self._timer.cancel()
        for writer in self._followers:
            writer.transport.abort()

    def _frame(self) -> bytes:
        bitmaps = b"".join(pieces.to_bytes(self._layout.bitmap_bytes, "little") for pieces in self._state())
        return self._version.to_bytes(_VERSION_BYTES) + bitmaps

    def _schedule(self, after: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if self._timer.when() <= loop.time() + after:
                return
            self._timer.cancel()
        self._timer = loop.call_later(after, self._send)

    def _send(self) -> None:
        """Every frame has the complete state, so it can be skipped for a follower whose buffer is full."""
        self._timer = None
        frame = self._frame()
        for writer in self._followers:
            if writer.transport.get_write_buffer_size() < _BACKLOG:
                writer.write(frame)
        if self._followers:
            self._schedule(AT_LEAST)
