"""The host's disk: permitted directories and users, owners of files, hidden part files, and putting files in place."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import pwd
import secrets
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from tidegate_client.agent.codes import DirectoryMoved, RefusedOwner, RefusedPath, Superseded
from tidegate_client.agent.journal import Applied, HiddenFile, Journal
from tidegate_client.download import Cancelled, Stalled
from tidegate_client.errors import UsageError
from tidegate_client.inputs import Transfer
from tidegate_client.uploads import CHUNK

if TYPE_CHECKING:
    from typing_extensions import Self

ANY_USER = "*"


@dataclass(frozen=True)
class Permits:
    """The directories and users that one project may use on this host.

    Empty `directories` permit all directories, and empty `users` permit all users. Directories are relative to the
    root, or to the container's root. If nothing at all is permitted, `refusal` says why; otherwise it is empty."""

    directories: tuple[str, ...] = ()
    users: frozenset[str] = frozenset()
    refusal: str = ""

    def allows(self, user: str) -> bool:
        return not self.users or user in self.users or ANY_USER in self.users

    def check_user(self, user: str) -> None:
        if self.refusal:
            raise RefusedPath(self.refusal)
        if not self.allows(user):
            raise RefusedOwner(
                f"this host accepts no files for user {user!r}: its agent was started with --allow-user for other users"
            )


# --- owners
# Owners of files: a user of the host, or of the container that the file is for.

Owner = tuple[int, int]
ROOT: Owner = (0, 0)
CAP_CHOWN = 1 << 0
LOCK_EVERY = 0.05
LARGEST_PASSWD = 4 * 1024 * 1024


def owner_on_host(user: str) -> Owner:
    """Returns uid and gid of a user of this host; raises RefusedOwner if there is no such user."""
    try:
        entry = pwd.getpwnam(user)
    except (KeyError, ValueError) as error:
        raise RefusedOwner(f"there is no user {user!r} on this host; create it or name another") from error
    return entry.pw_uid, entry.pw_gid


def owner_in_container(passwd: str, user: str, permits: Permits) -> Owner:
    """Returns uid and gid of a user, as the container's own /etc/passwd names them. `root` needs no entry there.

    Raises RefusedOwner if there is no such user. Also raises it if the uid belongs to a user who is not permitted, or
    if the group is root's and `root` is not permitted. These checks are needed, because users of the container may have
    written /etc/passwd."""
    users: list[tuple[str, Owner]] = []
    for line in passwd.splitlines():
        fields = line.split(":")
        if len(fields) >= 4 and fields[2].isdigit() and fields[3].isdigit():
            users.append((fields[0], (int(fields[2]), int(fields[3]))))
    users.append(("root", ROOT))
    owner = next((ids for name, ids in users if name == user), None)
    if owner is None:
        raise RefusedOwner(f"there is no user {user!r} in this container's /etc/passwd; create it or name another")
    for name, (uid, _) in users:
        if uid == owner[0] and not permits.allows(name):
            raise RefusedOwner(
                f"{user!r} has the uid {uid} of {name!r} in this container's /etc/passwd, and this host's agent was "
                f"started without --allow-user {name}"
            )
    if owner[1] == 0 and not permits.allows("root"):
        raise RefusedOwner(f"{user!r} has the group of root in this container's /etc/passwd")
    return owner


def read_passwd(directory: int) -> str:
    """Returns the text of `passwd` in the open directory; "" if it cannot be read."""
    try:
        descriptor = os.open("passwd", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        return file.read(LARGEST_PASSWD).decode(errors="replace")


def require_chown(owner: Owner) -> None:
    """Raises RefusedOwner if this process may not give files to that owner. Called before the download starts."""
    if owner[0] != os.geteuid() and not may_act_for_others():
        raise RefusedOwner(
            f"the agent cannot give files to uid {owner[0]}, because it runs as uid {os.geteuid()}: "
            "run it as root or with CAP_CHOWN"
        )


def set_owner(descriptor: int, owner: Owner) -> None:
    """Sets the owner of an open file; raises RefusedOwner if that is not permitted."""
    try:
        os.fchown(descriptor, *owner)
    except PermissionError as error:
        raise RefusedOwner(f"the file cannot be given to uid {owner[0]}, gid {owner[1]}: {error.strerror}") from error


def may_act_for_others() -> bool:
    """Returns whether this process may give files to other users."""
    if os.geteuid() == 0:
        return True
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return False
    effective = next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) & CAP_CHOWN)


class PathLocks:
    """A lock for each path, so that only one thread at a time changes a file."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[Path, threading.Lock] = {}
        self._users: Counter[Path] = Counter()

    @contextmanager
    def hold(self, path: Path, while_waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Holds the lock of a path while the block runs.

        While another thread has the lock, `while_waiting` is called repeatedly. It may raise an error to give up."""
        with self._guard:
            lock = self._locks.setdefault(path, threading.Lock())
            self._users[path] += 1
        try:
            while not lock.acquire(timeout=LOCK_EVERY):
                while_waiting()
            try:
                yield
            finally:
                lock.release()
        finally:
            with self._guard:
                self._users[path] -= 1
                if not self._users[path]:
                    del self._users[path], self._locks[path]


# --- directories
# The directories below which an agent puts files. They are opened when it starts, and then used by their descriptors.
#
# A local user may own any directory below them, and change it at any moment. So no path is resolved first and used
# later: each component is opened below the one before it, and a symlink is checked before it is followed.

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Needs no permission to read the directory, and opens a symlink itself.
BY_PATH = getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC
MOST_LINKS = 40
# A uid that owns no directory, so that the symlink is not followed.
NO_USER = -1
ACL, DEFAULT_ACL = "system.posix_acl_access", "system.posix_acl_default"
_creating = PathLocks()
# Called with the descriptor of each directory that was created.
OnCreated = Callable[[int], None]


