"""Blocks: the units in which a host finds a new file in an older version that it has.

A piece has 16 blocks. The list of a file's blocks has one entry of 36 bytes each: where the block's probe lies in it
(4 bytes), the probe (16 bytes of its content), and the first half of its SHA-256. A host looks for the probe in its old
file, at any offset, and compares the digest: what was inserted or removed before it does not matter. The probe has the
part of rsync's weak checksum, and is found by a search for bytes instead of a sum that is rolled over every offset.
"""

from __future__ import annotations

import hashlib

BLOCKS_A_PIECE = 16
PROBE_BYTES = 16
DIGEST_BYTES = 16
ENTRY_BYTES = 4 + PROBE_BYTES + DIGEST_BYTES
NO_PROBE = b"\xff" * 4 + bytes(PROBE_BYTES)
# A probe is worth a search if it is no run of one byte: it has this many different ones.
_DIFFERENT = 6
_STEP = 512


class BlockDigests:
    """Fed with a file from its first byte to its last, in chunks of any length; gives the list of its blocks."""

    def __init__(self, piece_size: int) -> None:
        self._size = piece_size // BLOCKS_A_PIECE
        self._entries: list[bytes] = []
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
        block = bytes(self._block)
        self._entries.append(_probe(block) + hashlib.sha256(block).digest()[:DIGEST_BYTES])
        self._block.clear()

    def finish(self) -> bytes:
        """Called once, after the last chunk."""
        if self._block:
            self._close()
        return b"".join(self._entries)


def _probe(block: bytes) -> bytes:
    for at in range(0, len(block) - PROBE_BYTES + 1, _STEP):
        probe = block[at : at + PROBE_BYTES]
        if len(set(probe)) >= _DIFFERENT:
            return at.to_bytes(4) + probe
    return NO_PROBE
