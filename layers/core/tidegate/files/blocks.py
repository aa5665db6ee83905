"""Blocks: the units of a new file that a host looks for in an older version of it.

A piece has 16 blocks. The list of a file's blocks has one entry of 36 bytes for each: the offset of the block's probe
in the block (4 bytes), the probe (16 bytes of its content), and the first half of the block's SHA-256. A host searches
its old file for the probe, at any offset, and then compares the digest. So bytes that were inserted or removed before a
block do not matter. The probe takes the place of rsync's weak checksum: in Python, a search for bytes is faster than a
rolling checksum.
"""

from __future__ import annotations

import hashlib

BLOCKS_A_PIECE = 16
PROBE_BYTES = 16
DIGEST_BYTES = 16
ENTRY_BYTES = 4 + PROBE_BYTES + DIGEST_BYTES
NO_PROBE = b"\xff" * 4 + bytes(PROBE_BYTES)
# A probe must have this many different byte values: a run of one byte would be found in many places.
_DIFFERENT = 6
_STEP = 512


class BlockDigests:
    """Makes the list of a file's blocks. Feed it the whole file in order, in chunks of any length."""

    def __init__(self, piece_size: int, entries: bytes = b"") -> None:
        """`entries` are those of the blocks that were read before: `update` goes on with the next block."""
        self._size = piece_size // BLOCKS_A_PIECE
        self._entries = [entries]
        self._block = bytearray()

    def update(self, chunk: bytes | memoryview) -> None:
        view = memoryview(chunk)
        while view:
            room = self._size - len(self._block)
            self._block += view[:room]
            view = view[room:]
            if len(self._block) == self._size:
                self._close()

    def _close(self) -> None:
        # Not copied: a block of a file of 5 TiB has 128 MiB.
        self._entries.append(_probe(self._block) + hashlib.sha256(self._block).digest()[:DIGEST_BYTES])
        self._block.clear()

    def finish(self) -> bytes:
        """The list of what came so far. More may follow if it ended with a block."""
        if self._block:
            self._close()
        return b"".join(self._entries)


def _probe(block: bytearray) -> bytes:
    """The offset and the bytes of the first suitable probe; NO_PROBE if the block has none."""
    for at in range(0, len(block) - PROBE_BYTES + 1, _STEP):
        probe = block[at : at + PROBE_BYTES]
        if len(set(probe)) >= _DIFFERENT:
            return at.to_bytes(4) + bytes(probe)
    return NO_PROBE