class Identity(NamedTuple):
    """Device and inode of a directory. A rename of the directory does not change them.

    They are not used for another directory while a descriptor of this one is open."""

    device: int
    inode: int

    @classmethod
    def from_stat(cls, status: os.stat_result) -> Self:
        return cls(status.st_dev, status.st_ino)


@dataclass(frozen=True)
class Anchor:
    """An open directory, with its path at the time when it was opened.

    `given`: the path that the operator wrote; None if it was not stored."""

    path: Path
    descriptor: int
    given: Path | None = None

    @property
    def identity(self) -> Identity:
        return Identity.from_stat(os.fstat(self.descriptor))

    def is_there(self) -> bool:
        """Returns whether this directory is still at its path."""
        return leads_to(self.path, self.descriptor) and not self.path.is_symlink()


def leads_to(path: Path, descriptor: int) -> bool:
    """Returns whether the path now leads to this open directory."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


@dataclass(frozen=True)
class Trust:
    """The trusted users and groups. Nobody else may be able to rename the directories above a permitted directory.

    `enforced` is False for an agent that cannot act for other users. Such an agent has nothing to protect."""

    users: frozenset[int]
    groups: frozenset[int]
    enforced: bool

    def others_may_write(self, descriptor: int, status: os.stat_result) -> bool:
        mode = status.st_mode
        if status.st_uid not in self.users or mode & stat.S_IWOTH:
            return True
        # With an ACL the bits of the group are those of all users and groups that the ACL names.
        return bool(mode & stat.S_IWGRP) and (status.st_gid not in self.groups or _has_acl(descriptor))

    def others_may_rename(
        self, descriptor: int, directory: os.stat_result, entry: os.stat_result, *, or_file: bool = False
    ) -> bool:
        """Returns whether a user who is not trusted may rename or replace this entry of the directory.

        `or_file`: the entry may be a regular file; by default it must be a directory."""
        if not self.enforced or not self.others_may_write(descriptor, directory):
            return False
        # As in /tmp: only the owner of the directory or of the entry may rename the entry. A symlink is not accepted,
        # because others may have put it there as a hard link.
        sticky = directory.st_mode & stat.S_ISVTX and directory.st_uid in self.users
        plain = stat.S_ISDIR(entry.st_mode) or (or_file and stat.S_ISREG(entry.st_mode) and entry.st_nlink == 1)
        return not (sticky and plain and entry.st_uid in self.users)

    def may_create(self, descriptor: int, directory: os.stat_result) -> bool:
        """Returns True if no untrusted user can replace an entry that is newly created in this directory."""
        sticky = directory.st_mode & stat.S_ISVTX and directory.st_uid in self.users
        return bool(not self.enforced or sticky or not self.others_may_write(descriptor, directory))

    def controller(self, descriptor: int, directory: os.stat_result, link: os.stat_result) -> int | None:
        """Returns the uid of the user who decides where a symlink leads.

        Returns None if that is a trusted user, and NO_USER if it may be any of several users. Whoever may write to the
        directory may have moved another user's symlink into it."""
        if not self.enforced or not self.others_may_write(descriptor, directory):
            return link.st_uid if link.st_uid not in self.users else None
        writers = Trust(self.users | {directory.st_uid}, self.groups, self.enforced)
        only_its_owner = not writers.others_may_write(descriptor, directory)
        own = link.st_uid == directory.st_uid or link.st_uid in self.users
        return directory.st_uid if only_its_owner and own and directory.st_uid not in self.users else NO_USER


def _has_acl(descriptor: int) -> bool:
    try:
        return bool(os.getxattr(f"/proc/self/fd/{descriptor}", ACL))
    except OSError as error:
        return error.errno not in (errno.ENODATA, errno.ENOTSUP)


def drop_acls(descriptor: int) -> None:
    """Removes the ACLs that a new directory inherited. The owner of the directory above chose these ACLs."""
    for name in (ACL, DEFAULT_ACL):
        try:
            os.removexattr(descriptor, name)
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.ENOTSUP):
                raise


class _Step(NamedTuple):
    descriptor: int
    name: str
    status: os.stat_result


