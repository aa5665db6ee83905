"""Pieces that several sources send at once: only right ones count, and only bad sources are blamed."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import idle_clock
from tidegate_client.swarm.chooser import Chooser, Link, Neighbour, Ranks, Rules, Step
from tidegate_client.swarm.store import PieceStore
from tidegate_client.swarm.transfers import Tasks, Tools, Transfers
from tidegate_client.swarm.wire import Layout

CONTENT = bytes(range(256)) * 8
LAYOUT = Layout(len(CONTENT), 1024)


class Scripted:
    """A peer that sends this content once `go` is set."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.go = asyncio.Event()
        self.sent = asyncio.Event()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Scripted]:
        yield self

    async def get_piece(self, _connection: Any, _piece: int, _length: int, _offset: int | None) -> int:
        await self.go.wait()
        return 200

    async def body(self, length: int, _most: int) -> AsyncIterator[bytes]:
        yield self._content[: length // 2]
        self.sent.set()
        await asyncio.sleep(0)
        yield self._content[length // 2 : length]


class Lab:
    """Transfers from scripted peers into a part file."""

    def __init__(self, home: Path, peers: list[Scripted], on_disk: Callable[[], Any] | None = None) -> None:
        digests = b"".join(hashlib.sha256(CONTENT[at : at + 1024]).digest() for at in range(0, len(CONTENT), 1024))
        with (home / "part").open("w+b") as file:
            self.store = PieceStore(file.fileno(), LAYOUT, digests)
        self.store.load_existing()
        rules = Rules(ranks=0, hold=0.5, patience=5.0, line=None, lasts=60.0)
        self.chooser = Chooser(LAYOUT, Ranks(0, 10, 7, LAYOUT.count), rules, [Neighbour() for _ in peers], 0.0)
        for place in range(len(peers)):
            self.chooser.linked(place, Link.UP)
        executor = ThreadPoolExecutor(1)
        tools = Tools("me", executor, executor, None)
        honest = tools.on_disk
        self.checks = 0

        class Watched(Tools):
            async def on_disk(_self, call: Any, *values: Any) -> Any:
                result = await honest(call, *values)
                if call == self.store.is_right_on_disk:
                    self.checks += 1
                    if self.checks == 1 and on_disk is not None:
                        await on_disk()
                return result

        names = [type("P", (), {"id": f"peer-{n}"}) for n in range(len(peers))]
        terms: Any = type("T", (), {"layout": LAYOUT, "peers": names})
        self.received: list[int] = []
        watched = Watched("me", executor, executor, None, self.received.append)
        wake = asyncio.Event()
        callers: Any = peers
        origin: Any = None
        self.transfers = Transfers(
            terms,
            callers,
            origin,
            self.chooser,
            watched,
            Tasks(wake),
            changed=wake.set,
            on_progress=lambda *_: None,
        )
        self.transfers.store = self.store

    def ask(self, source: int, piece: int = 0) -> None:
        self.transfers.start(self.chooser._begin(Step(source, piece), 0.0))


async def until(true: Callable[[], bool]) -> None:
    deadline = idle_clock() + 5
    while not true():
        assert idle_clock() < deadline
        await asyncio.sleep(0.005)


def test_source_that_starts_during_the_disk_check_cannot_spoil_the_piece(tmp_path: Path) -> None:
    async def run() -> None:
        slow, right, bad = Scripted(CONTENT), Scripted(CONTENT), Scripted(b"\0" * 1024)

        async def begin_a_third() -> None:
            """Runs when the check has found the piece right and has not returned yet."""
            lab.ask(2)
            bad.go.set()
            await bad.sent.wait()
            await asyncio.sleep(0.05)

        lab = Lab(tmp_path, [slow, right, bad], begin_a_third)
        lab.ask(0)
        lab.ask(1)
        right.go.set()
        await until(lambda: not lab.transfers._flights)
        # A second check finds what the bad source wrote: the piece does not count and is fetched again.
        assert not lab.store.have & 1
        assert lab.checks == 2

    asyncio.run(run())


@pytest.mark.parametrize("content", [b"\0" * 1024, CONTENT], ids=["wrong", "right"])
def test_piece_counts_only_if_it_is_right(tmp_path: Path, content: bytes) -> None:
    async def run() -> None:
        peer = Scripted(content)
        lab = Lab(tmp_path, [peer])
        lab.ask(0)
        peer.go.set()
        await until(lambda: not lab.transfers._flights)
        assert bool(lab.store.have & 1) is (content == CONTENT)
        assert lab.transfers.figures.bad_peers == ([] if content == CONTENT else ["peer-0"])
        assert lab.received == [512, 512]

    asyncio.run(run())
