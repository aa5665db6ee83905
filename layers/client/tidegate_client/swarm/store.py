"""The part file of a delivery, piece by piece: each is written at its offset and counts once its SHA-256 is right.

After a restart the pieces on disk are hashed again, so no other state is kept. If parts of a piece were found in an
older version of the file, only its missing blocks are fetched. Thread-safe, except that only one thread at a time may
change `have`.
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
    """Bytes of a piece to fetch, and the SHA-256 (or its first bytes) that they must have."""

    offset: int
    length: int
    digest: bytes


class Sink:
    """Receives a piece, or its missing blocks, from one source, and verifies each span by itself.

    So a source that sends wrong bytes is identified even if others write to the same piece. Once closed, a sink writes
    nothing more, however late its source is."""

    def __init__(self, store: PieceStore, piece: int, *, whole: bool = False) -> None:
        self._store = store
        self._start = store.layout.start(piece)
        self._spans = store.whole_piece(piece) if whole else store.spans(piece)
        # Some blocks were on disk already, so the whole piece must still be verified.
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
        """Offset and length of each range to request, in the order in which they must be written."""
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
        """True if all bytes were received and every span has its digest."""
        return self.received == self.wanted and not self._wrong


class PieceStore:
    def __init__(self, descriptor: int, layout: Layout, digests: bytes) -> None:
        """Duplicates the descriptor, so that it can serve the file after the caller has closed it."""
        self.layout = layout
        self._digests = digests
        self._file = os.dup(descriptor)
        self._users = threading.Lock()
        self.have = 0
        self._whole = hashlib.sha256()
        self._hashed_pieces = 0
        self._hashing = threading.Lock()
        # The fingerprint of the published file; None while it is still a part file.
        self._sealed: tuple[int, int, int] | None = None
        self._blocks: BlockList | None = None
        # Blocks found in an older version, of pieces that are not complete. Bit n is block n.
        self._blocks_here = 0

    @property
    def piece_list(self) -> bytes:
        return self._digests

    def digest_of(self, piece: int) -> bytes:
        return self._digests[piece * DIGEST_BYTES : (piece + 1) * DIGEST_BYTES]

    def load_existing(self, stop: Callable[[], None] = lambda: None) -> int:
        """Finds the pieces that are in the file already, and allocates the rest. Returns the set of pieces.

        Raises OSError here if the disk is too small, before anything is fetched. `stop` is called before each piece;
        it raises to end the search, since a large part file takes minutes to hash."""
        size = os.fstat(self._file).st_size
        if size > self.layout.size:
            os.ftruncate(self._file, self.layout.size)
        filled = min(size, self.layout.size)
        for piece in range(self.layout.count):
            if self.layout.start(piece) >= filled:
                break
            stop()
            if self.is_right_on_disk(piece):
                self.have |= 1 << piece
        self._allocate()
        return self.have

    def whole_piece(self, piece: int) -> list[Span]:
        return [Span(0, self.layout.length(piece), self.digest_of(piece))]

    def spans(self, piece: int) -> list[Span]:
        """The missing blocks of a piece; the whole piece if none of its blocks is here."""
        blocks = self._blocks
        if blocks is None or not any(self._blocks_here >> block & 1 for block in blocks.of_piece(piece)):
            return self.whole_piece(piece)
        start = self.layout.start(piece)
        return [
            Span(blocks.start(block) - start, blocks.length(block), blocks.digest(block))
            for block in blocks.of_piece(piece)
            if not self._blocks_here >> block & 1
        ]

    def missing_bytes(self, piece: int) -> int:
        return sum(span.length for span in self.spans(piece))

    def forget_blocks(self, piece: int) -> None:
        """Makes the next attempt fetch the whole piece: it was wrong although all fetched blocks were right."""
        if self._blocks is not None:
            self._blocks_here &= ~sum(1 << block for block in self._blocks.of_piece(piece))

    def reuse(self, old: OldFile, blocks: BlockList, stop: Callable[[], None]) -> int:
        """Copies the blocks of missing pieces that an older version of the file has. Returns the bytes copied.

        Pieces that are complete then are verified. `stop` raises to end the search."""
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
                if self.is_right_on_disk(piece):
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

    def is_right_on_disk(self, piece: int) -> bool:
        """Reads the piece from disk and compares its SHA-256."""
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
        """Hashes all pieces in `have` again. Returns those that are wrong now, which are no longer in `have`."""
        lost = sum(
            1 << piece
            for piece in range(self.layout.count)
            if self.have >> piece & 1 and not self.is_right_on_disk(piece)
        )
        self.have &= ~lost
        for piece in pieces_in(lost):
            self.forget_blocks(piece)
        with self._hashing:
            self._whole, self._hashed_pieces = hashlib.sha256(), 0
        return lost

    def hash_ahead(self) -> None:
        """Advances the SHA-256 of the whole file to its first missing piece. Returns at once if a thread does so now.

        Threads that waited for each other here could not write or serve pieces meanwhile."""
        if self._hashing.acquire(blocking=False):
            try:
                self._hash_next_pieces()
            finally:
                self._hashing.release()

    def whole_digest(self) -> str:
        """The SHA-256 of the file, all of whose pieces are here."""
        with self._hashing:
            self._hash_next_pieces()
            return self._whole.hexdigest()

    def _hash_next_pieces(self) -> None:
        while self._hashed_pieces < self.layout.count and self.have >> self._hashed_pieces & 1:
            start, left = self.layout.start(self._hashed_pieces), self.layout.length(self._hashed_pieces)
            while left:
                chunk = os.pread(self._file, min(CHUNK, left), start)
                if not chunk:
                    raise StaleFile("the part file became shorter")
                self._whole.update(chunk)
                start, left = start + len(chunk), left - len(chunk)
            self._hashed_pieces += 1

    def seal(self) -> None:
        """Call it when the file has its final name. From then on it is served only while it does not change.

        The file is opened again read-only: the kernel refuses to execute a file that is open for writing."""
        with self._users:
            writable, self._file = self._file, os.open(f"/proc/self/fd/{self._file}", os.O_RDONLY | os.O_CLOEXEC)
            os.close(writable)
            self._sealed = self._fingerprint()

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """While the agent itself renames the sealed file or changes its owner or mode. Readers wait meanwhile."""
        with self._users:
            yield
            if self._file >= 0 and self._sealed is not None:
                self._sealed = self._fingerprint()

    def _fingerprint(self) -> tuple[int, int, int]:
        status = os.fstat(self._file)
        return status.st_size, status.st_mtime_ns, status.st_ctime_ns

    def is_stale(self) -> bool:
        """True if the file is closed, or was changed, replaced or removed since it was sealed."""
        with self._users:
            return self._is_stale()

    def _is_stale(self) -> bool:
        return self._file < 0 or (self._sealed is not None and self._fingerprint() != self._sealed)

    def read(self, piece: int, offset: int, length: int) -> bytes:
        """A part of a piece in `have`. Raises StaleFile if the file was changed or closed."""
        with self._users:
            if self._is_stale():
                raise StaleFile("the file was changed or closed")
            return os.pread(self._file, length, self.layout.start(piece) + offset)

    def close(self) -> None:
        with self._users, contextlib.suppress(OSError):
            descriptor, self._file = self._file, -1
            if descriptor >= 0:
                os.close(descriptor)
