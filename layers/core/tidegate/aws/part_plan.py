"""Plans the parts of one multipart upload from pieces of a file, most of which are S3 objects already.

Every part but the last must have at least 5 MiB, and S3 can copy a part out of an object. So S3 copies large pieces,
and only small ones pass through this function, filled up to 5 MiB with the beginning of the next object.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SMALLEST_PART = 5 * 1024 * 1024
# S3's limit for one upload.
MOST_PARTS = 10_000


@dataclass(frozen=True, slots=True)
class Stored:
    """`size` bytes of an object, from `start` on."""

    key: str
    etag: str
    size: int
    start: int = 0

    def head(self, count: int) -> Stored:
        """The first `count` of these bytes."""
        return Stored(self.key, self.etag, count, self.start)

    def rest(self, count: int) -> Stored:
        """These bytes without the first `count`."""
        return Stored(self.key, self.etag, self.size - count, self.start + count)


Piece = bytes | Stored


@dataclass(frozen=True, slots=True)
class Part:
    """Either bytes of one object, which S3 copies, or pieces that this function sends."""

    pieces: tuple[Piece, ...]
    copied: bool

    @property
    def size(self) -> int:
        return sum(map(size_of, self.pieces))


def size_of(piece: Piece) -> int:
    return piece.size if isinstance(piece, Stored) else len(piece)


def plan_parts(pieces: Iterable[Piece], smallest: int | None = None) -> list[Part]:
    """The parts in order. No part that this function sends is larger than twice the smallest size plus one piece."""
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
        raise ValueError(f"the file would have {len(parts):,} parts, but S3 accepts {MOST_PARTS:,}: use larger pieces")
    return parts
