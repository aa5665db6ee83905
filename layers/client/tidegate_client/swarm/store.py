"""A file on its way, by pieces: each goes to its offset, and counts only when its digest is right.

After a restart the pieces on the disk are hashed again, so nothing about them needs to be written down. Of a piece that
was found in part in an older version only the missing blocks are fetched. Safe to use from several threads, except that
one thread at a time changes `have`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tidegate_client.swarm.blocks import BlockFinder, BlockList, OldFile
from tidegate_client.swarm.layout import DIGEST_BYTES, Layout, pieces_in

CHUNK = 256 * 1024


class StaleFile(Exception):
    """The file was changed since it was verified."""


class Span(NamedTuple):
    """Bytes of a piece that are to be fetched, with the digest (or its beginning) that they must have."""

    offset: int
    length: int
    digest: bytes


class Sink:
    """One source's try at one piece, or at its missing blocks. Once closed it writes nothing more, however late its
    source is. Each span is checked by itself: whoever sent a wrong one is known, whatever others write meanwhile."""

    def __init__(self, store: PieceStore, piece: int, *, whole: bool = False) -> None:
        self._store = store
        self._start = store.layout.start(piece)
        self._spans = store.whole(piece) if whole else store.spans(piece)
        # Parts of the piece were on the disk already, so the whole piece is still to be checked.
        self.partial = sum(span.length for span in self._spans) < store.layout.length(piece)
        self.wanted = sum(span.length for span in self._spans)
        self._lock = threading.Lock()
        self._closed = False
        self._span = 0
        self._filled = 0
        self._hashed = hashlib.sha256()
        self._wrong = False
        self.received = 0

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """Offset and length of what to ask for, in the order in which it is to be written."""
        joined: list[tuple[int, int]] = []
        for span in self._spans:
            if joined and sum(joined[-1]) == span.offset:
                joined[-1] = joined[-1][0], joined[-1][1] + span.length
            else:
                joined.append((span.offset, span.length))
        return joined

    def write(self, chunk: bytes | memoryview) -> None:
        with self._lock:
            if self._closed:
                return
            view = memoryview(chunk)
            if self.received + len(view) > self.wanted:
                raise ValueError("more bytes than were asked for")
            while view:
                span = self._spans[self._span]
                head, view = view[: span.length - self._filled], view[span.length - self._filled :]
                self._store.write(self._start + span.offset + self._filled, head)
                self._hashed.update(head)
                self._filled += len(head)
                self.received += len(head)
                if self._filled == span.length:
                    self._close_span(span)

    def _close_span(self, span: Span) -> None:
        self._wrong |= not self._hashed.digest().startswith(span.digest)
        self._span, self._filled, self._hashed = self._span + 1, 0, hashlib.sha256()

    def close(self) -> None:
        with self._lock:
            self._closed = True

    def is_right(self) -> bool:
        return self.received == self.wanted and not self._wrong


class PieceStore:
    def __init__(self, descriptor: int, layout: Layout, digests: bytes) -> None:
        """Keeps a descriptor of its own, so that it can serve the file after the caller has closed it."""
        self.layout = layout
        self._digests = digests
        self._file = os.dup(descriptor)
        self._users = threading.Lock()
        self.have = 0
        self._whole = hashlib.sha256()
        self._hashed_pieces = 0
        self._hashing = threading.Lock()
        self._seal: tuple[int, int, int] | None = None
        self._blocks: BlockList | None = None
        # Blocks of pieces that are not here as a whole, found in an older version. Bit n is block n.
        self._blocks_here = 0

    @property
    def piece_list(self) -> bytes:
        return self._digests

    def digest_of(self, piece: int) -> bytes:
        return self._digests[piece * DIGEST_BYTES : (piece + 1) * DIGEST_BYTES]

    def take_over(self) -> int:
        """Find the right pieces that are in the file, and make room for the rest: a full disk shows here."""
        size = os.fstat(self._file).st_size
        if size > self.layout.size:
            os.ftruncate(self._file, self.layout.size)
        filled = min(size, self.layout.size)
        for piece in range(self.layout.count):
            if self.layout.start(piece) >= filled:
                break
            if self.on_disk_is_right(piece):
                self.have |= 1 << piece
        self._allocate()
        return self.have

    def whole(self, piece: int) -> list[Span]:
        return [Span(0, self.layout.length(piece), self.digest_of(piece))]

    def spans(self, piece: int) -> list[Span]:
        """What is missing of a piece: its blocks that are not here, or all of it."""
        blocks = self._blocks
        if blocks is None or not any(self._blocks_here >> block & 1 for block in blocks.of_piece(piece)):
            return self.whole(piece)
        start = self.layout.start(piece)
        return [
            Span(blocks.start(block) - start, blocks.length(block), blocks.digest(block))
            for block in blocks.of_piece(piece)
            if not self._blocks_here >> block & 1
        ]

    def missing_bytes(self, piece: int) -> int:
        return sum(span.length for span in self.spans(piece))

    def forget_blocks(self, piece: int) -> None:
        """The piece is wrong although all that was fetched of it is right: next time all of it is fetched."""
        if self._blocks is not None:
            self._blocks_here &= ~sum(1 << block for block in self._blocks.of_piece(piece))

    def reuse(self, old: OldFile, blocks: BlockList, stop: Callable[[], None]) -> int:
        """Copy what an older version has of the missing pieces; answers the bytes. Pieces count if they are right."""
        self._blocks = blocks

        def wanted(block: int) -> bool:
            return not self.have >> (block * blocks.size // self.layout.piece_size) & 1

        copied = 0
        for block, content in BlockFinder(blocks, old, stop).find(wanted):
            self.write(blocks.start(block), content)
            self._blocks_here |= 1 << block
            copied += len(content)
        for piece in range(self.layout.count):
            stop()
            if not self.have >> piece & 1 and not self.spans(piece):
                if self.on_disk_is_right(piece):
                    self.have |= 1 << piece
                else:
                    self.forget_blocks(piece)
        return copied

    def _allocate(self) -> None:
        try:
            os.posix_fallocate(self._file, 0, self.layout.size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            os.ftruncate(self._file, self.layout.size)

    def write(self, offset: int, chunk: bytes | memoryview) -> None:
        view = memoryview(chunk)
        while view:
            written = os.pwrite(self._file, view, offset)
            offset, view = offset + written, view[written:]

    def on_disk_is_right(self, piece: int) -> bool:
        start, left = self.layout.start(piece), self.layout.length(piece)
        hashed = hashlib.sha256()
        while left:
            chunk = os.pread(self._file, min(CHUNK, left), start)
            if not chunk:
                return False
            hashed.update(chunk)
            start, left = start + len(chunk), left - len(chunk)
        return hashed.digest() == self.digest_of(piece)

    def recheck(self) -> int:
        """Hash everything that counted as here; answers the pieces which are no longer right."""
        lost = sum(
            1 << piece
            for piece in range(self.layout.count)
            if self.have >> piece & 1 and not self.on_disk_is_right(piece)
        )
        self.have &= ~lost
        for piece in pieces_in(lost):
            self.forget_blocks(piece)
        with self._hashing:
            self._whole, self._hashed_pieces = hashlib.sha256(), 0
        return lost

    def hash_ahead(self) -> None:
        """Bring the digest of the whole file forward to the first piece that is missing."""
        with self._hashing:
            while self._hashed_pieces < self.layout.count and self.have >> self._hashed_pieces & 1:
                start, left = self.layout.start(self._hashed_pieces), self.layout.length(self._hashed_pieces)
                while left:
                    chunk = os.pread(self._file, min(CHUNK, left), start)
                    if not chunk:
                        raise StaleFile("the part file became shorter")
                    self._whole.update(chunk)
                    start, left = start + len(chunk), left - len(chunk)
                self._hashed_pieces += 1

    def whole_digest(self) -> str:
        self.hash_ahead()
        return self._whole.hexdigest()

    def seal(self) -> None:
        """From now on the file must stay as it is: it has its final name, and others may open it.

        It is opened anew for reading only: a program that is open for writing cannot be started."""
        with self._users:
            writable, self._file = self._file, os.open(f"/proc/self/fd/{self._file}", os.O_RDONLY | os.O_CLOEXEC)
            os.close(writable)
            self._seal = self._looks()

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Its owner gives the file another name, owner or mode, and leaves its bytes alone. Readers wait meanwhile."""
        with self._users:
            yield
            if self._file >= 0 and self._seal is not None:
                self._seal = self._looks()

    def _looks(self) -> tuple[int, int, int]:
        status = os.fstat(self._file)
        return status.st_size, status.st_mtime_ns, status.st_ctime_ns

    def read(self, piece: int, offset: int, length: int) -> bytes:
        """A part of a piece that is here, for a peer or for a local copy."""
        with self._users:
            if self._file < 0 or (self._seal is not None and self._looks() != self._seal):
                raise StaleFile("the file was changed or closed")
            return os.pread(self._file, length, self.layout.start(piece) + offset)

    def close(self) -> None:
        with self._users, contextlib.suppress(OSError):
            descriptor, self._file = self._file, -1
            if descriptor >= 0:
                os.close(descriptor)
