"""How a file is cut into pieces, and sets of pieces as integers: bit n is piece n."""

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
        return (1 << self.count) - 1

    @property
    def bitmap_bytes(self) -> int:
        return -(-self.count // 8)

    def start(self, piece: int) -> int:
        return piece * self.piece_size

    def length(self, piece: int) -> int:
        return min(self.piece_size, self.size - self.start(piece))

    def bytes_of(self, pieces: int) -> int:
        last = self.count - 1
        short = self.piece_size - self.length(last) if pieces >> last & 1 else 0
        return pieces.bit_count() * self.piece_size - short


def pieces_in(pieces: int) -> Iterator[int]:
    while pieces:
        lowest = pieces & -pieces
        yield lowest.bit_length() - 1
        pieces ^= lowest
