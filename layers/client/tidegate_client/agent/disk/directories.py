"""Directories beneath a root, opened one step at a time, so that nobody can swap one for a symlink meanwhile."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from tidegate_client.agent.refusals import RefusedPath

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# What is to happen to a directory that had to be made, given its descriptor.
Made = Callable[[int], None]


def resolve_inside(root: Path, directory: str) -> Path:
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


@contextlib.contextmanager
def opened_beneath(root: Path, path: Path, made: Made | None = None) -> Iterator[int]:
    """A descriptor of `path`, which lies beneath `root`. Missing directories are made only if `made` is given."""
    descriptor = os.open(root, DIRECTORY)
    try:
        for part in path.relative_to(root).parts:
            inner = _enter(descriptor, part, made)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def _enter(parent: int, name: str, made: Made | None) -> int:
    try:
        return os.open(name, DIRECTORY, dir_fd=parent)
    except FileNotFoundError:
        if made is None:
            raise
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=parent)
            os.fsync(parent)
    except NotADirectoryError as error:
        raise RefusedPath(f"{name!r} is not a directory") from error
    # The path was resolved before, so a symlink here was put in its way just now: O_NOFOLLOW refuses it.
    try:
        descriptor = os.open(name, DIRECTORY, dir_fd=parent)
    except OSError as error:
        raise RefusedPath(f"{name!r} is not a plain directory") from error
    try:
        made(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
