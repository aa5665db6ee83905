"""How many points of a long series a run tests: a sample in `make test`, all with EVERY_POINT=1 (`make faults-all`)."""

from __future__ import annotations

import os

EVERY_POINT = os.environ.get("EVERY_POINT") == "1"


def step(of: int) -> int:
    """Returns the distance between tested points: 1 with EVERY_POINT=1, else `of`."""
    return 1 if EVERY_POINT else of


def count(everything: int, sample: int) -> int:
    return everything if EVERY_POINT else sample
