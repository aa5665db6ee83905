"""Lists that hosts of a swarm hand to one another: of a file's pieces, and of its blocks.

They are large enough to matter: 180 KB for each of 10,000 hosts would be two sizes of a file of 1 GB. So a list comes
from a neighbour, and from S3 only if none has it. Its SHA-256 came with the order.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable

from tidegate_client.swarm.origin import OriginFailed
from tidegate_client.swarm.peers import Broken, Peer

log = logging.getLogger("tidegate.agent")

_TRIES = 4


class SharedList:
    """`name` is its path at a peer's port. A delivery goes on without an `optional` one."""

    def __init__(self, name: str, length: int, sha256: str, *, optional: bool = False) -> None:
        self.name = name
        self.length = length
        self.optional = optional
        self._sha256 = sha256
        self._over = asyncio.Event()
        self.content: bytes | None = None

    @property
    def is_wanted(self) -> bool:
        return not self._over.is_set()

    async def wait(self, seconds: float) -> bool:
        """Returns whether it was found, or will not be, by then."""
        try:
            async with asyncio.timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            return False
        return True

    def take(self, listed: bytes) -> None:
        if self.is_wanted and hashlib.sha256(listed).hexdigest() == self._sha256:
            self.content = listed
            self._over.set()

    async def ask(self, peer: Peer) -> None:
        async with peer.connection() as connection:
            status, length = await peer.get(connection, self.name)
            if status != 200 or length != self.length:
                if length:
                    raise Broken("that is not the list")
                return
            listed = b"".join([bytes(chunk) async for chunk in connection.body(self.length)])
        self.take(listed)

    async def find(self, rank: int, fetch: Callable[[], Awaitable[bytes]]) -> None:
        """From S3 if no neighbour has it: the first in the ring at once, the others when they had time to tell."""
        await asyncio.sleep(0.3 if rank < 2 else 0.3 + min(3.0, 0.5 + 0.02 * rank))
        for attempt in range(_TRIES):
            if not self.is_wanted:
                return
            try:
                self.take(await fetch())
                break
            except OriginFailed as error:
                log.info("the list of %s did not come from the store: %s", self.name, error)
            await asyncio.sleep(0.5 + attempt)
        self._over.set()
