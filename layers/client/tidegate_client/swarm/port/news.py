"""What a host has, told to all who follow it: a frame whenever that changes, and now and then without a change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidegate_client.swarm.layout import Layout

GATHERED, AT_LEAST = 0.1, 10.0
_VERSION_BYTES = 8
_BACKLOG = 64 * 1024


def frame_bytes(layout: Layout) -> int:
    return _VERSION_BYTES + 2 * layout.bitmap_bytes


def read_frame(frame: bytes, layout: Layout) -> tuple[int, int]:
    """The pieces that the sender has, and those that it is bringing from S3."""
    middle = _VERSION_BYTES + layout.bitmap_bytes
    return int.from_bytes(frame[_VERSION_BYTES:middle], "little"), int.from_bytes(frame[middle:], "little")


class News:
    """`state` gives the two sets of pieces when a frame is made."""

    def __init__(self, layout: Layout, state: Callable[[], tuple[int, int]]) -> None:
        self._layout = layout
        self._state = state
        self._version = 0
        self._followers: set[asyncio.StreamWriter] = set()
        self._timer: asyncio.TimerHandle | None = None

    def follow(self, writer: asyncio.StreamWriter) -> None:
        self._followers.add(writer)
        writer.write(self._frame())
        self._plan(AT_LEAST)

    def leave(self, writer: asyncio.StreamWriter) -> None:
        self._followers.discard(writer)

    def changed(self) -> None:
        self._version += 1
        self._plan(GATHERED)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _frame(self) -> bytes:
        pieces = b"".join(some.to_bytes(self._layout.bitmap_bytes, "little") for some in self._state())
        return self._version.to_bytes(_VERSION_BYTES) + pieces

    def _plan(self, after: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if self._timer.when() <= loop.time() + after:
                return
            self._timer.cancel()
        self._timer = loop.call_later(after, self._send)

    def _send(self) -> None:
        """Every frame says everything, so one that finds a full buffer can be left out."""
        self._timer = None
        frame = self._frame()
        for writer in self._followers:
            if writer.transport.get_write_buffer_size() < _BACKLOG:
                writer.write(frame)
        if self._followers:
            self._plan(AT_LEAST)
