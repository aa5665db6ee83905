"""Which items of a batch belong to which of its runners.

The items are divided into blocks, and each of n runners takes every nth block. So the owner of an item is known even
while the rows of a file are still being counted, and the batch as a whole proceeds from its first item to its last.
Each runner numbers its own items from 0: these numbers are called positions.
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
        """Returns the index of the item at this runner's position."""
        block, place = divmod(position, self.block)
        return (block * self.runners + self.runner) * self.block + place

    def below(self, limit: int) -> int:
        """Returns how many items before index `limit` are this runner's. If it owns `limit`, that is its position."""
        rounds, turn = divmod(limit // self.block, self.runners)
        rest = self.block if turn > self.runner else limit % self.block if turn == self.runner else 0
        return rounds * self.block + rest

    def owns(self, index: int) -> bool:
        return index // self.block % self.runners == self.runner