class _Walk:
    """Enters directories one name at a time, below a start directory.

    Neither `..` nor a symlink can lead out of the start directory."""

    def __init__(self, start: Anchor, trust: Trust) -> None:
        self._start = start
        self._trust = trust
        self._links = 0
        self._steps = [_Step(os.dup(start.descriptor), "", os.fstat(start.descriptor))]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        while self._steps:
            os.close(self._steps.pop().descriptor)

    @property
    def path(self) -> Path:
        return self._start.path.joinpath(*(step.name for step in self._steps[1:]))

    @property
    def descriptor(self) -> int:
        return self._steps[-1].descriptor

    def is_within(self, identity: Identity) -> bool:
        return any(Identity.from_stat(step.status) == identity for step in self._steps)

    def enter_trusted(self, parts: Sequence[str], on_created: OnCreated | None = None) -> None:
        """Enters directories that no other user may rename or replace. Raises RefusedPath if another user may.

        If `on_created` is given, missing directories are created where that is safe. `on_created` is called only for
        the last directory, if it is new."""
        left = list(reversed(parts))
        while left:
            part = left.pop()
            if part == "..":
                self._leave()
                continue
            directory = self._steps[-1]
            if on_created and self._trust.may_create(directory.descriptor, directory.status):
                step = self._open_or_create(part, _leave_as_it_is if left else on_created)
            else:
                step = self._open(part)
            if self._trust.others_may_rename(directory.descriptor, directory.status, step.status):
                os.close(step.descriptor)
                raise RefusedPath(
                    f"a user other than root may rename or replace {str(self.path / part)!r}: {self._reason()}"
                )
            if target := self._push_or_read_link(step):
                left += reversed(self._expanded(target))

    def enter(self, parts: Sequence[str], may_create: Callable[[], bool], on_created: OnCreated | None = None) -> None:
        """Enters directories that may belong to any user. Missing ones are created if `may_create()` returns True.

        A user's symlink is followed only to a directory of the same user. Otherwise the user could make the agent put a
        file into a directory of another user."""
        # An int marks the end of a symlink's target: the uid of the symlink's owner.
        left: list[str | int] = list(reversed(parts))
        while left:
            part = left.pop()
            if isinstance(part, int):
                if self._steps[-1].status.st_uid != part:
                    raise RefusedPath(
                        f"a symlink that another user than root can change leads to {str(self.path)!r}, which does not "
                        "belong to that user"
                    )
            elif part == "..":
                self._leave()
            else:
                in_users_link = any(isinstance(one, int) for one in left)
                create = on_created is not None and not in_users_link and may_create()
                step = self._open_or_create(part, on_created) if create and on_created else self._open(part)
                directory = self._steps[-1]
                if target := self._push_or_read_link(step):
                    user = self._trust.controller(directory.descriptor, directory.status, step.status)
                    left += [] if user is None else [user]
                    left += reversed(self._expanded(target))

    def enter_plain(self, parts: Sequence[str]) -> None:
        """Enters directories; raises RefusedPath if one of them is a symlink."""
        for part in parts:
            if self._push_or_read_link(self._open(part)):
                raise RefusedPath(f"{str(self.path / part)!r} is a symlink now")

    def _open(self, name: str) -> _Step:
        parent = self._steps[-1].descriptor
        try:
            descriptor = os.open(name, BY_PATH | os.O_DIRECTORY, dir_fd=parent)
        except NotADirectoryError:
            descriptor = os.open(name, BY_PATH, dir_fd=parent)
        return _Step(descriptor, name, os.fstat(descriptor))

    def _open_or_create(self, name: str, on_created: OnCreated) -> _Step:
        # Another thread must not use the directory before it was given to its owner.
        with _creating.hold(self.path / name):
            try:
                return self._open(name)
            except FileNotFoundError:
                parent = self._steps[-1].descriptor
                try:
                    os.mkdir(name, 0o755, dir_fd=parent)
                except FileExistsError:
                    return self._open(name)
                with _readable(parent) as directory:
                    os.fsync(directory)
                self._give(name, on_created)
                return self._open(name)

    def _give(self, name: str, on_created: OnCreated) -> None:
        """Calls `on_created` for a new directory, after a check that nobody has replaced it.

        The owner of the directory above may have put another directory in its place. Such a directory must not be given
        to another owner."""
        try:
            created = os.open(name, DIRECTORY, dir_fd=self._steps[-1].descriptor)
        except OSError as error:
            raise RefusedPath(f"{str(self.path / name)!r} was replaced when it was created") from error
        try:
            if os.fstat(created).st_uid != os.geteuid() or _has_entries(created):
                raise RefusedPath(f"{str(self.path / name)!r} was replaced when it was created")
            above = self._steps[-1]
            if self._trust.others_may_write(above.descriptor, above.status):
                drop_acls(created)
            on_created(created)
        finally:
            os.close(created)

    def _push_or_read_link(self, step: _Step) -> str:
        """Enters a directory and returns "".

        If the step is a symlink, enters nothing and returns the symlink's target. Raises RefusedPath if the step is
        neither a directory nor a symlink."""
        if stat.S_ISDIR(step.status.st_mode):
            self._steps.append(step)
            return ""
        try:
            if stat.S_ISLNK(step.status.st_mode):
                return os.readlink("", dir_fd=step.descriptor)
        finally:
            os.close(step.descriptor)
        raise RefusedPath(f"{str(self.path / step.name)!r} is not a directory")

    def _expanded(self, target: str) -> list[str]:
        """Returns the names to walk for the target of a symlink.

        Goes back to the start directory if the target is absolute. Raises RefusedPath if the target is outside the
        start directory."""
        self._links += 1
        if self._links > MOST_LINKS:
            raise RefusedPath(f"{str(self.path)!r} has too many symlinks")
        parts = [part for part in target.split("/") if part not in {"", "."}]
        if not target.startswith("/"):
            return parts
        wanted = Path("/", *parts)
        for base in (self._start.path, self._start.given):
            if base is not None and wanted.is_relative_to(base):
                while len(self._steps) > 1:
                    os.close(self._steps.pop().descriptor)
                return list(wanted.relative_to(base).parts)
        raise RefusedPath(
            f"a symlink to {target!r} leads outside {str(self._start.path)!r}, below which this agent puts files"
        )

    def _leave(self) -> None:
        if len(self._steps) == 1:
            raise RefusedPath(f"a symlink leads outside {str(self._start.path)!r}, below which this agent puts files")
        os.close(self._steps.pop().descriptor)

    def _reason(self) -> str:
        status, where = self._steps[-1].status, repr(str(self.path))
        if status.st_uid not in self._trust.users:
            return f"{where} belongs to uid {status.st_uid}; give it to root, or choose another place"
        mode = stat.S_IMODE(status.st_mode)
        return f"{where} can be written by others (mode {mode:04o}); change its mode, or choose another place"


def _leave_as_it_is(_: int) -> None:
    """Does nothing, because a directory above a permitted one keeps root as its owner."""


def _has_entries(directory: int) -> bool:
    with os.scandir(directory) as entries:
        return any(entries)


@contextlib.contextmanager
def _readable(descriptor: int) -> Iterator[int]:
    """Opens a second descriptor of the directory that can be read and synced."""
    readable = os.open(".", DIRECTORY, dir_fd=descriptor)
    try:
        yield readable
    finally:
        os.close(readable)


