"""Directories below a root, opened one component at a time, so that none can be replaced by a symlink meanwhile."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from tidegate_client.agent.refusals import RefusedPath

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Called with the descriptor of each directory that was created.
OnCreated = Callable[[int], None]


def resolve_inside(root: Path, directory: str) -> Path:
    """The real path of a directory. Symlinks are followed as long as they stay below the root."""
    wanted = PurePosixPath(directory)
    if not wanted.is_absolute() or ".." in wanted.parts or "\0" in directory:
        raise RefusedPath(f"{directory!r} is not an absolute path without '..'")
    real_root = root.resolve()
    try:
        real = real_root.joinpath(*wanted.parts[1:]).resolve()
    except (OSError, RuntimeError) as error:
        raise RefusedPath(f"{directory!r} cannot be resolved: {error}") from error
    if not real.is_relative_to(real_root):
        raise RefusedPath(f"{directory!r} leads outside {str(real_root)!r}, below which this agent puts files")
    return real


@contextlib.contextmanager
def opened_beneath(root: Path, path: Path, on_created: OnCreated | None = None) -> Iterator[int]:
    """Yields a descriptor of `path`, which is below `root`. Creates missing directories if `made` is given."""
    descriptor = os.open(root, DIRECTORY)
    try:
        for part in path.relative_to(root).parts:
            inner = _enter(descriptor, part, on_created, path)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def _enter(parent: int, name: str, on_created: OnCreated | None, path: Path) -> int:
    """Opens one component of `path`, which is only named in errors."""
    try:
        return os.open(name, DIRECTORY, dir_fd=parent)
    except FileNotFoundError:
        if on_created is None:
            raise
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=parent)
            os.fsync(parent)
    except NotADirectoryError as error:
        raise RefusedPath(f"{name!r} in {str(path)!r} is not a directory") from error
    # The path was resolved before, so a symlink here was created since: O_NOFOLLOW refuses it.
    try:
        descriptor = os.open(name, DIRECTORY, dir_fd=parent)
    except OSError as error:
        raise RefusedPath(f"{name!r} in {str(path)!r} is a symlink or not a directory") from error
    try:
        on_created(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
