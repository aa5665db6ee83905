"""The parts of the transaction that moves a request, and the refusal that names those that met another state."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.errors import Conflict

REQUEST, CHANNEL, STANDING, SLOT = "request", "channel", "standing", "slot"
MUTEX, PLACE, OTHER = "mutex", "place", "other"


class Refused(Conflict):
    """A move met another state than it expected, in these parts of its transaction."""

    def __init__(self, parts: Iterable[str]) -> None:
        self.parts = frozenset(parts)
        super().__init__(f"refused by: {', '.join(sorted(self.parts))}")