class Fence:
    """Restricts the agent to a root, to the permitted directories below the root, and to the root of containers.

    If no directories are given, everything below the root is permitted. Opens these directories at the start. Raises
    UsageError if a directory does not exist, or if another user may rename the directory or one above it. With a root
    of containers, a permitted directory may be missing on the host."""

    def __init__(self, root: Path, directories: Sequence[str] = (), container_root: Path | None = None) -> None:
        self._trust = Trust(frozenset({0, os.geteuid()}), frozenset({0}), may_act_for_others())
        self._directories = tuple(directories)
        with contextlib.ExitStack() as opened:
            self._top = Anchor(Path("/"), _keep(opened, os.open("/", BY_PATH | os.O_DIRECTORY)))
            with _named("--root", root):
                found = self._anchor(opened, self._top, root.absolute().parts[1:])
                self.root = Anchor(found.path, found.descriptor, root.absolute())
            self._allowed: list[Anchor] = []
            for directory in directories:
                with _named("--allow-dir", directory):
                    try:
                        self._allowed.append(self._anchor(opened, self.root, plain_parts(directory)))
                    except FileNotFoundError:
                        # This directory may exist in containers only; then nothing is put there on the host.
                        if container_root is None:
                            raise
            self._containers: Anchor | None = None
            if container_root is not None:
                with _named("--container-root", container_root):
                    self._containers = self._anchor(opened, self._top, container_root.absolute().parts[1:])
            self._opened = opened.pop_all()

    def close(self) -> None:
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    @property
    def writable(self) -> list[Path]:
        """The directories that can receive files."""
        allowed = self._allowed if self._directories else [self.root]
        return [anchor.path for anchor in (*allowed, *self._container_anchors())]

    def moved(self) -> list[Path]:
        """The permitted directories that were moved or replaced since the start. No file is put below them."""
        anchors = (self.root, *self._allowed, *self._container_anchors())
        return [anchor.path for anchor in anchors if not anchor.is_there()]

    def _container_anchors(self) -> list[Anchor]:
        return [self._containers] if self._containers else []

    @contextlib.contextmanager
    def opened(
        self, directory: str, container: str = "", on_created: OnCreated | None = None
    ) -> Iterator[tuple[int, Path]]:
        """Opens a permitted directory and yields its descriptor and path.

        If `on_created` is given, missing directories are created."""
        parts = plain_parts(directory)
        with contextlib.ExitStack() as held:
            anchors, trust = self._anchors(held, container, parts, on_created)
            walk = held.enter_context(_Walk(anchors[0], trust))
            permitted = [anchor.identity for anchor in (anchors[1:] if self._directories else anchors)]

            def is_permitted() -> bool:
                return any(walk.is_within(identity) for identity in permitted)

            try:
                walk.enter(parts, is_permitted, on_created)
                if not is_permitted():
                    raise RefusedPath(
                        f"this host accepts no files in {str(walk.path)!r}: its agent was started with --allow-dir "
                        "for other directories"
                    )
            except FileNotFoundError as error:
                self._require_unmoved(anchors, walk, parts)
                if on_created is None:
                    raise
                raise RefusedPath(
                    f"{error.filename!r} in {directory!r} does not exist, and this agent may not create it there"
                ) from error
            except RefusedPath:
                self._require_unmoved(anchors, walk, parts)
                raise
            self._require_unmoved(anchors, walk, parts)
            yield held.enter_context(_readable(walk.descriptor)), walk.path

    @contextlib.contextmanager
    def reopened(self, path: Path) -> Iterator[int]:
        """Opens a directory again by the path that `opened` gave, even if the directory is no longer permitted.

        Raises RefusedPath or OSError if the directory no longer exists."""
        with contextlib.ExitStack() as held:
            anchor = self.root
            if self._containers and self._containers.path in path.parents:
                anchor = self._container(held, path.relative_to(self._containers.path).parts[0])
            if not path.is_relative_to(anchor.path):
                raise RefusedPath(f"{str(path)!r} is not below {str(anchor.path)!r}")
            walk = held.enter_context(_Walk(anchor, self._trust))
            walk.enter_plain(path.relative_to(anchor.path).parts)
            yield held.enter_context(_readable(walk.descriptor))

    def passwd(self, container: str) -> str:
        """Returns the text of the container's /etc/passwd; "" if there is none."""
        with contextlib.ExitStack() as held:
            walk = held.enter_context(_Walk(self._container(held, container), self._trust))
            try:
                walk.enter(("etc",), lambda: False)
            except (OSError, RefusedPath):
                return ""
            return read_passwd(walk.descriptor)

    def remove(self, file: HiddenFile) -> None:
        """Deletes a hidden file. Does nothing if the directory of the file is gone or was replaced by a symlink."""
        with contextlib.suppress(RefusedPath, FileNotFoundError), self.reopened(file.path.parent) as directory:
            if file.secret:
                remove_hidden(directory, file)
            else:
                os.unlink(file.path.name, dir_fd=directory)

    def _anchors(
        self, held: contextlib.ExitStack, container: str, wanted: tuple[str, ...], on_created: OnCreated | None
    ) -> tuple[list[Anchor], Trust]:
        """Returns the open root with the open permitted directories, and the users who are trusted there.

        The directories of a container are opened again for each delivery."""
        if not container:
            return [self.root, *self._allowed], self._trust
        root = self._container(held, container)
        status = os.fstat(root.descriptor)
        # In a container with a user namespace, this uid is the container's root.
        users, groups = self._trust.users | {status.st_uid}, self._trust.groups | {status.st_gid}
        trust = Trust(users, groups, self._trust.enforced)
        anchors = [root]
        for parts in map(plain_parts, self._directories):
            create = on_created if wanted[: len(parts)] == parts else None
            with contextlib.suppress(FileNotFoundError):
                anchors.append(self._anchor(held, root, parts, trust, create))
        if self._directories and len(anchors) == 1:
            raise RefusedPath(f"container {container!r} has none of the directories that --allow-dir permits")
        return anchors, trust

    def _container(self, held: contextlib.ExitStack, container: str) -> Anchor:
        if self._containers is None:
            raise RefusedPath(
                f"this host has no root for container {container!r}: start its agent with --container-root"
            )
        if "/" in container or container in {"", ".", ".."} or "\0" in container:
            raise RefusedPath(f"{container!r} is not a container id")
        path = self._containers.path / container
        if not self._containers.is_there():
            raise _moved(self._containers)
        try:
            found = self._anchor(held, self._top, path.parts[1:])
        except (FileNotFoundError, RefusedPath) as error:
            raise RefusedPath(f"there is no container {container!r} here: {error}") from error
        # A link such as /proc/PID/root can resolve to /, the root of this host.
        if found.path == Path("/"):
            raise RefusedPath(f"{str(path)!r} leads to the root of this host, not to a container")
        return Anchor(path, found.descriptor)

    def _anchor(
        self,
        opened: contextlib.ExitStack,
        start: Anchor,
        parts: Sequence[str],
        trust: Trust | None = None,
        on_created: OnCreated | None = None,
    ) -> Anchor:
        with _Walk(start, trust or self._trust) as walk:
            walk.enter_trusted(parts, on_created)
            return Anchor(walk.path, _keep(opened, os.dup(walk.descriptor)))

    def _require_unmoved(self, anchors: Sequence[Anchor], walk: _Walk, parts: tuple[str, ...]) -> None:
        """Raises DirectoryMoved if the root or a permitted directory on the way was moved or replaced."""
        if anchors[0] is not self.root:
            # A container's directories were opened just now, so they cannot have moved.
            return
        wanted = self.root.path.joinpath(*parts)
        for anchor in anchors:
            concerned = wanted.is_relative_to(anchor.path) or walk.is_within(anchor.identity)
            if concerned and not anchor.is_there():
                raise _moved(anchor)


