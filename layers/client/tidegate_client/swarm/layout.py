"""How a file is divided into pieces. A set of pieces is an integer in which bit n stands for piece n."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Layout:
    size: int
    piece_size: int

    @property
    def count(self) -> int:
        return -(-self.size // self.piece_size)

    @property
    def everything(self) -> int:
        """The set of all pieces."""
        return (1 << self.count) - 1

    @property
    def bitmap_bytes(self) -> int:
        return -(-self.count // 8)

    def start(self, piece: int) -> int:
        return piece * self.piece_size

    def length(self, piece: int) -> int:
        return min(self.piece_size, self.size - self.start(piece))

    def bytes_of(self, pieces: int) -> int:
        """The number of bytes in a set of pieces. Only the last piece may be shorter than the others."""
        last = self.count - 1
        short = self.piece_size - self.length(last) if pieces >> last & 1 else 0
        return pieces.bit_count() * self.piece_size - short


def pieces_in(pieces: int) -> Iterator[int]:
    """The numbers of the pieces in a set, lowest first."""
    while pieces:
        lowest = pieces & -pieces
        yield lowest.bit_length() - 1
        pieces ^= lowest
