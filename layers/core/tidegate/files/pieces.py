"""Pieces: the units in which hosts send a file to each other, each with its own SHA-256.

The list of a file's pieces is just their digests in order, 32 bytes each. The file size and the piece size give their
number.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from tidegate.files.blocks import BlockDigests

MIB = 1 << 20
SMALLEST_PIECE, LARGEST_PIECE = MIB, 16 * MIB
DIGEST_BYTES = 32
# Smaller files come from S3 only: a swarm would be slower.
SMALLEST_FILE = 8 * MIB
_WANTED_PIECES = 512
# Files above 64 GiB have pieces of more than 16 MiB, so that bitmaps and lists stay small.
_MOST_PIECES = 4096


def piece_size(size: int) -> int:
    """The power of two from 1 MiB to 16 MiB that gives about 256 to 512 pieces; larger for files above 64 GiB."""
    wanted = _power_of_two(-(-size // _WANTED_PIECES))
    needed = _power_of_two(-(-size // _MOST_PIECES))
    return max(needed, min(LARGEST_PIECE, max(SMALLEST_PIECE, wanted)))


def piece_count(size: int, piece: int) -> int:
    return -(-size // piece)


def pieces_object(project_id: str, signature: str) -> str:
    """The object key of a content's list of pieces."""
    return f"pieces/{project_id}/{signature}"


def blocks_object(project_id: str, signature: str) -> str:
    """The object key of a content's list of blocks, which hosts with an older version of the file use."""
    return f"pieces/{project_id}/{signature}.blocks"


def _power_of_two(at_least: int) -> int:
    return 1 << max(0, at_least - 1).bit_length()


class PieceList(NamedTuple):
    """`digests` is the list of pieces, `blocks` the list of the blocks within them."""

    piece_size: int
    digests: bytes
    blocks: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.digests).hexdigest()

    @property
    def blocks_sha256(self) -> str:
        return hashlib.sha256(self.blocks).hexdigest()

    def objects(self, project_id: str, signature: str) -> dict[str, bytes]:
        """The objects to store, by key."""
        return {
            pieces_object(project_id, signature): self.digests,
            blocks_object(project_id, signature): self.blocks,
        }


class PieceDigests:
    """Makes the lists of a file's pieces and blocks. Feed it the whole file in order, in chunks of any length."""

    def __init__(self, size: int, digests: bytes = b"", blocks: bytes = b"") -> None:
        """`digests` and `blocks` are the lists of the pieces that were read before: `update` goes on with the next."""
        self.piece_size = piece_size(size)
        self._digests = [digests]
        self._hashed = hashlib.sha256()
        self._room = self.piece_size
        self._blocks = BlockDigests(self.piece_size, blocks)

    def update(self, chunk: bytes) -> None:
        self._blocks.update(chunk)
        view = memoryview(chunk)
        while view:
            head, view = view[: self._room], view[self._room :]
            self._hashed.update(head)
            self._room -= len(head)
            if not self._room:
                self._close()

    def _close(self) -> None:
        self._digests.append(self._hashed.digest())
        self._hashed = hashlib.sha256()
        self._room = self.piece_size

    @property
    def between_pieces(self) -> bool:
        return self._room == self.piece_size

    def finish(self) -> PieceList:
        """The lists of what came so far. More may follow if it ended `between_pieces`."""
        if not self.between_pieces:
            self._close()
        return PieceList(self.piece_size, b"".join(self._digests), self._blocks.finish())