def _moved(anchor: Anchor) -> DirectoryMoved:
    return DirectoryMoved(
        f"{str(anchor.path)!r} was moved or replaced after the agent had started, so nothing is put into it: "
        "find out by whom, then restart the agent"
    )


def require_private(option: str, directory: Path, *, create: bool = False) -> None:
    """Raises UsageError if another user may write into the directory, or may rename it or a directory above it.

    Without the right to act for other users, nothing is checked. If the directory is missing, only the directories
    above it are checked; with `create`, the directory is then created and checked too."""
    trust = Trust(frozenset({0, os.geteuid()}), frozenset({0}), may_act_for_others())
    if not trust.enforced:
        return
    with _named(option, directory), contextlib.ExitStack() as opened:
        top = Anchor(Path("/"), _keep(opened, os.open("/", BY_PATH | os.O_DIRECTORY)))
        walk = opened.enter_context(_Walk(top, trust))
        try:
            walk.enter_trusted(directory.absolute().parts[1:])
            safe = not trust.others_may_write(walk.descriptor, os.fstat(walk.descriptor))
        except FileNotFoundError:
            safe = trust.may_create(walk.descriptor, os.fstat(walk.descriptor))
        if not safe:
            raise RefusedPath(f"a user other than root may write into {str(walk.path)!r}")
    if create:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        # In a sticky directory another user may have created it first.
        require_private(option, directory)


def read_trusted(path: Path, most_bytes: int) -> bytes:
    """Returns the content of a file, at most `most_bytes`.

    Raises RefusedPath if an untrusted user could have changed it. A user who could replace the file, or change a
    symlink on its path, could have changed the content."""
    trust = Trust(frozenset({0, os.geteuid()}), frozenset({0}), enforced=True)
    with contextlib.ExitStack() as opened:
        top = Anchor(Path("/"), _keep(opened, os.open("/", BY_PATH | os.O_DIRECTORY)))
        for _ in range(MOST_LINKS):
            walk = opened.enter_context(_Walk(top, trust))
            walk.enter_trusted(path.absolute().parts[1:-1])
            entry = os.stat(path.name, dir_fd=walk.descriptor, follow_symlinks=False)
            if trust.others_may_rename(walk.descriptor, os.fstat(walk.descriptor), entry, or_file=True):
                raise RefusedPath(f"a user other than root may replace {str(walk.path / path.name)!r}")
            if stat.S_ISLNK(entry.st_mode):
                path = walk.path / os.readlink(path.name, dir_fd=walk.descriptor)
                continue
            descriptor = os.open(path.name, os.O_RDONLY | OPEN, dir_fd=walk.descriptor)
            with os.fdopen(descriptor, "rb") as file:
                if trust.others_may_write(descriptor, os.fstat(descriptor)):
                    raise RefusedPath(f"a user other than root may change {str(walk.path / path.name)!r}")
                return file.read(most_bytes)
    raise RefusedPath(f"{str(path)!r} has too many symlinks")


def _keep(opened: contextlib.ExitStack, descriptor: int) -> int:
    opened.callback(os.close, descriptor)
    return descriptor


@contextlib.contextmanager
def _named(option: str, value: object) -> Iterator[None]:
    """Turns a RefusedPath or an OSError of the block into a UsageError that names the command-line option."""
    try:
        yield
    except RefusedPath as error:
        raise UsageError(f"{option} {value} is not safe: {error}") from error
    except OSError as error:
        raise UsageError(f"{option} {value} is not a directory that can be used: {error.strerror}") from error


def plain_parts(directory: str) -> tuple[str, ...]:
    """Splits an absolute path into its names. Raises RefusedPath if the path is relative or contains '..'."""
    wanted = PurePosixPath(directory)
    if not wanted.is_absolute() or ".." in wanted.parts or "\0" in directory:
        raise RefusedPath(f"{directory!r} is not an absolute path without '..'")
    return wanted.parts[1:]


# --- hidden files
# Files that are not in place yet. Each is alone in a hidden directory, which is in the target directory.
#
# The target directory may belong to another user, who can rename and remove its entries, and move files of any owner
# into it. So no file is recognised by its name, owner or mode. The hidden file has a random name that only the journal
# knows, in a directory that others cannot enter: nobody else can have created, opened, locked or linked it.

# O_NONBLOCK: a FIFO or a lease that another user put here must not block the agent.
OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
PRIVATE, PART_MODE, PERMISSIONS = 0o700, 0o600, 0o777
# A user can make directories deeper than a process can have files open.
DEEPEST_REMOVED = 200


