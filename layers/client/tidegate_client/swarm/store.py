"""A file on its way, by pieces: each goes to its offset, and counts only when its digest is right.

After a restart the pieces on the disk are hashed again, so nothing about them needs to be written down. Safe to use
from several threads, except that one thread at a time changes `have`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import threading

from tidegate_client.swarm.layout import DIGEST_BYTES, Layout

CHUNK = 256 * 1024


class StaleFile(Exception):
    """The file was changed since it was verified."""


class Sink:
    """One source's try at one piece. Once closed it writes nothing more, however late its source is."""

    def __init__(self, store: PieceStore, piece: int) -> None:
        self._store = store
        self._piece = piece
        self._lock = threading.Lock()
        self._closed = False
        self._hashed = hashlib.sha256()
        self.received = 0

    def write(self, chunk: bytes | memoryview) -> None:
        with self._lock:
            if self._closed:
                return
            if self.received + len(chunk) > self._store.layout.length(self._piece):
                raise ValueError("more bytes than the piece has")
            self._store.write(self._store.layout.start(self._piece) + self.received, chunk)
            self._hashed.update(chunk)
            self.received += len(chunk)

    def close(self) -> None:
        with self._lock:
            self._closed = True

    def is_right(self) -> bool:
        return self.received == self._store.layout.length(
            self._piece
        ) and self._hashed.digest() == self._store.digest_of(self._piece)


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
