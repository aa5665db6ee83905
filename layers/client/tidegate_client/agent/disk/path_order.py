"""Which content may take a path: the newest that was asked for, by the journal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidegate_client.agent.disk.place import Place
from tidegate_client.agent.journal import Applied, Journal
from tidegate_client.agent.refusals import Superseded
from tidegate_client.models import Transfer


@dataclass(frozen=True, slots=True)
class PathOrder:
    """The caller holds the path's lock."""

    journal: Journal

    def require_newest(self, transfer: Transfer, place: Place) -> Applied | None:
        """What was applied before. Raises Superseded if that is newer, or may be."""
        applied, sequence = self.journal.applied(place.file), transfer.get("sequence")
        if applied and sequence is not None and applied.sequence > sequence:
            raise superseded(applied)
        self.require_known(transfer, place, applied)
        return applied

    def require_known(self, transfer: Transfer, place: Place, applied: Applied | None) -> None:
        """After the journal was lost: a file that changed since this content was asked for may be newer than it."""
        sequence = transfer.get("sequence")
        if applied is not None or sequence is None or sequence >= self.journal.lost_at * 1000:
            return
        if place.changed_at() * 1000 > sequence:
            raise Superseded(
                "the agent's journal was lost, and the file here changed after this content was asked for: "
                "redrive the Job if it is to be replaced"
            )

    def apply(self, transfer: Transfer, place: Place, previous: Applied | None, put: Callable[[], None]) -> None:
        """The journal first: a crash before the rename must not let an older content in afterwards."""
        sequence = transfer.get("sequence")
        if sequence is None:
            put()
            return
        wanted = Applied(sequence, transfer["signature"].lower())
        if previous != wanted:
            self.journal.apply(place.file, wanted)
        try:
            put()
        except OSError:
            if previous != wanted:
                self.journal.apply(place.file, previous)
            raise


def superseded(applied: Applied) -> Superseded:
    return Superseded(f"superseded by sequence {applied.sequence}, SHA-256 {applied.signature}")
