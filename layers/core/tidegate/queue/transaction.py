"""The parts of the transaction that moves a request, and the error that names the parts that were refused."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.errors import Conflict

REQUEST, CHANNEL, STANDING, SLOT = "request", "channel", "standing", "slot"
MUTEX, PLACE, QUOTA, OTHER = "mutex", "place", "quota", "other"


class Refused(Conflict):
    """The conditions of these parts of a move's transaction failed: their items have changed."""

    def __init__(self, parts: Iterable[str]) -> None:
        self.parts = frozenset(parts)
        super().__init__(f"refused by: {', '.join(sorted(self.parts))}")
