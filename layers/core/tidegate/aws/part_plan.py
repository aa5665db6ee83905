"""Plans the parts of one multipart upload from pieces of a file, most of which are S3 objects already.

S3 takes parts of at least 5 MiB, but the last, and can copy a part out of an object. So large pieces are copied
where they lie, and only what is too small goes through this machine: together with the head of the next object,
of which as much is borrowed as is lacking.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SMALLEST_PART = 5 * 1024 * 1024
# S3 numbers parts up to 10,000.
MOST_PARTS = 10_000


@dataclass(frozen=True, slots=True)
class Stored:
    """Bytes of an object, from `start` on."""

    key: str
    etag: str
    size: int
    start: int = 0

    def head(self, count: int) -> Stored:
        return Stored(self.key, self.etag, count, self.start)

    def rest(self, count: int) -> Stored:
        return Stored(self.key, self.etag, self.size - count, self.start + count)


Piece = bytes | Stored


@dataclass(frozen=True, slots=True)
class Part:
    """Either one object's bytes, to be copied on S3, or pieces to be sent from here."""

    pieces: tuple[Piece, ...]
    copied: bool

    @property
    def size(self) -> int:
        return sum(map(size_of, self.pieces))


def size_of(piece: Piece) -> int:
    return piece.size if isinstance(piece, Stored) else len(piece)


def plan_parts(pieces: Iterable[Piece], smallest: int | None = None) -> list[Part]:
    """At most two parts' worth of bytes are held for any part that is sent."""
    smallest = SMALLEST_PART if smallest is None else smallest
    parts: list[Part] = []
    held: list[Piece] = []
    holding = 0

    def send() -> None:
        nonlocal held, holding
        parts.append(Part(tuple(held), copied=False))
        held, holding = [], 0

    for piece in pieces:
        size = size_of(piece)
        if not size:
            continue
        lacking = smallest - holding
        if isinstance(piece, Stored) and size >= smallest and not held:
            parts.append(Part((piece,), copied=True))
        elif isinstance(piece, Stored) and held and size - lacking >= smallest:
            held.append(piece.head(lacking))
            send()
            parts.append(Part((piece.rest(lacking),), copied=True))
        else:
            held.append(piece)
            holding += size
            if holding >= smallest:
                send()
    if held:
        send()
    if len(parts) > MOST_PARTS:
        raise ValueError(f"{len(parts)} parts; S3 takes {MOST_PARTS}")
    return parts
