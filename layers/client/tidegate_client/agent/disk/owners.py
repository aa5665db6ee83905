"""Owners of files: a user of the host, or of the container that the file is for."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

from tidegate_client.agent.disk.directories import opened_beneath, resolve_inside
from tidegate_client.agent.refusals import RefusedOwner, RefusedPath

Owner = tuple[int, int]
ROOT: Owner = (0, 0)
CAP_CHOWN = 1 << 0
LARGEST_PASSWD = 4 * 1024 * 1024


def owner_on_host(user: str) -> Owner:
    """The ids of a user of this host; RefusedOwner if there is none."""
    try:
        entry = pwd.getpwnam(user)
    except (KeyError, ValueError) as error:
        raise RefusedOwner(f"there is no user {user!r} on this host; create it or name another") from error
    return entry.pw_uid, entry.pw_gid


def owner_in_container(root: Path, user: str) -> Owner:
    """The ids of a user in the container's own /etc/passwd, where they differ from the host's.

    `root` needs no entry. RefusedOwner if there is no such user."""
    for line in _passwd(root).splitlines():
        fields = line.split(":")
        if len(fields) >= 4 and fields[0] == user and fields[2].isdigit() and fields[3].isdigit():
            return int(fields[2]), int(fields[3])
    if user == "root":
        return ROOT
    raise RefusedOwner(f"there is no user {user!r} in this container's /etc/passwd; create it or name another")


def _passwd(root: Path) -> str:
    try:
        real_root = root.resolve()
        with opened_beneath(real_root, resolve_inside(real_root, "/etc")) as directory:
            descriptor = os.open("passwd", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
            with os.fdopen(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    return ""
                return file.read(LARGEST_PASSWD).decode(errors="replace")
    except (OSError, RefusedPath):
        return ""


def require_chown(owner: Owner) -> None:
    """RefusedOwner if this process may not give files to that owner. Checked before the download starts."""
    if owner[0] != os.geteuid() and not _may_chown():
        raise RefusedOwner(
            f"the agent cannot give files to uid {owner[0]}, because it runs as uid {os.geteuid()}: "
            "run it as root or with CAP_CHOWN"
        )


def set_owner(descriptor: int, owner: Owner) -> None:
    """Sets the owner. RefusedOwner if that is not permitted: the file must not belong to another user."""
    try:
        os.fchown(descriptor, *owner)
    except PermissionError as error:
        raise RefusedOwner(f"the file cannot be given to uid {owner[0]}, gid {owner[1]}: {error.strerror}") from error


def _may_chown() -> bool:
    if os.geteuid() == 0:
        return True
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return False
    effective = next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) & CAP_CHOWN)
