"""Decides by the journal whether content may replace a file: only if nothing newer was applied to its path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidegate_client.agent.disk.place import Place
from tidegate_client.agent.journal import Applied, Journal
from tidegate_client.agent.refusals import Superseded
from tidegate_client.models import Transfer


@dataclass(frozen=True, slots=True)
class PathOrder:
    """The caller must hold the lock of the path."""

    journal: Journal

    def require_newest(self, transfer: Transfer, place: Place) -> Applied | None:
        """Returns what was applied before. Raises Superseded if that is newer, or may be."""
        applied, sequence = self.journal.applied(place.file), transfer.get("sequence")
        if applied and sequence is not None and applied.sequence > sequence:
            raise superseded(applied)
        self.require_known(transfer, place, applied)
        return applied

    def require_known(self, transfer: Transfer, place: Place, applied: Applied | None) -> None:
        """After the journal was lost, refuses to replace a file that changed after this content was requested."""
        sequence = transfer.get("sequence")
        if applied is not None or sequence is None or sequence >= self.journal.lost_at * 1000:
            return
        if place.changed_at() * 1000 > sequence:
            raise Superseded(
                "the agent's journal was lost, and the file here changed after this content was requested: "
                "redrive the Job if it is to be replaced"
            )

    def apply(self, transfer: Transfer, place: Place, previous: Applied | None, replace: Callable[[], None]) -> None:
        """Records the content in the journal, then calls `replace`.

        In this order, because after a crash before the rename older content must still be refused."""
        sequence = transfer.get("sequence")
        if sequence is None:
            replace()
            return
        wanted = Applied(sequence, transfer["signature"].lower())
        if previous != wanted:
            self.journal.apply(place.file, wanted)
        try:
            replace()
        except OSError:
            if previous != wanted:
                self.journal.apply(place.file, previous)
            raise


def superseded(applied: Applied) -> Superseded:
    return Superseded(
        f"superseded by newer content of this path: sequence {applied.sequence}, SHA-256 {applied.signature}"
    )
