"""Connections over which a host follows its neighbours: they announce their pieces, and are asked for missing lists."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence

from tidegate_client.swarm.choosing.chooser import Chooser
from tidegate_client.swarm.choosing.neighbours import Link
from tidegate_client.swarm.layout import Layout
from tidegate_client.swarm.lists import SharedList
from tidegate_client.swarm.peers import Broken, NotStarted, Peer, Stalled, Unreachable
from tidegate_client.swarm.port.news import frame_bytes, read_frame

_RETRY_REFUSED, _RETRY_SILENT, _LONGEST_RETRY = 1.0, 10.0, 120.0
_NEWS_PAUSE = 0.02
# A neighbour without an optional list is asked for it again after this time.
_ASK_AGAIN = 0.5


class Links:
    def __init__(
        self, peers: Sequence[Peer], layout: Layout, chooser: Chooser, lists: Sequence[SharedList], wake: asyncio.Event
    ) -> None:
        self._peers = peers
        self._layout = layout
        self._chooser = chooser
        self._lists = lists
        self._wake = wake
        self._asked: dict[tuple[int, str], float] = {}
        self.met_anyone = False

    async def follow(self, place: int) -> None:
        """Follows a neighbour until cancelled. One that refuses is tried every second, a silent one less and less."""
        silence = _RETRY_SILENT
        while True:
            pause = _RETRY_REFUSED * random.uniform(0.7, 1.3)  # noqa: S311
            try:
                await self._read_news(place, self._peers[place])
            except (NotStarted, Broken):
                self._chooser.linked(place, Link.REFUSED)
                silence = _RETRY_SILENT
            except (Unreachable, Stalled):
                self._chooser.linked(place, Link.SILENT)
                pause, silence = silence, min(_LONGEST_RETRY, 2 * silence)
            self._wake.set()
            await asyncio.sleep(pause)

    async def _read_news(self, place: int, peer: Peer) -> None:
        connection = await peer.connect()
        try:
            status, _ = await peer.get(connection, "have")
            if status != 200:
                raise Broken(f"HTTP {status}")
            async for frame in connection.frames(frame_bytes(self._layout)):
                self.met_anyone = True
                self._chooser.linked(place, Link.UP)
                self._chooser.announced(place, *read_frame(frame, self._layout))
                for wanted in self._lists:
                    if wanted.is_wanted:
                        await self._ask(place, peer, wanted)
                self._wake.set()
                # Limits the work that a peer can cause by sending frames without end.
                await asyncio.sleep(_NEWS_PAUSE)
        finally:
            connection.close()

    async def _ask(self, place: int, peer: Peer, wanted: SharedList) -> None:
        if not wanted.optional:
            await wanted.ask(peer)
            return
        now, key = time.monotonic(), (place, wanted.name)
        if now < self._asked.get(key, 0.0):
            return
        self._asked[key] = now + _ASK_AGAIN
        try:
            await wanted.ask(peer)
        except (Broken, Stalled, NotStarted, Unreachable):
            # An older agent does not know this list and closes the connection: do not ask it again.
            self._asked[key] = float("inf")
