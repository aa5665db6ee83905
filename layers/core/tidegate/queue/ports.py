"""What the services of the queue ask of the outside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tidegate.errors import Conflict
from tidegate.queue.model import Request

REQUEST, CHANNEL, STANDING, SLOT = "request", "channel", "standing", "slot"
MUTEX, PLACE, OTHER = "mutex", "place", "other"

View = Callable[[Request], dict[str, Any]]
# What else is written when a request of a type ends, however it ends.
Ending = Callable[[Request], Sequence[Any]]


class Refused(Conflict):
    """A move met another state than it expected, in these parts of its transaction."""

    def __init__(self, parts: Iterable[str]) -> None:
        self.parts = frozenset(parts)
        super().__init__(f"refused by: {', '.join(sorted(self.parts))}")
