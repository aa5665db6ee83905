"""Bytes whose position is known before their content: a header that holds the size of what follows."""

from __future__ import annotations


class Later(bytearray):
    """A chunk that is yielded empty and filled before the stream of chunks ends.

    `b"".join(chunks)` takes all chunks before it reads their bytes, so it needs no care. A sink that writes chunks as
    they come must hold back a `Later` until `is_filled`.
    """

    is_filled = False

    def fill(self, data: bytes) -> None:
        self += data
        self.is_filled = True


Chunk = bytes | Later
