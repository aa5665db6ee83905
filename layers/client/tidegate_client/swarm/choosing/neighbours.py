"""What a host knows of its neighbours, and the words in which it decides."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Link(Enum):
    """What is known of a neighbour's port: not tried, connected, refused (not started yet), or no answer at all."""

    NEW = "new"
    UP = "up"
    REFUSED = "refused"
    SILENT = "silent"


class Failure(Enum):
    BUSY = "busy"
    MISSING = "missing"
    BAD = "bad"
    STALLED = "stalled"
    BROKEN = "broken"


class Mode(Enum):
    """How far the host is from normal; the worst that it came to is reported."""

    NONE = "none"
    LADDER = "ladder"
    ALONE = "alone"
    DEADLINE = "deadline"


ORIGIN = -1


@dataclass(frozen=True, slots=True)
class Step:
    """Fetch this piece from that neighbour, or from ORIGIN."""

    source: int
    piece: int


@dataclass(slots=True)
class Neighbour:
    near: bool = False
    link: Link = Link.NEW
    have: int = 0
    bringing: int = 0
    flights: int = 0
    busy_until: float = 0.0
    stalls: int = 0
    breaks: int = 0
    shunned: bool = False
    rate: float | None = None

    @property
    def trusted(self) -> bool:
        return not self.shunned and not self.stalls
