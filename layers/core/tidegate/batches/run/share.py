"""Which items of a batch belong to which of its runners.

The items are cut into blocks, and a runner of n takes every nth block. So it is known from the start whose an item
is, also while the rows of a file are still being counted; and the batch as a whole goes from its first item to its
last. Each runner counts its own items from 0 on: these are its positions.
"""

from __future__ import annotations

from dataclasses import dataclass

BLOCK_ITEMS = 1000


@dataclass(frozen=True, slots=True)
class Share:
    runner: int = 0
    runners: int = 1
    block: int = BLOCK_ITEMS

    def index(self, position: int) -> int:
        """The item at a position of this runner."""
        block, place = divmod(position, self.block)
        return (block * self.runners + self.runner) * self.block + place

    def below(self, limit: int) -> int:
        """How many of the items before `limit` are this runner's; its position of `limit`, if that is its own."""
        rounds, turn = divmod(limit // self.block, self.runners)
        rest = self.block if turn > self.runner else limit % self.block if turn == self.runner else 0
        return rounds * self.block + rest

    def owns(self, index: int) -> bool:
        return index // self.block % self.runners == self.runner
