"""The place of one file: its open directory, the part file beside it, and the rename that publishes it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from tidegate_client.agent.disk.directories import opened_beneath, resolve_inside
from tidegate_client.agent.disk.owners import Owner, require_chown, set_owner
from tidegate_client.agent.disk.permits import Permits
from tidegate_client.agent.refusals import RefusedPath
from tidegate_client.content import sha256_of_stream
from tidegate_client.download import Cancelled

# O_NONBLOCK: a FIFO or a lease that another user put here must not block the agent.
OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
MOST_OPENS = 100
LOCK_EVERY = 0.05
DEFAULT_MODE = 0o644
PERMISSIONS = 0o777


@dataclass(frozen=True, slots=True)
class Place:
    directory: int
    path: Path
    name: str
    owner: Owner

    @property
    def file(self) -> Path:
        return self.path / self.name

    def part_name(self, *salt: str) -> str:
        """The hidden name of the part file: the same after a restart and for the next transfer of this content."""
        return self.hidden_name(*salt, suffix="part")

    def hidden_name(self, *salt: str, suffix: str) -> str:
        """A hidden name that is short, however long the file's name is."""
        return f".tidegate-{hashlib.sha256('/'.join((self.name, *salt)).encode()).hexdigest()[:24]}.{suffix}"

    def open_part(self, part: str, cancelled: Callable[[], bool] = lambda: False) -> BinaryIO:
        """Opens and locks the part file. Another transfer of the same content to the same place waits for the lock.

        The directory may belong to another user, who can put a file of their own here and lock it. So only a file of
        the agent's own is locked, and never with a call that blocks."""
        for _ in range(MOST_OPENS):
            try:
                descriptor = os.open(part, os.O_RDWR | os.O_CREAT | OPEN, 0o600, dir_fd=self.directory)
            except BlockingIOError:
                # A lease of another user: only a file's owner can hold one, and the agent takes none.
                self.drop_part(part)
                continue
            file = os.fdopen(descriptor, "r+b")
            try:
                if not is_plain(file, os.geteuid()):
                    self.drop_part(part)
                elif self._locked(part, file, cancelled):
                    return file
            except BaseException:
                file.close()
                raise
            file.close()
        raise RefusedPath(f"another process keeps replacing {part} in the target directory")

    def _locked(self, part: str, file: BinaryIO, cancelled: Callable[[], bool]) -> bool:
        """Locks the part file. False if it was renamed or removed meanwhile by the transfer that held the lock."""
        while self.is_still(part, file):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if cancelled():
                    raise Cancelled from None
                time.sleep(LOCK_EVERY)
                continue
            return self.is_still(part, file) and is_plain(file, os.geteuid())
        return False

    def is_still(self, name: str, file: BinaryIO) -> bool:
        try:
            found = os.stat(name, dir_fd=self.directory, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(found, os.fstat(file.fileno()))

    def drop_part(self, part: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part, dir_fd=self.directory)

    def holds(self, signature: str, size: int | None) -> bool:
        with self.existing() as file:
            return file is not None and _has(file, signature, size)

    def take_over(self, signature: str, size: int | None, mode: int | None) -> bool:
        """If the file has the right content already, sets its owner and mode and returns True."""
        with self.existing() as file:
            if file is None or not _has(file, signature, size):
                return False
            set_owner(file.fileno(), self.owner)
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
            return True

    @contextlib.contextmanager
    def existing(self) -> Iterator[BinaryIO | None]:
        """The file that is in place now; None if there is none, or it is not a regular file with one name."""
        with self.opened(self.name) as file:
            yield file if file is not None and is_plain(file) else None

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO | None]:
        """The file of this name in the directory, for reading; None if there is none that can be opened."""
        try:
            descriptor = os.open(name, os.O_RDONLY | OPEN, dir_fd=self.directory)
        except OSError:
            yield None
            return
        with os.fdopen(descriptor, "rb") as file:
            yield file

    def changed_at(self) -> float:
        """When the existing file was last changed, by this host's clock; 0 if there is none."""
        try:
            return os.stat(self.name, dir_fd=self.directory, follow_symlinks=False).st_mtime
        except FileNotFoundError:
            return 0.0

    def finish(self, file: BinaryIO, mode: int | None) -> None:
        """Sets owner and mode and syncs everything to disk, before the rename."""
        file.flush()
        set_owner(file.fileno(), self.owner)
        os.fchmod(file.fileno(), self._mode(mode))
        os.fsync(file.fileno())

    def rename(self, file: BinaryIO, part: str, name: str | None = None) -> None:
        """Renames the part file to the file (or to `name`) in one step, and syncs the directory so that a power
        failure keeps it."""
        name = name or self.name
        os.rename(part, name, src_dir_fd=self.directory, dst_dir_fd=self.directory)
        if not self.is_still(name, file):
            raise RefusedPath(f"another process replaced {name!r} while it was put in place")
        os.fsync(self.directory)

    def _mode(self, wanted: int | None) -> int:
        """The requested mode; else that of the file to be replaced: new content must not be readable by more users."""
        if wanted is not None:
            return wanted
        try:
            found = os.stat(self.name, dir_fd=self.directory, follow_symlinks=False)
            if stat.S_ISREG(found.st_mode):
                return found.st_mode & PERMISSIONS
            pointed = os.stat(self.name, dir_fd=self.directory)
        except OSError:
            return DEFAULT_MODE
        return pointed.st_mode & DEFAULT_MODE if stat.S_ISREG(pointed.st_mode) else DEFAULT_MODE


def is_plain(file: IO[bytes], owner: int | None = None) -> bool:
    """A regular file with one name. With a hard link, the agent could be made to write or chown another file."""
    status = os.fstat(file.fileno())
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and owner in (None, status.st_uid)


def _has(file: BinaryIO, signature: str, size: int | None) -> bool:
    if size is not None and os.fstat(file.fileno()).st_size != size:
        return False
    return sha256_of_stream(file) == signature.lower()


@contextlib.contextmanager
def open_place(root: Path, directory: str, name: str, owner: Owner, permits: Permits | None = None) -> Iterator[Place]:
    """Checks name, owner, directory and permissions, then opens the directory and creates it if needed."""
    if not name or name in {".", ".."} or "/" in name or "\0" in name:
        raise RefusedPath(f"{name!r} is not a file name")
    require_chown(owner)
    path = resolve_inside(root, directory)
    (permits or Permits()).check_directory(root, path)
    with opened_beneath(root.resolve(), path, on_created=lambda descriptor: set_owner(descriptor, owner)) as descriptor:
        yield Place(descriptor, path, name, owner)