def new_hidden(directory: Path) -> HiddenFile:
    """Returns a new, random name for a hidden file in this directory. Creates nothing."""
    return HiddenFile(directory / f".tidegate-{secrets.token_hex(8)}.part", secrets.token_hex(16))


@contextlib.contextmanager
def _private(above: int, name: str) -> Iterator[int]:
    """Opens the directory of this name, if it is the agent's own. Otherwise raises FileNotFoundError."""
    try:
        descriptor = os.open(name, DIRECTORY, dir_fd=above)
    except NotADirectoryError as error:
        raise FileNotFoundError(errno.ENOENT, "not a directory of the agent", name) from error
    try:
        status = os.fstat(descriptor)
        if (status.st_uid, status.st_mode & PERMISSIONS) != (os.geteuid(), PRIVATE):
            raise FileNotFoundError(errno.ENOENT, "not a directory of the agent", name)
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def create_hidden(above: int, hidden: HiddenFile) -> Iterator[Part]:
    """Creates a hidden directory with an empty file in it, and yields the open file."""
    name = hidden.path.name
    os.mkdir(name, PRIVATE, dir_fd=above)
    with contextlib.ExitStack() as held:
        try:
            _drop_inherited(above, name)
            part = held.enter_context(_opened_hidden(above, hidden, os.O_CREAT | os.O_EXCL))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise RefusedPath(
                f"the directory {name} for the part file was replaced when it was created, or its file system has no "
                "permissions"
            ) from error
        yield part


def _drop_inherited(above: int, name: str) -> None:
    """Removes a default ACL and the setgid bit that the agent's new, empty directory inherited."""
    created = os.open(name, DIRECTORY, dir_fd=above)
    try:
        if os.fstat(created).st_uid == os.geteuid() and not _has_entries(created):
            drop_acls(created)
            os.fchmod(created, PRIVATE)
    finally:
        os.close(created)


def link_hidden(above: int, hidden: HiddenFile, name: str) -> None:
    """Creates a hidden directory that contains a hard link to the file `name`.

    The link has a hidden place from the start, so a crash leaves no visible second name of the file."""
    os.mkdir(hidden.path.name, PRIVATE, dir_fd=above)
    _drop_inherited(above, hidden.path.name)
    with _private(above, hidden.path.name) as directory:
        os.link(name, hidden.secret, src_dir_fd=above, dst_dir_fd=directory, follow_symlinks=False)


@contextlib.contextmanager
def open_hidden(above: int, hidden: HiddenFile) -> Iterator[Part | None]:
    """Opens an existing hidden file; yields None if it is gone."""
    with contextlib.ExitStack() as held:
        try:
            part = held.enter_context(_opened_hidden(above, hidden))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP, errno.EACCES):
                raise
            part = None
        yield part


@contextlib.contextmanager
def _opened_hidden(above: int, hidden: HiddenFile, flags: int = 0) -> Iterator[Part]:
    with _private(above, hidden.path.name) as directory:
        descriptor = os.open(hidden.secret, os.O_RDWR | OPEN | flags, PART_MODE, dir_fd=directory)
        with os.fdopen(descriptor, "r+b") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                raise FileNotFoundError(errno.ENOENT, "not a file of the agent", hidden.path.name)
            yield Part(directory, hidden, file)


def remove_hidden(above: int, hidden: HiddenFile) -> None:
    """Deletes a hidden file and its hidden directory.

    Does not fail if the file is gone, or if a user has moved the directory away."""
    with contextlib.suppress(FileNotFoundError):
        with _private(above, hidden.path.name) as directory, contextlib.suppress(FileNotFoundError):
            remove_below(directory, hidden.secret)
        os.rmdir(hidden.path.name, dir_fd=above)


def remove_below(above: int, name: str, users: Sequence[int] = (), depth: int = 0) -> None:
    """Deletes a file, or a directory with its content, without following symlinks.

    `users`: raises OSError for a file or directory of anybody else. The owner of a directory may have moved files of
    others into it."""
    found = os.stat(name, dir_fd=above, follow_symlinks=False)
    if (users and found.st_uid not in users) or depth > DEEPEST_REMOVED:
        raise OSError(errno.EPERM, "something of another user is in it, or it is too deep", name)
    if not stat.S_ISDIR(found.st_mode):
        os.unlink(name, dir_fd=above)
        return
    directory = os.open(name, DIRECTORY, dir_fd=above)
    try:
        if os.fstat(directory).st_dev != os.fstat(above).st_dev:
            raise OSError(errno.EXDEV, "another file system is mounted in it", name)
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries]
        for one in names:
            with contextlib.suppress(FileNotFoundError):
                remove_below(directory, one, users, depth + 1)
    finally:
        os.close(directory)
    os.rmdir(name, dir_fd=above)


@dataclass(frozen=True)
class Part:
    """An open hidden file, and the descriptor of its directory."""

    directory: int
    hidden: HiddenFile
    file: BinaryIO


# --- place
# The place of one file: its open directory, and the rename that publishes it.

DEFAULT_MODE = 0o644
WRITABLE_BY_OTHERS = 0o022


