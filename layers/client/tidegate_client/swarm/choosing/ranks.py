"""Whose turn it is to bring a piece from S3: every piece has its own ranking of the ring's members.

Base of piece p: shift + p · n / P; rank of member i: (i - base) / stride mod n. Shift and stride follow from the seed,
so that every host computes the same rankings, and neighbours in the ring are not neighbours in a ranking.
"""

from __future__ import annotations

import math


class Ranks:
    def __init__(self, number: int, members: int, seed: int, pieces: int) -> None:
        self._number, self._members, self._pieces = number, members, pieces
        self._shift = seed % members
        stride = 1 + (seed // members) % members
        while math.gcd(stride, members) != 1:
            stride = stride % members + 1
        self._inverse = pow(stride, -1, members) if members > 1 else 0

    def rank(self, piece: int) -> int:
        base = self._shift + piece * self._members // self._pieces
        return (self._number - base) * self._inverse % self._members

    def below(self, limit: int) -> list[tuple[int, int]]:
        """(rank, piece) of every piece for which this member ranks below the limit, best first."""
        ranked = ((self.rank(piece), piece) for piece in range(self._pieces))
        return sorted(pair for pair in ranked if pair[0] < limit)
