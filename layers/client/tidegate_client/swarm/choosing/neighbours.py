"""The state of a host's neighbours, and the types in which its decisions are expressed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Link(Enum):
    """The state of a neighbour's port: not tried, connected, refused (not started yet), or no answer at all."""

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
    """How the host fetches: as planned, with neighbours that send too little, with none that answers, or too late."""

    NONE = "none"
    LADDER = "ladder"
    ALONE = "alone"
    DEADLINE = "deadline"


class FellBack(Enum):
    """Why a host took pieces from S3 that its neighbours should have sent, as reported to the API.

    NO_PEERS: the plan names no peer that listens. BAD_PIECES: peers were banned for bad pieces. BROKEN: the swarm did
    not yield the file, as without a valid list of pieces."""

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


# The source S3, where others are indexes of neighbours.
ORIGIN = -1


@dataclass(frozen=True, slots=True)
class Step:
    """Fetch this piece from that neighbour, or from ORIGIN."""

    source: int
    piece: int


@dataclass(slots=True)
class Neighbour:
    """`have` and `fetching` are its announced pieces: those that it has, and those that it is fetching from S3."""

    near: bool = False
    link: Link = Link.NEW
    have: int = 0
    fetching: int = 0
    flights: int = 0
    busy_until: float = 0.0
    stalls: int = 0
    breaks: int = 0
    banned: bool = False
    # Bytes a second of its last piece; None until it has sent one.
    rate: float | None = None

    @property
    def trusted(self) -> bool:
        return not self.banned and not self.stalls
