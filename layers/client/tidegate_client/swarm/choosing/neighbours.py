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
    """How far the host is from normal: as planned, its neighbours send too little, none answers, or time is short."""

    NONE = "none"
    LADDER = "ladder"
    ALONE = "alone"
    DEADLINE = "deadline"


class FellBack(Enum):
    """Why a host took from S3 what its neighbours should have given, as the API is told.

    The last three: the plan names no peer that listens; peers sent bad pieces and were asked no more; the swarm did not
    yield the file (no list of pieces, or a wrong one)."""

    NONE = "none"
    LADDER = "ladder"
    ALONE = "alone"
    DEADLINE = "deadline"
    NO_PEERS = "no_peers"
    BAD_PIECES = "bad_pieces"
    BROKEN = "broken"


def why_fell_back(mode: Mode, *, peers: int, bad_pieces: int) -> FellBack:
    if mode is Mode.NONE:
        return FellBack.NONE
    if not peers:
        return FellBack.NO_PEERS
    if mode is not Mode.DEADLINE and bad_pieces:
        return FellBack.BAD_PIECES
    return FellBack(mode.value)


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
