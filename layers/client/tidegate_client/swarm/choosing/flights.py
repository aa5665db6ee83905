"""Pieces in flight: from which sources each is being fetched, and since when."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate_client.swarm.choosing.neighbours import ORIGIN, Step


@dataclass(slots=True)
class Flights:
    _by_piece: dict[int, dict[int, float]] = field(default_factory=dict)
    from_origin: int = 0

    def begin(self, step: Step, now: float) -> None:
        self._by_piece.setdefault(step.piece, {})[step.source] = now
        self.from_origin += step.source == ORIGIN

    def end(self, source: int, piece: int) -> float:
        """Removes a flight and returns when it began."""
        flights = self._by_piece[piece]
        began = flights.pop(source)
        if not flights:
            del self._by_piece[piece]
        self.from_origin -= source == ORIGIN
        return began

    def sources(self, piece: int) -> tuple[int, ...]:
        return tuple(self._by_piece.get(piece, ()))

    @property
    def pieces(self) -> int:
        return sum(1 << piece for piece in self._by_piece)

    @property
    def from_origin_pieces(self) -> int:
        return sum(1 << piece for piece, flights in self._by_piece.items() if ORIGIN in flights)

    def began(self) -> list[float]:
        return [began for flights in self._by_piece.values() for began in flights.values()]

    def single(self) -> list[tuple[int, int, float]]:
        """Piece, source and start of every flight that is the only one of its piece."""
        found = (
            (piece, *next(iter(flights.items()))) for piece, flights in self._by_piece.items() if len(flights) == 1
        )
        return list(found)

    def overdue(self, since: float) -> int:
        """Pieces that have been fetched from a single neighbour since before that moment."""
        return sum(1 << piece for piece, source, began in self.single() if source != ORIGIN and began < since)
