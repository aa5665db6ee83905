"""Pieces on disk: the part file of a delivery, and unchanged blocks that are found in an older version of the file."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from tidegate_client.swarm.wire import DIGEST_BYTES, Layout, Terms, is_piece_list, pieces_in

# --- blocks
# Finds blocks of a new file in an older version of it, at any offset.
#
# The library lists the blocks of the new file (`tidegate.files.blocks`), each with a probe of 16 bytes and half a
# SHA-256. Blocks are searched in order. Each is expected right behind the one found before; if it is not there, its
# probe is searched around that offset, in a range that grows with the number of missed blocks. So inserted or removed
# bytes cost a search of a few times their length. Every block is verified, so the old file need not be trusted.

BLOCKS_A_PIECE = 16
PROBE_BYTES = 16
BLOCK_DIGEST_BYTES = 16
ENTRY_BYTES = 4 + PROBE_BYTES + BLOCK_DIGEST_BYTES
_NO_PROBE = 0xFFFFFFFF
# Limit of the bytes searched, as a multiple of the new file's size. A normal release needs far less than one.
_SEARCHED_AT_MOST = 8
_MOST_CANDIDATES = 16
_WINDOW = 4 << 20


@dataclass(frozen=True)
class BlockList:
    """The list of a file's blocks, as the library made it."""

    layout: Layout
    entries: bytes

    @property
    def size(self) -> int:
        return block_size(self.layout)

    @property
    def count(self) -> int:
        return block_count(self.layout)

    def start(self, block: int) -> int:
        return block * self.size

    def length(self, block: int) -> int:
        return min(self.size, self.layout.size - self.start(block))

    def digest(self, block: int) -> bytes:
        at = block * ENTRY_BYTES
        return self.entries[at + ENTRY_BYTES - BLOCK_DIGEST_BYTES : at + ENTRY_BYTES]

    def probe(self, block: int) -> tuple[int, bytes] | None:
        """Returns (offset of the probe in the block, bytes of the probe); None if the block has no probe."""
        at = block * ENTRY_BYTES
        offset = int.from_bytes(self.entries[at : at + 4], "big")
        if offset == _NO_PROBE or offset + PROBE_BYTES > self.length(block):
            return None
        return offset, self.entries[at + 4 : at + 4 + PROBE_BYTES]

    def blocks_of(self, piece: int) -> range:
        """Returns the numbers of the blocks of a piece."""
        first = piece * BLOCKS_A_PIECE
        return range(first, min(first + BLOCKS_A_PIECE, self.count))

    def is_right(self, block: int, content: bytes) -> bool:
        """Returns whether the content has the length and the digest of the block."""
        right_length = len(content) == self.length(block)
        return right_length and hashlib.sha256(content).digest()[:BLOCK_DIGEST_BYTES] == self.digest(block)


def block_size(layout: Layout) -> int:
    return layout.piece_size // BLOCKS_A_PIECE