@dataclass(frozen=True)
class Place:
    """The target path of one file: its open directory, its name and its owner."""

    directory: int
    path: Path
    name: str
    owner: Owner

    @property
    def file(self) -> Path:
        return self.path / self.name

    def is_still(self, name: str, file: BinaryIO) -> bool:
        try:
            found = os.stat(name, dir_fd=self.directory, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(found, os.fstat(file.fileno()))

    def holds(self, signature: str, size: int | None) -> bool:
        """Returns whether the file that is in place has this SHA-256."""
        with self.existing() as file:
            return file is not None and has_content(file, signature, size)

    def is_done(self, signature: str, size: int | None, mode: int | None) -> bool:
        """Returns whether the file already has the right content, owner and mode.

        A file of another owner or mode is replaced, not changed in place. Its former owner may have it open for
        writing."""
        with self.existing() as file:
            if file is None:
                return False
            status = os.fstat(file.fileno())
            has_mode = mode is None or stat.S_IMODE(status.st_mode) == mode
            same_owner = (status.st_uid, status.st_gid) == self.owner
            if not same_owner or not has_mode or not has_content(file, signature, size):
                return False
            os.fsync(file.fileno())
            return True

    def copy_existing(self, part: BinaryIO, signature: str, size: int | None) -> bool:
        """Copies the file that is in place to the part file, if that file has the right content.

        Returns whether the part file now has the content."""
        with self.existing() as file:
            if file is None or size is None or not has_content(file, signature, size):
                return False
            return copy_verified(file, part, signature, size)

    @contextlib.contextmanager
    def existing(self) -> Iterator[BinaryIO | None]:
        """Opens the file that is in place. Yields None if there is no regular file that can be opened.

        Also yields None for a file with several hard links. With a hard link to another user's file, a user could make
        the agent give that file away."""
        try:
            descriptor = os.open(self.name, os.O_RDONLY | OPEN, dir_fd=self.directory)
        except OSError:
            yield None
            return
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            os.close(descriptor)
            yield None
            return
        with os.fdopen(descriptor, "rb") as file:
            yield file

    def changed_at(self) -> float:
        """Returns when the file in place was last changed (Unix time, by this host's clock); 0 if there is no file."""
        try:
            return os.stat(self.name, dir_fd=self.directory, follow_symlinks=False).st_mtime
        except FileNotFoundError:
            return 0.0

    def finish(self, file: BinaryIO, mode: int | None) -> None:
        """Sets owner and mode, and syncs the file to disk. Called before the rename."""
        file.flush()
        set_owner(file.fileno(), self.owner)
        os.fchmod(file.fileno(), self._mode(mode))
        os.fsync(file.fileno())

    def rename(self, part: Part) -> None:
        """Renames the hidden file to its final name atomically, and syncs the directory."""
        self.require_there()
        try:
            os.rename(part.hidden.secret, self.name, src_dir_fd=part.directory, dst_dir_fd=self.directory)
        except OSError as error:
            # The hidden name is gone after the rename.
            raise OSError(error.errno, error.strerror, os.fspath(self.file)) from error
        if not self.is_still(self.name, part.file):
            raise RefusedPath(f"another process replaced {self.name!r} while it was put in place")
        os.fsync(self.directory)
        self.require_there()

    def require_there(self) -> None:
        """Raises DirectoryMoved if the path no longer leads to the open directory."""
        if not leads_to(self.path, self.directory):
            raise DirectoryMoved(
                f"{str(self.path)!r} was moved or replaced while the file was delivered: find out by whom, then redrive"
            )

    def _mode(self, wanted: int | None) -> int:
        """Returns the mode for the new file: the requested mode, else the mode of the file that it replaces, else the
        default.

        The new content must not be readable by more users than the old content was."""
        if wanted is not None:
            return wanted
        try:
            found = os.stat(self.name, dir_fd=self.directory, follow_symlinks=False)
            if not stat.S_ISREG(found.st_mode):
                pointed = os.stat(self.name, dir_fd=self.directory)
                return pointed.st_mode & DEFAULT_MODE if stat.S_ISREG(pointed.st_mode) else DEFAULT_MODE
            directory = os.fstat(self.directory)
        except OSError:
            return DEFAULT_MODE
        # Another user must not be able to choose this file's mode: with a file of their own, a hard link to a file of
        # the owner, or a file that they moved here.
        others = Trust(frozenset({0, os.geteuid(), self.owner[0]}), frozenset({0}), enforced=True)
        chosen = found.st_uid != self.owner[0] or found.st_nlink != 1
        chosen = chosen or others.others_may_write(self.directory, directory)
        return found.st_mode & (PERMISSIONS & ~WRITABLE_BY_OTHERS if chosen else PERMISSIONS)


def has_content(
    file: BinaryIO, signature: str, size: int | None, throttle: Callable[[int], None] = lambda _count: None
) -> bool:
    """Returns whether the file has this SHA-256 and size.

    Reads at most `size` bytes, so that the file's owner cannot delay the check with a sparse file or a growing file."""
    descriptor = file.fileno()
    if size is None or os.fstat(descriptor).st_size != size:
        return False
    with contextlib.suppress(OSError):
        if os.lseek(descriptor, 0, os.SEEK_HOLE) < size:
            return False
    digest = hashlib.sha256()
    for chunk in _chunks(file, size):
        throttle(len(chunk))
        digest.update(chunk)
    return digest.hexdigest() == signature.lower()


def _chunks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yields the first `size` bytes of the file in chunks."""
    file.seek(0)
    while size > 0 and (chunk := file.read(min(CHUNK, size))):
        size -= len(chunk)
        yield chunk


def copy_verified(source: BinaryIO, part: BinaryIO, signature: str, size: int) -> bool:
    """Copies a file into the part file; returns False and empties the part file if the copy has another SHA-256."""
    digest = hashlib.sha256()
    part.seek(0)
    part.truncate()
    for chunk in _chunks(source, size):
        digest.update(chunk)
        part.write(chunk)
    part.flush()
    if digest.hexdigest() == signature.lower():
        return True
    part.seek(0)
    part.truncate()
    return False


@contextlib.contextmanager
def open_place(fence: Fence, directory: str, name: str, owner: Owner, container: str = "") -> Iterator[Place]:
    """Checks file name, owner, directory and permits; then opens the directory, which is created if necessary."""
    if not name or name in {".", ".."} or "/" in name or "\0" in name:
        raise RefusedPath(f"{name!r} is not a file name")
    require_chown(owner)
    with fence.opened(directory, container, on_created=lambda descriptor: set_owner(descriptor, owner)) as (
        opened,
        path,
    ):
        yield Place(opened, path, name, owner)


@dataclass(frozen=True)
class PathOrder:
    """Decides whether content may replace a file. It may if the journal has no newer content for the path.

    The caller must hold the lock of the path."""

    journal: Journal

    def require_newest(self, transfer: Transfer, place: Place) -> Applied | None:
        """Returns the content that was applied last; None if the journal has none.

        Raises Superseded if the last applied content is newer than this transfer's, or may be newer."""
        applied, sequence = self.journal.applied(place.file), transfer.get("sequence")
        if applied and sequence is not None and applied.sequence > sequence:
            raise superseded(applied)
        self.require_known(transfer, place, applied)
        return applied

    def require_known(self, transfer: Transfer, place: Place, applied: Applied | None) -> None:
        """Raises Superseded if the journal was lost, and the file was changed after the transfer was requested."""
        sequence = transfer.get("sequence")
        if applied is not None or sequence is None or sequence >= self.journal.lost_at * 1000:
            return
        if place.changed_at() * 1000 > sequence:
            raise Superseded(
                "the agent's journal was lost, and the file here changed after this content was requested: "
                "redrive the Job with --status Superseded --force if it is to be replaced"
            )

    def apply(self, transfer: Transfer, place: Place, previous: Applied | None, replace: Callable[[], None]) -> None:
        """Records the content in the journal, then calls `replace`.

        The journal comes first, so that older content is refused even after a crash between the two steps."""
        sequence = transfer.get("sequence")
        if sequence is None:
            replace()
            return
        wanted = Applied(sequence, transfer["signature"].lower())
        if previous != wanted:
            self.journal.apply(place.file, wanted)
        try:
            replace()
        except (OSError, DirectoryMoved):
            if previous != wanted:
                self.journal.apply(place.file, previous)
            raise


def superseded(applied: Applied) -> Superseded:
    """Returns the Superseded error that names the newer content."""
    return Superseded(
        f"superseded by newer content of this path: sequence {applied.sequence}, SHA-256 {applied.signature}"
    )


log = logging.getLogger("tidegate.agent")


class Partials:
    """Part files of interrupted downloads, kept for the next attempt up to an age and a total size."""

    def __init__(
        self,
        journal: Journal,
        fence: Fence,
        *,
        seconds: float = 24 * 3600.0,
        most_bytes: int = 10 * 1024**3,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._journal = journal
        self._fence = fence
        self._seconds = seconds
        self._most_bytes = most_bytes
        self._now = now
        self._locks = PathLocks()
        self._guard = threading.Lock()
        self._in_use: set[Path] = set()

    @contextlib.contextmanager
    def opened(
        self, place: Place, salt: Sequence[str], cancelled: Callable[[], bool] = lambda: False, patience: float = 120.0
    ) -> Iterator[Part]:
        """Opens the part file for this content and path. It has the bytes that an earlier transfer left.

        While the block runs, `sweep` does not delete the part file. If another transfer uses the part file, waits for
        that transfer, and raises Stalled after `patience` seconds."""
        content = place.path / hashlib.sha256("/".join((place.name, *salt)).encode()).hexdigest()[:24]
        give_up_at = time.monotonic() + patience

        def while_waiting() -> None:
            if cancelled():
                raise Cancelled
            if time.monotonic() > give_up_at:
                raise Stalled(f"another delivery of this file to {str(place.path)!r} runs for {patience:.0f} s")

        with self._locks.hold(content, while_waiting), contextlib.ExitStack() as held:
            part = None
            if found := self._journal.part(content):
                held.enter_context(self.using(found.path))
                # Recorded again, so that its age counts from now.
                self._journal.part_opened(found, content)
                part = held.enter_context(open_hidden(place.directory, found))
                if part is None:
                    # An empty directory if the agent was killed, or something that a user put in its place.
                    with contextlib.suppress(OSError):
                        remove_hidden(place.directory, found)
                    self._journal.part_closed(found.path)
            if part is None:
                hidden = new_hidden(place.path)
                held.enter_context(self.using(hidden.path))
                # Recorded before it is created: a crash leaves no unknown file.
                self._journal.part_opened(hidden, content)
                part = held.enter_context(create_hidden(place.directory, hidden))
            yield part

    @contextlib.contextmanager
    def using(self, path: Path) -> Iterator[None]:
        """Protects this part file from `sweep` while the block runs."""
        with self._guard:
            self._in_use.add(path)
        try:
            yield
        finally:
            with self._guard:
                self._in_use.discard(path)

    def discard(self, place: Place, part: Part) -> None:
        """Deletes a part file that was not renamed, and its record. If that fails, `sweep` deletes it later."""
        with contextlib.suppress(OSError):
            # Use the descriptor, because a user may have moved the directory: root's data must not stay in it.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part.hidden.secret, dir_fd=part.directory)
            remove_hidden(place.directory, part.hidden)
            self._journal.part_closed(part.hidden.path)

    def sweep(self) -> int:
        """Deletes part files that are too old, then the oldest ones until the rest fits.
        Returns how many were deleted."""
        now, removed = self._now(), 0
        kept: list[tuple[HiddenFile, int]] = []
        for part, since in self._journal.parts():
            size = _size(part)
            # A time in the future means that the clock was set back: treat the file as old.
            expired = size is None or not 0 <= now - since <= self._seconds
            if expired and self._remove(part):
                removed += 1
            else:
                kept.append((part, size or 0))
        total = sum(size for _, size in kept)
        for part, size in kept:
            if total <= self._most_bytes:
                break
            if self._remove(part):
                removed += 1
                total -= size
        return removed

    def total_bytes(self) -> int:
        return sum(_size(part) or 0 for part, _ in self._journal.parts())

    def _remove(self, part: HiddenFile) -> bool:
        with self._guard:
            if part.path in self._in_use:
                return False
            try:
                self._fence.remove(part)
            except OSError as error:
                # Continue with the others; the next sweep tries this one again.
                log.warning("the part file %s cannot be removed: %s", part.path, error)
                return False
            self._journal.part_closed(part.path)
            return True


def _size(part: HiddenFile) -> int | None:
    try:
        return (part.path / part.secret).lstat().st_size
    except OSError:
        return None
