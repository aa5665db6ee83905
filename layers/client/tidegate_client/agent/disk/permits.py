"""Limits that this host sets, whatever the API asks for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidegate_client.agent.disk.directories import resolve_inside
from tidegate_client.agent.refusals import RefusedOwner, RefusedPath


@dataclass(frozen=True, slots=True)
class Permits:
    """Permitted directories, relative to the root (or the container's root), and users. Empty: all are permitted."""

    directories: tuple[str, ...] = ()
    users: frozenset[str] = frozenset()

    def check_user(self, user: str) -> None:
        if self.users and user not in self.users:
            raise RefusedOwner(
                f"this host accepts no files for user {user!r}: its agent was started with --allow-user for other users"
            )

    def check_directory(self, root: Path, real: Path) -> None:
        """RefusedPath unless `real` is below a permitted directory. Both are resolved, so symlinks do not matter."""
        if not self.directories:
            return
        if not any(real.is_relative_to(resolve_inside(root, allowed)) for allowed in self.directories):
            raise RefusedPath(
                f"this host accepts no files in {str(real)!r}: its agent was started with --allow-dir for others"
            )