def block_count(layout: Layout) -> int:
    return -(-layout.size // block_size(layout))


class OldFile:
    """An older version of a file, read by offset.

    The file is not memory-mapped, so truncating it causes no SIGBUS."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size

    def read(self, offset: int, length: int) -> bytes:
        if offset < 0 or offset >= self.size:
            return b""
        parts = []
        while length and (part := os.pread(self._descriptor, length, offset)):
            parts.append(part)
            offset, length = offset + len(part), length - len(part)
        return b"".join(parts)


class BlockFinder:
    """Finds blocks of a new file in an older version of the file.

    `stop` is called before each block. It may raise an error to end the search."""

    def __init__(self, blocks: BlockList, old: OldFile, stop: Callable[[], None] = lambda: None) -> None:
        self._blocks = blocks
        self._old = old
        self._stop = stop
        # Offset in the old file minus offset in the new file, of the block found last.
        self._shift = 0
        self._searchable = _SEARCHED_AT_MOST * max(blocks.layout.size, blocks.size)

    def find(self, wanted: Callable[[int], bool]) -> Iterator[tuple[int, bytes]]:
        """Yields the wanted blocks that the old file has, with their content."""
        missed: list[int] = []
        for block in range(self._blocks.count):
            if not wanted(block):
                continue
            self._stop()
            found = self._expected(block)
            if found is None and _is_turn(len(missed)):
                found = self._search(block, len(missed) + 1)
                if found is not None:
                    yield from self._before(block, missed)
            if found is None:
                missed.append(block)
            else:
                missed.clear()
                yield block, found

    def _expected(self, block: int) -> bytes | None:
        return self._at(block, self._blocks.start(block) + self._shift)

    def _at(self, block: int, offset: int) -> bytes | None:
        content = self._old.read(offset, self._blocks.length(block))
        return content if self._blocks.is_right(block, content) else None

    def _before(self, block: int, missed: list[int]) -> Iterator[tuple[int, bytes]]:
        """Yields the missed blocks directly before the block that was just found.

        Ends at the first one that does not precede it in the old file too."""
        for earlier in reversed(missed):
            if earlier != block - 1 or (content := self._expected(earlier)) is None:
                return
            yield earlier, content
            block = earlier

    def _search(self, block: int, misses: int) -> bytes | None:
        probe = self._blocks.probe(block)
        if probe is None:
            return None
        expected = self._blocks.start(block) + self._shift + probe[0]
        around = 4 * misses * self._blocks.size
        candidates = 0
        for first, last in ((expected, expected + around), (expected - around, expected + PROBE_BYTES)):
            for at in self._offsets_of(probe[1], first, last):
                candidates += 1
                content = self._at(block, at - probe[0])
                if content is not None:
                    self._shift = at - probe[0] - self._blocks.start(block)
                    return content
                if candidates >= _MOST_CANDIDATES:
                    return None
        return None

    def _offsets_of(self, probe: bytes, first: int, last: int) -> Iterator[int]:
        first, last = max(0, first), min(last, self._old.size)
        while first < last and self._searchable > 0:
            window = self._old.read(first, min(_WINDOW, last - first))
            self._searchable -= len(window)
            at = window.find(probe)
            while at >= 0:
                yield first + at
                at = window.find(probe, at + 1)
            if len(window) < PROBE_BYTES:
                return
            # Windows overlap, so that a probe across their boundary is found.
            first += len(window) - PROBE_BYTES + 1


def _is_turn(missed: int) -> bool:
    """Returns whether to search for a block after this number of missed blocks in a row.

    Searches after 0 to 7 missed blocks, then after 8, 12, 16, 24, 32 and so on. So a long range of new content costs
    few searches."""
    low = missed & -missed
    return missed < 8 or missed in (low, 3 * low)


# --- store
# The part file of a delivery, piece by piece: each is written at its offset and counts once its SHA-256 is right.
#
# After a restart the pieces on disk are hashed again, so no other state is kept. If parts of a piece were found in an
# older version of the file, only its missing blocks are fetched. Thread-safe, except that only one thread at a time may
# change `have`.

CHUNK = 256 * 1024


class StaleFile(Exception):
    """The file was changed after it was verified."""


class Span(NamedTuple):
    """A range of a piece to fetch. `digest`: the SHA-256 that the range must have, or its first bytes."""

    offset: int
    length: int
    digest: bytes


class Sink:
    """Receives a piece, or its missing blocks, from one source, and verifies each range.

    A source of wrong bytes is thus found even if other sources write to the same piece. A closed sink writes nothing
    more, even if its source still sends bytes."""

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
        """Returns offset and length of each range to request, in the order in which they must be written."""
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
        """Returns whether all bytes were received and every range has its digest."""
        return self.received == self.wanted and not self._wrong


class PieceStore:
    """The file of a delivery, piece by piece: writes, verifies and serves pieces."""

    def __init__(self, descriptor: int, layout: Layout, digests: bytes) -> None:
        """Duplicates the descriptor, so that the file can be served after the caller has closed it."""
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
        """Finds the pieces that the file has already and allocates space for the rest. Returns the pieces found.

        Raises OSError if the disk is too small, before anything is fetched. `stop` is called before each piece and may
        raise an error to give up, because hashing a large part file takes minutes."""
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
        """Returns the missing blocks of a piece. If no block of the piece is on disk, returns the whole piece."""
        blocks = self._blocks
        if blocks is None or not any(self._blocks_here >> block & 1 for block in blocks.blocks_of(piece)):
            return self.whole_piece(piece)
        start = self.layout.start(piece)
        return [
            Span(blocks.start(block) - start, blocks.length(block), blocks.digest(block))
            for block in blocks.blocks_of(piece)
            if not self._blocks_here >> block & 1
        ]

    def missing_bytes(self, piece: int) -> int:
        return sum(span.length for span in self.spans(piece))

    def forget_blocks(self, piece: int) -> None:
        """Makes the next attempt fetch the whole piece.

        Needed when the digest of the piece was wrong, though each fetched block was right."""
        if self._blocks is not None:
            self._blocks_here &= ~sum(1 << block for block in self._blocks.blocks_of(piece))

    def reuse(self, old: OldFile, blocks: BlockList, stop: Callable[[], None]) -> int:
        """Copies blocks of missing pieces from an older version of the file. Returns the number of bytes copied.

        Pieces that become complete are verified. `stop` may raise an error to end the search."""
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
        """Reads the piece from disk and returns whether it has the right SHA-256."""
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
        """Hashes all pieces in `have` again. Removes the pieces that are wrong now from `have`, and returns them."""
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
        """Extends the SHA-256 of the whole file up to its first missing piece.

        Returns at once if another thread is doing so. A thread that waited here could not write or serve pieces
        meanwhile."""
        if self._hashing.acquire(blocking=False):
            try:
                self._hash_next_pieces()
            finally:
                self._hashing.release()

    def whole_digest(self) -> str:
        """Returns the SHA-256 of the file. All pieces of the file must be on disk."""
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
        """Ends writing. From now on, the file is served only while it does not change.

        Call this when the file has its final name. The file is opened again read-only, because the kernel refuses to
        execute a file that is open for writing."""
        with self._users:
            writable, self._file = self._file, os.open(f"/proc/self/fd/{self._file}", os.O_RDONLY | os.O_CLOEXEC)
            os.close(writable)
            self._sealed = self._fingerprint()

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Makes readers wait while the agent itself renames the sealed file or changes its owner or mode."""
        with self._users:
            yield
            if self._file >= 0 and self._sealed is not None:
                self._sealed = self._fingerprint()

    def _fingerprint(self) -> tuple[int, int, int]:
        status = os.fstat(self._file)
        return status.st_size, status.st_mtime_ns, status.st_ctime_ns

    def is_stale(self) -> bool:
        """Returns whether the file is closed, or was changed, replaced or removed since it was sealed."""
        with self._users:
            return self._is_stale()

    def _is_stale(self) -> bool:
        return self._file < 0 or (self._sealed is not None and self._fingerprint() != self._sealed)

    def read(self, piece: int, offset: int, length: int) -> bytes:
        """Returns a part of a piece in `have`. Raises StaleFile if the file was changed or closed."""
        with self._users:
            if self._is_stale():
                raise StaleFile("the file was changed or closed")
            return os.pread(self._file, length, self.layout.start(piece) + offset)

    def close(self) -> None:
        with self._users, contextlib.suppress(OSError):
            descriptor, self._file = self._file, -1
            if descriptor >= 0:
                os.close(descriptor)


# --- local files
# Files that are complete on this host: copied for another container, or served to peers as they are.


def copy_file(store: PieceStore | None, signature: str, file: BinaryIO) -> bool:
    """Copies the file of another delivery.

    Returns False if that file is gone, was changed, or does not have this SHA-256."""
    hashed = hashlib.sha256()
    if store is None:
        return False
    file.seek(0)
    file.truncate()
    try:
        for piece in range(store.layout.count):
            length = store.layout.length(piece)
            for offset in range(0, length, CHUNK):
                chunk = store.read(piece, offset, min(CHUNK, length - offset))
                hashed.update(chunk)
                file.write(chunk)
    except StaleFile:
        return False
    file.flush()
    return hashed.hexdigest() == signature.lower()


def complete_store(file: BinaryIO, terms: Terms) -> PieceStore | None:
    """Returns a store that serves a complete file; None if the file does not have the pieces of the swarm."""
    digests, layout = [], terms.layout
    for piece in range(layout.count):
        hashed, start, left = hashlib.sha256(), layout.start(piece), layout.length(piece)
        while left and (chunk := os.pread(file.fileno(), min(CHUNK, left), start)):
            hashed.update(chunk)
            start, left = start + len(chunk), left - len(chunk)
        digests.append(hashed.digest())
    piece_list = b"".join(digests)
    if not is_piece_list(piece_list, terms):
        return None
    store = PieceStore(file.fileno(), layout, piece_list)
    store.have = layout.everything
    return store
