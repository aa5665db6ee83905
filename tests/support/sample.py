"""How much of a long series a run takes: `make test` a sample of it, EVERY_POINT=1 (`make faults-all`) all."""

from __future__ import annotations

import os

EVERY_POINT = os.environ.get("EVERY_POINT") == "1"


def step(of: int) -> int:
    """1 where every point is wanted, else `of`: one point in so many."""
    return 1 if EVERY_POINT else of


def count(everything: int, sample: int) -> int:
    return everything if EVERY_POINT else sample
