"""Where a file may go: a directory beneath the root, held open, so that nobody can swap it for a symlink meanwhile."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pwd
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO

from tidegate_client.content import sha256_of_stream

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
Owner = tuple[int, int]
MOST_OPENS = 100


class RefusedPath(Exception):
    """The target lies outside the root, or is not a plain name in a plain directory."""


def owner_named(user: str) -> Owner | None:
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        return None
    return entry.pw_uid, entry.pw_gid


@dataclass(frozen=True, slots=True)
class Place:
    directory: int
    path: Path
    name: str
    owner: Owner | None

    def part_name(self, *salt: str) -> str:
        """Hidden, short whatever the file's name is, and found again after a restart."""
        return f".tidegate-{hashlib.sha256('/'.join((self.name, *salt)).encode()).hexdigest()[:24]}.part"

    def open_part(self, part: str) -> BinaryIO:
        """Open it for this transfer alone: another one to the same place waits here until this one is over."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        for _ in range(MOST_OPENS):
            file = os.fdopen(os.open(part, flags, 0o600, dir_fd=self.directory), "r+b")
            fcntl.flock(file, fcntl.LOCK_EX)
            if self._is_still(part, file):
                if _is_plain(file, os.geteuid()):
                    return file
                self.drop_part(part)
            file.close()
        raise RefusedPath(f"somebody keeps changing {part}")

    def _is_still(self, part: str, file: BinaryIO) -> bool:
        try:
            return os.path.samestat(os.stat(part, dir_fd=self.directory), os.fstat(file.fileno()))
        except FileNotFoundError:
            return False

    def drop_part(self, part: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part, dir_fd=self.directory)

    def already_holds(self, signature: str, size: int | None) -> bool:
        try:
            descriptor = os.open(self.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self.directory)
        except OSError:
            return False
        with os.fdopen(descriptor, "rb") as file:
            if os.fstat(descriptor).st_size != size or not _is_plain(file):
                return False
            if sha256_of_stream(file) != signature.lower():
                return False
            self._own(descriptor)
            return True

    def publish(self, file: BinaryIO, part: str) -> None:
        """The finished part becomes the file in one step, and stays so if the power goes."""
        self._own(file.fileno())
        os.fchmod(file.fileno(), 0o644)
        os.fsync(file.fileno())
        os.rename(part, self.name, src_dir_fd=self.directory, dst_dir_fd=self.directory)
        os.fsync(self.directory)

    def _own(self, descriptor: int) -> None:
        chown_where_allowed(descriptor, self.owner)


def _is_plain(file: IO[bytes], owner: int | None = None) -> bool:
    """A file with one name. The directory's owner may have put a hard link here, to have it written or given away."""
    status = os.fstat(file.fileno())
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and owner in (None, status.st_uid)


def chown_where_allowed(descriptor: int, owner: Owner | None) -> None:
    if owner:
        with contextlib.suppress(PermissionError):
            os.fchown(descriptor, *owner)


@contextlib.contextmanager
def open_place(root: Path, directory: str, name: str, user: str) -> Iterator[Place]:
    if not name or name in {".", ".."} or "/" in name or "\0" in name:
        raise RefusedPath(f"{name!r} is not a file name")
    owner = owner_named(user)
    path = _inside(root, directory)
    descriptor = _open_beneath(root.resolve(), path, owner)
    try:
        yield Place(descriptor, path, name, owner)
    finally:
        os.close(descriptor)


def _inside(root: Path, directory: str) -> Path:
    """The real directory meant; symlinks may be on the way as long as they stay beneath the root."""
    wanted = PurePosixPath(directory)
    if not wanted.is_absolute() or ".." in wanted.parts or "\0" in directory:
        raise RefusedPath(f"{directory!r} is not an absolute path without '..'")
    real_root = root.resolve()
    try:
        real = real_root.joinpath(*wanted.parts[1:]).resolve()
    except (OSError, RuntimeError) as error:
        raise RefusedPath(f"{directory!r} cannot be resolved: {error}") from error
    if not real.is_relative_to(real_root):
        raise RefusedPath(f"{directory!r} leads outside of the root")
    return real


def _open_beneath(root: Path, path: Path, owner: Owner | None) -> int:
    descriptor = os.open(root, DIRECTORY)
    try:
        for part in path.relative_to(root).parts:
            inner = _enter(descriptor, part, owner)
            os.close(descriptor)
            descriptor = inner
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _enter(parent: int, name: str, owner: Owner | None) -> int:
    try:
        return os.open(name, DIRECTORY, dir_fd=parent)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=parent)
    except NotADirectoryError as error:
        raise RefusedPath(f"{name!r} is not a directory") from error
    # The path was resolved before, so a symlink here was put in its way just now: O_NOFOLLOW refuses it.
    try:
        descriptor = os.open(name, DIRECTORY, dir_fd=parent)
    except OSError as error:
        raise RefusedPath(f"{name!r} is not a plain directory") from error
    chown_where_allowed(descriptor, owner)
    return descriptor
