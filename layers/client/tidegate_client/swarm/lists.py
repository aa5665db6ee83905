"""The lists that describe a file: one of its pieces, one of its blocks.

They are too large for every host to fetch them from S3: 180 KB for each of 10,000 hosts are 1.8 GB. So a host asks its
neighbours, and S3 only if none of them has the list. A list must have the SHA-256 that the transfer names.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable

from tidegate_client.errors import TransferError
from tidegate_client.swarm.origin import OriginFailed
from tidegate_client.swarm.peers import Broken, Peer

log = logging.getLogger("tidegate.agent")

# For an optional list.
_ATTEMPTS = 4
_LONGEST_PAUSE = 8.0


class SharedList:
    """`name` is its path on a peer's port. A delivery can do without an `optional` list."""

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
        """Returns True once the search has ended, whether the list was found or not; False after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            return False
        return True

    def take(self, content: bytes) -> None:
        """Accepts the content if it has the right SHA-256."""
        if self.is_wanted and hashlib.sha256(content).hexdigest() == self._sha256:
            self.content = content
            self._over.set()

    async def ask(self, peer: Peer) -> None:
        async with peer.connection() as connection:
            status, length = await peer.get(connection, self.name)
            if status != 200 or length != self.length:
                if length:
                    raise Broken(f"the peer's list of {self.name} has {length} bytes instead of {self.length}")
                return
            content = b"".join([bytes(chunk) async for chunk in connection.body(self.length)])
        self.take(content)

    async def find(self, rank: int, fetch: Callable[[], Awaitable[bytes]]) -> None:
        """Fetches the list from S3 unless a neighbour sends it first. Hosts of low rank start first.

        While S3 is down, a list that is not optional is retried until the session gives up: without it the swarm ends,
        and the pieces in the part file would be lost."""
        await asyncio.sleep(0.3 if rank < 2 else 0.3 + min(3.0, 0.5 + 0.02 * rank))
        attempts = 0
        while self.is_wanted:
            try:
                self.take(await fetch())
                break
            except OriginFailed as error:
                log.info("fetching the list of %s from S3 failed: %s", self.name, error)
            except TransferError as error:
                log.warning("the list of %s cannot be fetched from S3: %s", self.name, error)
                break
            attempts += 1
            if self.optional and attempts >= _ATTEMPTS:
                break
            await asyncio.sleep(min(_LONGEST_PAUSE, attempts - 0.5))
        self._over.set()
