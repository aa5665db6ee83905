"""A deliberate bug in the product."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """`old` occurs once in `file` and becomes `new`; one of `tests` must fail then."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


D = "layers/core/tidegate/distribution"
Q = "layers/core/tidegate/queue"
A = "layers/core/tidegate/aws"
N = "layers/core/tidegate/notifications"
C = "layers/core/tidegate/compensation"
AGENT = "layers/client/tidegate_client/agent"
RACES = "tests/faults/test_two_writers.py"
MODES = "tests/faults/test_modes.py"
IT = "tests/integration"
