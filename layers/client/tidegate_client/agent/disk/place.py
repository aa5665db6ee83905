"""The place of one file: its directory held open, its part file beside it, and the one step that puts it there."""

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
from tidegate_client.agent.disk.owners import Owner, give, require_chown
from tidegate_client.agent.disk.permits import Permits
from tidegate_client.agent.refusals import RefusedPath
from tidegate_client.content import sha256_of_stream
from tidegate_client.download import Cancelled

# O_NONBLOCK: neither a pipe nor a lease that somebody put here may hold us up.
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
        """Found again after a restart or by the next transfer of this content."""
        return self.hidden_name(*salt, suffix="part")

    def hidden_name(self, *salt: str, suffix: str) -> str:
        """Short whatever the file's name is."""
        return f".tidegate-{hashlib.sha256('/'.join((self.name, *salt)).encode()).hexdigest()[:24]}.{suffix}"

    def open_part(self, part: str, cancelled: Callable[[], bool] = lambda: False) -> BinaryIO:
        """Open it for this transfer alone: another one of the same content to the same place waits until it is over.

        The directory may be somebody else's, who can put a file of their own here and lock it: so what is found is
        locked only after it proved to be ours, and never by a call that blocks."""
        for _ in range(MOST_OPENS):
            try:
                descriptor = os.open(part, os.O_RDWR | os.O_CREAT | OPEN, 0o600, dir_fd=self.directory)
            except BlockingIOError:
                # A lease: only a file's owner can hold one, and the agent takes none.
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
        raise RefusedPath(f"somebody keeps changing {part}")

    def _locked(self, part: str, file: BinaryIO, cancelled: Callable[[], bool]) -> bool:
        """False if the part is another file by now: the one who had it has published or dropped it."""
        while self._is_still(part, file):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if cancelled():
                    raise Cancelled from None
                time.sleep(LOCK_EVERY)
                continue
            return self._is_still(part, file) and is_plain(file, os.geteuid())
        return False

    def _is_still(self, name: str, file: BinaryIO) -> bool:
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
        """If the right bytes are in place already, sets owner and mode and returns True."""
        with self.existing() as file:
            if file is None or not _has(file, signature, size):
                return False
            give(file.fileno(), self.owner)
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
            return True

    @contextlib.contextmanager
    def existing(self) -> Iterator[BinaryIO | None]:
        """The file that is there now, if it is one that may be changed in place."""
        with self.opened(self.name) as file:
            yield file if file is not None and is_plain(file) else None

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO | None]:
        """What has this name in the directory, for reading; None if there is nothing that can be opened."""
        try:
            descriptor = os.open(name, os.O_RDONLY | OPEN, dir_fd=self.directory)
        except OSError:
            yield None
            return
        with os.fdopen(descriptor, "rb") as file:
            yield file

    def changed_at(self) -> float:
        """When the file that is there was written, by this host's clock; 0 without one."""
        try:
            return os.stat(self.name, dir_fd=self.directory, follow_symlinks=False).st_mtime
        except FileNotFoundError:
            return 0.0

    def finish(self, file: BinaryIO, mode: int | None) -> None:
        """Owner, mode and bytes are on the disk before the file has its name."""
        file.flush()
        give(file.fileno(), self.owner)
        os.fchmod(file.fileno(), self._mode(mode))
        os.fsync(file.fileno())

    def rename(self, file: BinaryIO, part: str, name: str | None = None) -> None:
        """The finished part becomes the file (or has another name) in one step, and stays so if the power goes."""
        name = name or self.name
        os.rename(part, name, src_dir_fd=self.directory, dst_dir_fd=self.directory)
        if not self._is_still(name, file):
            raise RefusedPath(f"somebody changed {name!r} while it was put in place")
        os.fsync(self.directory)

    def _mode(self, wanted: int | None) -> int:
        """What was asked for; else what the replaced file had, as new content must not be readable by more people."""
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
    """A file with one name. The directory's owner may have put a hard link here, to have it written or given away."""
    status = os.fstat(file.fileno())
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and owner in (None, status.st_uid)


def _has(file: BinaryIO, signature: str, size: int | None) -> bool:
    if size is not None and os.fstat(file.fileno()).st_size != size:
        return False
    return sha256_of_stream(file) == signature.lower()


@contextlib.contextmanager
def open_place(root: Path, directory: str, name: str, owner: Owner, permits: Permits | None = None) -> Iterator[Place]:
    """Checks everything that can be checked before anything is made: name, directory, permission, owner."""
    if not name or name in {".", ".."} or "/" in name or "\0" in name:
        raise RefusedPath(f"{name!r} is not a file name")
    require_chown(owner)
    path = resolve_inside(root, directory)
    (permits or Permits()).check_directory(root, path)
    with opened_beneath(root.resolve(), path, made=lambda descriptor: give(descriptor, owner)) as descriptor:
        yield Place(descriptor, path, name, owner)
