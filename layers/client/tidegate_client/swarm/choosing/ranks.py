"""The order in which hosts go to S3 for a piece: every piece has its own ranking of the ring's members.

The base of piece p is shift + p * n / P; the rank of member i is (i - base) / stride mod n. Shift and stride follow
from the swarm's seed, so every host computes the same rankings, and neighbours in the ring are far apart in them.
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
        """(rank, piece) of every piece for which this member's rank is below the limit, lowest rank first."""
        ranked = ((self.rank(piece), piece) for piece in range(self._pieces))
        return sorted(pair for pair in ranked if pair[0] < limit)
