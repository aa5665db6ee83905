"""Bytes whose position is known before their content: a header that holds the size of what follows."""

from __future__ import annotations


class Later(bytearray):
    """Handed out empty and filled in before the stream of chunks ends. What has been joined by then is whole:

    `b"".join(chunks)` takes all chunks before it looks at their bytes. A sink that writes as it goes waits for
    `is_filled`.
    """

    is_filled = False

    def fill(self, data: bytes) -> None:
        self += data
        self.is_filled = True


Chunk = bytes | Later
